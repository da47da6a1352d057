"""A stream of documents through a tokenizer, batch after batch on several cores, always in order."""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from ctypes import c_longlong
from dataclasses import dataclass
from functools import partial
from multiprocessing.sharedctypes import RawValue
from types import TracebackType
from typing import Self

import numpy as np

from pipeline.errors import UnfinishedError
from pipeline.text.documents import RecordBatch, Source, record_batches
from pipeline.text.tokenizer import DocumentTokenizer
from pipeline.text.worker_processes import kill, leave_with_parent, worker_context

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
