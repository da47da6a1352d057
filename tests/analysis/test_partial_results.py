"""Whatever is made of results that are not complete is refused, or says so: tables, figures, pages, rows."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import forked_stages
import matplotlib.pyplot as plt
import nbformat
import pyarrow.parquet as pq
import pytest
from explorable_results import write_explorable

from analysis import explorer, summary
from analysis.notebooks import NOTEBOOKS, execute_all
from pipeline.cli import InputError
from pipeline.results.files import allow_partial

ROOT = Path(__file__).resolve().parents[2]
NOTE = "partial: 1 of 2 shards of loss_differences of model 'long-seed0'"
FLAGS = ("--allow-partial", "--format")
SQL = "SELECT model, count(*) AS num_rows FROM loss_differences GROUP BY model ORDER BY model"


@pytest.fixture(autouse=True)
def nothing_partial() -> Iterator[None]:
    yield
    allow_partial(False)
    plt.close("all")


@pytest.fixture
def partial_results(results: Path, tmp_path: Path) -> Path:
    """The synthetic results, of one model's loss differences one of two shards."""
    copy = shutil.copytree(results, tmp_path / "results")
    (copy / "_stages/loss_differences/model=long-seed0/00001-of-00002.done").unlink()
    return copy


def test_the_closing_page(partial_results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--results", str(partial_results)]
    with pytest.raises(InputError, match="holds 1 of 2 shards of loss_differences of model 'long-seed0'"):
        summary.main(summary.parser().parse_args(flags))
    assert capsys.readouterr().out == ""
    summary.main(summary.parser().parse_args([*flags, "--allow-partial", "--rule", "leave_one_out"]))
    assert capsys.readouterr().out.splitlines()[0] == f"({NOTE})"


@pytest.mark.slow
def test_a_notebook_says_so_below_every_cell(partial_results: Path, tmp_path: Path) -> None:
    notebook, figures = NOTEBOOKS / "loss_differences.ipynb", tmp_path / "figures"
    parameters = {"results": str(partial_results), "figures_folder": str(figures)}
    with pytest.raises(InputError, match=r"^loss_differences.ipynb: .* holds 1 of 2 shards of loss_diff"):
        list(execute_all([notebook], figures, parameters))
    assert list(figures.iterdir()) == []
    assert list(execute_all([notebook], figures, parameters, allow_partial=True)) == [notebook]
    cells = nbformat.read(figures / notebook.name, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    noted = [NOTE in "".join(output.get("text", "") for output in cell.outputs) for cell in code]
    first = next(i for i, cell in enumerate(code) if "read_artefact(" in cell.source)
    assert noted == [i >= first for i in range(len(code))]
    assert len(noted) - first >= 3  # a table, a figure and sentences


def test_the_page_of_targets_in_their_text(tmp_path: Path) -> None:
    results, _ = write_explorable(tmp_path, [f"words number {i} of a text to read " * 40 for i in range(2)])
    folder = results / "_stages" / "influential_tokens"
    model = next(folder.iterdir()).name
    for path in [*results.glob(f"*/{model}/*.parquet"), *folder.glob(f"{model}/*.done")]:
        if "loss_differences" not in path.parts:  # as if another shard were still to come
            path.rename(path.with_name(path.name.replace("of-00001", "of-00002")))
    flags = [str(results), "--out", str(tmp_path / "page.html")]
    with pytest.raises(InputError, match="holds 1 of 2 shards of dependency_sparsity of model"):
        explorer.main(explorer.parser().parse_args(flags))
    assert not (tmp_path / "page.html").exists()
    explorer.main(explorer.parser().parse_args([*flags, "--allow-partial"]))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    left_out = json.loads(page[page.index('"left_out":') + len('"left_out":') :].split("]")[0] + "]")
    assert left_out[0].startswith("Partial: 1 of 2 shards of dependency_sparsity of model")
    assert "influential_tokens" in left_out[0]


def query(results: Path, *further: str) -> subprocess.CompletedProcess[str]:
    return forked_stages.run("pipeline/query.py", "--results", results, SQL, *further, cwd=results.parent)


def test_rows_of_a_query(partial_results: Path, tmp_path: Path) -> None:
    """Where rows are for programs, the note goes to standard error and into the Parquet file's metadata."""
    refused = query(partial_results)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "; run loss_differences again" in refused.stderr
    table, rows = query(partial_results, "--allow-partial"), query(partial_results, *FLAGS, "json")
    out = tmp_path / "counts.parquet"
    written = query(partial_results, *FLAGS, "parquet", "--out", str(out))
    for done in (table, rows, written):
        assert (done.returncode, done.stderr) == (0, f"query: {NOTE}\n")
    assert table.stdout.splitlines()[-1] == f"({NOTE})"
    assert len(json.loads(rows.stdout)) == 4
    assert pq.read_metadata(out).metadata[b"note"] == NOTE.encode()
    assert pq.read_table(out).num_rows == 4
