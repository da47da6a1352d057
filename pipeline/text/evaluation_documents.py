"""Evaluation documents as Parquet: written once, read by every stage that measures."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.results.files import make_table, read_parquet, write_parquet
from pipeline.results.schemas import SCHEMA_VERSION, SCHEMAS


@dataclass(frozen=True)
class EvaluationDocument:
    """A document to evaluate on."""

    document_id: str
    token_ids: np.ndarray
    """Shape (S,), int32, without a final EOS."""
    url: str | None = None


def write_evaluation_documents(path: Path, documents: Iterable[EvaluationDocument]) -> None:
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
        {"schema_version": str(SCHEMA_VERSION), "stage": "tokenize_c4"}
    )
    write_parquet(path, make_table(columns, schema))


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
