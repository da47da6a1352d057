"""Tables that notebooks make of results, as Parquet in the schemas of pipeline/RESULTS.md."""

from pathlib import Path

import pandas as pd

from pipeline.results.parquet import make_table, write_parquet
from pipeline.results.partial import partial_note
from pipeline.results.schemas import SCHEMAS


def write_derived_table(table: pd.DataFrame, artefact: str, folder: Path) -> Path:
    """Write `<folder>/<artefact>.parquet`; its path.

    Where results were read in part, the file's metadata says so as `note`, as that of a query's Parquet does.

    Args:
        table: with the columns of the artefact, and others, which are left out.
        artefact: a name of `SCHEMAS`.
        folder: where it is written.
    """
    path, schema = folder / f"{artefact}.parquet", SCHEMAS[artefact]
    if note := partial_note():
        schema = schema.with_metadata({"note": note})
    write_parquet(path, make_table({name: table[name].tolist() for name in schema.names}, schema))
    return path
