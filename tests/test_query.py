"""SQL over a results folder: views, the table printed, errors of one sentence, from any directory."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from sparsity_length.programs import query
from written_results import write_length_losses as write


@pytest.fixture
def results(tmp_path: Path) -> Path:
    # The folder's name holds what a glob and SQL would each take for their own.
    results = tmp_path / "it's [a] folder"
    write(results, "a", [1.0, 3.0])
    write(results, "2", [5.0])
    return results


@pytest.mark.parametrize(
    ("name", "of_a", "of_b", "is_told"),
    [
        ("targets_per_chunk", 16, 32, True),
        ("dtype", "float32", "bfloat16", True),
        ("ablation", "mask", "swap", True),
        ("seed", 0, 1, True),
        ("context_lengths", [8], [8, 16], False),
        ("rules", ["random"], ["recency"], False),
        ("k", [1], [1, 2], False),
        ("documents_per_shard", 1, 2, False),
    ],
)
def test_models_measured_in_two_ways_are_warned_of(
    name: str, of_a: Any, of_b: Any, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "a", [1.0], **{name: of_a})
    write(tmp_path, "b", [1.0], **{name: of_b})
    sql = "SELECT count(*) FROM length_losses"
    assert query.select(query.connect(tmp_path, sql), sql).fetchall() == [(2,)]
    assert (f"measured in two ways: {name} was" in caplog.text) == is_told


def test_rows_go_to_standard_output(
    results: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for out in ("-", "/dev/stdout"):
        sql = "SELECT model, mean_loss FROM length_losses WHERE mean_loss > 2 ORDER BY model"
        monkeypatch.setattr(sys, "argv", ["query.py", "--results", str(results), "--out", out, sql])
        query.STAGE.main()
        assert capfd.readouterr().out.splitlines() == ["model,mean_loss", "2,5.0", "a,3.0"]


def test_bad_input_is_one_sentence_and_exit_code_two(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    shutil.copytree(results, tmp_path / "cut")
    shutil.copytree(results / "length_losses", tmp_path / "unmarked" / "length_losses")
    path = next((tmp_path / "cut").glob("length_losses/2/*.parquet"))
    path.write_bytes(path.read_bytes()[:-9])
    monkeypatch.chdir(tmp_path)
    for words, sentence in (
        (["SELECT 1 FROM nothing"], "nothing does not exist"),
        (["SELEC 1"], "syntax error"),
        (["COPY length_losses TO 'a.csv'"], "not a single SELECT"),
        (["EXPLAIN ANALYZE COPY length_losses TO 'a.csv'"], "not a single SELECT"),
        (["SELECT 1", "--results", "empty"], "empty holds no results"),
        (["SELECT 1", "--results", "unmarked"], "unmarked holds no results"),
        (["FROM length_losses", "--results", "cut"], "parquet has"),
        (["--out", "-"], "no folder to export to"),
        (["SELECT 1", "--out", "a.json"], "neither .csv nor .parquet"),
    ):
        monkeypatch.setattr(sys, "argv", ["query.py", "--results", str(results), *words])
        with pytest.raises(SystemExit) as stopped:
            query.STAGE.main()
        captured = capsys.readouterr()
        assert (stopped.value.code, captured.out) == (2, ""), words
        assert captured.err.count("\n") == 1 and captured.err.startswith("query.py: error: "), words
        assert sentence in captured.err, captured.err
    assert not (tmp_path / "a.csv").exists()
