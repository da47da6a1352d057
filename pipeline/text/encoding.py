"""A stream of documents through a tokenizer, batch after batch on several cores, always in order."""

import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from types import TracebackType
from typing import Self

import numpy as np

from pipeline.errors import InputError
from pipeline.text.documents import RecordBatch, Source, record_batches
from pipeline.text.tokenizer import DocumentTokenizer

_THREADS = 2  # one in the tokenizer, which then holds no lock of Python's, while the other parses


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


def encode_batch(tokenizer: DocumentTokenizer, batch: RecordBatch, *, skip_malformed: bool) -> EncodedBatch:
    """Parse and encode one batch.

    Raises:
        InputError: a malformed record; names the file and the line.
    """
    tally: Counter[str] = Counter()
    documents = list(batch.documents(tally, skip_malformed=skip_malformed))
    encoded = tokenizer.encode([document.text for document in documents])
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
    in their order. A few batches are read ahead, so memory does not grow with the text.
    """

    def __init__(self, tokenizer: DocumentTokenizer, num_workers: int, *, skip_malformed: bool) -> None:
        self._skip_malformed = skip_malformed
        self._pool: Executor
        self._encode: Callable[..., EncodedBatch]
        if num_workers == 1:
            self._pool = ThreadPoolExecutor(_THREADS)
            self._encode = partial(encode_batch, tokenizer)
        else:
            # Not "fork": this process may have threads by now, of the tokenizer or of a hub's client.
            context = get_context("forkserver")
            self._pool = ProcessPoolExecutor(num_workers, context, _start_worker, (tokenizer,))
            self._encode = _encode_in_worker
        self._num_ahead = 2 * max(num_workers, _THREADS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def encode(self, sources: Iterable[Source], tally: Counter[str]) -> Iterator[EncodedDocument]:
        """The documents of all sources in order, encoded; `tally` counts `empty` and `malformed` records.

        Raises:
            InputError: a malformed record, a file that cannot be read, or a worker that was killed.
        """
        for batch in self._encoded_batches(record_batches(sources)):
            tally.update(batch.tally)
            yield from batch

    def _encoded_batches(self, batches: Iterable[RecordBatch]) -> Iterator[EncodedBatch]:
        pending: deque[Future[EncodedBatch]] = deque()
        try:
            for batch in batches:
                pending.append(self._pool.submit(self._encode, batch, skip_malformed=self._skip_malformed))
                if len(pending) > self._num_ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise InputError(
                "a worker process was ended from outside, most likely for want of memory;"
                " lower --num-workers or give the job more memory, then run the same command again"
            ) from error


_tokenizer_of_worker: DocumentTokenizer


def _start_worker(tokenizer: DocumentTokenizer) -> None:
    """Make this process a worker: it leaves with its parent, whose Ctrl-C is not its own to answer."""
    global _tokenizer_of_worker
    _tokenizer_of_worker = tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode_in_worker(batch: RecordBatch, *, skip_malformed: bool) -> EncodedBatch:
    return encode_batch(_tokenizer_of_worker, batch, skip_malformed=skip_malformed)


def first_characters(texts: Iterable[str], num_characters: int) -> Iterator[str]:
    """The first of `texts`, as many whole ones as reach `num_characters`."""
    for text in texts:
        yield text
        num_characters -= len(text)
        if num_characters <= 0:
            return
