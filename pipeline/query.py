"""Query a results folder with SQL (each table is a view), or export it.

  sparsity query --results runs/demo/results
  sparsity query --results runs/demo/results \\
      "SELECT model, avg(loss_difference) FROM loss_differences GROUP BY model"
  sparsity query --results runs/demo/results --out gap.parquet "SELECT * FROM loss_differences"
  sparsity query --results runs/demo/results --out runs/demo/exported

Without SQL, the program lists the columns of all views (explained in pipeline/RESULTS.md) or, with --out,
exports each table as one file. The dialect is DuckDB's; other files can be read by their path in quotes. A
query must be a single SELECT.

The program first verifies the SHA-256 of every file of the tables that the query names. It refuses damaged
files, and files of one model that were made with different settings. It warns if models were measured
differently and if shards are missing.
"""

import argparse
import json
import re
import shutil
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from sparsity_length.cli import InputError, Stage, folder_path, path_of, words
from sparsity_length.results.files import (
    MANIFEST,
    describe_files,
    refuse_replacing,
    stream_of,
    whole_or_absent,
    write_json,
)
from sparsity_length.results.read import MADE_BY, Results

_COLUMNS = "SELECT table_name AS view, column_name, data_type FROM information_schema.columns"
# The bar: else DuckDB draws it among the rows on standard output, where it takes the process for interactive.
_SETTINGS = """
SET enable_progress_bar = false;
SET autoinstall_known_extensions = false;
SET autoload_known_extensions = false;
SET lock_configuration = true;
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The command line of a query."""
    add = parser.add_argument
    add("sql", nargs="?", type=words, help="query in DuckDB's SQL (default: list all columns)")
    add("--results", type=folder_path, required=True, help="results folder to read")
    add(
        "--out",
        type=path_of,
        metavar="FILE",
        help="write all rows to this .csv or .parquet file, or - to print them as CSV; without SQL, the"
        " folder to"
        " export to (default: print at most 200 rows)",
    )


def connect(results: Path, sql: str | None = None) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with one view per table of the results folder that `sql` names; all if none."""
    connection = duckdb.connect()
    connection.execute(_SETTINGS)
    held = Results(results)
    named = {*held.tables} & {*re.findall(r"\w+", (sql or "").lower())}
    # Thousands of files take seconds: those of tables that the query leaves alone stay unread. One that names
    # none may ask which there are.
    for table in named or held.tables:
        connection.register(table, held.dataset(table))
    return connection


def select(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.DuckDBPyRelation:
    """The rows of one SELECT, not yet computed; an InputError if the SQL is anything else."""
    statements = connection.extract_statements(sql)
    if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
        raise InputError("the SQL is not a single SELECT, which is all that is run here")
    # A relation takes no semicolon with a remark behind it.
    return connection.sql(re.sub(r";\s*(--[^\n]*\s*)*$", "", statements[0].query))


def export(results: Path, out: Path) -> None:
    """Write the results of a folder as an export, one file per table, for others to read; manifest last.

    The rows of all models, in the order of models and then of shards; in the metadata, for each model, that
    of its first file. `exported.json` holds the files' SHA-256: readers refuse one that is missing or
    changed. InputError if `out` holds results already, or if those in `results` are incomplete, damaged or
    mixed.
    """
    if Results(out).tables:
        raise InputError(f"--out {out} holds results; name another folder, or move it away")
    held = Results(results)
    for table in held.tables:
        files = held.sources(table, must_be_complete=True)
        # What made a model's first file; that all others were made so is what `dataset` checks.
        made_by = {file.model: file.made_by for file in reversed(files)}
        rows = held.dataset(table).to_table()
        floats = [field.name for field in rows.schema if pa.types.is_floating(field.type)]
        with whole_or_absent(out / f"{table}.parquet") as temporary:
            pq.write_table(
                rows.replace_schema_metadata({MADE_BY: json.dumps(made_by, sort_keys=True)}),
                temporary,
                # For version control: two thirds of the bytes or fewer, more slowly.
                compression="zstd",
                compression_level=19,
                write_page_checksum=True,
                use_byte_stream_split=floats,
                use_dictionary=[name for name in rows.schema.names if name not in floats],
            )
    paths = (out / f"{table}.parquet" for table in held.tables)
    write_json(out / MANIFEST, {"files": describe_files(out, paths)})


def main(arguments: argparse.Namespace) -> None:
    """Print or write the result of the query; without one, print the list of columns, or export all."""
    results = arguments.results
    out = arguments.out
    Results(results).refuse_empty()
    refuse_replacing([] if out is None else [out], [results])
    is_stream = out is not None and stream_of(out) is not None
    if arguments.sql is None and out is not None:
        if is_stream:
            raise InputError(f"--out {out} is not a folder to export to; give a query, whose rows go there")
        export(results, out)
        return
    try:
        found = select(connect(results, arguments.sql), arguments.sql or _COLUMNS)
        if out is None:
            # All columns if the output is a file, and not a terminal.
            found.show(max_rows=200, max_width=shutil.get_terminal_size(fallback=(1000, 0)).columns)
        elif not is_stream and out.suffix not in (".csv", ".parquet"):
            raise InputError(f"--out {out} is neither .csv nor .parquet")
        else:
            with whole_or_absent(out) as temporary:
                write = found.write_parquet if out.suffix == ".parquet" else found.write_csv
                write(str(temporary))
    except duckdb.Error as error:  # without the line of SQL and the candidates below it
        raise InputError(" ".join(re.split(r"\n\n|\n\t", str(error))[0].split())) from error


STAGE = Stage(__doc__, add_flags, main)

if __name__ == "__main__":
    STAGE.main()
