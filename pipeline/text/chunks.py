"""Documents cut into chunks, each with its null, and the rows that name its targets.

Shapes: L chunk (long_context_length), T targets.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.text.tokenized_data import EvaluationDocument, TokenizedData

logger = logging.getLogger("pipeline")
Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class Chunk:
    """`long_context_length` tokens of one document, and the same chunk of the document that is its null."""

    document_id: str
    chunk_index: int
    token_ids_L: np.ndarray
    null_token_ids_L: np.ndarray

    @property
    def start(self) -> int:
        """Place of the chunk's first token in the document."""
        return self.chunk_index * len(self.token_ids_L)

    def target_columns(self, targets_T: np.ndarray) -> Columns:
        """The columns that name a target, in the document's coordinates, a row for each of `targets_T`."""
        return {
            "document_id": [self.document_id] * len(targets_T),
            "chunk_index": [self.chunk_index] * len(targets_T),
            "target_position": (self.start + targets_T).tolist(),
        }


def long_enough_documents(
    data: TokenizedData, chunk_length: int, max_documents: int | None
) -> list[EvaluationDocument]:
    """The first `max_documents` evaluation documents that hold a chunk; the others are counted in the log.

    Raises:
        InputError: there are fewer than two, and each document serves as the null of another.
    """
    documents = data.evaluation_documents()
    usable = [document for document in documents if len(document.token_ids) >= chunk_length]
    if len(usable) < len(documents):
        logger.info(
            "%d of %d documents are shorter than %d tokens and are skipped",
            len(documents) - len(usable), len(documents), chunk_length,
        )  # fmt: skip
    if len(usable[:max_documents]) < 2:
        raise InputError(
            f"{len(usable[:max_documents])} evaluation document(s) of at least {chunk_length} tokens in"
            f" {data.folder} are not enough: two are needed, since each serves as the null of another; choose"
            " a smaller --long-context-length or a larger --max-documents"
        )
    return usable[:max_documents]


def chunks_of(
    documents: Sequence[EvaluationDocument], index: int, chunk_length: int, max_chunks: int | None
) -> list[Chunk]:
    """The first `max_chunks` full chunks of one document, or all of them.

    Its null is the next document, the first one's for the last: their order is a hash's, so any is as
    good as another.
    """
    document, null = documents[index], documents[(index + 1) % len(documents)]
    num_null_chunks = len(null.token_ids) // chunk_length
    chunks = []
    num_chunks = len(document.token_ids) // chunk_length
    for chunk_index in range(num_chunks if max_chunks is None else min(num_chunks, max_chunks)):
        start, null_start = chunk_index * chunk_length, chunk_index % num_null_chunks * chunk_length
        chunks.append(
            Chunk(
                document.document_id,
                chunk_index,
                document.token_ids[start : start + chunk_length].astype(np.int64),
                null.token_ids[null_start : null_start + chunk_length].astype(np.int64),
            )
        )
    return chunks


def append_columns(tables: dict[str, Columns], rows: Mapping[str, Columns]) -> None:
    """Append the rows of each artefact to its table, in place."""
    for artefact, columns in rows.items():
        table = tables.setdefault(artefact, {name: [] for name in columns})
        for name, values in columns.items():
            table[name].extend(values)
