"""Shards are whole or absent, never mixed, and a killed run goes on where it stopped."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.cli import InputError
from pipeline.query import connect, run_query
from pipeline.results import files as parquet
from pipeline.results.export import write_manifest
from pipeline.results.files import as_ranges, write_atomically
from pipeline.results.read import artefacts_in, read_artefact, read_made_by
from pipeline.results.schemas import SCHEMAS
from pipeline.results.versions import git_commit
from pipeline.results.write import StageOutput

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"short_context_length": 16, "rules": ["leave_one_out"]}
INPUTS = {"checkpoint": "aa", "documents": "bb"}


def rows(*losses: float) -> dict[str, dict[str, list]]:
    count = len(losses)
    columns = {
        "document_id": ["d"] * count,
        "chunk_index": list(range(count)),
        "context_length": [16] * count,
        "num_targets": [4] * count,
        "mean_loss": list(losses),
    }
    return {"length_losses": columns}


def open_output(results: Path, model: str = "a", **changes: Any) -> StageOutput:
    settings = {"settings": SETTINGS, "inputs": INPUTS, "num_shards": 2}
    return StageOutput(results, "length_losses", model, **(settings | changes))


def test_written_shards_are_no_longer_pending_and_read_back(tmp_path: Path) -> None:
    output = open_output(tmp_path)
    assert output.pending_shards() == [0, 1]
    output.write_shard(1, rows(1.5, 2.5))
    assert open_output(tmp_path).pending_shards() == [0]
    open_output(tmp_path, "b").write_shard(0, rows(3.0))
    output.write_shard(0, rows(0.5))
    open_output(tmp_path, "b").write_shard(1, rows())
    frame = read_artefact(tmp_path, "length_losses")
    assert list(frame.columns) == [
        "model", "document_id", "chunk_index", "context_length", "num_targets", "mean_loss",
        "mean_divergence",
    ]  # fmt: skip
    read = list(zip(frame["model"], frame["mean_loss"], strict=True))
    assert read == [("a", 0.5), ("a", 1.5), ("a", 2.5), ("b", 3.0)]
    assert list(read_artefact(tmp_path, "length_losses", ["mean_loss"]).columns) == ["model", "mean_loss"]
    assert artefacts_in(tmp_path) == ["length_losses"]


def test_reading_only_some_rows(tmp_path: Path) -> None:
    open_output(tmp_path, num_shards=1).write_shard(0, rows(1.5, 2.5, 3.5))
    open_output(tmp_path, "b", num_shards=1).write_shard(0, rows(4.5, 5.5))
    of_b = read_artefact(tmp_path, "length_losses", ["mean_loss"], {"model": ["b"]})
    assert of_b["mean_loss"].tolist() == [4.5, 5.5]
    some = read_artefact(
        tmp_path, "length_losses", ["mean_loss"], {"model": ["a", "b"], "chunk_index": [1, 2]}
    )
    assert list(zip(some["model"], some["mean_loss"], strict=True)) == [("a", 2.5), ("a", 3.5), ("b", 5.5)]


def test_what_made_the_results_is_read_for_each_model(tmp_path: Path) -> None:
    open_output(tmp_path).write_shard(0, rows(1.0))
    open_output(tmp_path, "b", inputs={"checkpoint": "cc"}).write_shard(0, rows(1.0))
    made_by = read_made_by(tmp_path, "length_losses")
    assert {model: of["inputs"] for model, of in made_by.items()} == {"a": INPUTS, "b": {"checkpoint": "cc"}}
    assert made_by["a"]["settings"] == SETTINGS | {"num_shards": 2}
    assert read_made_by(tmp_path, "loss_differences") == {}


def test_shard_states_what_made_it(tmp_path: Path) -> None:
    open_output(tmp_path).write_shard(0, rows(1.0))
    path = tmp_path / "length_losses" / "model=a" / "00000-of-00002.parquet"
    metadata = {key.decode(): value.decode() for key, value in pq.read_schema(path).metadata.items()}
    assert json.loads(metadata["settings"]) == SETTINGS | {"num_shards": 2}
    assert json.loads(metadata["inputs"]) == INPUTS
    assert metadata["stage"] == "length_losses"
    assert {"git_commit", "packages", "schema_version"} <= metadata.keys()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"settings": SETTINGS | {"short_context_length": 32}}, "short_context_length was 16, now 32"),
        ({"num_shards": 3}, "num_shards was 2, now 3"),
        ({"inputs": INPUTS | {"checkpoint": "cc"}}, "inputs checkpoint differs"),
        ({"settings": SETTINGS | {"intervention": "remove"}}, "intervention was None, now 'remove'"),
    ],
)
def test_another_configuration_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    open_output(tmp_path).write_shard(0, rows(1.0))
    with pytest.raises(InputError, match=sentence):
        open_output(tmp_path, **changes)
    assert open_output(tmp_path).pending_shards() == [1]


def test_a_full_disk_leaves_no_part_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_up(table: Any, path: Path, **options: Any) -> None:
        Path(path).write_bytes(b"half a file")
        raise OSError(errno.ENOSPC, "No space left on device")

    output = open_output(tmp_path)
    monkeypatch.setattr(parquet.pq, "write_table", fill_up)
    with pytest.raises(OSError, match="No space left"):
        output.write_shard(0, rows(1.0))
    assert output.pending_shards() == [0, 1]
    assert list((tmp_path / "length_losses" / "model=a").iterdir()) == []
    monkeypatch.undo()
    output.write_shard(0, rows(1.0))
    assert output.pending_shards() == [1]


def test_a_rewrite_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_atomically(path, lambda part: part.write_text("old") and None)

    def fail(part: Path) -> None:
        part.write_text("new")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_killed_between_data_and_mark_the_shard_is_done_again(tmp_path: Path) -> None:
    program = f"""
import os, signal, sys
sys.path[0] = {str(ROOT)!r}
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from pipeline.results import marks
from test_results_folder import open_output, rows
output = open_output(Path({str(tmp_path)!r}))
output.write_shard(0, rows(1.0))
marks.write_json = lambda path, content: os.kill(os.getpid(), signal.SIGKILL)
output.write_shard(1, rows(2.0))
"""
    killed = subprocess.run([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": ""})
    assert killed.returncode == -signal.SIGKILL
    output = open_output(tmp_path)
    assert output.pending_shards() == [1]
    output.write_shard(1, rows(2.0))
    assert output.pending_shards() == []
    assert read_artefact(tmp_path, "length_losses")["mean_loss"].tolist() == [1.0, 2.0]


def test_half_written_files_are_not_read(tmp_path: Path) -> None:
    open_output(tmp_path, num_shards=1).write_shard(0, rows(1.0))
    (tmp_path / "length_losses" / "model=a" / ".00000-of-00001.parquet.0f3a.part").write_bytes(b"PAR1")
    assert len(read_artefact(tmp_path, "length_losses")) == 1


def test_a_missing_artefact_names_those_present(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no 'influences' results; it holds nothing"):
        read_artefact(tmp_path, "influences")
    open_output(tmp_path).write_shard(0, rows(1.0))
    with pytest.raises(InputError, match="it holds length_losses"):
        read_artefact(tmp_path, "influences")


def test_columns_other_than_the_schema_are_refused(tmp_path: Path) -> None:
    tables = rows(1.0)
    del tables["length_losses"]["mean_loss"]
    with pytest.raises(KeyError, match="mean_loss"):
        open_output(tmp_path).write_shard(0, tables)


def test_shards_of_all_nulls_and_of_none_read_together(tmp_path: Path) -> None:
    def sparsity(k: int | None) -> dict[str, dict[str, list]]:
        keys = {"document_id": ["d"], "chunk_index": [0], "target_position": [250], "rule": ["leave_one_out"]}
        columns = {"loss_difference": [0.5], "dependency_sparsity": [k], "is_censored": [False]}
        return {"dependency_sparsity": keys | columns}

    output = open_output(tmp_path)
    output.write_shard(0, sparsity(None))
    output.write_shard(1, sparsity(4))
    assert read_artefact(tmp_path, "dependency_sparsity")["dependency_sparsity"].isna().tolist() == [
        True,
        False,
    ]


def test_a_file_from_before_a_column_that_may_be_null_reads_as_null(tmp_path: Path) -> None:
    def differences(model: str, windowed: float | None) -> Path:
        columns = {
            "document_id": ["d"], "chunk_index": [0], "target_position": [9], "target_token_id": [1],
            "num_long_context_tokens": [9], "short_context_loss": [3.0], "long_context_loss": [2.0],
            "loss_difference": [1.0], "windowed_short_context_loss": [windowed],
        }  # fmt: skip
        output = StageOutput(tmp_path, "loss_differences", model, settings={}, inputs={}, num_shards=1)
        output.write_shard(0, {"loss_differences": columns})
        return tmp_path / "loss_differences" / f"model={model}" / "00000-of-00001.parquet"

    older = differences("older", None)
    pq.write_table(pq.ParquetFile(older).read().drop_columns("windowed_short_context_loss"), older)
    newer = differences("newer", 2.5)
    shutil.rmtree(tmp_path / "_stages")
    write_manifest(tmp_path)
    assert (len(pq.read_schema(older)), len(pq.read_schema(newer))) == (13, 14)
    frame = read_artefact(tmp_path, "loss_differences").set_index("model")
    assert frame["windowed_short_context_loss"].dropna().to_dict() == {"newer": 2.5}
    sql = "SELECT model, windowed_short_context_loss FROM loss_differences ORDER BY model DESC"
    assert run_query(connect(tmp_path), sql, 9)[1] == [("older", None), ("newer", 2.5)]


def test_ranges_as_sbatch_takes_them() -> None:
    assert [as_ranges(indices) for indices in ([], [4], [9, 3, 7, 8], {0, 1, 2})] == ["", "4", "3,7-9", "0-2"]


def test_every_column_says_what_it_means() -> None:
    for artefact, schema in SCHEMAS.items():
        for field in schema:
            assert field.metadata[b"meaning"], f"{artefact}.{field.name}"
            if field.name.endswith("_loss"):
                assert "nats" in field.metadata[b"meaning"].decode()


def test_tests_know_no_commit() -> None:
    """So bytes of two processes are the same whatever happens to the tree meanwhile: tests/conftest.py."""
    assert git_commit() == "unknown"
