"""Text to a folder of training tokens and evaluation documents: split, encoded, packed, gone on with, merged.

What comes out, and how tasks share it: pipeline/tokenize_c4.py. The tokenizer encodes one batch of documents
on all cores while another thread reads and sorts the next one.

An interrupted run leaves its whole training files and, in unfinished.json, how far they reach. The same
command reads the text from its start once more, for what trains depends on all that came before; but it
encodes only documents that evaluate, and those behind the last whole training file.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

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
    TOKENIZER_FILE,
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
from pipeline.text.sources import Document, Source, documents_or_reasons, read_documents
from pipeline.text.tokenizer import DocumentTokenizer

UNFINISHED_FILE = "unfinished.json"
DOCUMENTS_PER_BATCH = 256
_WRITTEN = "written"
"""Kind of a document that trains and that an interrupted run has written."""
_ENCODED = ("train", "evaluation")
Item = TypeVar("Item")


@dataclass
class Split:
    """Sorts the documents of a source, one after another from its start."""

    evaluation_fraction: float
    """Share of documents that evaluate; 0 if they come from a source of their own, 1 of that source."""
    seed: int = 0
    evaluation_ids: frozenset[str] = frozenset()
    """Documents that evaluate already: left out of training."""
    _seen: set[int] = field(default_factory=set)

    def kind_of(self, document_id: str) -> str:
        """Sort the next document: "train", "evaluation", or why it is left out."""
        number = int(document_id, 16)
        if number in self._seen:
            return "duplicate"
        self._seen.add(number)
        if document_id in self.evaluation_ids:
            return "in_evaluation_source"
        # By seed and content alone, whatever else is in the source.
        digest = sha256(f"{self.seed}:{document_id}".encode()).digest()
        is_evaluation = int.from_bytes(digest[:8], "big") < self.evaluation_fraction * 2**64
        return "evaluation" if is_evaluation else "train"


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

    def add(self, token_ids: np.ndarray) -> None:
        """Take one document's token IDs, without EOS; ends a part when that is full."""
        self._part += token_ids.astype(self._dtype, copy=False).tobytes() + self._eos
        self.num_tokens += len(token_ids) + 1
        if len(self._part) >= self._bytes_per_part:
            self.flush()

    def flush(self) -> None:
        """Write the part that is not full, if any."""
        if self._part:
            path = self._folder / f"part-{len(self.paths):05d}.npy"
            write_bytes(path, self._part)
            self.paths.append(path)
            self._part.clear()


def first_by_id(
    documents: Mapping[str, EvaluationDocument], max_documents: int
) -> dict[str, EvaluationDocument]:
    """The documents with the smallest IDs: these are hashes, so a random sample, the same in any order."""
    return dict(sorted(documents.items())[:max_documents])


Encoded = tuple[str, Document | None, np.ndarray | None]


def _sorted_documents(
    documents: Iterator[Document | str], split: Split, limited: str, limit: int | None, num_written: int = 0
) -> Iterator[tuple[str, Document | None]]:
    num_met = 0
    while num_met != limit and (item := next(documents, None)) is not None:
        if isinstance(item, str):
            yield item, None
            continue
        kind = split.kind_of(item.document_id)
        if kind == limited:
            num_met += 1
        yield _WRITTEN if kind == limited and num_met <= num_written else kind, item


def _batches(items: Iterator[Item]) -> Iterator[list[Item]]:
    """Batches of items; another thread makes the next one while this one is used."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(list, islice(items, DOCUMENTS_PER_BATCH))
        while batch := coming.result():
            coming = reader.submit(list, islice(items, DOCUMENTS_PER_BATCH))
            yield batch


def encoded_documents(
    tokenizer: DocumentTokenizer,
    documents: Iterator[Document | str],
    split: Split,
    limited: str = "train",
    limit: int | None = None,
    num_written: int = 0,
) -> Iterator[Encoded]:
    """Yield for each document, in order, its kind, and for one that trains or evaluates its token IDs.

    `documents` are those of `documents_or_reasons`. The end is after `limit` documents of the kind `limited`,
    of which the first `num_written` are of the kind "written" instead, and not encoded.
    """
    for batch in _batches(_sorted_documents(documents, split, limited, limit, num_written)):
        texts = [document.text for kind, document in batch if document is not None and kind in _ENCODED]
        token_ids = iter(tokenizer.encode(texts))
        for kind, document in batch:
            yield kind, document, next(token_ids) if kind in _ENCODED else None


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
        return None if limit is None else len(self.task.run_of(range(limit)))

    @cached_property
    def _evaluation_ids(self) -> frozenset[str]:
        """IDs of the documents of the evaluation source that evaluate."""
        ids: set[str] = set()
        for document in read_documents(
            self.evaluation_sources, skip_malformed=self._settings["skip_malformed"]
        ):
            ids.add(document.document_id)
            if len(ids) == self._settings["max_evaluation_documents"]:
                break
        if self.evaluation_sources and not ids:
            raise InputError(f"no evaluation documents: {self.evaluation_sources[0].name} holds no text")
        return frozenset(ids)

    def _split(self) -> Split:
        """A split that sorts the documents of the source, from its start."""
        if self.evaluation_sources:
            return Split(0.0, evaluation_ids=self._evaluation_ids)
        return Split(self._settings["evaluation_fraction"], self._settings["seed"])

    def training_texts(self, num_characters: int) -> Iterator[str]:
        """The first texts that train, whole ones, for a tokenizer to be trained on."""
        documents = read_documents(self.sources, skip_malformed=self._settings["skip_malformed"])
        texts = _sorted_documents(documents, self._split(), "train", self.limit("max_documents"))
        for kind, document in texts:
            if kind == "train" and document is not None:
                yield document.text
                num_characters -= len(document.text)
                if num_characters <= 0:  # a hub stream has no end
                    return

    def unfinished(self) -> dict[str, Any]:
        """The record of an interrupted run: its whole `files`, and counts of what is `trained` there.

        Another configuration than this is refused.
        """
        (self.folder / MANIFEST_FILE).unlink(missing_ok=True)  # what it names is written anew
        record = read_record(self.folder / UNFINISHED_FILE)
        if record is None:
            return {**self.configuration, "files": {}, "trained": {}}
        what = f"{self.folder} holds unfinished data"
        refuse_changes(what, made_by(record), made_by(self.configuration), "--out folder, or remove it")
        return record

    def note(self, unfinished: dict[str, Any], paths: Iterable[Path]) -> None:
        """Leave the record for the next run, with files that have become whole."""
        unfinished["files"] |= describe_files(self.folder, paths)
        write_json(self.folder / UNFINISHED_FILE, unfinished)

    def write(
        self, tokenizer: DocumentTokenizer, unfinished: dict[str, Any], advance: Callable[[int], object]
    ) -> dict[str, Any]:
        """Encode and write everything that is not in `unfinished`; the manifest, which is written last.

        `advance` is called with the number of training tokens written since the last call.
        """
        trained = Counter[str](unfinished["trained"])
        others = Counter[str]()
        sample: dict[str, EvaluationDocument] = {}
        max_evaluation = self._settings["max_evaluation_documents"]
        max_tokens = self.limit("max_tokens")
        writer = PackedShardWriter(
            self.folder / TRAIN_FOLDER,
            tokenizer.token_dtype,
            tokenizer.eos_token_id,
            self._settings["tokens_per_part"],
            [self.folder / name for name in unfinished["files"] if name != TOKENIZER_FILE],
        )
        advance(writer.num_tokens)
        num_written = trained["train_documents"] + trained["empty"]
        for kind, document, token_ids in self._documents(tokenizer, num_written):
            if document is None or token_ids is None:
                others[kind] += 1
                continue
            counts = trained if kind == "train" else others
            if len(token_ids) == 0:
                counts["empty"] += 1
            elif kind == "evaluation":
                counts += tokenizer.notes(document.text, token_ids)
                counts["met_evaluation_documents"] += 1
                sample[document.document_id] = EvaluationDocument(
                    document.document_id, token_ids, document.url
                )
                if len(sample) > 2 * max_evaluation:  # memory is for those that may stay
                    sample = first_by_id(sample, max_evaluation)
            elif max_tokens is not None and writer.num_tokens + len(token_ids) + 1 > max_tokens:
                break
            else:
                num_whole = len(writer.paths)
                writer.add(token_ids)
                counts += tokenizer.notes(document.text, token_ids)
                counts["train_documents"] += 1
                advance(len(token_ids) + 1)
                if new_paths := writer.paths[num_whole:]:
                    self.note(unfinished | {"trained": trained}, new_paths)
        writer.flush()
        documents = list(first_by_id(sample, max_evaluation).values())
        tally = trained + others
        tokenizer.warn_of(tally)
        tally["train_tokens"] = writer.num_tokens
        tally["beyond_max_evaluation_documents"] = tally["met_evaluation_documents"] - len(documents)
        if self.task.is_whole:  # a task may miss a part that others have
            _refuse_empty_parts(tally, documents)
        # An interrupted run has described its files when it wrote them: a bit flipped since is noticed.
        files = {name: file for name, file in unfinished["files"].items() if name != TOKENIZER_FILE}
        paths = writer.paths[len(files) :]
        if writer.paths:
            paths.append(write_token_counts(self.folder, count_tokens(writer.paths, tokenizer)))
        files |= describe_files(self.folder, paths)
        return write_data_folder(
            self.folder, documents, files, tokenizer, self.configuration, tally, "tokenize_c4"
        )

    def _documents(self, tokenizer: DocumentTokenizer, num_written: int) -> Iterator[Encoded]:
        """Every document that is to be written, encoded, first those of the evaluation source."""
        skip_malformed = self._settings["skip_malformed"]
        if self.task.index == 0:
            documents = documents_or_reasons(self.evaluation_sources, skip_malformed=skip_malformed)
            max_evaluation = self._settings["max_evaluation_documents"]
            yield from encoded_documents(tokenizer, documents, Split(1.0), "evaluation", max_evaluation)
        documents = documents_or_reasons(self.sources, skip_malformed=skip_malformed)
        max_documents = self.limit("max_documents")
        yield from encoded_documents(tokenizer, documents, self._split(), "train", max_documents, num_written)


def _refuse_empty_parts(counts: Mapping[str, int], evaluation: Sequence[EvaluationDocument]) -> None:
    """Refuse data that cannot both train and evaluate; say what was left out."""
    reasons = ("empty", "malformed", "duplicate", "in_evaluation_source")
    left_out = ", ".join(f"{counts[reason]} {reason}" for reason in reasons)
    for part, number in {"train": counts["train_documents"], "evaluation": len(evaluation)}.items():
        if not number:
            raise InputError(
                f"no document of --source is left for the part {part} (left out: {left_out}); give more text,"
                " a larger limit, or another --evaluation-fraction or --evaluation-source"
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
    num_tasks = int(begun[0].name.partition("-of-")[2])
    folders = [task_folder(out, Task(index, num_tasks)) for index in range(num_tasks)]
    manifests = {folder: manifest for folder in folders if (manifest := read_manifest(folder))}
    missing = [index for index, folder in enumerate(folders) if folder not in manifests]
    if missing:
        raise InputError(
            f"{out} misses {len(missing)} of {num_tasks} tasks: --task-index {', '.join(map(str, missing))};"
            " run these, then --merge again"
        )
    first = manifests[folders[0]]
    counts = Counter[str]()
    found: dict[str, EvaluationDocument] = {}
    source: list[Any] = []
    files: dict[str, Any] = {}
    counts_of_tasks: list[np.ndarray] = []
    for folder, manifest in manifests.items():
        now = made_by(manifest, is_shared=True)
        refuse_changes(f"{folder} holds a task", made_by(first, is_shared=True), now, "--out for one")
        data = TokenizedData.open(folder)
        counts.update(manifest["counts"])
        for document in data.evaluation_documents():
            counts["duplicate"] += document.document_id in found
            found[document.document_id] = document
        source += manifest["inputs"]["source"]
        place = folder.relative_to(out).as_posix()
        train = [name for name in manifest["files"] if name.endswith(".npy")]
        files |= {f"{place}/{name}": manifest["files"][name] for name in train}
        if train:
            counts_of_tasks.append(training_token_counts(data))
    documents = list(first_by_id(found, first["settings"]["max_evaluation_documents"]).values())
    counts["beyond_max_evaluation_documents"] += len(found) - len(documents)
    _refuse_empty_parts(counts, documents)
    files |= describe_files(out, [write_token_counts(out, np.sum(counts_of_tasks, axis=0))])
    inputs = {**first["inputs"], "source": source}
    configuration = {"settings": first["settings"], "inputs": inputs, "c4_revision": first["c4_revision"]}
    tokenizer = TokenizedData.open(folders[0]).tokenizer()
    return write_data_folder(out, documents, files, tokenizer, configuration, counts, "tokenize_c4")
