"""Tables as Parquet files, each whole or absent, with a checksum a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import InputError
from pipeline.results.files import write_atomically


@dataclass(frozen=True)
class Footer:
    """What a Parquet file says of itself at its end; no row is read for it."""

    schema: pa.Schema
    num_rows: int

    @property
    def metadata(self) -> Mapping[bytes, bytes]:
        """What the writer left beside the schema."""
        return self.schema.metadata or {}


def write_parquet(path: Path, table: pa.Table, page_checksums: bool = True) -> None:
    """Write `table` as zstd Parquet, atomically."""
    write_atomically(
        path,
        lambda temporary: pq.write_table(
            table, temporary, compression="zstd", write_page_checksum=page_checksums
        ),
    )


def make_table(columns: Mapping[str, Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """The table of column -> values, typed and ordered by `schema`, whose metadata it carries."""
    return pa.Table.from_pydict(dict(columns), schema=schema)


def read_parquet(path: Path, columns: Sequence[str]) -> pa.Table:
    """The named columns of one Parquet file, its pages checked where they have checksums."""
    return pq.read_table(path, columns=list(columns), page_checksum_verification=True)


def read_footer(path: Path) -> Footer:
    """The footer of one Parquet file.

    Raises:
        InputError: it is not Parquet, or not all of it.
    """
    if not path.is_file():
        raise InputError(f"{path} is no file")
    try:
        with pq.ParquetFile(path) as file:
            return Footer(file.schema_arrow, file.metadata.num_rows)
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise InputError(f"{path} is no whole Parquet file") from error
