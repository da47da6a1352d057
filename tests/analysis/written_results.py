"""Rows of an artefact written as a stage writes them, for notebooks to read."""

from pathlib import Path

import pandas as pd
import pyarrow as pa

from pipeline.results.schemas import SCHEMAS
from pipeline.results.write import StageOutput


def write_rows(results: Path, stage: str, artefact: str, rows: pd.DataFrame) -> None:
    """Write the rows of each `model`; columns of the schema that the rows lack hold 0, "0" or False."""
    for model, of_model in rows.groupby("model"):
        columns = {}
        for field in SCHEMAS[artefact]:
            blank = pa.scalar(0).cast(field.type).as_py()
            values = of_model[field.name] if field.name in of_model else [blank] * len(of_model)
            columns[field.name] = [None if pd.isna(value) else value for value in values]
        output = StageOutput(results, stage, str(model), settings={}, inputs={}, num_shards=1)
        output.write_shard(0, {artefact: columns})
