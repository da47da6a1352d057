"""Any reader of Parquet opens a table by its folder alone, with all rows and the whole names of models."""

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
from measured_documents import measure, write_checkpoint, write_data
from olmo.model import OLMo
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


def of_datasets(folder: Path) -> pa.Table:
    loaded = datasets.load_dataset(
        "parquet", data_dir=str(folder), cache_dir=str(folder.parents[1] / "cache")
    )
    assert [*loaded] == ["train"]  # no model's name was taken for a split
    return loaded["train"].data.table


READERS: dict[str, Callable[[Path], pa.Table]] = {
    "pandas": lambda folder: pa.Table.from_pandas(pandas.read_parquet(folder)),
    "polars": lambda folder: polars.read_parquet(folder).to_arrow(),
    "DuckDB": lambda folder: duckdb.sql(f"FROM '{folder}/**/*.parquet'").to_arrow_table(),
    "datasets": of_datasets,
    "pyarrow.dataset": lambda folder: pyarrow.dataset.dataset(folder).to_table(),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, make_olmo: Callable[..., OLMo]) -> Path:
    """Each model measured and chose, and each other tried what the first chose; in one folder."""
    folder = tmp_path_factory.mktemp("any_reader")
    write_data(folder / "data")
    checkpoints = [str(write_checkpoint(folder / str(place), make_olmo())) for place in range(len(NAMES))]
    with pytest.MonkeyPatch.context() as patch:
        # Some of the names are none that a folder can have.
        patch.setattr(
            stage, "find_model", lambda word, _: replace(find_model(word), name=NAMES[int(word[-1])])
        )
        measure(loss_differences, folder, "--checkpoints", *checkpoints)
        measure(influential_tokens, folder, "--checkpoints", *checkpoints)
        choices = ["--choices", str(folder / "results"), "--choices-of", NAMES[0]]
        measure(evaluate_tokens, folder, *choices, "--checkpoints", *checkpoints[1:])
    return folder / "results"


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_finds_all_rows_and_names(results: Path, reader: str) -> None:
    assert Results(str(results)).tables == TABLES
    for table in TABLES:
        schema = SCHEMAS[table]
        found = READERS[reader](results / table)
        assert found.column_names == schema.names
        expected = Results(results).dataset(table).to_table()
        assert set(expected["model"].to_pylist()) == {*NAMES}
        if "evaluator" in schema.names:
            assert set(expected["evaluator"].to_pylist()) == {*NAMES}
        keys = [(field.name, "ascending") for field in schema if not pa.types.is_list(field.type)]
        assert found.cast(schema).sort_by(keys).equals(expected.sort_by(keys))


def test_statistics_tell_which_files_hold_a_model(results: Path) -> None:
    for path in (results / "sparse_context_losses").rglob("*.parquet"):
        of_model = pq.read_metadata(path).row_group(0).column(0).statistics
        assert of_model.min == of_model.max in NAMES
