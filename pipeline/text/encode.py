"""Text to a folder of training tokens and evaluation documents: split, encoded, packed, gone on with, merged.

What comes out, and how tasks share it: pipeline/tokenize_c4.py. The tokenizer encodes batches of documents on
all cores while a thread reads, parses and sorts the next ones.

An interrupted run leaves its whole training files and, in unfinished.json, how far they reach. The same
command reads the text from its start once more, for what trains depends on all that came before; but it
encodes only documents that evaluate, and those behind the last whole training file.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from heapq import heappop, heappush
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

import numpy as np

from pipeline.cli import InputError, logger
from pipeline.results.files import (
    as_ranges,
    damages,
    describe_files,
    whole_or_absent,
    write_atomically,
    write_json,
)
from pipeline.text.folder import (
    EVALUATION_FILE,
    MANIFEST_FILE,
    TOKEN_COUNTS_FILE,
    TOKENIZER_FILE,
    TRAIN_FOLDER,
    EvaluationDocument,
    TokenizationTask,
    TokenizedData,
    c4_revision_of,
    changed_settings,
    count_tokens,
    is_complete,
    made_otherwise,
    read_evaluation_documents,
    read_manifest,
    refuse_damage,
    task_folders,
    training_token_counts,
    write_data_folder,
    write_evaluation_documents,
    write_token_counts,
)
from pipeline.text.sources import Document, Source, document_batches, read_documents
from pipeline.text.tokenizer import DocumentTokenizer

UNFINISHED_FILE = "unfinished.json"
_BUFFER_BYTES = 1 << 20
_BATCHES_AHEAD = 2  # of one the tokens are taken over from the library while it encodes the other
_GIVEN_OUT = ("train", "evaluation")

Item = TypeVar("Item")
Kind = Literal["train", "evaluation", "duplicate", "in_evaluation_source"]
"""What becomes of a document; the last two are left out, and counted by these names."""
MAX_REMEMBERED_DOCUMENTS = 1 << 23
"""8.4 million, as many as 23 of C4's 1,024 files hold: a set of them takes 0.6 GiB."""


@dataclass
class Split:
    """Sorts the documents of a source, one after another from its start."""

    evaluation_fraction: float
    """Share of documents that evaluate; 0 where they come from a source of their own, 1 of that source."""
    seed: int = 0
    evaluation_ids: frozenset[str] = frozenset()
    """Documents that evaluate already: left out of training."""
    _seen: set[int] = field(default_factory=set)

    def kind_of(self, document_id: str) -> Kind:
        """What becomes of the next document."""
        number = int(document_id, 16)
        if number in self._seen:
            return "duplicate"
        if len(self._seen) == MAX_REMEMBERED_DOCUMENTS:
            self._seen.clear()
        self._seen.add(number)
        if document_id in self.evaluation_ids:
            return "in_evaluation_source"
        # By seed and content alone, whatever else is in the source.
        digest = sha256(f"{self.seed}:{document_id}".encode()).digest()
        is_evaluation = int.from_bytes(digest[:8], "big") < self.evaluation_fraction * 2**64
        return "evaluation" if is_evaluation else "train"


class PackedShardWriter(ExitStack):
    """Writes documents one after another, each followed by EOS, into part-00000.npy, part-00001.npy, etc.

    A part ends with the document that fills it, so that no document is divided. Documents [5, 6] and
    [7] with EOS 0 are the integers 5 6 0 7 0. Tokens go to the disk as they come; a part gets its name
    once it is whole, and leaving the context after an error removes the one begun.
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
        super().__init__()
        self._folder = folder
        self._little_endian_dtype = token_dtype.newbyteorder("<")
        self._eos = np.array([eos_token_id], dtype=self._little_endian_dtype).tobytes()
        self._tokens_per_part = tokens_per_part
        self._file: BinaryIO | None = None
        self._num_tokens_in_part = 0
        self.num_tokens = sum(path.stat().st_size for path in whole_parts) // token_dtype.itemsize
        """Tokens taken so far, EOS included."""
        self.paths = list(whole_parts)
        """The parts begun so far; all are whole once the context is left."""

    @property
    def whole_paths(self) -> list[Path]:
        """The parts that have their name."""
        return self.paths if self._file is None else self.paths[:-1]

    def add(self, token_ids: np.ndarray) -> None:
        """Take one document's token IDs, without EOS; ends a part when that is full."""
        if self._file is None:
            path = self._folder / f"part-{len(self.paths):05d}.npy"
            temporary = self.enter_context(whole_or_absent(path))
            self._file = self.enter_context(temporary.open("wb", buffering=_BUFFER_BYTES))
            self.paths.append(path)
            self._num_tokens_in_part = 0
        self._file.write(token_ids.astype(self._little_endian_dtype, copy=False).tobytes() + self._eos)
        self.num_tokens += len(token_ids) + 1
        self._num_tokens_in_part += len(token_ids) + 1
        if self._num_tokens_in_part >= self._tokens_per_part:
            self._file = None
            self.close()


@dataclass
class Unfinished:
    """How far a run has come: the tokenizer and its whole training files, in order, by size and SHA-256.

    They hold `num_train_documents`; `num_empty` more would train but have no tokens. `noted` counts what
    stands in `NOTES`.
    """

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    num_train_documents: int = 0
    num_empty: int = 0
    noted: dict[str, int] = field(default_factory=dict)

    @property
    def part_names(self) -> list[str]:
        """The whole training files."""
        return [name for name in self.files if name != TOKENIZER_FILE]

    def write(self, folder: Path, configuration: Mapping[str, Any], new_paths: Iterable[Path]) -> None:
        """Leave it for the next run, with files that have become whole."""
        self.files |= describe_files(folder, new_paths)
        made_by = {**configuration, "c4_revision": c4_revision_of(configuration)}
        write_json(folder / UNFINISHED_FILE, made_by | {"written": asdict(self)})


def read_unfinished(folder: Path) -> dict[str, Any] | None:
    """What unfinished data is made by, and what of it is `written`; None where there is none."""
    path = folder / UNFINISHED_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def begin_or_go_on(folder: Path, configuration: Mapping[str, Any]) -> Unfinished:
    """What is there of this configuration, alone in `folder`: all that is not part of it is removed.

    Unfinished data of another configuration is refused.
    """
    unfinished = Unfinished()
    if made_by := read_unfinished(folder):
        unfinished = Unfinished(**made_by["written"])
        changes = changed_settings(made_by, configuration)
        if made_by.get("c4_revision") != c4_revision_of(configuration):
            changes.append("C4 has another revision on the hub")
        if changes:
            raise InputError(
                f"{folder} holds unfinished data made otherwise: {'; '.join(changes)}; repeat the earlier"
                f" command to finish it, choose another --out folder, or remove {folder} to start over"
            )
        if lost := next(damages(folder, unfinished.files, verify=True), None):
            logger.warning("%s; starting at the beginning", lost)
            unfinished = Unfinished()
    remove_outputs(folder, but=(UNFINISHED_FILE, *unfinished.files) if unfinished.files else ())
    if not unfinished.files:
        unfinished.write(folder, configuration, [])
    return unfinished


def remove_outputs(folder: Path, but: Sequence[str] = ()) -> None:
    """Remove all that a run writes, what a killed one left under temporary names too, but for some files."""
    (folder / MANIFEST_FILE).unlink(missing_ok=True)  # first: what it names is not whole from now on
    names = [EVALUATION_FILE, TOKENIZER_FILE, TOKEN_COUNTS_FILE, UNFINISHED_FILE]
    names += [f"{TRAIN_FOLDER}/{path.name}" for path in (folder / TRAIN_FOLDER).glob("part-?????.npy")]
    for name in set(names) - set(but):
        (folder / name).unlink(missing_ok=True)


class EvaluationSample:
    """The distinct documents with the smallest IDs, at most `max_documents` of all that are added.

    IDs are hashes, so this is a random sample, and the same in whatever order documents come and in
    however many tasks.
    """

    def __init__(self, max_documents: int) -> None:
        self._max_documents = max_documents
        self._heap: list[tuple[int, EvaluationDocument]] = []  # the largest ID first, so it is negated
        self._kept_ids: set[int] = set()
        self.num_left_out = 0

    def add(self, document: EvaluationDocument) -> bool:
        """Take a document; whether its ID was not among those kept."""
        number = int(document.document_id, 16)
        if number in self._kept_ids:
            return False
        self._kept_ids.add(number)
        heappush(self._heap, (-number, document))
        if len(self._heap) > self._max_documents:
            self._kept_ids.remove(-heappop(self._heap)[0])
            self.num_left_out += 1
        return True

    def documents(self) -> list[EvaluationDocument]:
        """The documents kept, in no order."""
        return [document for _, document in self._heap]


def _made_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """`items`; a thread makes the next ones while this one is used."""
    with ThreadPoolExecutor(1) as thread:
        upcoming = deque(thread.submit(next, items, None) for _ in range(_BATCHES_AHEAD))
        while (item := upcoming.popleft().result()) is not None:
            upcoming.append(thread.submit(next, items, None))
            yield item


def encoded_documents(
    tokenizer: DocumentTokenizer,
    batches: Iterator[tuple[list[Document], Counter[str]]],
    split: Split,
    tally: Counter[str],
    num_written: int = 0,
    max_train: int | None = None,
) -> Iterator[tuple[bool, Document, np.ndarray]]:
    """Each document that evaluates or trains, in order: whether it trains, and its token IDs.

    A few batches, of `document_batches`, are read and encoded ahead, so that every core is busy and memory
    does not grow. `tally` counts what is left out. The first `num_written` documents that train are neither
    encoded nor given out; `max_train` of them are the end.
    """
    Begun = tuple[Counter[str], list[tuple[str, Document]], Future[list[np.ndarray]]]

    def begun_batches() -> Iterator[Begun]:
        num_met = 0
        for documents, left_out in batches:
            entries: list[tuple[str, Document]] = []
            for document in documents:
                kind: str = split.kind_of(document.document_id)
                num_met += kind == "train"
                is_written = kind == "train" and num_met <= num_written
                entries.append(("written" if is_written else kind, document))
                if num_met == max_train:
                    break
            texts = [document.text for kind, document in entries if kind in _GIVEN_OUT]
            yield left_out, entries, encoders.submit(tokenizer.encode, texts)
            if num_met == max_train:
                return

    with ThreadPoolExecutor(_BATCHES_AHEAD) as encoders:
        for left_out, entries, encoded in _made_ahead(begun_batches()):
            tally.update(left_out)
            token_ids = iter(encoded.result())
            for kind, document in entries:
                if kind in _GIVEN_OUT:
                    yield kind == "train", document, next(token_ids)
                else:
                    tally[kind] += 1


@dataclass(frozen=True)
class Tokenization:
    """What one run of tokenize_c4 reads and writes.

    The sources are the task's own. Those for evaluation are the same for all tasks, which all leave them
    out of training; task 0 writes them. `configuration` has `settings` and `inputs` as in the manifest: its
    limits are those of the whole, not the task's.
    """

    folder: Path
    task: TokenizationTask
    sources: Sequence[Source]
    evaluation_sources: Sequence[Source]
    configuration: dict[str, Any]

    @property
    def _settings(self) -> Mapping[str, Any]:
        return self.configuration["settings"]

    def limit(self, name: str) -> int | None:
        """The task's part of `max_documents` or `max_tokens`, EOS included: of training, at most."""
        return self.task.share_of(self._settings[name])

    @cached_property
    def _evaluation_ids(self) -> frozenset[str]:
        """Of the documents of the evaluation source that evaluate."""
        documents = read_documents(self.evaluation_sources, skip_malformed=self._settings["skip_malformed"])
        ids: set[str] = set()
        while len(ids) < self._settings["max_evaluation_documents"] and (document := next(documents, None)):
            ids.add(document.document_id)
        if self.evaluation_sources and not ids:
            raise InputError(f"no evaluation documents: {self.evaluation_sources[0].name} holds no text")
        return frozenset(ids)

    def _split(self) -> Split:
        """What sorts the documents of the source, from its start."""
        if self.evaluation_sources:
            return Split(0.0, evaluation_ids=self._evaluation_ids)
        return Split(self._settings["evaluation_fraction"], self._settings["seed"])

    def training_texts(self, num_characters: int) -> Iterator[str]:
        """The first texts that train, whole ones, for a tokenizer to be trained on."""
        split = self._split()
        documents = read_documents(self.sources, skip_malformed=self._settings["skip_malformed"])
        texts = (document.text for document in documents if split.kind_of(document.document_id) == "train")
        for text in islice(texts, self.limit("max_documents")):
            yield text
            num_characters -= len(text)
            if num_characters <= 0:
                return

    def write(
        self, tokenizer: DocumentTokenizer, unfinished: Unfinished, advance: Callable[[int, int], object]
    ) -> dict[str, Any]:
        """Encode and write everything that is not in `unfinished`; the manifest, which is written last.

        `advance` is called with the numbers of training documents and tokens written since the last call.
        """
        tally = Counter(train_documents=unfinished.num_train_documents, empty=unfinished.num_empty)
        num_empty = unfinished.num_empty
        max_tokens = self.limit("max_tokens")
        noted = Counter(unfinished.noted)
        of_evaluation = Counter[str]()
        sample = EvaluationSample(self._settings["max_evaluation_documents"])
        writer = PackedShardWriter(
            self.folder / TRAIN_FOLDER,
            tokenizer.token_dtype,
            tokenizer.eos_token_id,
            self._settings["tokens_per_part"],
            [self.folder / name for name in unfinished.part_names],
        )
        advance(unfinished.num_train_documents, writer.num_tokens)
        with writer:
            for trains, document, token_ids in self._documents(tokenizer, unfinished, tally):
                num_tokens = len(token_ids) + 1
                if num_tokens == 1:
                    tally["empty"] += 1
                    num_empty += trains
                elif not trains:
                    of_evaluation += tokenizer.notes(document.text, token_ids)
                    sample.add(EvaluationDocument(document.document_id, token_ids, document.url))
                elif max_tokens is not None and writer.num_tokens + num_tokens > max_tokens:
                    break
                else:
                    writer.add(token_ids)
                    noted += tokenizer.notes(document.text, token_ids)
                    tally["train_documents"] += 1
                    advance(1, num_tokens)
                    if new_paths := writer.whole_paths[len(unfinished.part_names) :]:
                        unfinished.num_train_documents = tally["train_documents"]
                        unfinished.num_empty = num_empty
                        unfinished.noted = dict(noted)
                        unfinished.write(self.folder, self.configuration, new_paths)
        documents = sample.documents()
        paths = list(writer.paths)
        tally["train_tokens"] = writer.num_tokens
        tally += noted + of_evaluation
        num_tokens = writer.num_tokens + sum(len(document.token_ids) for document in documents)
        tokenizer.warn_of(tally, num_tokens)
        tally["beyond_max_evaluation_documents"] = sample.num_left_out
        if self.task.is_whole:  # a task may miss a part that others have
            _refuse_empty_parts(tally + Counter(evaluation_documents=len(documents)))
        if paths:
            paths.append(write_token_counts(self.folder, count_tokens(paths, tokenizer)))
        return write_data_folder(
            self.folder, documents, paths, tokenizer, self.configuration, tally, "tokenize_c4"
        )

    def _documents(
        self, tokenizer: DocumentTokenizer, unfinished: Unfinished, tally: Counter[str]
    ) -> Iterator[tuple[bool, Document, np.ndarray]]:
        """Every document that is to be written, encoded, first those of the evaluation source."""
        skip_malformed = self._settings["skip_malformed"]
        if self.task.index == 0:
            batches = document_batches(self.evaluation_sources, skip_malformed=skip_malformed)
            reserved = encoded_documents(tokenizer, batches, Split(evaluation_fraction=1.0), tally)
            yield from islice(reserved, self._settings["max_evaluation_documents"])
        batches = document_batches(self.sources, skip_malformed=skip_malformed)
        num_written = unfinished.num_train_documents + unfinished.num_empty
        max_train = self.limit("max_documents")
        yield from encoded_documents(tokenizer, batches, self._split(), tally, num_written, max_train)


def _refuse_empty_parts(counts: Mapping[str, int]) -> None:
    """Refuse data that cannot both train and evaluate; say what was left out."""
    reasons = ("empty", "malformed", "duplicate", "in_evaluation_source")
    left_out = ", ".join(f"{counts[reason]} {reason}" for reason in reasons)
    for part in ("train", "evaluation"):
        if not counts[f"{part}_documents"]:
            raise InputError(
                f"no document of --source is left for the part {part} (left out: {left_out}); give more text,"
                " a larger limit, or another --evaluation-fraction or --evaluation-source"
            )


def refuse_other_tasks(out: Path, task: TokenizationTask, configuration: Mapping[str, Any]) -> None:
    """Refuse to add a task's part to those of another tokenizer, of other settings or of another division."""
    others = task_folders(out)
    if numbers := {other.num_tasks for other in others} - {task.num_tasks}:
        raise InputError(
            f"{out} holds tasks of --num-tasks {min(numbers)}, now {task.num_tasks};"
            " choose another --out folder, or repeat the earlier number"
        )
    if task.is_whole:
        return
    # All tasks agree with one another, as each was checked so: one finished and one begun stand for them.
    finished = next(filter(None, map(read_manifest, others.values())), None)
    begun = next(filter(None, map(read_unfinished, others.values())), None)
    for made_by in filter(None, (read_manifest(out), finished, begun)):
        if changes := _changes_between_tasks(made_by, configuration):
            raise made_otherwise(out, changes)


def _changes_between_tasks(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What must be the same of all tasks, and is not: all but their own files of the source."""
    inputs = {role: files for role, files in now["inputs"].items() if role != "source"}
    return changed_settings(earlier, {**now, "inputs": inputs})


def merge_tasks(out: Path) -> dict[str, Any] | None:
    """Write the manifest, the evaluation documents and the tokenizer of all tasks in `out`.

    Returns the manifest, or None where the same was there already. Missing tasks are refused, and those made
    otherwise than others.
    """
    numbers = sorted({task.num_tasks for task in task_folders(out)})
    if not numbers:
        raise InputError(f"no tasks in {out}; run pipeline/tokenize_c4.py with --num-tasks first")
    folders = [TokenizationTask(index, numbers[0]).folder(out) for index in range(numbers[0])]
    manifests = list(filter(None, map(read_manifest, folders)))
    if len(manifests) < len(folders):
        missing = [index for index, folder in enumerate(folders) if not (folder / MANIFEST_FILE).exists()]
        raise InputError(
            f"{out} misses {len(missing)} of {len(folders)} tasks: --task-index {as_ranges(missing)};"
            " run these, then --merge again"
        )
    first = manifests[0]
    for index, (folder, manifest) in enumerate(zip(folders, manifests, strict=True)):
        changes = _changes_between_tasks(first, manifest)
        if manifest["c4_revision"] != first["c4_revision"]:
            changes.append(f"C4's revision was {first['c4_revision']}, now {manifest['c4_revision']}")
        if changes:
            raise InputError(
                f"task {index} was made otherwise than task 0: {'; '.join(changes)};"
                " delete the folder of one and run its command again"
            )
        refuse_damage(folder, manifest)
    inputs = {**first["inputs"], "source": [file for m in manifests for file in m["inputs"]["source"]]}
    if is_complete(out, {"settings": first["settings"], "inputs": inputs}):
        return None

    sample = EvaluationSample(first["settings"]["max_evaluation_documents"])
    counts = Counter[str]()
    train_files: dict[str, Any] = {}
    for folder, manifest in zip(folders, manifests, strict=True):
        counts.update(manifest["counts"])
        for document in read_evaluation_documents(folder / EVALUATION_FILE):
            counts["duplicate"] += not sample.add(document)
        place = folder.relative_to(out).as_posix()
        files = manifest["files"]
        train_files |= {f"{place}/{name}": files[name] for name in files if name.endswith(".npy")}
    documents = sample.documents()
    counts["evaluation_documents"] = len(documents)
    counts["evaluation_tokens"] = sum(len(document.token_ids) for document in documents)
    counts["beyond_max_evaluation_documents"] += sample.num_left_out
    _refuse_empty_parts(counts)

    write_evaluation_documents(out / EVALUATION_FILE, documents)
    tokenizer_json = (folders[0] / TOKENIZER_FILE).read_bytes()
    write_atomically(out / TOKENIZER_FILE, lambda path: path.write_bytes(tokenizer_json))
    parts = [part for part in map(TokenizedData.open, folders) if part.train_paths]
    own_paths = [out / EVALUATION_FILE, out / TOKENIZER_FILE]
    if parts:
        counts_V = np.sum([training_token_counts(part) for part in parts], axis=0)
        own_paths.insert(0, write_token_counts(out, counts_V))
    files = train_files | describe_files(out, own_paths)
    counted = {name: counts[name] for name in first["counts"]}
    merged = first | {"inputs": inputs, "counts": counted, "files": files}
    write_json(out / MANIFEST_FILE, merged)
    return merged
