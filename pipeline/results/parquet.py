"""Tables as Parquet files, each whole or absent."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.results.files import write_atomically


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write `table` as zstd Parquet, atomically."""
    write_atomically(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))


def make_table(columns: Mapping[str, Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """The table of column -> values, typed and ordered by `schema`, whose metadata it carries."""
    return pa.Table.from_pydict(dict(columns), schema=schema)


def read_parquet(path: Path, columns: Sequence[str]) -> pa.Table:
    """The named columns of one Parquet file."""
    return pq.read_table(path, columns=list(columns))
