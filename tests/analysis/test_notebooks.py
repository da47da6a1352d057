"""The notebooks, executed end to end: what they leave, what is skipped, and what a failing cell says."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked_stages
import pytest
from sparsity_length.analysis.run_notebooks import NOTEBOOKS, execute
from synthetic_results import Truth

from sparsity_length.cli import InputError

ROOT = Path(__file__).resolve().parents[2]
CHOOSING = ("long-seed0", "long-seed1", "short-contiguous")
FIGURES = {
    "loss_against_context_length",
    *(
        f"{figure}-{model}{evaluator}"
        for figure in ("loss_against_k", "token_effects")
        for model in CHOOSING
        for evaluator in ("", "-by-another-model")
    ),
}


def run(results: Path, figures: Path, cwd: Path, *further: str | Path) -> subprocess.CompletedProcess[str]:
    words = ["--results", results, "--figures", figures, *further]
    return forked_stages.run("analysis/run_notebooks.py", *words, cwd=cwd)


@pytest.mark.slow  # every notebook, in a process each
def test_all_notebooks_run_anywhere(scales: tuple[Path, Truth, Truth], tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    results = scales[0] / "small"
    # Relative to where it is typed, which is not where a kernel runs.
    relative = Path(os.path.relpath(results, tmp_path))
    done = run(relative, Path("figures"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (ROOT / "figures").exists()
    for suffix in ("png", "pdf"):
        assert {path.stem for path in figures.glob(f"*.{suffix}")} == FIGURES
    for skipped in (
        "sparsity_and_generalization.ipynb: no rule that is target-agnostic has mean_log2_k",
        "synthetic_tasks.ipynb: the results hold no 'synthetic_accuracy'; they hold",
    ):
        assert skipped in done.stderr, skipped
    executed = sorted(path.name for path in figures.glob("*.ipynb"))
    assert len(executed) == len([*NOTEBOOKS.glob("*.ipynb")]) - 2
    for path in figures.glob("*.ipynb"):
        assert "intervals of 95% each" in path.read_text(), f"{path.name} has no multiple-comparison note"


@pytest.mark.slow
def test_an_interrupted_notebook_ends_without_a_traceback(tmp_path: Path) -> None:
    results = ROOT / "analysis" / "reference" / "evaluated" / "results"
    words = [ROOT / "analysis" / "run_notebooks.py", "--results", results, "--figures", tmp_path]
    program = subprocess.Popen(
        [sys.executable, *map(str, words)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert program.stderr is not None
    said = ""
    while "notebooks:   0%" not in said:
        said += program.stderr.read(1)
    time.sleep(1)  # a kernel is starting, or at work
    os.killpg(program.pid, signal.SIGINT)
    said += program.communicate()[1]
    assert program.returncode == -signal.SIGINT  # which a shell calls 130
    assert "Traceback" not in said


def test_a_failing_cell_is_one_sentence_and_its_traceback_is_kept(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a cell of loss_differences.ipynb failed: InputError"):
        execute(NOTEBOOKS / "loss_differences.ipynb", tmp_path, {"results": str(tmp_path)})
    assert "Traceback" in (tmp_path / "loss_differences.ipynb").read_text()
