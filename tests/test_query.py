"""SQL over a results folder: views, the table printed, errors of one sentence, from any directory."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline import query
from pipeline.cli import InputError
from pipeline.results import files as marks
from pipeline.results.export import write_manifest
from pipeline.results.versions import sha256_of_files
from pipeline.results.write import StageOutput

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    # The folder's name holds what a glob and SQL would each take for their own.
    results = tmp_path / "it's [a] folder"
    for model, losses in {"a": [1.0, 3.0], "2": [5.0]}.items():
        columns = {
            "document_id": [f"document {index}" for index in range(len(losses))],
            "chunk_index": [0] * len(losses),
            "context_length": [16] * len(losses),
            "num_targets": [4] * len(losses),
            "mean_loss": losses,
        }
        output = StageOutput(results, "length_losses", model, settings={}, inputs={}, num_shards=1)
        output.write_shard(0, {"length_losses": columns})
    return results


def test_models_are_a_column_of_text(results: Path) -> None:
    sql = "SELECT model, avg(mean_loss) AS loss FROM length_losses GROUP BY model ORDER BY model"
    names, rows = query.run_query(query.connect(results), sql, max_rows=9)
    assert (names, rows) == (["model", "loss"], [("2", 5.0), ("a", 2.0)])


def test_views_are_listed_with_rows_and_columns(results: Path) -> None:
    names, ((view, num_rows, columns),) = query.views(query.connect(results))
    assert names == ["view", "rows", "columns"]
    assert (view, num_rows) == ("length_losses", 3)
    assert (
        columns == "document_id, chunk_index, context_length, num_targets, mean_loss, mean_divergence, model"
    )


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("SELECT * FROM influences", "no results 'influences' in this folder; it holds length_losses$"),
        ("SELECT * FROM length_loses", "unknown view 'length_loses'; did you mean 'length_losses'"),
        ("SELECT loss FROM length_losses", "unknown column 'loss'; did you mean 'mean_loss'"),
        ('SELECT 1 FROM length_losses WHERE model = "a"', "column 'a'; .*; text stands in single quotes$"),
        ("SELECT avgg(mean_loss) FROM length_losses", 'avgg does not exist! Did you mean "avg"'),
        (
            "SELECT sum(model) FROM length_losses",
            r"'sum\(VARCHAR\)'. You might need to add explicit type casts.$",
        ),
        ("SELECT 'x'::INT", "^Could not convert string 'x' to INT32$"),
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("-- nothing", "the SQL is empty"),
    ],
)
def test_wrong_sql_is_one_sentence(results: Path, sql: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as error:
        query.run_query(query.connect(results), sql, max_rows=9)
    assert "\n" not in str(error.value)
    assert "LINE" not in str(error.value)


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no results"):
        query.connect(tmp_path)


def write(results: Path, model: str, **settings: Any) -> Path:
    """Ten rows of one model made with these settings, in two shards; returns the second's file."""
    output = StageOutput(results, "length_losses", model, settings=settings, inputs={}, num_shards=2)
    columns = {
        "document_id": ["d"] * 5, "chunk_index": [0] * 5, "context_length": [16] * 5,
        "num_targets": [4] * 5, "mean_loss": [1.0] * 5,
    }  # fmt: skip
    for shard_index in range(2):
        output.write_shard(shard_index, {"length_losses": columns})
    return results / "length_losses" / f"model={model}" / "00001-of-00002.parquet"


def test_models_measured_in_two_ways_are_refused_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "a", targets_per_chunk=16, context_lengths=[8], dtype="float32")
    write(tmp_path, "b", targets_per_chunk=32, context_lengths=[8, 16], dtype="float32")
    sql = "SELECT count(*) FROM length_losses"
    named = (
        "alike: targets_per_chunk is 16 in model=a/00000-of-00002.parquet and 32 in model=b/00000.*parquet;"
    )
    with pytest.raises(InputError, match=named):
        query.connect(tmp_path, sql)
    connection = query.connect(tmp_path, sql, allow_mixed=True)
    assert "targets_per_chunk is 16 in model=a" in caplog.text
    assert query.run_query(connection, sql, 9)[1] == [(20,)]
    query.connect(tmp_path, "SELECT 1")  # a query that does not read them


def test_files_of_two_configurations_or_versions_of_one_model_are_refused_by_name(tmp_path: Path) -> None:
    other = write(tmp_path / "other", "a", seed=1)
    ours = write(tmp_path / "ours", "a", seed=0)
    shutil.copy(other, ours)
    with pytest.raises(InputError, match=r"00001-of-00002.parquet was written by another run, .* seed was 1"):
        query.connect(tmp_path / "ours")
    shutil.rmtree(tmp_path / "ours" / "_stages")  # nothing but the files themselves can tell
    write_manifest(tmp_path / "ours")
    with pytest.raises(InputError, match=r"seed is 0 in model=a/00000-of-.* and 1 in model=a/00001-of"):
        query.connect(tmp_path / "ours")
    table = pq.read_table(write(tmp_path / "old", "a"))
    older = table.schema.metadata | {b"schema_version": b"0"}
    pq.write_table(table.replace_schema_metadata(older), tmp_path / "old/length_losses/model=a/old.parquet")
    with pytest.raises(InputError, match=r"model=a/old.parquet is none of the 2 shards of model 'a'"):
        query.connect(tmp_path / "old")
    shutil.rmtree(tmp_path / "old" / "_stages")
    write_manifest(tmp_path / "old")
    with pytest.raises(InputError, match=r"schema_version is 2 in model=a/00000-.* and 0 in model=a/old"):
        query.connect(tmp_path / "old")


def test_a_part_of_a_file_is_refused_by_name(results: Path) -> None:
    path = next(results.glob("length_losses/model=2/*.parquet"))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"model=2/00000-of-00001.parquet is damaged: it has .* bytes, its"):
        query.connect(results)


@pytest.mark.parametrize(("condition", "num_files"), [("model = 'm3'", 2), ("true", 20)])
def test_only_the_partition_asked_for_is_read(tmp_path: Path, condition: str, num_files: int) -> None:
    for index in range(10):
        write(tmp_path, f"m{index}")
    sql = f"EXPLAIN ANALYZE SELECT avg(mean_loss) FROM length_losses WHERE {condition}"
    ((_, plan),) = query.run_query(query.connect(tmp_path), sql, 9)[1]
    assert sum(map(int, re.findall(r"Total Files Read: (\d+)", plan))) == num_files


def test_every_file_that_is_read_was_compared_with_its_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, compared = set(), set()
    for index in range(3):
        files |= {str(path) for path in write(tmp_path, f"m{index}").parent.iterdir()}

    def sha256(*paths: Path) -> str:
        compared.update(map(str, paths))
        return sha256_of_files(*paths)

    monkeypatch.setattr(marks, "sha256_of_files", sha256)
    connection = query.connect(tmp_path, "SELECT * FROM length_losses")
    assert compared == files and len(files) == 6
    ((view,),) = connection.execute("SELECT sql FROM duckdb_views() WHERE NOT internal").fetchall()
    assert set(re.findall(r"'([^']+\.parquet)'", view)) == files


SELECT = "SELECT model, mean_loss, NULL AS nothing FROM length_losses ORDER BY mean_loss; -- a remark"


def test_exports_hold_every_row_in_order(results: Path, tmp_path: Path) -> None:
    connection, answers = query.connect(results), {}
    for file_format in query.EXPORTS:
        answers[file_format] = tmp_path / f"answer.{file_format}"
        sql = f"SET threads = 1; {SELECT}"
        assert query.export(query.connect(results), sql, file_format, answers[file_format]) == 3
    assert answers["csv"].read_text() == "model,mean_loss,nothing\na,1.0,\na,3.0,\n2,5.0,\n"
    expected = [
        {"model": m, "mean_loss": x, "nothing": None} for m, x in [("a", 1.0), ("a", 3.0), ("2", 5.0)]
    ]
    assert json.loads(answers["json"].read_text()) == expected
    assert pq.read_table(answers["parquet"]).to_pylist() == expected
    assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_a_failed_export_leaves_the_earlier_file(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    out.write_text("earlier")
    sql = "SELECT (CASE WHEN mean_loss > 4 THEN 'x' ELSE '1' END)::INT FROM length_losses"
    with pytest.raises(InputError, match="Could not convert"):
        query.export(query.connect(results), sql, "csv", out)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.csv"]
    assert out.read_text() == "earlier"


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "pipeline" / "query.py", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True
    )


def test_runs_as_a_file_from_any_directory(results: Path, tmp_path: Path) -> None:
    sql = "SELECT mean_loss FROM length_losses ORDER BY 1"
    done = run("--results", results.name, "--max-rows", "2", sql, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "mean_loss\n   1.0000\n   3.0000\n(the first 2 rows; --max-rows shows more)\n"


def test_without_sql_it_lists_the_views(results: Path, tmp_path: Path) -> None:
    assert run("--results", results, cwd=tmp_path).stdout.splitlines()[1].split()[:2] == [
        "length_losses",
        "3",
    ]


def test_errors_exit_with_code_two(results: Path, tmp_path: Path) -> None:
    done = run("--results", results, "SELECT 1 FROM nothing", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("query.py: error: ")
    assert done.stderr.count("\n") == 1


def test_json_goes_to_standard_output_and_parquet_does_not(results: Path, tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text(SELECT)
    done = run("--results", results, "--sql-file", "q.sql", "--format", "json", cwd=tmp_path)
    assert [row["mean_loss"] for row in json.loads(done.stdout)] == [1.0, 3.0, 5.0]
    done = run("--results", results, "--sql-file", "q.sql", "--format", "parquet", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "query.py: error: --format parquet needs --out FILE\n"


def test_an_empty_selection_names_the_models(results: Path, tmp_path: Path) -> None:
    done = run("--results", results, "SELECT 1 AS a FROM length_losses WHERE model = 'A'", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "a\n(0 rows)\n")
    assert done.stderr == "query: no rows; the models here are 2, a\n"


def test_no_progress_bar_is_drawn_among_the_rows(results: Path) -> None:
    connection = query.connect(results)
    sql = "SELECT current_setting('enable_progress_bar')"
    assert query.run_query(connection, sql, 9)[1] == [(False,)]
