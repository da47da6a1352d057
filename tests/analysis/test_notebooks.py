"""The notebooks, executed end to end on the synthetic results."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from analysis import run_notebooks
from pipeline.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "analysis" / "notebooks").glob("*.ipynb"))
FIGURES = {
    "dependency_sparsity-long-seed0",
    "gap_slopes",
    "generalization_gap_by_sparsity",
    "loss_against_context_length",
    "long_perplexity",
    "loss_differences",
    "recovered_loss_by_gain-long-seed0",
    *(f"recovered_loss_against_k-{model}" for model in ("long-seed0", "long-seed1", "short-contiguous")),
    *(f"sparse_gain_against_long_gain-{model}" for model in ("long-seed0", "long-seed1", "short-contiguous")),
}


def run(results: Path, figures: Path, cwd: Path, *further: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable, ROOT / "analysis" / "run_notebooks.py", "--results", results, "--figures", figures,
        "--long-models", "long-seed0", "long-seed1", "--short-models", "short-contiguous", "short-pose",
        "--train-context-lengths", "short-contiguous=32", "short-pose=32", "long-seed0=256", "long-seed1=256",
        *further,
    ]  # fmt: skip
    return subprocess.run(
        command, cwd=cwd, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True
    )


def test_all_notebooks_run_from_any_directory_and_only_once(results: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    done = run(results, figures, tmp_path)
    assert done.returncode == 0, done.stderr
    for suffix in ("png", "pdf"):
        assert {path.stem for path in figures.glob(f"*.{suffix}")} == FIGURES
    # One rule beside the controls, one size, no text: nothing to compare or read. No needles, no fits.
    skipped = {"selection_rules", "model_scale", "sparse_functional_attention", "synthetic_tasks"}
    skipped |= {"token_categories", "influential_places", "needles", "dependency_recovery"}
    executed = {path.name for path in NOTEBOOKS if path.stem not in skipped}
    assert "synthetic_tasks.ipynb: the results hold no 'synthetic_accuracy'; they hold" in done.stderr
    assert "model_scale.ipynb: the results tell of only one model size and training step" in done.stderr
    assert "influential_places.ipynb: no tokenized data beside the results" in done.stderr
    assert "needles.ipynb: no planted needles" in done.stderr
    assert "selection_rules.ipynb: only one selection rule beside the controls, skipped" in done.stderr
    assert {path.name for path in figures.glob("*.ipynb")} == executed
    text = "".join(path.read_text() for path in figures.glob("*.ipynb"))
    assert "long-seed0: the long context helps" in text
    assert "long-seed0: shared windows make the short loss 0.1250 [0.1250, 0.1250] nats smaller" in text
    assert "short-contiguous: the long context makes no clear difference" in text
    assert "short-pose, k* by leave_one_out (n = " in text
    assert "The training tokens are not at hand" in text
    assert "k* by leave_one_out beyond its null: of " in text
    for path in figures.glob("*.ipynb"):
        assert "intervals of 95 % each" in path.read_text(), f"{path.name} has no multiple-comparison note"

    before = {path: path.stat().st_mtime_ns for path in figures.iterdir()}
    again = run(results, figures, tmp_path)
    assert again.stderr.count("nothing has changed, skipped") == len(executed)
    assert {path: path.stat().st_mtime_ns for path in figures.iterdir()} == before


def test_skips_only_what_has_not_changed(results: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(results, tmp_path / "results")
    notebook = NOTEBOOKS[0]
    before = run_notebooks.fingerprint(copy, notebook, {"a": 1})
    assert run_notebooks.fingerprint(copy, notebook, {"a": 1}) == before
    assert run_notebooks.fingerprint(copy, notebook, {"a": 2}) != before
    assert run_notebooks.fingerprint(copy, NOTEBOOKS[1], {"a": 1}) != before
    next(copy.glob("*/model=long-seed0/*.parquet")).unlink()
    assert run_notebooks.fingerprint(copy, notebook, {"a": 1}) != before


def test_a_deleted_figure_is_drawn_again(tmp_path: Path) -> None:
    executed = nbformat.v4.new_notebook()
    executed.metadata["execution_of_results"] = {"made_from": "f", "figures": ["a.png"]}
    nbformat.write(executed, tmp_path / "a.ipynb")
    assert not run_notebooks.is_up_to_date(tmp_path / "a.ipynb", "f")
    (tmp_path / "a.png").touch()
    assert run_notebooks.is_up_to_date(tmp_path / "a.ipynb", "f")
    assert not run_notebooks.is_up_to_date(tmp_path / "a.ipynb", "g")
    assert not run_notebooks.is_up_to_date(tmp_path / "b.ipynb", "f")


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, tmp_path / "figures", tmp_path)
    assert done.returncode == 2, done.stderr
    assert f"--results {tmp_path} holds no results" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "figures").exists()


def test_losses_alone_are_shown_and_a_notebook_asked_for_by_name_lacks_nothing(
    results: Path, tmp_path: Path
) -> None:
    """As of the novels in the reference study, of which no influential tokens are measured."""
    losses = tmp_path / "results"
    for artefact in ("loss_differences", "length_losses"):
        shutil.copytree(results / artefact, losses / artefact)
        shutil.copytree(results / "_stages" / artefact, losses / "_stages" / artefact)
    done = run(losses, tmp_path / "figures", tmp_path, "--data", str(tmp_path))
    assert done.returncode == 0, done.stderr
    present = "they hold loss_differences, length_losses"
    for name, artefact in (
        ("dependency_sparsity", "dependency_sparsity"),
        ("sparsity_and_generalization", "dependency_sparsity"),
        ("selection_rules", "sparse_context_losses"),
        ("token_categories", "sparse_context_losses"),
        ("influential_places", "influential_tokens"),
    ):
        assert f"{name}.ipynb: the results hold no '{artefact}'; {present}, skipped" in done.stderr
    executed = {path.stem for path in (tmp_path / "figures").glob("*.ipynb")}
    assert executed == {"length_losses", "loss_differences", "long_perplexity"}

    asked = run(losses, tmp_path / "figures", tmp_path, "--notebooks", "dependency_sparsity")
    assert asked.returncode == 2
    assert f"dependency_sparsity.ipynb: the results hold no 'dependency_sparsity'; {present}" in asked.stderr


@pytest.mark.parametrize(
    ("cell", "error"),
    [
        ("from pipeline.errors import InputError\nraise InputError('mend this')", InputError),
        ("1 / 0", SystemExit),
    ],
)
def test_a_failing_cell_is_told_by_its_notebook(
    tmp_path: Path, cell: str, error: type[BaseException]
) -> None:
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_code_cell("a = 1", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell(cell),
    ]
    nbformat.write(notebook, tmp_path / "broken.ipynb")
    with pytest.raises(error, match=r"broken\.ipynb: (mend this|a cell failed[\s\S]*1 / 0)"):
        run_notebooks.execute(tmp_path / "broken.ipynb", tmp_path / "figures", {"a": 2}, "f")
    assert not (tmp_path / "figures" / "broken.ipynb").exists()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_thin_and_hold_no_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert sum("parameters" in cell.metadata.get("tags", []) for cell in notebook.cells) == 1
    for cell in notebook.cells:
        assert len(cell.source.splitlines()) <= 20
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
            assert "read_parquet" not in cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_figure_says_how_many_it_is_of(path: Path) -> None:
    cells = [
        cell.source for cell in nbformat.read(path, as_version=4).cells if "figures.save(" in cell.source
    ]
    assert cells
    for cell in cells:
        (caption,) = [part.split("figures.save(")[0] for part in cell.split("figure.suptitle(")[1:]]
        assert any(counted in caption for counted in ("sample", "documents", "sequences"))


def test_injected_parameters_follow_the_defaults() -> None:
    notebook = run_notebooks.with_parameters(nbformat.read(NOTEBOOKS[0], as_version=4), {"results": "/r"})
    place = next(i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    assert notebook.cells[place + 1].source == "results = '/r'"
