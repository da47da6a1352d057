"""Notebooks, tutorial, the closing page and the example of a study, executed end to end: what they leave."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import forked_stages
import nbformat
import numpy as np
import pandas as pd
import pytest
from hugging_face_families import save_model
from measured_documents import json_lines
from sparsity_length.analysis import summary
from sparsity_length.analysis.examples import from_text_to_figure as example
from sparsity_length.analysis.run_notebooks import NOTEBOOKS, ROOT, execute
from written_results import write_results

from sparsity_length import influential_tokens
from sparsity_length.cli import InputError
from sparsity_length.figures import read, recovered_loss
from sparsity_length.results.read import Results
from sparsity_length.text.tokenizer import train_bpe

FIGURES = {
    "loss_against_context_length",
    *(
        f"{figure}-{model}{evaluator}"
        for figure in ("loss_against_k", "token_effects")
        for model in ("long-seed0", "long-seed1", "short-contiguous")
        for evaluator in ("", "-by-another-model")
    ),
}


@pytest.mark.slow  # every notebook, in a process each
def test_all_notebooks_run_anywhere(results: Path, tmp_path: Path) -> None:
    # Relative to where it is typed, which is not where a kernel runs.
    words = ["--results", os.path.relpath(results, tmp_path), "--figures", "figures"]
    program = forked_stages.command(ROOT / "analysis" / "run_notebooks.py", *words)
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not (ROOT / "figures").exists()
    figures = tmp_path / "figures"
    for suffix in ("png", "pdf"):
        assert {path.stem for path in figures.glob(f"*.{suffix}")} == FIGURES
    assert "sparsity_and_generalization.ipynb: no rule that is target-agnostic has mean_log2_k" in done.stderr
    assert "synthetic_tasks.ipynb: the results hold no 'synthetic_accuracy'; they hold" in done.stderr
    executed = [path.read_text() for path in figures.glob("*.ipynb")]
    assert len(executed) == len([*NOTEBOOKS.glob("*.ipynb")]) - 2
    assert all("intervals of 95% each" in text for text in executed), "a multiple-comparison note is missing"


@pytest.mark.slow
def test_an_interrupted_notebook_ends_without_a_traceback(tmp_path: Path) -> None:
    words = ["analysis/run_notebooks.py", "--results", "analysis/reference/evaluated/results", "--figures"]
    program = subprocess.Popen(
        [sys.executable, *words, tmp_path],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    said = ""
    while "notebooks:   0%" not in said:
        said += program.stderr.read(1)
    time.sleep(1)  # a kernel is starting, or at work
    os.killpg(program.pid, signal.SIGINT)
    assert "Traceback" not in said + program.communicate()[1]
    assert program.returncode == -signal.SIGINT  # which a shell calls 130


def test_a_failing_cell_is_one_sentence_and_its_traceback_is_kept(tmp_path: Path) -> None:
    default = nbformat.v4.new_code_cell("told = 0", metadata={"tags": ["parameters"]})
    cells = [default, nbformat.v4.new_code_cell("raise ValueError(told)")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "fails.ipynb")
    with pytest.raises(InputError, match=r"a cell of fails.ipynb failed: ValueError: 7; the traceback is in"):
        execute(tmp_path / "fails.ipynb", tmp_path / "figures", {"told": 7})
    assert "Traceback" in (tmp_path / "figures" / "fails.ipynb").read_text()


TUTORIAL = ROOT / "analysis" / "tutorial.ipynb"


def shown(notebook: Any) -> list[list[str]]:
    """Printed text and tables of each cell; pictures are left out."""
    return [
        [
            output["text"] if "text" in output else output["data"]["text/plain"]
            for output in cell.outputs
            if "image/png" not in output.get("data", {})
        ]
        for cell in notebook.cells
        if cell.cell_type == "code" and cell.id != "injected"
    ]


@pytest.mark.slow
def test_the_tutorial_shows_what_is_kept(tmp_path: Path) -> None:
    execute(TUTORIAL, tmp_path, {"keep": False})
    executed, committed = (nbformat.read(path, 4) for path in (tmp_path / TUTORIAL.name, TUTORIAL))
    assert shown(executed) == shown(committed)
    assert "image/png" in TUTORIAL.read_text() and TUTORIAL.stat().st_size < 300_000


@pytest.mark.slow
def test_short_models_and_a_target_aware_rule(results: Path, tmp_path: Path) -> None:
    *said, gaps = summary.answers(results)
    (recovered,) = (sentence for sentence in said if "selected by" in sentence)
    losses = read.read_sparse_losses(results, only={"model": ["long-seed0"]}, every_evaluator=True)
    evaluated = losses[(losses["evaluator"] == "another-model") & (losses["rule"] == "leave_one_out")]
    (row,) = recovered_loss.token_effects(evaluated[evaluated["k"] == 16]).to_dict("records")
    own, null = (read.interval_of(row, name) for name in ("recovered", "null_recovered"))
    assert f"16 distant tokens, selected by leave_one_out, recover {own} of" in recovered
    assert "worth to another-model; " in recovered and f"null baseline: {null}." in recovered
    assert "that of long-seed1: short-contiguous's by" in gaps and ", short-pose's by" in gaps
    write_results(tmp_path, ["long-seed0"], tells_training=False)
    assert "add models trained" in list(summary.answers(tmp_path))[-1]
    assert "long-seed0" in summary.page(results, results.parent)


@pytest.mark.parametrize(
    ("gain", "said"),
    # Between the lengths by a straight line in log2: 32 x 2^0.9.
    [(0.01, "short gains 0.010 ["), (1.0, "The nearest 60 [60, 60] tokens give short 90% of the 1.000 [")],
)
def test_of_a_gain_that_may_be_none_no_window_is_told(
    gain: float, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        ("short", name, length, 2.0 - is_longest * (gain + noise * (2 * number - 1)), 10)
        for number, name in enumerate("ab")
        for is_longest, length in enumerate((32, 64))
        for noise in [0.05 if gain < 0.1 else 0]
    ]
    columns = ["model", "document_id", "context_length", "mean_loss", "num_targets"]
    losses = pd.DataFrame(rows, columns=columns).assign(mean_divergence=np.nan)
    monkeypatch.setattr(Results, "frame", lambda *_: losses)
    (sentence,) = summary.lengths_needed(tmp_path)
    assert sentence.startswith(said)


def test_a_study_in_one_file(tmp_path: Path) -> None:
    text = json_lines(0, 1)[20:300]
    model = save_model(
        tmp_path / "model", train_bpe([text], 300).to_json(), "gpt_neox", max_position_embeddings=128
    )
    (tmp_path / "letter.txt").write_text(text)
    lengths = {"short_context_length": 4, "num_targets": 5}
    table = example.main(str(tmp_path / "letter.txt"), model, str(tmp_path / "figure.png"), **lengths)
    assert table.index.tolist() == list(example.KS) and [*table] == ["chosen", "recency", "random"]
    rows = influential_tokens(text, model, rule="recency", k=(4,), ablation="mask", **lengths)
    of_4 = rows[rows["rank"] == 4]
    saved, gain = (
        (of_4["short_context_loss"] - of_4[f"{name}_context_loss"]).sum() for name in ("sparse", "long")
    )
    assert table.loc[4, "recency"] == pytest.approx(saved / gain, rel=1e-3)
    assert (tmp_path / "figure.png").stat().st_size > 1000
