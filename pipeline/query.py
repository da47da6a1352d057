"""SQL over a results folder: each artefact is a view, with the model's name in its column `model`.

    python pipeline/query.py --results runs/demo/results \\
        "SELECT model, avg(loss_difference) FROM loss_differences GROUP BY model"
    python pipeline/query.py --results runs/demo/results --out gap.parquet "$(cat gap.sql)"

Without SQL it lists the views, their rows and columns; pipeline/RESULTS.md explains the columns. The dialect
is DuckDB's; other files are read by their path in quotes. Queries are read-only (a single SELECT) and run
locally. Every file of an artefact that the SQL names is hashed first. Damaged files are refused, and results
of different settings without a flag; missing shards are warned of.
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
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

from pipeline.cli import InputError, file_path, folder_path, logger, stage_parser
from pipeline.results.files import refuse_replacing, whole_or_absent
from pipeline.results.read import (
    artefacts_in,
    dataset_of,
    differences_between_models,
    differences_within_models,
    no_results,
    sources,
)

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
    add("--out", type=file_path, help="write all rows to this .csv or .parquet (default: print at most 200)")
    add("--allow-mixed", action="store_true", help="allow results with different settings (warns)")
    return stage


def connect(results: Path, sql: str | None = None, allow_mixed: bool = False) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with one view an artefact of the results folder that `sql` names; all if None.

    InputError if there are no results or, unless `allow_mixed`, they were not made alike.
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
            continue
        files = sources(results, artefact)
        if mixture := differences_within_models(files) + differences_between_models(files):
            sentence = f"{results / artefact} holds results that were not made alike: {'; '.join(mixture)}"
            if not allow_mixed:
                raise InputError(f"{sentence}; keep them in two folders, or say --allow-mixed")
            logger.warning("%s", sentence)
        connection.register(artefact, dataset_of(files, artefact))
    return connection


@contextmanager
def _in_a_sentence() -> Iterator[None]:
    """Let an InputError say what DuckDB refused, without the line of SQL and the candidates below it."""
    try:
        yield
    except duckdb.Error as error:
        raise InputError(" ".join(re.split(r"\n\n|\n\t", str(error))[0].split())) from error


def select(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.DuckDBPyRelation:
    """The rows of one SELECT, not yet computed; an InputError if the SQL is anything else."""
    with _in_a_sentence():
        statements = connection.extract_statements(sql)
        if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
            kinds = ", ".join(statement.type.name for statement in statements) or "empty"
            raise InputError(f"the SQL is {kinds}; one SELECT is run here")
        # A relation takes no semicolon, nor what is remarked behind.
        return connection.sql(re.sub(r";\s*(--[^\n]*\s*)*$", "", statements[0].query))


def main(arguments: argparse.Namespace) -> None:
    """Print or write the result of the query, or print the list of views."""
    sql = arguments.sql
    out = arguments.out
    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise InputError(f"--out {out} is neither .csv nor .parquet")
    refuse_replacing([] if out is None else [out], [arguments.results])
    # Without SQL this is how a user learns what is mixed: not refused.
    connection = connect(arguments.results, sql, arguments.allow_mixed or sql is None)
    if sql is None:
        for artefact in artefacts_in(arguments.results):
            view = connection.view(artefact)
            sys.stdout.write(f"{artefact}: {len(view):,} rows of {', '.join(view.columns)}\n")
        return
    found = select(connection, sql)
    with _in_a_sentence():
        if out is None:
            width = shutil.get_terminal_size(fallback=(1000, 0)).columns  # all of it into a file
            found.show(max_rows=_MOST_ROWS, max_width=width)
            return
        with whole_or_absent(out) as temporary:
            if out.suffix == ".csv":
                found.write_csv(str(temporary))
            else:
                found.write_parquet(str(temporary), compression="zstd")
