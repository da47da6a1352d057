"""SQL over a results folder: each artefact is a view, with the model's name in its column `model`.

    python pipeline/query.py --results runs/demo/results \
        "SELECT model, avg(loss_difference) FROM loss_differences GROUP BY model"
    python pipeline/query.py --results runs/demo/results --format parquet --out gap.parquet "$(cat gap.sql)"

Without SQL it lists the views, their rows and columns; pipeline/RESULTS.md explains the columns. The dialect
is DuckDB's; other files are read by their path in quotes. A query only reads: it is one SELECT, and nothing
of it goes to the network. Every file of an artefact that the SQL names is hashed before, to find it whole.
Damaged files are refused, and without a flag incomplete results and those of different settings. A query
without rows says so; csv, json and parquet, which other programs read, then end with exit code 1. JSON has no
NaN: it is written as the strings "NaN", "Infinity" and "-Infinity", which pandas and DuckDB cast to numbers.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
import re
import shutil
import tempfile
from typing import Any

import duckdb

from pipeline.cli import InputError, file_path, folder_path, logger, stage_parser
from pipeline.results.files import (
    refuse_replacing,
    whole_or_absent,
)
from pipeline.results.read import (
    artefacts_in,
    dataset_of,
    differences_between_models,
    differences_within_models,
    no_results,
    sources,
)
from pipeline.results.table import as_table

EXPORTS = {
    "csv": "FORMAT csv, HEADER",
    "json": "FORMAT json, ARRAY",
    "parquet": "FORMAT parquet, COMPRESSION zstd",
}
_MOST_ROWS = 200  # of a table that is printed
_SETTINGS = (
    # Else DuckDB draws it among the rows on standard output, where it takes the process for interactive.
    "SET enable_progress_bar = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET lock_configuration = true",
)


def parser() -> argparse.ArgumentParser:
    """The command line of a query."""
    stage = stage_parser(__doc__)
    add = stage.add_argument
    add("sql", nargs="?", help="a query in DuckDB's SQL; the views are listed without one")
    add("--results", type=folder_path, required=True, help="a results folder")
    formats = ["table", *EXPORTS]
    add("--format", choices=formats, default="table", help="table: the first 200 rows; json: an array")
    add("--out", type=file_path, help="write to this file, not to standard output; parquet needs it")
    add("--allow-mixed", action="store_true", help="query results that were not made alike, with a warning")
    return stage


def connect(results: Path, sql: str | None = None, allow_mixed: bool = False) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with one view an artefact of the results folder that `sql` names; all where None.

    InputError where there are no results or, unless `allow_mixed`, they were not made alike.
    """
    artefacts = artefacts_in(results)
    if not artefacts:
        raise no_results(results)
    connection = duckdb.connect()
    for setting in _SETTINGS:
        connection.execute(setting)
    for artefact in artefacts:
        # Thousands of files take seconds: those of artefacts that the query leaves alone stay unread.
        if sql is not None and artefact not in re.findall(r"\w+", sql.lower()):
            sentence = f"the query is not seen to read {artefact}; write its name out in the SQL"
            connection.execute(f"CREATE VIEW {artefact} AS SELECT error('{sentence}') AS model")
            continue
        files = sources(results, artefact)
        if mixture := differences_within_models(files) + differences_between_models(files):
            sentence = f"{results / artefact} holds results that were not made alike: {'; '.join(mixture)}"
            if not allow_mixed:
                raise InputError(f"{sentence}; keep them in two folders, or say --allow-mixed")
            logger.warning("%s", sentence)
        connection.register(artefact, dataset_of(files, artefact))
    return connection


def views(connection: duckdb.DuckDBPyConnection) -> list[tuple[str, int, str]]:
    """Each view, how many rows it has, and its columns."""
    names = "SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY 1"
    relations = {name: connection.view(name) for (name,) in connection.execute(names).fetchall()}
    return [(name, len(relation), ", ".join(relation.columns)) for name, relation in relations.items()]


def _checked(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    """The SQL's one statement, which only reads; an InputError where it is any other, or no text."""
    try:
        sql.encode()
    except UnicodeEncodeError as error:  # bytes that the shell passed on as they were
        raise InputError("the SQL is no UTF-8; save its file as UTF-8") from error
    statements = connection.extract_statements(sql)
    if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
        kinds = ", ".join(statement.type.name for statement in statements) or "empty"
        raise InputError(f"the SQL is {kinds}; one SELECT is run here, which names the values that it PIVOTs")
    return statements[0]


def run_query(
    connection: duckdb.DuckDBPyConnection, sql: str, max_rows: int
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and at most `max_rows` + 1 rows of a query; an InputError where it is wrong."""
    try:
        cursor = connection.execute(_checked(connection, sql))
        rows = cursor.fetchmany(max_rows + 1)
    except duckdb.Error as error:
        raise InputError(_sentence(error)) from error
    return [column[0] for column in cursor.description or []], rows


def _sentence(error: duckdb.Error) -> str:
    """What DuckDB refused, without the line of SQL below it and the list of all candidates for a function."""
    return " ".join(re.split(r"\n\n|\n\t", str(error))[0].split())


def export(connection: duckdb.DuckDBPyConnection, sql: str, file_format: str, path: Path) -> int:
    """Write all rows of a query to a file, in a format of `EXPORTS`, whole or not at all; how many."""
    options = EXPORTS[file_format]
    try:
        # COPY takes no semicolon, nor what is remarked behind.
        query = re.sub(r";\s*(--[^\n]*\s*)*$", "", _checked(connection, sql).query)
        if file_format == "json":
            columns = connection.sql(f"SELECT * FROM ({query}\n) LIMIT 0")
            names = [f'"{name.replace(chr(34), 2 * chr(34))}"' for name in columns.columns]
            spelled = (
                f"{_in_json(name, kind)} AS {name}" for name, kind in zip(names, columns.types, strict=True)
            )
            query = f"SELECT {', '.join(spelled)} FROM ({query}\n)"
        with whole_or_absent(path) as temporary:
            copy = f"COPY ({query}\n) TO {_quoted(str(temporary))} ({options})"
            ((num_rows,),) = connection.execute(copy).fetchall()
    except duckdb.Error as error:
        raise InputError(_sentence(error)) from error
    return int(num_rows)


def _in_json(value: str, kind: Any) -> str:
    """SQL for a value whose numbers that JSON has no word for are "NaN", "Infinity" and "-Infinity"."""
    if kind.id in ("double", "float"):
        words = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
        cases = " ".join(
            f"WHEN {value} = '{number}' THEN to_json('{word}')" for number, word in words.items()
        )
        return f"CASE {cases} ELSE to_json({value}) END"
    if kind.id in ("list", "array"):
        return f"[{_in_json('member', dict(kind.children)['child'])} FOR member IN {value}]"
    if kind.id == "struct":
        members = [
            f"{_quoted(name)}: {_in_json(f'struct_extract({value}, {_quoted(name)})', of_member)}"
            for name, of_member in kind.children
        ]
        return f"CASE WHEN {value} IS NULL THEN NULL ELSE {{{', '.join(members)}}} END"
    return value


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def main(arguments: argparse.Namespace) -> None:
    """Print or write the result of the query, or print the list of views."""
    sql = arguments.sql
    file_format = arguments.format
    out = arguments.out
    if file_format == "parquet" and out is None:
        raise InputError("--format parquet needs --out FILE")
    if file_format == "table" and out is not None:
        raise InputError("--out needs --format csv, json or parquet; a table is for reading")
    if sql is None and file_format != "table":
        raise InputError(f"--format {file_format} needs a query; the list of views is a table")
    refuse_replacing([] if out is None else [out], [arguments.results])
    # Without SQL this is how a user learns what is mixed: not refused.
    connection = connect(arguments.results, sql, arguments.allow_mixed or sql is None)
    if sql is None:
        sys.stdout.write(as_table(["view", "rows", "columns"], views(connection), widest_cell=None))
        return
    if file_format == "table":
        names, rows = run_query(connection, sql, _MOST_ROWS)
        shown = rows[:_MOST_ROWS]
        num_rows = len(rows)
        more = "the first " if len(shown) < num_rows else ""
        sys.stdout.write(f"{as_table(names, shown)}({more}{len(shown):,} rows)\n")
    else:
        with tempfile.TemporaryDirectory() as folder:  # an error half-way leaves standard output empty
            path = out or Path(folder) / "rows"
            num_rows = export(connection, sql, file_format, path)
            if out is None:
                with path.open("rb") as written:
                    shutil.copyfileobj(written, sys.stdout.buffer)
    if num_rows == 0:
        logger.warning("no rows")
        sys.exit(0 if file_format == "table" else 1)
