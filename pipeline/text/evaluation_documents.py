"""Evaluation documents as Parquet: written once, read by every stage that measures."""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappush, heappushpop
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.results.parquet import make_table, read_parquet, write_parquet
from pipeline.results.schemas import SCHEMA_VERSION, SCHEMAS


@dataclass(frozen=True)
class EvaluationDocument:
    """A document to evaluate on."""

    document_id: str
    token_ids: np.ndarray
    """Shape (S,), int32, without a final EOS."""
    url: str | None = None


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
        """How often one had to be left out."""

    def add(self, document: EvaluationDocument) -> bool:
        """Take a document; whether its ID was not among those kept."""
        number = int(document.document_id, 16)
        if number in self._kept_ids:
            return False
        self._kept_ids.add(number)
        if len(self._heap) < self._max_documents:
            heappush(self._heap, (-number, document))
        else:
            largest, _ = heappushpop(self._heap, (-number, document))
            self._kept_ids.remove(-largest)
            self.num_left_out += 1
        return True

    def documents(self) -> list[EvaluationDocument]:
        """The documents kept, in no order."""
        return [document for _, document in self._heap]


def write_evaluation_documents(
    path: Path, documents: Iterable[EvaluationDocument], stage: str = "tokenize_c4"
) -> None:
    """Write `documents` ordered by ID: the IDs are hashes, so any first few are a random sample."""
    ordered = sorted(documents, key=lambda document: document.document_id)
    columns: dict[str, list[Any]] = {
        "document_id": [document.document_id for document in ordered],
        "url": [document.url for document in ordered],
        "token_ids": [document.token_ids for document in ordered],
        "num_tokens": [len(document.token_ids) for document in ordered],
    }
    # Only what never changes with the commit: the file's SHA-256 stands for the documents in other stages.
    schema = SCHEMAS["evaluation_documents"].with_metadata(
        {"schema_version": str(SCHEMA_VERSION), "stage": stage}
    )
    # Nor page checksums: results name the documents by the bytes that they have had from the start.
    write_parquet(path, make_table(columns, schema), page_checksums=False)


def read_evaluation_documents(path: Path) -> list[EvaluationDocument]:
    """The documents of a file that `write_evaluation_documents` wrote, in its order."""
    # Arrow's own arrays are read-only, which torch does not take without a warning: hence the copies.
    frame = read_parquet(path, ["document_id", "url", "token_ids"]).to_pandas()
    return [
        EvaluationDocument(document_id, np.array(token_ids), url if isinstance(url, str) else None)
        for document_id, url, token_ids in zip(
            frame["document_id"], frame["url"], frame["token_ids"], strict=True
        )
    ]


def read_evaluation_lengths(path: Path) -> list[int]:
    """Tokens of each document of such a file, in its order."""
    return read_parquet(path, ["num_tokens"])["num_tokens"].to_pylist()
