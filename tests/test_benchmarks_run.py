"""The benchmarks run at tiny size, and what they count and refuse is right."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hugging_face_families import save_model
from measured_documents import run

sys.path.append(str(Path(__file__).resolve().parent / "benchmarks"))

import explain_accuracy
import interval_coverage
import leave_one_out
import screen
import training

from sparsity_length.cli import InputError
from sparsity_length.text.sources import first_passages
from sparsity_length.text.tokenizer import train_bpe

TINY = (
    "--layers 2 --width 32 --heads 4 --vocabulary 48 --long-context-lengths 24 --short-context-length 4"
    " --targets-per-chunk 5 --sample-tokens 256 --repeats 1 --threads 1"
)


@pytest.mark.slow
def test_every_way_gives_the_same_numbers_and_a_wrong_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(leave_one_out, *TINY.split(), "--out", tmp_path / "out.json")
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert len(rows) == len(leave_one_out.WAYS) and all(row["milliseconds_per_pair"] > 0 for row in rows)

    def wrong(problem: leave_one_out.Problem, removed: np.ndarray) -> np.ndarray:
        found = leave_one_out.ours(problem, removed).copy()
        found[-1, 0] += 0.05 * np.nanstd(found)
        return found

    monkeypatch.setitem(leave_one_out.WAYS, "ours", wrong)
    with pytest.raises(InputError, match="influence of token 0 on target 4"):
        run(leave_one_out, *TINY.split(), "--out", tmp_path / "wrong.json")
    assert not (tmp_path / "wrong.json").exists()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    tokenizer = train_bpe(first_passages(20_000), 300).to_json()
    return save_model(tmp_path_factory.mktemp("models") / "model", tokenizer, max_position_embeddings=128)


@pytest.mark.slow
def test_the_search_is_compared_with_exact_leave_one_out(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.jsonl"
    for _ in range(2):  # the second reads what the first wrote
        run(explain_accuracy, "--model", model, "--length", 64, "--texts", 1, "--out", out)
        said = capsys.readouterr().out
        assert said.startswith("1 texts of 64 tokens: ") and "of its top 4" in said
    row = json.loads(out.read_text())
    assert 0 <= row["found"] <= 1 and row["recovered"] < row["total"]


@pytest.mark.slow
def test_screens_are_compared_with_exact_leave_one_out(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", model, "--length", 112, "--short", 4, "--texts", 1]
    run(screen, *words, "--screens", 2, 200, "--out", tmp_path / "s.jsonl")
    few, every = capsys.readouterr().out.splitlines()
    assert "--screen 200: recall 1.00, top 1 1.00, +0.00 doublings, 1.000 of" in every
    assert "--screen 2: recall" in few


@pytest.mark.slow
def test_training_is_timed() -> None:
    run(training, "--quick", "--precisions", "fp32")  # AVX2 emulates bfloat16, slowly


def test_the_jackknife_covers_more_than_the_bootstrap_of_few_documents() -> None:
    covered = {
        name: interval_coverage.coverage(8, 1.5, of, 300) for name, of in interval_coverage.METHODS.items()
    }
    assert covered["bootstrap"] + 0.03 < covered["jackknife"] < 0.97
