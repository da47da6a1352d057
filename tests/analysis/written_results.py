"""Rows of an artefact written as a stage writes them, for notebooks to read."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from pipeline.results.schemas import SCHEMAS
from pipeline.results.write import StageOutput


def write_rows(results: Path, stage: str, artefact: str, rows: pd.DataFrame) -> None:
    """Write the rows of each `model`; columns that the rows lack hold 0, "0", False or no list."""
    for model, of_model in rows.groupby("model"):
        columns = {}
        for field in SCHEMAS[artefact]:
            blank = None if pa.types.is_list(field.type) else pa.scalar(0).cast(field.type).as_py()
            values = of_model[field.name] if field.name in of_model else [blank] * len(of_model)
            columns[field.name] = [None if pd.isna(value) else value for value in values]
        output = StageOutput(results, stage, str(model), settings={}, inputs={}, num_shards=1)
        output.write_shard(0, {artefact: columns})


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
        artefact: {field.name: [row.get(field.name) for row in rows] for field in SCHEMAS[artefact]}
        for artefact, rows in tables.items()
    }
    output.write_shard(0, columns)
