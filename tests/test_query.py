"""SQL over a results folder: views, the table printed, errors of one sentence, from any directory."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from pipeline import query
from pipeline.cli import InputError, run_stage
from pipeline.results.write import StageOutput

ROOT = Path(__file__).resolve().parents[1]
SELECT = "SELECT model, mean_loss, NULL AS nothing FROM length_losses ORDER BY mean_loss; -- a remark"


def write(results: Path, model: str, losses: list[float], num_shards: int = 1, **settings: Any) -> None:
    """Rows of one model made with these settings, the same in each shard."""
    output = StageOutput(results, "length_losses", model, settings=settings, inputs={}, num_shards=num_shards)
    count = len(losses)
    columns = {
        "document_id": ["d"] * count, "chunk_index": [0] * count, "context_length": [16] * count,
        "num_targets": [4] * count, "mean_loss": losses,
    }  # fmt: skip
    for shard_index in range(num_shards):
        output.write_shard(shard_index, {"length_losses": columns})


@pytest.fixture
def results(tmp_path: Path) -> Path:
    # The folder's name holds what a glob and SQL would each take for their own.
    results = tmp_path / "it's [a] folder"
    write(results, "a", [1.0, 3.0])
    write(results, "2", [5.0])
    return results


def test_models_are_a_column_of_text_and_other_files_are_joined(results: Path, tmp_path: Path) -> None:
    sql = "SELECT model, avg(mean_loss) AS loss FROM length_losses GROUP BY model ORDER BY model"
    names, rows = query.run_query(query.connect(results), sql, max_rows=9)
    assert (names, rows) == (["model", "loss"], [("2", 5.0), ("a", 2.0)])
    other = tmp_path / "other.parquet"
    query.export(query.connect(results), sql, "parquet", other)
    joined = f"SELECT count(*) FROM length_losses JOIN '{other}' USING (model)"
    assert query.run_query(query.connect(results), joined, 9)[1] == [(3,)]


NO_QUERIES = [
    ("SELECT 1 FROM length_loses", 'does not exist! Did you mean "length_losses"'),
    ("SELECT loss FROM length_losses", 'column "loss" not found in FROM clause! Candidate'),
    ("SELECT sum(model) FROM length_losses", r"'sum\(VARCHAR\)'. You might need to .* casts.$"),
    ("SELEC 1", 'syntax error at or near "SELEC"'),
    ("-- nothing", "the SQL is empty; one SELECT is run here"),
    ("SELECT '\udcff'", "the SQL is no UTF-8; save its file as UTF-8"),
    ("SELECT 1; SELECT 2", "the SQL is SELECT, SELECT; one SELECT"),
    ("PIVOT length_losses ON model USING sum(mean_loss)", "which names the values that it PIVOTs"),
    ("SELECT * FROM 'http://127.0.0.1/a.parquet'", "requires the extension httpfs"),
    *((sql, "the SQL is [A-Z]+; one SELECT is run here") for sql in (
        "COPY length_losses TO 'written.csv'", "ATTACH 'written.db'", "SET threads = 1",
        "EXPLAIN ANALYZE COPY length_losses TO 'written.csv'",
    )),
]  # fmt: skip


def test_what_is_no_query_is_one_sentence_and_writes_nothing(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for sql, sentence in NO_QUERIES:
        for run in (
            lambda connection, sql=sql: query.run_query(connection, sql, max_rows=9),
            lambda connection, sql=sql: query.export(connection, sql, "csv", tmp_path / "out.csv"),
        ):
            with pytest.raises(InputError, match=sentence) as error:
                run(query.connect(results, sql))
            assert "\n" not in str(error.value) and "LINE" not in str(error.value), sql
    assert sorted(tmp_path.rglob("*")) == before


def test_models_measured_in_two_ways_are_refused_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "a", [1.0], targets_per_chunk=16, context_lengths=[8], dtype="float32")
    write(tmp_path, "b", [1.0], targets_per_chunk=32, context_lengths=[8, 16], dtype="float32")
    sql = "SELECT count(*) FROM length_losses"
    named = (
        "alike: targets_per_chunk is 16 in model=a of 00000-of-00001.parquet and 32 in model=b of 00000.*;"
    )
    with pytest.raises(InputError, match=named):
        query.connect(tmp_path, sql)
    connection = query.connect(tmp_path, sql, allow_mixed=True)
    assert "targets_per_chunk is 16 in model=a" in caplog.text
    assert query.run_query(connection, sql, 9)[1] == [(2,)]
    query.connect(tmp_path, "SELECT 1")  # a query that does not read them


def test_exports_hold_every_row_in_order(results: Path, tmp_path: Path) -> None:
    answers = {file_format: tmp_path / f"answer.{file_format}" for file_format in query.EXPORTS}
    for file_format, path in answers.items():
        assert query.export(query.connect(results), SELECT, file_format, path) == 3
    assert answers["csv"].read_text() == "model,mean_loss,nothing\na,1.0,\na,3.0,\n2,5.0,\n"
    expected = [
        {"model": m, "mean_loss": x, "nothing": None} for m, x in [("a", 1.0), ("a", 3.0), ("2", 5.0)]
    ]
    assert json.loads(answers["json"].read_text()) == expected
    assert pq.read_table(answers["parquet"]).to_pylist() == expected


def test_json_spells_what_it_has_no_number_for_so_that_others_read_it_back(
    tmp_path: Path, results: Path
) -> None:
    write(results, "odd", [float("nan"), float("inf"), -float("inf"), 0.5])
    sql = (
        "SELECT mean_loss, [mean_loss, NULL] AS pair, {'a': mean_loss} AS s, NULL::DOUBLE AS none"
        " FROM length_losses WHERE model = 'odd' ORDER BY mean_loss"
    )
    path = tmp_path / "rows.json"
    assert query.export(query.connect(results), sql, "json", path) == 4
    words = ["-Infinity", 0.5, "Infinity", "NaN"]
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == [
        {"mean_loss": word, "pair": [word, None], "s": {"a": word}, "none": None} for word in words
    ]
    expected = [-float("inf"), 0.5, float("inf"), float("nan")]
    np.testing.assert_equal(pd.read_json(path)["mean_loss"].tolist(), expected)
    rows = duckdb.sql(f"SELECT mean_loss::DOUBLE FROM read_json('{path}')").fetchall()
    np.testing.assert_equal([value for (value,) in rows], expected)


def test_the_page_s_way_to_read_a_folder_keeps_the_names_of_models(tmp_path: Path) -> None:
    names = ["001", "a%20b", "x=1"]
    for name in names:
        write(tmp_path, name, [1.0])
    page = (ROOT / "pipeline" / "RESULTS.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    found: dict[str, Any] = {}
    exec(code.replace("<results>/<artefact>", str(tmp_path / "length_losses")), found)
    assert sorted(found["frame"]["model"]) == names


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "pipeline" / "query.py", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True
    )


def test_rows_go_to_standard_output_and_all_else_to_standard_error(results: Path, tmp_path: Path) -> None:
    flags = "--results", results.name
    done = run(*flags, "SELECT mean_loss FROM length_losses, range(100) ORDER BY 1", cwd=tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.splitlines()[::100] == ["mean_loss", "   1.0000", "   3.0000"]
    assert done.stdout.endswith("\n(the first 200 rows)\n")
    done = run(*flags, SELECT, "--format", "json", cwd=tmp_path)
    assert [row["mean_loss"] for row in json.loads(done.stdout)] == [1.0, 3.0, 5.0]
    done = run(*flags, "--format", "csv", "SELECT 1 AS a FROM length_losses WHERE model = 'A'", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "a\n")
    assert done.stderr == "query: no rows\n"
    columns = (
        "model, document_id, chunk_index, context_length, num_targets, mean_loss, mean_divergence, losses,"
        " divergences"
    )
    listed = run(*flags, cwd=tmp_path).stdout.splitlines()
    assert [line.split(maxsplit=2) for line in listed[1:]] == [["length_losses", "3", columns]]


def test_bad_input_is_one_sentence_and_exit_code_two(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    shutil.copytree(results, tmp_path / "cut")
    shutil.copytree(results / "length_losses", tmp_path / "unmarked" / "length_losses")
    path = next((tmp_path / "cut").glob("length_losses/model=2/*.parquet"))
    path.write_bytes(path.read_bytes()[:-9])
    monkeypatch.chdir(tmp_path)
    for words, sentence in (
        (["SELECT 1 FROM nothing"], "nothing does not exist"),
        (["SELECT 1", "--results", "empty"], "empty holds no results"),
        (["SELECT 1", "--results", "unmarked"], "files of length_losses, and unmarked/_stages does not have"),
        (["FROM length_losses", "--results", "cut"], "parquet has"),
        (["SELECT 1", "--format", "parquet"], "--format parquet needs --out FILE"),
        (["SELECT 1", "--out", "a.csv"], "--out needs --format"),
        (["--format", "csv"], "--format csv needs a query"),
    ):
        monkeypatch.setattr(sys, "argv", ["query.py", "--results", str(results), *words])
        with pytest.raises(SystemExit) as stopped:
            run_stage(query.parser(), query.main)
        captured = capsys.readouterr()
        assert (stopped.value.code, captured.out) == (2, ""), words
        assert captured.err.count("\n") == 1 and captured.err.startswith("query.py: error: "), words
        assert sentence in captured.err, captured.err
    assert not (tmp_path / "a.csv").exists()
