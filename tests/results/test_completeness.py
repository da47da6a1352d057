"""What is not marked, not complete or not of the folder is refused by name, by every reader."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from test_results_folder import open_output, rows

from pipeline.cli import InputError
from pipeline.query import connect, run_query
from pipeline.results.export import write_manifest
from pipeline.results.files import allow_partial, partial_note
from pipeline.results.read import artefacts_in, read_artefact, read_model_facts

ROOT = Path(__file__).resolve().parents[2]
SQL = "SELECT model, mean_loss FROM length_losses ORDER BY model, mean_loss"
FIRST, SECOND = "00000-of-00002", "00001-of-00002"


@pytest.fixture(autouse=True)
def nothing_partial() -> Iterator[None]:
    allow_partial(False)
    yield
    allow_partial(False)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    # Names of parents that look like partitions are no columns.
    results = tmp_path / "lr=1" / "model=foo"
    for model, offset in {"a": 0.0, "b%2Fc": 4.0}.items():
        output = open_output(results, model)
        output.write_shard(0, rows(1.0 + offset))
        output.write_shard(1, rows(2.0 + offset))
    return results


def marks(results: Path, model: str = "a") -> Path:
    return results / "_stages" / "length_losses" / f"model={model}"


def shards(results: Path, model: str = "a") -> Path:
    return results / "length_losses" / f"model={model}"


def read_by_all(results: Path) -> list[tuple[str, float]]:
    """The rows, by the analysis and by SQL, which must agree."""
    frame = read_artefact(results, "length_losses")
    assert list(frame.columns)[:2] == ["model", "document_id"]
    assert len(frame.columns) == 7
    of_analysis = sorted(zip(frame["model"], frame["mean_loss"], strict=True))
    assert run_query(connect(results, SQL), SQL, 99)[1] == of_analysis
    return of_analysis


def refused_by_all(results: Path) -> str:
    said = set()
    for read in (
        lambda: read_artefact(results, "length_losses"),
        lambda: read_model_facts(results, "length_losses"),
        lambda: connect(results, SQL),
    ):
        with pytest.raises(InputError) as told:
            read()
        said.add(str(told.value))
    assert len(said) == 1
    return said.pop()


def test_models_are_called_as_their_folders_whatever_lies_above(results: Path) -> None:
    assert read_by_all(results) == [("a", 1.0), ("a", 2.0), ("b%2Fc", 5.0), ("b%2Fc", 6.0)]
    only = read_artefact(results, "length_losses", ["mean_loss"], {"model": ["b%2Fc"]})
    assert only["mean_loss"].tolist() == [5.0, 6.0]
    assert read_artefact(results, "length_losses", None, {"model": ["d"]}).empty


def test_a_shard_that_is_gone_with_its_mark(results: Path) -> None:
    (shards(results) / f"{SECOND}.parquet").unlink()
    (marks(results) / f"{SECOND}.done").unlink()
    said = refused_by_all(results)
    assert "holds 1 of 2 shards of length_losses of model 'a' (without 1); run python" in said
    assert said.endswith("length_losses.py again with the flags it was run with, or say --allow-partial")
    # Who asks for another model is not concerned.
    assert len(read_artefact(results, "length_losses", None, {"model": ["b%2Fc"]})) == 2
    allow_partial()
    assert read_by_all(results) == [("a", 1.0), ("b%2Fc", 5.0), ("b%2Fc", 6.0)]
    assert partial_note() == "partial: 1 of 2 shards of length_losses of model 'a'"


def test_a_shard_that_is_not_marked_yet_is_not_read(results: Path) -> None:
    (marks(results) / f"{SECOND}.done").unlink()
    assert "holds 1 of 2 shards" in refused_by_all(results)
    allow_partial()
    assert read_by_all(results)[:2] == [("a", 1.0), ("b%2Fc", 5.0)]


def test_a_shard_that_is_gone_with_its_mark_left(results: Path) -> None:
    (shards(results) / f"{SECOND}.parquet").unlink()
    assert f"{SECOND}.parquet is missing, though marked as complete; run python" in refused_by_all(results)
    shutil.rmtree(results / "length_losses")
    assert artefacts_in(results) == ["length_losses"]
    assert f"{FIRST}.parquet is missing, though marked" in refused_by_all(results)


def test_files_without_any_mark_are_read_once_somebody_vouches_for_them(results: Path) -> None:
    shutil.rmtree(results / "_stages")
    assert "no completion mark of them: they may be a part" in refused_by_all(results)
    allow_partial()
    with pytest.raises(InputError, match="has no complete shard of length_losses"):
        read_artefact(results, "length_losses")
    allow_partial(False)
    program = [sys.executable, "-m", "pipeline.results.export", str(results)]
    subprocess.run(program, check=True, cwd=ROOT)
    assert len(read_by_all(results)) == 4

    shutil.copy(shards(results) / f"{FIRST}.parquet", shards(results) / "more.parquet")
    assert "more.parquet is none of the 2 shards of model 'a'" in refused_by_all(results)
    (shards(results) / "more.parquet").unlink()
    (shards(results) / f"{FIRST}.parquet").unlink()
    assert f"{FIRST}.parquet is missing, though marked" in refused_by_all(results)
    (results / "exported.json").write_text("[]")
    assert "exported.json is damaged" in refused_by_all(results)


def test_what_a_stage_marked_needs_nobody_to_vouch(results: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has the completion marks of its stages"):
        write_manifest(results)
    with pytest.raises(InputError, match="holds no results"):
        write_manifest(tmp_path)


def test_files_of_others_are_refused(results: Path) -> None:
    other = shards(results) / "00002-of-00003.parquet"
    shutil.copy(shards(results) / f"{FIRST}.parquet", other)
    assert "00002-of-00003.parquet is none of the 2 shards of model 'a'" in refused_by_all(results)
    other.unlink()
    shards(results).rename(results / "length_losses" / "models=a")
    assert "lies in no folder" in refused_by_all(results)


def test_a_file_that_is_a_folder(results: Path) -> None:
    path = shards(results) / f"{FIRST}.parquet"
    path.unlink()
    path.mkdir()
    assert f"{FIRST}.parquet is no file" in refused_by_all(results)


def test_a_shard_that_lacks_a_column_or_has_another_type(results: Path) -> None:
    path = shards(results) / f"{FIRST}.parquet"
    table = pq.ParquetFile(path).read()
    shutil.rmtree(results / "_stages")
    pq.write_table(table.drop_columns(["mean_loss"]), path)
    write_manifest(results)
    assert f"{FIRST}.parquet lacks the column mean_loss of length_losses" in refused_by_all(results)
    pq.write_table(table.set_column(4, "mean_loss", table["mean_loss"].cast("double")), path)
    write_manifest(results)
    assert "has mean_loss as double, not float" in refused_by_all(results)


def test_marks_of_an_older_version_tell_rows_only(results: Path) -> None:
    for path in results.glob("_stages/*/*/*.done"):
        path.write_text(json.dumps({"rows": {"length_losses": 1}}))
    assert len(read_by_all(results)) == 4
    assert open_output(results).pending_shards() == []
    path = shards(results) / f"{FIRST}.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    assert f"{FIRST}.parquet is damaged: it is no whole Parquet file; run python" in refused_by_all(results)
    assert open_output(results).pending_shards() == [0]


def test_a_query_reads_only_what_it_names(results: Path) -> None:
    (marks(results) / f"{SECOND}.done").unlink()
    assert run_query(connect(results, "SELECT 1 AS one"), "SELECT 1 AS one", 9)[1] == [(1,)]
    sql = "FROM query_table('length' || '_losses')"
    with pytest.raises(InputError, match="the query is not seen to read length_losses"):
        run_query(connect(results, sql), sql, 9)
