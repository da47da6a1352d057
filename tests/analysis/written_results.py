"""Rows of an artefact written as a stage writes them, for notebooks to read."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from sparsity_length.results.schemas import SCHEMAS
from sparsity_length.results.write import StageOutput


def write_tables(
    results: Path,
    stage: str,
    model: str,
    settings: dict[str, Any],
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    inputs: Mapping[str, str] | None = None,
) -> None:
    """Write rows of several artefacts of one model; columns that a row lacks are null."""
    output = StageOutput(results, stage, model, settings=settings, inputs=inputs or {}, num_shards=1)
    columns = {
        artefact: {
            name: [row.get(name) for row in rows]
            for name in SCHEMAS[artefact].names
            if name in {*chain(*rows)}
        }
        for artefact, rows in tables.items()
    }
    output.write_shard(0, columns.items())
