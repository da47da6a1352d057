"""The closing table: its numbers are those of the statistics, and no nonsense fraction stands in it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from exported_results import vouch_for

from analysis import summary
from analysis.losses.token_worth import recovered_losses
from pipeline.cli import InputError

ROOT = Path(__file__).resolve().parents[2]


def cells(text: str, model: str, k: str) -> list[str]:
    """Cells of one row; columns are at least two spaces apart."""
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]
    return next(row for row in rows if row[:2] == [model, k])


def test_recovered_table_shows_the_numbers_of_the_statistics(
    results: Path, sparse_context_losses: pd.DataFrame
) -> None:
    table = summary.recovered_table(results, "leave_one_out")
    chosen = sparse_context_losses[sparse_context_losses["rule"] == "leave_one_out"]
    recovered = recovered_losses(chosen).set_index(["model", "k", "far_context"])
    own, null = (recovered.loc[("long-seed0", 4, far_context)] for far_context in ("own", "other_document"))
    _, _, fraction, of_null, nats, _ = cells(table, "long-seed0", "4")
    assert fraction.startswith(f"{own['recovered_fraction']:.3f} [{own['recovered_fraction_low']:.3f}, ")
    assert of_null.startswith(f"{null['recovered_fraction']:.3f} [")
    assert nats.startswith(f"{own['recovered_loss']:.3f} [")


def test_no_gain_and_not_measured_are_told_apart(results: Path) -> None:
    table = summary.recovered_table(results, "leave_one_out")
    assert cells(table, "short-contiguous", "8")[2:4] == ["no gain", "no gain"]
    assert cells(table, "short-pose", "-") == ["short-pose", *["-"] * 5]


def test_contexts_come_from_the_settings(results: Path) -> None:
    assert summary.context_lengths(results, "long-seed0") == "16 / 256"
    assert summary.context_lengths(results, "nobody") == "- / -"


def test_an_unknown_rule_is_refused(results: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'nearest'"):
        summary.recovered_table(results, "nearst")


def run(*arguments: str | Path, cwd: Path, script: str = "summary.py") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "analysis" / script, *arguments]
    return subprocess.run(
        command, cwd=cwd, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True
    )


def test_runs_as_a_file_from_any_directory(results: Path, tmp_path: Path) -> None:
    done = run("--results", results, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{results}/loss_differences/model=*/*.parquet" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 200


def test_losses_alone_are_summarized(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results / "loss_differences", tmp_path / "loss_differences")
    vouch_for(tmp_path)
    text = summary.closing_text(tmp_path, tmp_path / "figures", "leave_one_out")
    assert summary.models_table(tmp_path) in text
    assert "not measured: no influential tokens" in text
    assert "run influential_tokens with its own choice of rules and intervention" in " ".join(text.split())


def test_missing_results_are_one_sentence_and_code_two(tmp_path: Path) -> None:
    done = run("--results", tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "holds no 'loss_differences' results; it holds nothing" in done.stderr


def test_what_has_not_changed_is_printed_again_and_what_has_is_made_anew(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, figures = shutil.copytree(results, tmp_path / "results"), tmp_path / "figures"
    assert summary.page(copy, figures) == summary.closing_text(copy, figures)
    assert not figures.exists()  # nothing is kept where no figures are
    figures.mkdir()
    made: list[str] = []
    closing_text = summary.closing_text

    def counted(results: Path, figures: Path, rule: str | None = None) -> str:
        made.append(closing_text(results, figures, rule))
        return made[-1]

    monkeypatch.setattr(summary, "closing_text", counted)

    def page(rule: str | None = None) -> str:
        before = len(made)
        text = summary.page(copy, figures, rule)
        assert text == (made[-1] if len(made) > before else closing_text(copy, figures, rule))
        return text

    first = page()
    assert page() == first
    assert len(made) == 1
    (figures / "drawn.png").touch()
    assert page() != first
    assert page("leave_one_out") != page()
    assert len(made) == 4
    before = page()
    model = next((copy / "loss_differences").glob("model=*"))
    shutil.rmtree(model)
    vouch_for(copy)
    assert page() != before
    assert len(made) == 5
    for damaged in ("", "[]", "{}"):
        (figures / ".summary.json").write_text(damaged)
        page()
    assert len(made) == 8


def test_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "analysis.summary", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "closing table" in done.stdout
