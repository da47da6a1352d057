"""SQL over a results folder: each artefact is a view, with the model's name in its column `model`.

    python pipeline/query.py --results runs/demo/results \
        "SELECT model, avg(loss_difference) FROM loss_differences GROUP BY model"

Without SQL it lists the views, their rows and columns; RESULTS.md says what the columns mean. The dialect
is DuckDB's. Parquet is read in place, only the columns and row groups that the query needs.
"""

import sys
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import argparse
import glob
from collections.abc import Sequence
from typing import Any

import duckdb

from pipeline.errors import InputError
from pipeline.results.folder import artefacts_in
from pipeline.stage import positive_int, run_stage, stage_parser

_WIDEST_CELL = 60  # characters; a list of token IDs would push everything else off the screen


def parser() -> argparse.ArgumentParser:
    """The command line of a query."""
    stage = stage_parser(__doc__)
    add = stage.add_argument
    add("sql", nargs="?", help="a query in DuckDB's SQL; the views are listed without one")
    add("--results", type=Path, required=True, help="a results folder")
    add("--max-rows", type=positive_int, default=200, help="rows printed at most")
    return stage


def connect(results: Path) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with one view an artefact of the results folder.

    Raises:
        InputError: the folder holds no results.
    """
    artefacts = artefacts_in(results)
    if not artefacts:
        raise InputError(f"{results} holds no results; --results names a folder that a stage wrote to")
    connection = duckdb.connect()
    for artefact in artefacts:
        pattern = f"{glob.escape(str(results / artefact))}/model=*/*.parquet".replace("'", "''")
        connection.execute(
            f"CREATE VIEW {artefact} AS SELECT * FROM read_parquet('{pattern}',"
            " union_by_name = true, hive_partitioning = true, hive_types = {'model': VARCHAR})"
        )
    return connection


def views(connection: duckdb.DuckDBPyConnection) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows of the listing: each view, how many rows it has, and its columns."""
    listing = []
    for (view,) in connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall():
        (num_rows,) = connection.execute(f"SELECT count(*) FROM {view}").fetchall()[0]
        columns = [row[0] for row in connection.execute(f"DESCRIBE {view}").fetchall()]
        listing.append((view, num_rows, ", ".join(columns)))
    return ["view", "rows", "columns"], listing


def run_query(
    connection: duckdb.DuckDBPyConnection, sql: str, max_rows: int
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and at most `max_rows` + 1 rows of a query; the one too many tells that there are more.

    Raises:
        InputError: the SQL is wrong; says what, in one sentence.
    """
    try:
        cursor = connection.execute(sql)
        rows = cursor.fetchmany(max_rows + 1)
    except duckdb.Error as error:
        # DuckDB appends the line of SQL with a caret, which one line cannot show.
        sentence = " ".join(str(error).split("\nLINE ")[0].split())
        if isinstance(error, duckdb.CatalogException):
            present = [row[0] for row in views(connection)[1]]
            sentence = f"{sentence.split(' Did you mean')[0]} The views are {', '.join(present)}"
        raise InputError(sentence) from error
    return [column[0] for column in cursor.description or []], rows


def as_table(
    names: Sequence[str], rows: Sequence[Sequence[Any]], widest_cell: int | None = _WIDEST_CELL
) -> str:
    """Rows under their names, columns aligned: numbers to the right, all else to the left."""
    cells = [list(names), *([_cell(value, widest_cell) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    is_number = [
        all(value is None or isinstance(value, int | float) for value in column) and bool(column)
        for column in (list(zip(*rows, strict=True)) or [()] * len(names))
    ]
    aligned = (
        [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ]
        for row in cells
    )
    return "".join("  ".join(row).rstrip() + "\n" for row in aligned)


def _cell(value: Any, widest_cell: int | None) -> str:
    if value is None:
        return "-"
    text = f"{value:.4f}" if isinstance(value, float) else str(value)
    if widest_cell is not None and len(text) > widest_cell:
        return text[: widest_cell - 1] + "…"
    return text


def main(arguments: argparse.Namespace) -> None:
    """Print the result of the query, or the list of views."""
    connection = connect(arguments.results)
    if arguments.sql is None:
        sys.stdout.write(as_table(*views(connection), widest_cell=None))
        return
    names, rows = run_query(connection, arguments.sql, arguments.max_rows)
    sys.stdout.write(as_table(names, rows[: arguments.max_rows]))
    if len(rows) > arguments.max_rows:
        sys.stdout.write(f"… the first {arguments.max_rows} rows; --max-rows shows more\n")


if __name__ == "__main__":
    run_stage(parser(), main)
