"""Any reader of Parquet opens a table by its folder alone, with all rows and the whole names of models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from sparsity_length.results.read import Results
from sparsity_length.results.schemas import SCHEMAS
from sparsity_length.results.write import StageOutput

NAMES = ["001", "a=b", "b%20c", "org/name", "org-name", "模型", "_x-test [1]"]
MODELS = {"model", "evaluator"}
TABLES = [
    "loss_differences",
    "influential_tokens",
    "influences",
    "sparse_context_losses",
    "dependency_sparsity",
]


READERS: dict[str, Callable[[Path], pa.Table]] = {
    "pandas": lambda folder: pa.Table.from_pandas(pandas.read_parquet(folder)),
    "polars": lambda folder: polars.read_parquet(folder).to_arrow(),
    "DuckDB": lambda folder: duckdb.sql(f"FROM '{folder}/**/*.parquet'").to_arrow_table(),
    # Of one split: no model's name is taken for another.
    "datasets": lambda folder: (
        datasets.load_dataset(
            "parquet", data_dir=str(folder), cache_dir=str(folder.parents[1] / "cache"), split="train"
        ).data.table
    ),
    "pyarrow.dataset": lambda folder: pyarrow.dataset.dataset(folder).to_table(),
}


def values_of(field: pa.Field) -> list[Any]:
    numbers = [0, 1, None if field.nullable else 2]
    rows = [[number, number] for number in numbers] if pa.types.is_list(field.type) else numbers
    return pa.array(rows).cast(field.type).to_pylist()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of a model under each name, and with each other as evaluator of the first; in one folder.

    The last row has null wherever it may be.
    """
    results = tmp_path_factory.mktemp("any_reader") / "results"
    rows = {
        table: {field.name: values_of(field) for field in SCHEMAS[table] if field.name not in MODELS}
        for table in TABLES
    }
    for stage, written, models in [
        *(("influential_tokens", rows, {"model": name}) for name in NAMES),
        *(
            (
                "evaluate_tokens",
                {table: rows[table] for table in TABLES[3:]},
                {"model": NAMES[0], "evaluator": name},
            )
            for name in NAMES[1:]
        ),
    ]:
        output = StageOutput(results, stage, **models, settings={}, inputs={}, num_shards=1)
        output.write_shard(0, written.items())
    return results


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_finds_all_rows_and_names(results: Path, reader: str) -> None:
    assert Results(str(results)).tables == TABLES
    for table in TABLES:
        schema = SCHEMAS[table]
        found = READERS[reader](results / table)
        assert found.column_names == schema.names
        expected = Results(results).dataset(table).to_table()
        for name in MODELS & {*schema.names}:
            assert {*expected[name].to_pylist()} == {*NAMES}
        keys = [(field.name, "ascending") for field in schema if not pa.types.is_list(field.type)]
        assert found.cast(schema).sort_by(keys).equals(expected.sort_by(keys))


def test_statistics_tell_which_files_hold_a_model(results: Path) -> None:
    for path in (results / "sparse_context_losses").rglob("*.parquet"):
        of_model = pq.read_metadata(path).row_group(0).column(0).statistics
        assert of_model.min == of_model.max in NAMES
