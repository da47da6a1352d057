"""Text to a folder of training tokens and evaluation documents: split, encoded, packed, gone on with, merged.

What comes out, and how tasks share it: pipeline/tokenize_c4.py.

An interrupted run leaves its whole training files and, in unfinished.json, how far they reach. The same
command reads the text from its start once more, for what trains depends on all that came before; but it
encodes only documents that evaluate, and those behind the last whole training file.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.cli import InputError
from pipeline.results.files import (
    Task,
    describe_files,
    read_record,
    refuse_changes,
    write_bytes,
    write_json,
)
from pipeline.text.folder import (
    TASKS_FOLDER,
    TRAIN_FOLDER,
    EvaluationDocument,
    TokenizedData,
    made_by,
    read_manifest,
    task_folder,
    write_data_folder,
)
from pipeline.text.sources import Document, Source, read_documents
from pipeline.text.tokenizer import EOS_TOKENS, DocumentTokenizer

UNFINISHED_FILE = "unfinished.json"
DOCUMENTS_PER_BATCH = 256
TRAINS = "train_documents"
EVALUATES = "evaluation_documents"
Sorted = tuple[Document, str]
"""A document and what becomes of it: `TRAINS`, `EVALUATES`, or why it is left out, by the names of counts."""


def evaluates(document_id: str, fraction: float, seed: int) -> bool:
    """Whether a document is of the evaluation split: by seed and content, whatever else is in the source."""
    # Hashed anew: the IDs order evaluation documents, and the split must not depend on that order.
    digest = sha256(f"{seed}:{document_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def encoded(tokenizer: DocumentTokenizer, items: Iterator[Sorted]) -> Iterator[tuple[Sorted, np.ndarray]]:
    """Items in order with their token IDs, encoded by batches on all cores."""
    while batch := list(islice(items, DOCUMENTS_PER_BATCH)):
        yield from zip(batch, tokenizer.encode([document.text for document, _ in batch]), strict=True)


@dataclass(frozen=True)
class Tokenization:
    """One run of tokenize_c4: its input and its output.

    The sources are the task's own. Those for evaluation are the same for all tasks, which all leave them
    out of training; task 0 writes them. `configuration` has `settings`, `inputs` and `c4_revision` as in the
    manifest: its limits are those of the whole, not the task's.
    """

    folder: Path
    task: Task
    sources: Sequence[Source]
    evaluation_sources: Sequence[Source]
    configuration: dict[str, Any]

    @property
    def _settings(self) -> Mapping[str, Any]:
        return self.configuration["settings"]

    def limit(self, name: str) -> int | None:
        """The task's part of `max_documents` or `max_tokens`, EOS included: of training, at most."""
        limit = self._settings[name]
        # 10 documents in three tasks: 3, 3 and 4.
        return None if limit is None else len(self.task.run_of(range(limit)))

    def _documents(self, num_written: int = 0) -> Iterator[Sorted]:
        """Every document in order, those of the evaluation source first, in task 0.

        The first `num_written` that train are passed over; the last is that of --max-documents.
        """
        evaluation: set[str] = set()
        # Every task reads them, as each must leave them out of its own training text.
        for document in read_documents(self.evaluation_sources):
            if self.task.index == 0:
                yield document, "duplicate" if document.document_id in evaluation else EVALUATES
            evaluation.add(document.document_id)
            if len(evaluation) == self._settings["max_evaluation_documents"]:
                break
        if self.evaluation_sources and not evaluation:
            raise InputError(f"no evaluation documents: {self.evaluation_sources[0].name} holds no text")
        fraction = self._settings["evaluation_fraction"] or 0.0
        limit = self.limit("max_documents")
        seen: set[int] = set()
        num_train = 0
        for document in read_documents(self.sources):
            if num_train == limit:
                return
            number = int(document.document_id, 16)  # a third of the string's memory
            # A repetition is no new document, whatever split it is of, so it is asked first.
            if number in seen:
                yield document, "duplicate"
            elif document.document_id in evaluation:
                yield document, "in_evaluation_source"
            elif evaluates(document.document_id, fraction, self._settings["seed"]):
                yield document, EVALUATES
            else:
                num_train += 1
                if num_train > num_written:
                    yield document, TRAINS
            seen.add(number)

    def training_texts(self, num_characters: int) -> Iterator[str]:
        """The first texts that train, whole ones, for a tokenizer to be trained on."""
        for document, what in self._documents():
            if what == TRAINS:
                yield document.text
                num_characters -= len(document.text)
                if num_characters <= 0:  # a hub stream has no end
                    return

    def write(self, tokenizer: DocumentTokenizer, advance: Callable[[int], object]) -> dict[str, Any]:
        """Encode and write all that an interrupted run has not written; the manifest, which is written last.

        Training documents stand one after another, each followed by EOS, in train/part-00000.npy and so on:
        [5, 6] and [7] with EOS 0 are the integers 5 6 0 7 0. A part ends with the document that fills it, so
        that no document is divided; it is held in memory until then. `advance` is called with the number of
        training tokens written since the last call.
        """
        if tokenizer.eos_token_id is None:
            raise InputError(
                f"{tokenizer.name} has no token {' or '.join(EOS_TOKENS)} to end a document; name the one"
                " that it has with --eos-token"
            )
        record = {**self.configuration, "files": {}, TRAINS: 0}
        begun = read_record(self.folder / UNFINISHED_FILE) or record
        refuse_changes(
            f"{self.folder} holds unfinished data",
            made_by(begun),
            made_by(self.configuration),
            "--out folder, or remove it",
        )
        files = dict(begun["files"])
        counts = Counter[str]({TRAINS: begun[TRAINS]})
        dtype = tokenizer.token_dtype.newbyteorder("<")
        eos = np.array([tokenizer.eos_token_id], dtype).tobytes()
        part = bytearray()
        num_tokens = sum(whole["bytes"] for whole in files.values()) // dtype.itemsize
        advance(num_tokens)
        max_tokens = self.limit("max_tokens")
        sample: dict[str, EvaluationDocument] = {}
        for (document, what), token_ids in encoded(tokenizer, self._documents(begun[TRAINS])):
            size = len(token_ids) + 1
            # The first that does not fit is the end, though a shorter one might fit: what trains is a
            # beginning of the source.
            if what == TRAINS and max_tokens is not None and num_tokens + size > max_tokens:
                break
            counts[what] += 1
            if what == EVALUATES:
                kept = EvaluationDocument(document.document_id, token_ids, document.url)
                sample[kept.document_id] = kept
            elif what == TRAINS:
                # Bytes, not a list of arrays: what is held is what is written, 2 bytes a token for uint16.
                part += token_ids.astype(dtype).tobytes() + eos
                num_tokens += size
                advance(size)
                if len(part) >= self._settings["tokens_per_part"] * dtype.itemsize:
                    self._write_part(part, files)
                    # First the part, then the record: a kill in between has the same part written again.
                    record |= {"files": files, TRAINS: counts[TRAINS]}
                    write_json(self.folder / UNFINISHED_FILE, record)
        if part:
            self._write_part(part, files)
        counts["train_tokens"] = num_tokens
        return _finish(self.folder, sample, files, counts, tokenizer, self.configuration, self.task.is_whole)

    def _write_part(self, part: bytearray, files: dict[str, Any]) -> None:
        """Write the next part, add it to `files` as the manifest describes it, and empty it.

        Described now, a bit that flips until the run is finished is noticed.
        """
        path = self.folder / TRAIN_FOLDER / f"part-{len(files):05d}.npy"
        write_bytes(path, part)
        files |= describe_files(self.folder, [path])
        part.clear()


def _finish(
    folder: Path,
    sample: Mapping[str, EvaluationDocument],
    files: Mapping[str, Any],
    counts: Mapping[str, int],
    tokenizer: DocumentTokenizer,
    configuration: Mapping[str, Any],
    is_whole: bool,
) -> dict[str, Any]:
    """Write what stands beside the training files, the manifest last.

    Data that cannot both train and evaluate are refused; but a task may miss a part that others have.
    """
    # The smallest IDs: these are hashes, so a random sample, the same in whatever order they came.
    max_evaluation = configuration["settings"]["max_evaluation_documents"]
    documents = [sample[name] for name in sorted(sample)[:max_evaluation]]
    for part, number in {"train": counts[TRAINS], "evaluation": len(documents)}.items():
        if is_whole and not number:
            raise InputError(
                f"no document of --source is left for the part {part}; give more text, a larger limit, or"
                " another --evaluation-fraction or --evaluation-source"
            )
    return write_data_folder(folder, documents, files, tokenizer, configuration, counts, "tokenize_c4")


def merge_tasks(out: Path) -> dict[str, Any]:
    """Write the manifest, the evaluation documents and the tokenizer of all tasks in `out`.

    Returns the manifest. Missing tasks are refused, and those made otherwise than others.
    """
    # 00003-of-00128
    divisions = {int(folder.name[-5:]) for folder in (out / TASKS_FOLDER).glob("*-of-*")}
    if len(divisions) != 1:
        raise InputError(
            f"{out} holds tasks of --num-tasks {' and '.join(map(str, sorted(divisions))) or 'no number'};"
            " run pipeline/tokenize_c4.py with one, and remove the folders of another"
        )
    (num_tasks,) = divisions
    folders = [task_folder(out, Task(index, num_tasks)) for index in range(num_tasks)]
    missing = [index for index, folder in enumerate(folders) if read_manifest(folder) is None]
    if missing:
        raise InputError(
            f"{out} misses {len(missing)} of {num_tasks} tasks: --task-index {', '.join(map(str, missing))};"
            " run these, then --merge again"
        )
    tasks = [TokenizedData.open(folder) for folder in folders]
    first = tasks[0].manifest
    counts = Counter[str]()
    found: dict[str, EvaluationDocument] = {}
    files: dict[str, Any] = {}
    for task in tasks:
        now = made_by(task.manifest, is_shared=True)
        refuse_changes(f"{task.folder} holds a task", made_by(first, is_shared=True), now, "--out for one")
        counts.update(task.manifest["counts"])
        for document in task.evaluation_documents():
            counts["duplicate"] += document.document_id in found
            # Tasks do not see one another's text, so repetitions across tasks show here only.
            found[document.document_id] = document
        files |= {
            (task.folder / name).relative_to(out).as_posix(): file
            for name, file in task.manifest["files"].items()
            if name.endswith(".npy")
        }
    configuration = {
        "settings": first["settings"],
        "inputs": {
            **first["inputs"],
            "source": [file for task in tasks for file in task.manifest["inputs"]["source"]],
        },
        "c4_revision": first["c4_revision"],
    }
    return _finish(out, found, files, counts, tasks[0].tokenizer(), configuration, is_whole=True)
