"""Files that are whole or absent: written to a temporary name, fsynced, renamed."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


@contextmanager
def whole_or_absent(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on leaving, fsync what was written there and rename it to `path`.

    A reader, and a run resumed after a kill, sees the old file or the new one, never a part. The
    temporary file is removed when writing fails (no space left, say).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:  # the rename itself must survive a power loss
        os.fsync(folder)
    finally:
        os.close(folder)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` on a temporary path that becomes `path` once it is whole."""
    with whole_or_absent(path) as temporary:
        write(temporary)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` as indented JSON, atomically."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write `table` as zstd Parquet, atomically."""
    write_atomically(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))


def make_table(columns: Mapping[str, Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """The table of column -> values, typed and ordered by `schema`, whose metadata it carries."""
    return pa.Table.from_pydict(dict(columns), schema=schema)


def read_parquet(path: Path, columns: Sequence[str]) -> pa.Table:
    """The named columns of one Parquet file."""
    return pq.read_table(path, columns=list(columns))
