"""SQL over a results folder: each artefact is a view, with the model's name in its column `model`.

    python pipeline/query.py --results runs/demo/results \
        "SELECT model, avg(loss_difference) FROM loss_differences GROUP BY model"
    python pipeline/query.py --results runs/demo/results --sql-file gap.sql --format parquet --out gap.parquet

Without SQL it lists the views, their rows and columns; pipeline/RESULTS.md explains the columns. The dialect
is DuckDB's. Parquet is read in place: of the columns and row groups only those that the query needs, and
with WHERE model = '...' that model's alone. Every file of an artefact that the SQL names is hashed before, to
find it whole. Results that were not made alike, in another schema version or with other settings, are
refused by name; --allow-mixed queries them all the same. So are incomplete ones, of which --allow-partial
queries what is complete. Damaged files are always refused.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import duckdb

from pipeline.cli import (
    InputError,
    file_path,
    folder_path,
    os_error_sentence,
    positive_int,
    stage_parser,
    unknown_name,
)
from pipeline.results.files import add_partial_flag, allow_partial, partial_note, write_atomically
from pipeline.results.read import (
    FileOrigin,
    artefacts_in,
    differences_between_models,
    differences_within_models,
    origins,
    whole_files,
)
from pipeline.results.schemas import EARLIER_RULES, SCHEMAS
from pipeline.results.table import as_table

EXPORTS = {
    "csv": "FORMAT csv, HEADER",
    "json": "FORMAT json, ARRAY",
    "parquet": "FORMAT parquet, COMPRESSION zstd",
}
logger = logging.getLogger("pipeline")


def parser() -> argparse.ArgumentParser:
    """The command line of a query."""
    stage = stage_parser(__doc__)
    add = stage.add_argument
    add("sql", nargs="?", help="a query in DuckDB's SQL; the views are listed without one")
    add("--sql-file", type=file_path, help="read the query from this file instead")
    add("--results", type=folder_path, required=True, help="a results folder")
    add(
        "--format",
        choices=["table", *EXPORTS],
        default="table",
        help="how the rows are written; json: an array",
    )
    add("--out", type=file_path, help="write to this file, not to standard output; parquet needs it")
    add("--max-rows", type=positive_int, default=200, help="rows at most in a table; other formats write all")
    add("--allow-mixed", action="store_true", help="query results that were not made alike, with a warning")
    add_partial_flag(stage)
    return stage


def named_in(sql: str, names: Iterable[str]) -> list[str]:
    """Those of `names` that occur in a query as a word, in any case; text in quotes counts too."""
    words = set(re.findall(r"\w+", sql.lower()))
    return [name for name in names if name in words]


def connect(results: Path, sql: str | None = None, allow_mixed: bool = False) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with one view an artefact of the results folder.

    Args:
        results: the results folder.
        sql: only the artefacts that it names are checked for being made alike; all where None.
        allow_mixed: warn of results that were not made alike, rather than refuse them.

    Raises:
        InputError: the folder holds no results, some that were not made alike, or, unless partial results
            are allowed, some that are not complete.
    """
    artefacts = artefacts_in(results)
    if not artefacts:
        raise InputError(f"{results} holds no results; --results names a folder that a stage wrote to")
    connection = duckdb.connect()
    connection.execute("SET errors_as_json = true")
    # Else DuckDB draws it among the rows on standard output, where it takes the process for interactive.
    connection.execute("SET enable_progress_bar = false")
    named = artefacts if sql is None else named_in(sql, artefacts)
    for artefact in artefacts:
        # Thousands of files take seconds: those of artefacts that the query leaves alone stay unread.
        if artefact not in named:
            sentence = f"the query is not seen to read {artefact}; write its name out in the SQL"
            connection.execute(f"CREATE VIEW {artefact} AS SELECT error('{sentence}') AS model")
            continue
        files = origins(whole_files(results, artefact), artefact)
        if not files:  # partial, and that much so
            logger.warning("no shard of %s is complete", artefact)
            continue
        _refuse_mixture(results, artefact, files, allow_mixed)
        connection.execute(f"CREATE VIEW {artefact} AS {_select(files)}")
    return connection


def _select(files: Sequence[FileOrigin]) -> str:
    """The rows of all files with their model: the name of their folder as it stands, or an export's column.

    A part a model, so that WHERE model = '...' leaves the others' files unopened; and a part each set of
    columns, since DuckDB would otherwise open every file to compare them. Rules have their present names.
    """
    paths: dict[tuple[str, tuple[str, ...]], dict[str, None]] = {}
    for file in files:
        model = "model" if file.is_shared else f"{_quoted(file.model)} AS model"
        columns = f"*{' EXCLUDE (model)' if file.is_shared else ''}{_present_rules(file)}, {model}"
        paths.setdefault((columns, file.columns), {})[_quoted(str(file.path))] = None
    selects = (
        f"SELECT {columns} FROM read_parquet([{', '.join(of_part)}], hive_partitioning = false)"
        for (columns, _), of_part in paths.items()
    )
    return " UNION ALL BY NAME ".join(selects)


def _present_rules(file: FileOrigin) -> str:
    """What renames the rules of schema version 1; nothing where the file is newer, or has none."""
    if "rule" not in file.columns or file.facts()["schema_version"] != 1:
        return ""
    renamed = " ".join(
        f"WHEN {_quoted(earlier)} THEN {_quoted(present)}" for earlier, present in EARLIER_RULES.items()
    )
    return f" REPLACE (CASE rule {renamed} ELSE rule END AS rule)"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _refuse_mixture(results: Path, artefact: str, files: list[FileOrigin], allow_mixed: bool) -> None:
    mixture = differences_within_models(files) + differences_between_models(files)
    if not mixture:
        return
    sentence = f"{results / artefact} holds results that were not made alike: {'; '.join(mixture)}"
    if not allow_mixed:
        raise InputError(f"{sentence}; keep them in two folders, or say --allow-mixed")
    logger.warning("%s", sentence)


def views(connection: duckdb.DuckDBPyConnection) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows of the listing: each view, how many rows it has, and its columns."""
    listing = []
    for view in _view_names(connection):
        (num_rows,) = connection.execute(f"SELECT count(*) FROM {view}").fetchall()[0]
        listing.append((view, num_rows, ", ".join(_columns_of(connection, [view]))))
    return ["view", "rows", "columns"], listing


def _view_names(connection: duckdb.DuckDBPyConnection) -> list[str]:
    rows = connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY 1").fetchall()
    return [name for (name,) in rows]


def _columns_of(connection: duckdb.DuckDBPyConnection, artefacts: Iterable[str]) -> list[str]:
    described = [connection.execute(f"DESCRIBE {artefact}").fetchall() for artefact in artefacts]
    return list(dict.fromkeys(row[0] for rows in described for row in rows))


def run_query(
    connection: duckdb.DuckDBPyConnection, sql: str, max_rows: int
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and at most `max_rows` + 1 rows of a query; the one too many tells that there are more.

    Raises:
        InputError: the SQL is wrong; says what, in one sentence.
    """
    try:
        for statement in _statements(connection, sql):
            cursor = connection.execute(statement)
        rows = cursor.fetchmany(max_rows + 1)
    except duckdb.Error as error:
        raise InputError(mendable(connection, sql, error)) from error
    return [column[0] for column in cursor.description or []], rows


def export(connection: duckdb.DuckDBPyConnection, sql: str, file_format: str, path: Path) -> int:
    """Write all rows of a query to a file, whole or not at all; returns how many they are.

    Args:
        connection: of `connect`.
        sql: one or more statements; the rows of the last are written.
        file_format: a name of `EXPORTS`.
        path: replaced where it exists.

    Raises:
        InputError: the SQL is wrong, or its last statement has no rows to write.
    """
    num_rows = 0

    def copy(temporary: Path) -> None:
        nonlocal num_rows
        options = EXPORTS[file_format]
        if file_format == "parquet" and (note := partial_note()):
            options += f", KV_METADATA {{note: {_quoted(note)}}}"
        copied = connection.execute(f"COPY (FROM query_result) TO {_quoted(str(temporary))} ({options})")
        ((num_rows,),) = copied.fetchall()

    try:
        *before, last = _statements(connection, sql)
        for statement in before:
            connection.execute(statement)
        if last.type != duckdb.StatementType.SELECT:
            raise InputError(f"--format {file_format} needs rows to write; end the SQL with a SELECT")
        # A view's text cannot hold the semicolon that ends it, nor what is remarked behind.
        query = re.sub(r";\s*(--[^\n]*\s*)*$", "", last.query)
        connection.sql(query).create_view("query_result")
        write_atomically(path, copy)
    except duckdb.Error as error:
        raise InputError(_why_not_written(path, error) or mendable(connection, sql, error)) from error
    return num_rows


def _why_not_written(path: Path, error: duckdb.Error) -> str | None:
    """The sentence for what the system refused while rows were written; None where it refused nothing."""
    match = re.search(r'"errno": *"?(\d+)', str(error).replace("\\", ""))  # JSON, within JSON too
    return os_error_sentence(OSError(int(match[1]), "", str(path))) if match else None


def _statements(connection: duckdb.DuckDBPyConnection, sql: str) -> list[duckdb.Statement]:
    statements = connection.extract_statements(sql)
    if not statements:
        raise InputError("the SQL is empty; leave it out to list the views")
    return statements


def mendable(connection: duckdb.DuckDBPyConnection, sql: str, error: duckdb.Error) -> str:
    """One sentence for what DuckDB refused, with the nearest name where a name is wrong."""
    message = str(error)
    try:
        told = json.loads(message[message.index("{") :])
    except ValueError:  # not every error is told as JSON
        return " ".join(message.split("\nLINE ")[0].split())
    name, kind = told.get("name", ""), told.get("error_subtype")
    if told.get("type") == "Table" and kind == "MISSING_ENTRY":
        present = _view_names(connection)
        if name.lower() in SCHEMAS:
            return f"no results '{name}' in this folder; it holds {', '.join(present)}"
        return str(unknown_name("view", name, present))
    if kind == "COLUMN_NOT_FOUND":
        hint = "; text stands in single quotes" if f'"{name}"' in sql else ""
        columns = _columns_of(connection, named_in(sql, _view_names(connection)))
        return f"{unknown_name('column', name, columns)}{hint}"
    sentences = told["exception_message"].split("\n\t")[0]  # below stand all candidates for a function
    return " ".join(sentences.split())


def _models_named(connection: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    """The models that the artefacts which a query names have rows of."""
    views = named_in(sql, _view_names(connection))
    rows = (connection.execute(f"SELECT DISTINCT model FROM {view}").fetchall() for view in views)
    return sorted({model for of_view in rows for (model,) in of_view})


def _print_table(names: Sequence[str], rows: Sequence[Sequence[Any]], max_rows: int) -> None:
    max_width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    sys.stdout.write(as_table(names, rows[:max_rows], max_width))
    if len(rows) > max_rows:
        sys.stdout.write(f"(the first {max_rows:,} rows; --max-rows shows more)\n")
    else:
        sys.stdout.write(f"({len(rows):,} row{'' if len(rows) == 1 else 's'})\n")
    if note := partial_note():
        sys.stdout.write(f"({note})\n")


def _sql_of(arguments: argparse.Namespace) -> str | None:
    if arguments.sql_file is None:
        return arguments.sql
    if arguments.sql is not None:
        raise InputError("both SQL and --sql-file are given; one of them is the query")
    try:
        return arguments.sql_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--sql-file {arguments.sql_file} cannot be read as text: {error}") from error


def _refuse_flags_at_odds(sql: str | None, file_format: str, out: Path | None) -> None:
    if file_format == "parquet" and out is None:
        raise InputError("--format parquet needs --out FILE")
    if file_format == "table" and out is not None:
        raise InputError("--out needs --format csv, json or parquet; a table is for reading")
    if sql is None and file_format != "table":
        raise InputError(f"--format {file_format} needs a query; the list of views is a table")


def _answer(connection: duckdb.DuckDBPyConnection, sql: str, arguments: argparse.Namespace) -> int:
    """Print or write the rows of a query; returns how many, of a table at most one more than it shows."""
    if arguments.format == "table":
        names, rows = run_query(connection, sql, arguments.max_rows)
        _print_table(names, rows, arguments.max_rows)
        return len(rows)
    if arguments.out is not None:
        return export(connection, sql, arguments.format, arguments.out)
    with tempfile.TemporaryDirectory() as folder:  # an error half-way leaves standard output empty
        path = Path(folder) / "rows"
        num_rows = export(connection, sql, arguments.format, path)
        with path.open("rb") as written:
            shutil.copyfileobj(written, sys.stdout.buffer)
    return num_rows


def _tell_partial() -> None:
    """On standard error, for rows that other programs read must stay rows."""
    if note := partial_note():
        logger.warning("%s", note)


def main(arguments: argparse.Namespace) -> None:
    """Print or write the result of the query, or print the list of views."""
    sql = _sql_of(arguments)
    _refuse_flags_at_odds(sql, arguments.format, arguments.out)
    allow_partial(arguments.allow_partial or sql is None)
    if sql is None:  # how a user learns what is mixed or partial: not refused
        sys.stdout.write(as_table(*views(connect(arguments.results, allow_mixed=True)), widest_cell=None))
        _tell_partial()
        return
    connection = connect(arguments.results, sql, arguments.allow_mixed)
    _tell_partial()
    if _answer(connection, sql, arguments) == 0:
        logger.warning("no rows; the models here are %s", ", ".join(_models_named(connection, sql)))
