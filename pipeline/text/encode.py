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
from itertools import chain, islice
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
    MANIFEST_FILE,
    TASKS_FOLDER,
    TRAIN_FOLDER,
    EvaluationDocument,
    TokenizedData,
    count_tokens,
    made_by,
    read_manifest,
    task_folder,
    training_token_counts,
    write_data_folder,
    write_token_counts,
)
from pipeline.text.sources import Document, Source, documents_or_reasons
from pipeline.text.tokenizer import DocumentTokenizer

UNFINISHED_FILE = "unfinished.json"
DOCUMENTS_PER_BATCH = 256
Sorted = tuple[Document | str, bool]
"""A document, or why it is left out; and whether it evaluates."""


class PackedShardWriter:
    """Writes documents one after another, each followed by EOS, into part-00000.npy, part-00001.npy, etc.

    A part ends with the document that fills it, so that no document is divided; it is held in memory until
    then. Documents [5, 6] and [7] with EOS 0 are the integers 5 6 0 7 0. Call `flush` at the end.
    """

    def __init__(
        self,
        folder: Path,
        token_dtype: np.dtype,
        eos_token_id: int,
        tokens_per_part: int,
        whole_parts: Sequence[Path] = (),
    ) -> None:
        """Begin behind `whole_parts`, which an interrupted run has written."""
        self._folder = folder
        self._dtype = token_dtype.newbyteorder("<")
        self._eos = np.array([eos_token_id], dtype=self._dtype).tobytes()
        self._bytes_per_part = tokens_per_part * token_dtype.itemsize
        self._part = bytearray()
        self.num_tokens = sum(path.stat().st_size for path in whole_parts) // token_dtype.itemsize
        """Tokens taken so far, EOS included."""
        self.paths = list(whole_parts)
        """The parts that are whole."""

    def add(self, token_ids: np.ndarray) -> list[Path]:
        """Take one document's token IDs, without EOS; the part that this fills, if any."""
        # Bytes, not a list of arrays: what is held is what is written, 2 bytes a token for uint16.
        self._part += token_ids.astype(self._dtype, copy=False).tobytes() + self._eos
        self.num_tokens += len(token_ids) + 1
        return self.flush() if len(self._part) >= self._bytes_per_part else []

    def flush(self) -> list[Path]:
        """Write the part that is not full, if any."""
        if not self._part:
            return []
        path = self._folder / f"part-{len(self.paths):05d}.npy"
        write_bytes(path, self._part)
        self.paths.append(path)
        self._part.clear()
        return [path]


def evaluates(document_id: str, fraction: float, seed: int) -> bool:
    """Whether a document is of the evaluation split: by seed and content, whatever else is in the source."""
    # Hashed anew: the IDs order evaluation documents, and the split must not depend on that order.
    digest = sha256(f"{seed}:{document_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def encoded(tokenizer: DocumentTokenizer, items: Iterator[Sorted]) -> Iterator[tuple[Sorted, np.ndarray]]:
    """Items in order with their token IDs, encoded by batches on all cores; those left out have none."""
    while batch := list(islice(items, DOCUMENTS_PER_BATCH)):
        texts = [item.text if isinstance(item, Document) else "" for item, _ in batch]
        yield from zip(batch, tokenizer.encode(texts), strict=True)


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
        skip_malformed = self._settings["skip_malformed"]
        evaluation: set[str] = set()
        # Every task reads them, as each must leave them out of its own training text.
        for item in documents_or_reasons(self.evaluation_sources, skip_malformed=skip_malformed):
            if isinstance(item, Document):
                is_repeated = item.document_id in evaluation
                evaluation.add(item.document_id)
                item = "duplicate" if is_repeated else item
            if self.task.index == 0:
                yield item, True
            if len(evaluation) == self._settings["max_evaluation_documents"]:
                break
        if self.evaluation_sources and not evaluation:
            raise InputError(f"no evaluation documents: {self.evaluation_sources[0].name} holds no text")
        fraction = self._settings["evaluation_fraction"] or 0.0
        limit = self.limit("max_documents")
        seen: set[int] = set()
        num_train = 0
        documents = documents_or_reasons(self.sources, skip_malformed=skip_malformed)
        while num_train != limit and (document := next(documents, None)):
            if isinstance(document, str):
                yield document, False
                continue
            number = int(document.document_id, 16)  # a third of the string's memory
            # A repetition is no new document, whatever split it is of, so it is asked first.
            if number in seen:
                yield "duplicate", False
            elif document.document_id in evaluation:
                yield "in_evaluation_source", False
            elif evaluates(document.document_id, fraction, self._settings["seed"]):
                yield document, True
            else:
                num_train += 1
                if num_train > num_written:
                    yield document, False
            seen.add(number)

    def training_texts(self, num_characters: int) -> Iterator[str]:
        """The first texts that train, whole ones, for a tokenizer to be trained on."""
        for item, is_evaluation in self._documents():
            if isinstance(item, Document) and not is_evaluation:
                yield item.text
                num_characters -= len(item.text)
                if num_characters <= 0:  # a hub stream has no end
                    return

    def unfinished(self) -> dict[str, Any] | None:
        """The record of an interrupted run: its whole `files`, and counts of what is `trained` there.

        One of another configuration is refused. None if nothing has begun.
        """
        (self.folder / MANIFEST_FILE).unlink(missing_ok=True)  # what it names is written anew
        record = read_record(self.folder / UNFINISHED_FILE)
        if record is not None:
            refuse_changes(
                f"{self.folder} holds unfinished data",
                made_by(record),
                made_by(self.configuration),
                "--out folder, or remove it",
            )
        return record

    def write(
        self,
        tokenizer: DocumentTokenizer,
        unfinished: Mapping[str, Any] | None,
        advance: Callable[[int], object],
    ) -> dict[str, Any]:
        """Encode and write everything that is not in `unfinished`; the manifest, which is written last.

        `advance` is called with the number of training tokens written since the last call.
        """
        record = {**self.configuration, "files": {}, "trained": {}, **(unfinished or {})}
        trained = Counter[str](record["trained"])
        others = Counter[str]()
        sample: dict[str, EvaluationDocument] = {}
        max_evaluation = self._settings["max_evaluation_documents"]
        max_tokens = self.limit("max_tokens")
        writer = PackedShardWriter(
            self.folder / TRAIN_FOLDER,
            tokenizer.token_dtype,
            tokenizer.eos_token_id,
            self._settings["tokens_per_part"],
            [self.folder / name for name in record["files"] if name.endswith(".npy")],
        )
        advance(writer.num_tokens)
        # Documents that gave no tokens are included: they pass by among those that train.
        num_written = trained["train_documents"] + trained["empty"]
        for (item, is_evaluation), token_ids in encoded(tokenizer, self._documents(num_written)):
            if isinstance(item, str):
                others[item] += 1
                continue
            counts = others if is_evaluation else trained
            size = len(token_ids) + 1
            if size == 1:
                counts["empty"] += 1
                continue
            # The first that does not fit is the end, though a shorter one might fit: what trains is a
            # beginning of the source.
            if not is_evaluation and max_tokens is not None and writer.num_tokens + size > max_tokens:
                break
            counts["control_tokens"] += tokenizer.num_control_tokens(item.text)
            if is_evaluation:
                sample[item.document_id] = EvaluationDocument(item.document_id, token_ids, item.url)
                # At twice the number, so that sorting stays rare.
                if len(sample) > 2 * max_evaluation:  # memory is for those that may stay
                    counts["beyond_max_evaluation_documents"] += len(sample) - max_evaluation
                    sample = dict(sorted(sample.items())[:max_evaluation])
            else:
                counts["train_documents"] += 1
                advance(size)
                if part := writer.add(token_ids):
                    # First the part, then the record: a kill in between has the same part written again.
                    record["files"] |= describe_files(self.folder, part)
                    write_json(self.folder / UNFINISHED_FILE, record | {"trained": trained})
        # A part of an interrupted run was described when it was written: a bit flipped since is noticed.
        record["files"] |= describe_files(self.folder, writer.flush())
        tally = trained + others
        tokenizer.warn_of_control_tokens(tally["control_tokens"])
        tally["train_tokens"] = writer.num_tokens
        counts_V = count_tokens(writer.paths, tokenizer)
        return _finish(
            self.folder, sample, record["files"], tally, counts_V, tokenizer, self.configuration, self.task
        )


def _finish(
    folder: Path,
    sample: Mapping[str, EvaluationDocument],
    files: Mapping[str, Any],
    counts: Counter[str],
    counts_V: np.ndarray,
    tokenizer: DocumentTokenizer,
    configuration: Mapping[str, Any],
    task: Task,
) -> dict[str, Any]:
    """Write what stands beside the training files, the manifest last.

    Data that cannot both train and evaluate are refused; but a task may miss a part that others have.
    """
    # The smallest IDs: these are hashes, so a random sample, the same in whatever order they came.
    max_evaluation = configuration["settings"]["max_evaluation_documents"]
    documents = [sample[document_id] for document_id in sorted(sample)[:max_evaluation]]
    counts["beyond_max_evaluation_documents"] += len(sample) - len(documents)
    for part, number in {"train": counts["train_documents"], "evaluation": len(documents)}.items():
        if task.is_whole and not number:
            reasons = ("empty", "malformed", "duplicate", "in_evaluation_source")
            left_out = ", ".join(f"{counts[reason]} {reason}" for reason in reasons)
            raise InputError(
                f"no document of --source is left for the part {part} (left out: {left_out}); give more text,"
                " a larger limit, or another --evaluation-fraction or --evaluation-source"
            )
    token_counts = describe_files(folder, [write_token_counts(folder, counts_V)])
    return write_data_folder(
        folder, documents, {**files, **token_counts}, tokenizer, configuration, counts, "tokenize_c4"
    )


def refuse_other_tasks(out: Path, configuration: Mapping[str, Any]) -> None:
    """Refuse to add a task's part to those of another tokenizer, of other settings or of another division."""
    # All tasks agree with one another, as each was checked so: one finished and one begun stand for them.
    for name in (MANIFEST_FILE, UNFINISHED_FILE):
        paths = chain([out / MANIFEST_FILE], (out / TASKS_FOLDER).glob(f"*/{name}"))
        if record := next(filter(None, map(read_record, paths)), None):
            now = made_by(configuration, is_shared=True)
            refuse_changes(f"{out} holds tasks", made_by(record, is_shared=True), now, "--out folder")


def merge_tasks(out: Path) -> dict[str, Any]:
    """Write the manifest, the evaluation documents and the tokenizer of all tasks in `out`.

    Returns the manifest. Missing tasks are refused, and those made otherwise than others.
    """
    begun = sorted((out / TASKS_FOLDER).glob("*-of-*"))
    if not begun:
        raise InputError(f"no tasks in {out}; run pipeline/tokenize_c4.py with --num-tasks first")
    # Tasks of another number would be refused where they begin, so any folder's name says it.
    num_tasks = int(begun[0].name.partition("-of-")[2])
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
    source: list[Any] = []
    files: dict[str, Any] = {}
    counts_V = np.zeros(tasks[0].vocabulary_size, dtype=np.int64)
    for task in tasks:
        now = made_by(task.manifest, is_shared=True)
        refuse_changes(f"{task.folder} holds a task", made_by(first, is_shared=True), now, "--out for one")
        counts.update(task.manifest["counts"])
        for document in task.evaluation_documents():
            counts["duplicate"] += document.document_id in found
            # Tasks do not see one another's text, so repetitions across tasks show here only.
            found[document.document_id] = document
        source += task.manifest["inputs"]["source"]
        for path in task.train_paths:
            of_task = task.manifest["files"][path.relative_to(task.folder).as_posix()]
            files[path.relative_to(out).as_posix()] = of_task
        counts_V += training_token_counts(task)
    configuration = {
        "settings": first["settings"],
        "inputs": {**first["inputs"], "source": source},
        "c4_revision": first["c4_revision"],
    }
    return _finish(out, found, files, counts, counts_V, tasks[0].tokenizer(), configuration, Task())
