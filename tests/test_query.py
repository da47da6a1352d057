"""SQL over a results folder: views, the table printed, errors of one sentence, from any directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import query
from pipeline.errors import InputError
from pipeline.results.folder import StageOutput

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
    assert columns == "document_id, chunk_index, context_length, num_targets, mean_loss, model"


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("SELECT * FROM influences", "influences does not exist! The views are length_losses"),
        ("SELECT loss FROM length_losses", 'column "loss" not found'),
        ("SELEC 1", 'syntax error at or near "SELEC"'),
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


def test_table_is_aligned_by_hand() -> None:
    table = query.as_table(["model", "loss", "n"], [("long", 2.0, 1000), ("b", None, 7)])
    assert table == ("model    loss     n\n" "long   2.0000  1000\n" "b           -     7\n")  # fmt: skip


def test_long_cells_are_cut_short() -> None:
    assert query.as_table(["a"], [("x" * 100,)]).splitlines()[1] == "x" * 59 + "…"


def test_an_empty_result_prints_its_header() -> None:
    assert query.as_table(["a", "b"], []) == "a  b\n"


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "pipeline" / "query.py", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True
    )


def test_runs_as_a_file_from_any_directory(results: Path, tmp_path: Path) -> None:
    sql = "SELECT mean_loss FROM length_losses ORDER BY 1"
    done = run("--results", results.name, "--max-rows", "2", sql, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "mean_loss\n   1.0000\n   3.0000\n… the first 2 rows; --max-rows shows more\n"


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
