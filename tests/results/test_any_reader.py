"""Any reader of Parquet opens a table by its folder alone, with all rows and the whole names of models."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import datasets
import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from measured_documents import measure
from sparsity_length.programs import evaluate_tokens, influential_tokens, loss_differences

from sparsity_length.measuring import stage
from sparsity_length.models.load import find_model
from sparsity_length.results.read import Results
from sparsity_length.results.schemas import SCHEMAS

NAMES = ["001", "a=b", "b%20c", "org/name", "org-name", "模型", "_x-test [1]"]
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


@pytest.fixture(scope="module")
def results(measurable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each model measured and selected, and each other evaluated what the first selected; in one folder."""
    folder = tmp_path_factory.mktemp("any_reader")
    shutil.copytree(measurable / "data", folder / "data")
    models = [str(shutil.copytree(measurable / "run", folder / str(place))) for place in range(len(NAMES))]
    with pytest.MonkeyPatch.context() as patch:
        # Some of the names are none that a folder can have.
        patch.setattr(
            stage, "find_model", lambda word, _: replace(find_model(word), name=NAMES[int(word[-1])])
        )
        for measuring in (loss_differences, influential_tokens):
            measure(measuring, folder, "--checkpoints", *models)
        selected = ["--choices", folder / "results", "--choices-of", NAMES[0]]
        measure(evaluate_tokens, folder, *selected, "--checkpoints", *models[1:])
    return folder / "results"


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_finds_all_rows_and_names(results: Path, reader: str) -> None:
    assert Results(str(results)).tables == TABLES
    for table in TABLES:
        schema = SCHEMAS[table]
        found = READERS[reader](results / table)
        assert found.column_names == schema.names
        expected = Results(results).dataset(table).to_table()
        for name in {"model", "evaluator"} & {*schema.names}:
            assert {*expected[name].to_pylist()} == {*NAMES}
        keys = [(field.name, "ascending") for field in schema if not pa.types.is_list(field.type)]
        assert found.cast(schema).sort_by(keys).equals(expected.sort_by(keys))


def test_statistics_tell_which_files_hold_a_model(results: Path) -> None:
    for path in (results / "sparse_context_losses").rglob("*.parquet"):
        of_model = pq.read_metadata(path).row_group(0).column(0).statistics
        assert of_model.min == of_model.max in NAMES
