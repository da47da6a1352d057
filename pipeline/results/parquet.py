"""Tables as Parquet files, each whole or absent, with a checksum a page."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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


def write_small_parquet(path: Path, table: pa.Table) -> None:
    """Write `table` as `write_parquet` does, in two thirds of the bytes or fewer: for version control.

    It is slower to write and as fast to read. Fields lose their metadata; that of the table is kept.
    """
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    others = [name for name in table.schema.names if name not in floats]

    def write(temporary: Path) -> None:
        with pq.ParquetWriter(
            temporary, table.schema, compression="zstd", compression_level=19, write_page_checksum=True,
            use_byte_stream_split=floats, use_dictionary=others, store_schema=False,
        ) as writer:  # fmt: skip
            writer.write_table(table)
            writer.add_key_value_metadata(table.schema.metadata or {})

    write_atomically(path, write)


def make_table(columns: Mapping[str, Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """The table of column -> values, typed and ordered by `schema`, whose metadata it carries."""
    return pa.Table.from_pydict(dict(columns), schema=schema)


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The named columns, or all, of one Parquet file, its pages checked where they have checksums.

    Raises:
        InputError: it is not Parquet, not all of it, damaged inside, or lacks a column.
    """
    present = read_footer(path).schema.names
    missing = [name for name in columns or () if name not in present]
    if missing:
        raise InputError(f"{path} lacks the column {missing[0]}: it is another file, or of another version")
    with _damage_in_words(path):
        return pq.read_table(path, columns=list(columns or present), page_checksum_verification=True)


@contextmanager
def _damage_in_words(path: Path) -> Iterator[None]:
    """Turn what Arrow raises where it cannot read `path` into a sentence.

    Raises:
        InputError: the file is damaged.
    """
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        # What the system refuses, memory or the file, no damage has caused.
        if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
            raise
        raise _damaged(path) from error


def read_footer(path: Path) -> Footer:
    """The footer of one Parquet file.

    Raises:
        InputError: it is not Parquet, or not all of it.
    """
    if not path.is_file():
        raise InputError(f"{path} is no file")
    try:
        with _damage_in_words(path), pq.ParquetFile(path) as file:
            return Footer(file.schema_arrow, file.metadata.num_rows)
    except MemoryError as error:  # a footer is small, unless a damaged one says otherwise
        raise _damaged(path) from error


def _damaged(path: Path) -> InputError:
    return InputError(f"{path} is damaged: it is no whole Parquet file")
