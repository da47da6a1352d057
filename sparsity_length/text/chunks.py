"""Documents cut into chunks, each with its null.

A chunk holds tokens of the text only. What a tokenizer puts before every text (BOS) belongs to the model,
which has it before every context (`CausalLM.led_by`), and counts nowhere here.

Shapes: L chunk (long_context_length), T targets.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sparsity_length.cli import InputError, logger
from sparsity_length.text.folder import EvaluationDocument, TokenizedData


@dataclass(frozen=True)
class Chunk:
    """`long_context_length` tokens of one document, and the same chunk of others."""

    document_id: str
    chunk_index: int
    token_ids_L: np.ndarray
    other_token_ids_NL: np.ndarray
    """The same chunk of N other documents: the null's, those of trials, and those of searches."""
    start: int = 0
    """Place of the chunk's first token in the document."""


def long_enough_documents(
    data: TokenizedData,
    chunk_length: int,
    max_documents: int | None,
    num_others: int = 1,
) -> list[EvaluationDocument]:
    """The first `max_documents` evaluation documents that hold a chunk; the others are counted in the log.

    InputError if there are not as many beside each as serve as its null and swapped contexts: `num_others`.
    """
    documents = data.evaluation_documents()
    usable = [document for document in documents if len(document.token_ids) >= chunk_length]
    logger.info("%d of %d documents have %d tokens or more", len(usable), len(documents), chunk_length)
    # Cut before the count below: the others of a document are among those that are measured.
    usable = usable[:max_documents]
    if len(usable) <= num_others:
        raise InputError(
            f"{len(usable)} evaluation document(s) of at least {chunk_length} tokens in {data.folder} are not"
            f" enough: {num_others + 1} are needed, since others serve as its null and swapped contexts;"
            " choose a shorter context or a larger --max-documents"
        )
    return usable


def chunks_of(
    documents: Sequence[EvaluationDocument],
    index: int,
    chunk_length: int,
    max_chunks: int | None,
    num_others: int = 1,
) -> Iterator[Chunk]:
    """The first `max_chunks` full chunks of one document, or all of them, with the same chunk of others.

    The others are the documents that come next, after the last the first: their order is a hash's, so any is
    as good as another. If one has fewer chunks, they are taken in turn.
    """
    # Of four documents, the last has documents 0, 1, … as its others.
    used = [documents[(index + number) % len(documents)] for number in range(1 + num_others)]
    for chunk_index in range(len(used[0].token_ids) // chunk_length)[:max_chunks]:
        start = chunk_index * chunk_length
        pieces = []
        for document in used:
            # A document of two chunks gives its chunks 0 1 0 1 … .
            place = chunk_index % (len(document.token_ids) // chunk_length) * chunk_length
            pieces.append(document.token_ids[place : place + chunk_length].astype(np.int64))
        own, *others = pieces
        yield Chunk(used[0].document_id, chunk_index, own, np.array(others), start)
