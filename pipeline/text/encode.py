"""Training tokens in OLMo's memory-map format: raw little-endian integers without a header.

What an interrupted run of tokenize_c4 has written, from which the same command goes on.

Going on, the text is read from its start once more, for what trains depends on all that came before; but only
documents that evaluate, and those behind the last whole training file, are encoded.

A stream of documents through a tokenizer, batch after batch on several cores, always in order.

Text to a folder of training tokens and evaluation documents: all that stands between reading and files.

What many tasks wrote made into one data set: a manifest of their files, their evaluation documents.

Training tokens stay where the tasks wrote them; nothing large is copied.
"""

import json
import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from ctypes import c_longlong
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from itertools import chain, islice
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from pipeline.cli import InputError, UnfinishedError
from pipeline.results.files import as_ranges, remove_leftovers, whole_or_absent, write_atomically, write_json
from pipeline.results.versions import describe_files
from pipeline.text.folder import (
    EVALUATION_FILE,
    MANIFEST_FILE,
    TOKEN_COUNTS_FILE,
    TOKENIZER_FILE,
    TRAIN_FOLDER,
    EvaluationDocument,
    EvaluationSample,
    TokenizationTask,
    TokenizedData,
    c4_revision_of,
    changed_settings,
    count_tokens,
    damages,
    is_complete,
    make_manifest,
    read_evaluation_documents,
    read_manifest,
    refuse_damage,
    refuse_empty_parts,
    task_folders,
    training_token_counts,
    write_evaluation_documents,
    write_token_counts,
)
from pipeline.text.sources import RecordBatch, Source, read_documents, record_batches
from pipeline.text.split import Part, Split, distinct_documents
from pipeline.text.tokenizer import DocumentTokenizer, kill, leave_with_parent, worker_context

_BUFFER_BYTES = 1 << 20


class PackedShardWriter:
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
        self._folder = folder
        self._little_endian_dtype = token_dtype.newbyteorder("<")
        self._eos = np.array([eos_token_id], dtype=self._little_endian_dtype).tobytes()
        self._tokens_per_part = tokens_per_part
        self._part = ExitStack()
        self._file: BinaryIO | None = None
        self._num_tokens_in_part = 0
        self.num_tokens = sum(path.stat().st_size for path in whole_parts) // token_dtype.itemsize
        """Tokens taken so far, EOS included."""
        self.paths = list(whole_parts)
        """The parts begun so far; all are whole once the context is left."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file = None
        self._part.__exit__(kind, error, trace)

    @property
    def whole_paths(self) -> list[Path]:
        """The parts that have their name."""
        return self.paths if self._file is None else self.paths[:-1]

    def add(self, token_ids: np.ndarray) -> None:
        """Take one document's token IDs, without EOS; ends a part when that is full."""
        file = self._file or self._begin_part()
        file.write(token_ids.astype(self._little_endian_dtype, copy=False).tobytes())
        file.write(self._eos)
        self.num_tokens += len(token_ids) + 1
        self._num_tokens_in_part += len(token_ids) + 1
        if self._num_tokens_in_part >= self._tokens_per_part:
            self._file = None
            self._part.close()

    def _begin_part(self) -> BinaryIO:
        path = self._folder / f"part-{len(self.paths):05d}.npy"
        temporary = self._part.enter_context(whole_or_absent(path))
        self._file = self._part.enter_context(temporary.open("wb", buffering=_BUFFER_BYTES))
        self.paths.append(path)
        self._num_tokens_in_part = 0
        return self._file


UNFINISHED_FILE = "unfinished.json"
logger = logging.getLogger("pipeline")


@dataclass
class Unfinished:
    """How far a run has come: what stands behind the last whole training file."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The tokenizer and the whole training files, in order: size and SHA-256."""
    num_records: int = 0
    """So many of the source's first records are in these files, evaluate, or are left out."""
    num_train_documents: int = 0
    """In these files."""
    num_empty: int = 0
    """Further documents that would train but have no tokens."""

    @property
    def part_names(self) -> list[str]:
        """The whole training files."""
        return [name for name in self.files if name != TOKENIZER_FILE]

    @property
    def num_taken(self) -> int:
        """Documents of the training part up to here."""
        return self.num_train_documents + self.num_empty

    def describe(self, folder: Path, *names: str) -> None:
        """Take in files that have become whole."""
        new = [folder / name for name in names if name not in self.files]
        self.files |= describe_files(folder, new)

    def write(self, folder: Path, configuration: Mapping[str, Any]) -> None:
        """Leave it for the next run."""
        made_by = {**configuration, "c4_revision": c4_revision_of(configuration)}
        write_json(folder / UNFINISHED_FILE, made_by | {"written": asdict(self)})


def _read_unfinished(folder: Path, configuration: Mapping[str, Any]) -> Unfinished | None:
    """How far the run of this configuration has come in `folder`; None where it must start at the beginning.

    Raises:
        InputError: the folder holds the unfinished data of another configuration.
    """
    earlier = read_made_by(folder)
    if earlier is None:
        return None
    changes = changed_settings(earlier, configuration)
    if earlier.get("c4_revision") != c4_revision_of(configuration):
        changes.append("C4 has another revision on the hub")
    if changes:
        raise InputError(
            f"{folder} holds unfinished data made otherwise: {'; '.join(changes)}; repeat the earlier command"
            f" to finish it, choose another --out folder, or remove {folder} to start over"
        )
    unfinished = Unfinished(**earlier["written"])
    lost = next(damages(folder, unfinished.files, verify=True), None)
    if lost is not None:
        logger.warning("%s; starting at the beginning", lost)
        return None
    return unfinished


def begin_or_go_on(folder: Path, configuration: Mapping[str, Any]) -> Unfinished:
    """What is there of this configuration, alone in `folder`: all that is not part of it is removed.

    Raises:
        InputError: the folder holds unfinished data of another configuration, or a tokenizer that no run of
            tokenize_c4 left there, as a model of Hugging Face has one.
    """
    unfinished = _read_unfinished(folder, configuration)
    is_ours = any((folder / name).exists() for name in (UNFINISHED_FILE, MANIFEST_FILE, EVALUATION_FILE))
    if not is_ours and (folder / TOKENIZER_FILE).exists():
        raise InputError(
            f"{folder} holds a {TOKENIZER_FILE} that is not of tokenized data, as a model's folder does;"
            " choose another --out folder"
        )
    if unfinished is None:
        remove_outputs(folder)
        unfinished = Unfinished()
        unfinished.write(folder, configuration)
    (folder / MANIFEST_FILE).unlink(missing_ok=True)  # of data that was damaged since
    _remove_except(folder, {UNFINISHED_FILE, *unfinished.files})
    return unfinished


def remove_outputs(folder: Path) -> None:
    """Remove all that a run writes, what a killed one left under temporary names too."""
    (folder / MANIFEST_FILE).unlink(missing_ok=True)  # first: what it names is not whole from now on
    _remove_except(folder, set())


def _remove_except(folder: Path, names: Set[str]) -> None:
    patterns = (
        f"{TRAIN_FOLDER}/part-?????.npy", EVALUATION_FILE, TOKENIZER_FILE, TOKEN_COUNTS_FILE, UNFINISHED_FILE,
    )  # fmt: skip
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        if path.relative_to(folder).as_posix() not in names:
            path.unlink()
    for below in (folder, (folder / EVALUATION_FILE).parent, folder / TRAIN_FOLDER):
        remove_leftovers(below)


def read_made_by(folder: Path) -> dict[str, Any] | None:
    """What unfinished data is made by and how far it is; None where there is none that can be read."""
    path = folder / UNFINISHED_FILE
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        Unfinished(**content["written"])
        return content if content["settings"] and content["inputs"] else None
    except (ValueError, TypeError, KeyError):
        logger.warning("%s cannot be read; starting at the beginning", path)
        return None


_THREADS = 2  # one in the tokenizer, which then holds no lock of Python's, while the other parses
_PATIENCE_SECONDS = 0.5  # after which a batch that is not done yet is told by its characters

Needed = Callable[[str], bool]
"""Whether the tokens of the document of this ID are asked for."""


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """A document as tokens."""

    document_id: str
    token_ids: np.ndarray
    """In the tokenizer's own type, without EOS."""
    url: str | None


@dataclass(frozen=True)
class EncodedBatch:
    """The documents of a RecordBatch; their tokens in one array, which travels fast between processes."""

    document_ids: list[str]
    urls: list[str | None]
    token_ids: np.ndarray
    num_tokens: np.ndarray
    """Of each document."""
    tally: Counter[str]
    """The records left out."""

    def __iter__(self) -> Iterator[EncodedDocument]:
        """The documents, in order."""
        ends = np.cumsum(self.num_tokens)
        for document_id, url, start, end in zip(
            self.document_ids, self.urls, ends - self.num_tokens, ends, strict=True
        ):
            yield EncodedDocument(document_id, self.token_ids[start:end], url)


class StoppedError(Exception):
    """Raised in a thread whose batch nobody waits for any more."""


def encode_batch(
    tokenizer: DocumentTokenizer,
    batch: RecordBatch,
    *,
    skip_malformed: bool,
    needed: Needed | None = None,
    advance: Callable[[int], object] = lambda num_characters: None,
) -> EncodedBatch:
    """Parse and encode one batch.

    Args:
        tokenizer: turns text to tokens.
        batch: its records.
        skip_malformed: count malformed records and go on.
        needed: the documents to encode, others come without tokens; None: all.
        advance: told how many characters have been encoded since the last call.

    Raises:
        InputError: a malformed record; names the file and the line.
    """
    tally: Counter[str] = Counter()
    documents = list(batch.documents(tally, skip_malformed=skip_malformed))
    texts = [
        document.text if needed is None or needed(document.document_id) else "" for document in documents
    ]
    encoded = tokenizer.encode(texts, advance)
    return EncodedBatch(
        document_ids=[document.document_id for document in documents],
        urls=[document.url for document in documents],
        token_ids=np.concatenate([*encoded, np.empty(0, np.int32)]).astype(tokenizer.token_dtype),
        num_tokens=np.array([len(token_ids) for token_ids in encoded], dtype=np.int64),
        tally=tally,
    )


class Encoder:
    """Encodes on `num_workers` processes of one thread each, or in this one on the tokenizer's own threads.

    What comes out is the same for any number: batches are cut before they are handed out and taken back
    in their order. A few batches are read ahead, so memory does not grow with the text. Leaving the context
    after an error, Ctrl-C among them, ends the processes at once.
    """

    def __init__(
        self,
        tokenizer: DocumentTokenizer,
        num_workers: int,
        *,
        skip_malformed: bool,
        tell: Callable[[int], object] = lambda num_characters: None,
    ) -> None:
        """Start nothing yet.

        Args:
            tokenizer: turns text to tokens.
            num_workers: processes; 1: none but this.
            skip_malformed: count malformed records and go on.
            tell: called while a batch takes long, with the number of all characters encoded so far.
        """
        self._skip_malformed, self._tell = skip_malformed, tell
        self._num_characters = RawValue(c_longlong, 0)
        self._is_stopped = False
        self.num_records = 0
        """Records of the batches that the last `encode` has given out to their end."""
        self._pool: Executor
        self._encode: Callable[..., EncodedBatch]
        if num_workers == 1:
            self._pool = ThreadPoolExecutor(_THREADS)
            self._encode = partial(encode_batch, tokenizer, advance=self._advance)
        else:
            initial = (tokenizer, self._num_characters)
            self._pool = ProcessPoolExecutor(num_workers, worker_context(), _start_worker, initial)
            self._encode = _encode_in_worker
        self._num_ahead = 2 * max(num_workers, _THREADS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._pool.shutdown(cancel_futures=True)
            return
        self._is_stopped = True
        if isinstance(self._pool, ProcessPoolExecutor):
            kill((self._pool._processes or {}).values())
        self._pool.shutdown(cancel_futures=True)

    def _advance(self, num_characters: int) -> None:
        self._num_characters.value += num_characters
        if self._is_stopped:
            raise StoppedError

    def encode(
        self,
        sources: Iterable[Source],
        tally: Counter[str],
        num_known_records: int = 0,
        needed_of_known: Needed | None = None,
    ) -> Iterator[EncodedDocument]:
        """The documents of all sources in order, encoded; `tally` counts `empty` and `malformed` records.

        Args:
            sources: what to read.
            tally: counts here.
            num_known_records: of batches that end within so many of the first records,
            needed_of_known: only these documents are encoded, the others have no tokens.

        Raises:
            InputError: a malformed record, a file that cannot be read, or a worker that was killed.
        """
        self.num_records = 0
        for num_records, batch in self._encoded_batches(sources, num_known_records, needed_of_known):
            tally.update(batch.tally)
            yield from batch
            self.num_records += num_records

    def _encoded_batches(
        self, sources: Iterable[Source], num_known_records: int, needed_of_known: Needed | None
    ) -> Iterator[tuple[int, EncodedBatch]]:
        """Every batch, encoded, with the number of its records."""
        pending: deque[tuple[int, Future[EncodedBatch]]] = deque()
        num_read = 0
        try:
            for batch in record_batches(sources):
                num_read += len(batch.records)
                needed = needed_of_known if num_read <= num_known_records else None
                future = self._pool.submit(
                    self._encode, batch, skip_malformed=self._skip_malformed, needed=needed
                )
                pending.append((len(batch.records), future))
                if len(pending) > self._num_ahead:
                    yield self._await(*pending.popleft())
            while pending:
                yield self._await(*pending.popleft())
        except BrokenProcessPool as error:
            raise UnfinishedError(
                "a worker process was ended from outside, most likely for want of memory;"
                " lower --num-workers or give the job more memory, then run the same command again"
            ) from error

    def _await(self, num_records: int, future: Future[EncodedBatch]) -> tuple[int, EncodedBatch]:
        while not wait([future], timeout=_PATIENCE_SECONDS).done:
            self._tell(self._num_characters.value)
        return num_records, future.result()


_tokenizer_of_worker: DocumentTokenizer
_num_characters: c_longlong


def _start_worker(tokenizer: DocumentTokenizer, num_characters: c_longlong) -> None:
    """Make this process a worker."""
    global _tokenizer_of_worker, _num_characters
    _tokenizer_of_worker, _num_characters = tokenizer, num_characters
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    leave_with_parent()


def _advance_worker(num_characters: int) -> None:
    _num_characters.value += num_characters  # shown only, so it does not matter if two add at once


def _encode_in_worker(batch: RecordBatch, *, skip_malformed: bool, needed: Needed | None) -> EncodedBatch:
    return encode_batch(
        _tokenizer_of_worker, batch, skip_malformed=skip_malformed, needed=needed, advance=_advance_worker
    )


def first_characters(texts: Iterable[str], num_characters: int) -> Iterator[str]:
    """The first of `texts`, as many whole ones as reach `num_characters`."""
    for text in texts:
        yield text
        num_characters -= len(text)
        if num_characters <= 0:
            return


@dataclass(frozen=True)
class TokenizedDataWriter:
    """What one run of tokenize_c4 reads and writes."""

    folder: Path
    task: TokenizationTask
    sources: Sequence[Source]
    """The task's own."""
    evaluation_sources: Sequence[Source]
    """The same for all tasks, which all leave them out of training; task 0 writes them."""
    configuration: dict[str, Any]
    """`settings` and `inputs` as in the manifest; limits are those of the whole, not the task's."""
    num_workers: int = 1

    @property
    def _settings(self) -> Mapping[str, Any]:
        return self.configuration["settings"]

    @cached_property
    def split(self) -> Split:
        """How documents are parted.

        Raises:
            InputError: the evaluation source holds no text.
        """
        has_fraction = not self.evaluation_sources
        return Split(
            evaluation_fraction=self._settings["evaluation_fraction"] if has_fraction else 0.0,
            seed=self._settings["seed"] if has_fraction else 0,
            evaluation_ids=self._reserved_ids(),
            max_documents=self.task.share_of(self._settings["max_documents"]),
        )

    @property
    def max_tokens(self) -> int | None:
        """Training tokens at most, EOS included."""
        return self.task.share_of(self._settings["max_tokens"])

    def _reserved_ids(self) -> frozenset[str]:
        documents = read_documents(
            self.evaluation_sources, Counter(), skip_malformed=self._settings["skip_malformed"]
        )
        reserved = islice(
            distinct_documents(documents, Counter()), self._settings["max_evaluation_documents"]
        )
        ids = frozenset(document.document_id for document in reserved)
        if self.evaluation_sources and not ids:
            raise InputError(f"no evaluation documents: {self.evaluation_sources[0].name} holds no text")
        return ids

    def training_texts(self) -> Iterator[str]:
        """The texts that train, for a tokenizer to be trained on; read once more when they are encoded."""
        documents = read_documents(self.sources, Counter(), skip_malformed=self._settings["skip_malformed"])
        assigned = self.split.assign(documents, Counter())
        return (document.text for part, document in assigned if part == "train")

    def write(
        self,
        tokenizer: DocumentTokenizer,
        unfinished: Unfinished,
        advance: Callable[[int, int], object],
        tell: Callable[[int], object] = lambda num_characters: None,
    ) -> dict[str, Any]:
        """Encode and write everything.

        Args:
            tokenizer: turns text to tokens.
            unfinished: what earlier runs have written; kept up to date in the folder.
            advance: told how many training documents and tokens have been written since the last call.
            tell: told of all characters encoded so far, where a document takes long.

        Returns:
            The manifest, the completion marker: whoever finds it may trust every other file.

        Raises:
            InputError: bad documents, or none for one of the parts.
        """
        tally: Counter[str] = Counter(
            train_documents=unfinished.num_train_documents,
            empty=unfinished.num_empty,
            empty_train=unfinished.num_empty,
        )
        sample = EvaluationSample(self._settings["max_evaluation_documents"])
        encoder = Encoder(
            tokenizer, self.num_workers, skip_malformed=self._settings["skip_malformed"], tell=tell
        )
        writer = self._shard_writer(tokenizer, unfinished)
        advance(unfinished.num_train_documents, writer.num_tokens)
        with encoder, writer:
            assigned = self._assigned(encoder, unfinished, tally)
            for num_tokens in self._write_tokens(assigned, writer, sample, unfinished.num_taken, tally):
                advance(1, num_tokens)
                if len(writer.whole_paths) > len(unfinished.part_names):
                    self._leave(unfinished, writer, encoder.num_records, tally)
        tally["train_tokens"] = writer.num_tokens
        self._write_evaluation(sample, tally)
        paths = [*writer.paths, *self._write_token_counts(tokenizer, writer)]
        manifest = make_manifest(self.folder, self.configuration, tokenizer, paths, tally)
        write_json(self.folder / MANIFEST_FILE, manifest)
        return manifest

    def _shard_writer(self, tokenizer: DocumentTokenizer, unfinished: Unfinished) -> PackedShardWriter:
        """A writer of the training tokens, behind the whole files of earlier runs."""
        return PackedShardWriter(
            self.folder / TRAIN_FOLDER,
            tokenizer.token_dtype,
            tokenizer.eos_token_id,
            self._settings["tokens_per_part"],
            [self.folder / name for name in unfinished.part_names],
        )

    def _write_evaluation(self, sample: EvaluationSample, tally: Counter[str]) -> None:
        """Write the documents that evaluate, and count them; all else is counted already."""
        documents = sample.documents()
        tally["evaluation_documents"] = len(documents)
        tally["evaluation_tokens"] = sum(len(document.token_ids) for document in documents)
        tally["beyond_max_evaluation_documents"] = sample.num_left_out
        if self.task.is_whole:  # a task may miss a part that others have
            refuse_empty_parts(tally, self.configuration)
        write_evaluation_documents(self.folder / EVALUATION_FILE, documents)

    def _leave(
        self, unfinished: Unfinished, writer: PackedShardWriter, num_records: int, tally: Counter[str]
    ) -> None:
        """Say in the folder how far this run is, for the next to go on from here."""
        unfinished.describe(
            self.folder, *(path.relative_to(self.folder).as_posix() for path in writer.whole_paths)
        )
        unfinished.num_records = num_records
        unfinished.num_train_documents = tally["train_documents"]
        unfinished.num_empty = tally["empty_train"]
        unfinished.write(self.folder, self.configuration)

    def _write_token_counts(self, tokenizer: DocumentTokenizer, writer: PackedShardWriter) -> list[Path]:
        """The file of the counts, where there are training tokens."""
        if not writer.paths:
            return []
        counts_V = count_tokens(
            writer.paths, tokenizer.token_dtype, tokenizer.vocabulary_size, tokenizer.eos_token_id
        )
        return [write_token_counts(self.folder, counts_V)]

    def _assigned(
        self, encoder: Encoder, unfinished: Unfinished, tally: Counter[str]
    ) -> Iterator[tuple[Part, EncodedDocument]]:
        """Every document with its part, first those of the evaluation source."""
        own = self.evaluation_sources if self.task.index == 0 else []
        reserved = islice(
            distinct_documents(encoder.encode(own, tally), tally), self._settings["max_evaluation_documents"]
        )
        return chain(
            (("evaluation", document) for document in reserved),
            self.split.assign(
                encoder.encode(self.sources, tally, unfinished.num_records, self.split.evaluates), tally
            ),
        )

    def _write_tokens(
        self,
        assigned: Iterable[tuple[Part, EncodedDocument]],
        writer: PackedShardWriter,
        sample: EvaluationSample,
        num_written: int,
        tally: Counter[str],
    ) -> Iterator[int]:
        """Training documents go to `writer`, the others to `sample`; yields each training one's tokens.

        The first `num_written` of training were written or counted by an earlier run.
        """
        max_tokens, num_met = self.max_tokens, 0
        for part, document in assigned:
            num_met += part == "train"
            if part == "train" and num_met <= num_written:
                continue
            num_tokens = len(document.token_ids)
            if num_tokens == 0:
                tally["empty"] += 1
                tally["empty_train"] += part == "train"
            elif part == "evaluation":
                token_ids = document.token_ids.astype(np.int32)
                sample.add(EvaluationDocument(document.document_id, token_ids, document.url))
            elif max_tokens is not None and writer.num_tokens + num_tokens + 1 > max_tokens:
                return
            else:
                writer.add(document.token_ids)
                tally["train_documents"] += 1
                yield num_tokens + 1


def refuse_other_tasks(out: Path, task: TokenizationTask, configuration: Mapping[str, Any]) -> None:
    """Refuse to add a task's part to those of another tokenizer, of other settings or of another division.

    Raises:
        InputError: `out` holds such tasks, or data made in one piece.
    """
    others = task_folders(out)
    for other in others:
        if other.num_tasks != task.num_tasks:
            raise InputError(
                f"{out} holds tasks of --num-tasks {other.num_tasks}, now {task.num_tasks};"
                " choose another --out folder, or repeat the earlier number"
            )
    if task.is_whole:
        return
    inputs = {role: files for role, files in configuration["inputs"].items() if role != "source"}
    # All tasks agree with one another, as each was checked so: one finished and one begun stand for them.
    merged, finished = read_manifest(out), next(filter(None, map(read_manifest, others.values())), None)
    begun = next(filter(None, map(read_made_by, others.values())), None)
    for manifest in filter(None, (merged, finished, begun)):
        changes = changed_settings(manifest, {**configuration, "inputs": inputs})
        if changes:
            raise InputError(
                f"{out} holds data made otherwise: {'; '.join(changes)};"
                " choose another --out folder, or repeat the earlier command"
            )


def merge_tasks(out: Path, *, verify: bool = False) -> dict[str, Any] | None:
    """Write the manifest, the evaluation documents and the tokenizer of all tasks in `out`.

    Returns:
        The manifest, or None where the same was there already.

    Raises:
        InputError: tasks are missing, or were made otherwise than others.
    """
    folders = _complete_folders(out)
    manifests = [read_manifest(folder) if folder.exists() else None for folder in folders]
    missing = [index for index, manifest in enumerate(manifests) if manifest is None]
    if missing:
        raise InputError(
            f"{out} misses {len(missing)} of {len(folders)} tasks: --task-index {as_ranges(missing)};"
            " run these, then --merge again"
        )
    finished = [manifest for manifest in manifests if manifest is not None]
    for index, (folder, manifest) in enumerate(zip(folders, finished, strict=True)):
        _refuse_mixture(index, manifest, finished[0])
        refuse_damage(folder, manifest, verify=verify)
    inputs = {**finished[0]["inputs"], "source": [f for m in finished for f in m["inputs"]["source"]]}
    if is_complete(out, {"settings": finished[0]["settings"], "inputs": inputs}, verify=verify):
        return None
    sample = EvaluationSample(finished[0]["settings"]["max_evaluation_documents"])
    counts = _merge_counts(folders, finished, sample)
    merged = {**finished[0], "inputs": inputs, "counts": counts}
    refuse_empty_parts(counts, merged)
    _write(out, folders, merged, finished, sample)
    return merged


def _complete_folders(out: Path) -> list[Path]:
    """The folders of all tasks that belong together, whether there or not, in order."""
    tasks = task_folders(out)
    numbers = sorted({task.num_tasks for task in tasks})
    if not numbers:
        raise InputError(f"no tasks in {out}; run pipeline/tokenize_c4.py with --num-tasks first")
    if len(numbers) > 1:
        raise InputError(
            f"{out} holds tasks of several divisions, --num-tasks {' and '.join(map(str, numbers))};"
            " delete those that do not belong"
        )
    return [TokenizationTask(index, numbers[0]).folder(out) for index in range(numbers[0])]


def _refuse_mixture(index: int, manifest: Mapping[str, Any], first: Mapping[str, Any]) -> None:
    inputs = {role: files for role, files in manifest["inputs"].items() if role != "source"}
    changes = changed_settings(first, {**manifest, "inputs": inputs})
    if manifest["c4_revision"] != first["c4_revision"]:
        changes.append(f"C4's revision was {first['c4_revision']}, now {manifest['c4_revision']}")
    if changes:
        raise InputError(
            f"task {index} was made otherwise than task 0: {'; '.join(changes)};"
            " delete the folder of one and run its command again"
        )


def _merge_counts(
    folders: Sequence[Path], manifests: Sequence[Mapping[str, Any]], sample: EvaluationSample
) -> dict[str, int]:
    """The counts of the whole; the evaluation documents of all tasks go to `sample`."""
    counts: Counter[str] = Counter()
    for folder, manifest in zip(folders, manifests, strict=True):
        counts.update(manifest["counts"])
        for document in read_evaluation_documents(folder / EVALUATION_FILE):
            counts["duplicate"] += not sample.add(document)
    kept = sample.documents()
    counts["evaluation_documents"] = len(kept)
    counts["evaluation_tokens"] = sum(len(document.token_ids) for document in kept)
    counts["beyond_max_evaluation_documents"] += sample.num_left_out
    return {name: counts[name] for name in manifests[0]["counts"]}


def _write(
    out: Path,
    folders: Sequence[Path],
    merged: dict[str, Any],
    manifests: Sequence[Mapping[str, Any]],
    sample: EvaluationSample,
) -> None:
    train_files = {
        f"{folder.relative_to(out).as_posix()}/{name}": description
        for folder, manifest in zip(folders, manifests, strict=True)
        for name, description in manifest["files"].items()
        if name.endswith(".npy")
    }
    write_evaluation_documents(out / EVALUATION_FILE, sample.documents())
    tokenizer_json = (folders[0] / TOKENIZER_FILE).read_bytes()
    write_atomically(out / TOKENIZER_FILE, lambda path: path.write_bytes(tokenizer_json))
    own_paths = [*_write_token_counts(out, folders), out / EVALUATION_FILE, out / TOKENIZER_FILE]
    own_files = describe_files(out, own_paths)
    write_json(out / MANIFEST_FILE, {**merged, "files": train_files | own_files})


def _write_token_counts(out: Path, folders: Sequence[Path]) -> list[Path]:
    """The counts of all tasks, where there are training tokens."""
    parts = [TokenizedData.open(folder) for folder in folders]
    counts = [training_token_counts(part) for part in parts if part.train_paths]
    return [write_token_counts(out, np.sum(counts, axis=0))] if counts else []
