"""The benchmarks run at tiny size, and what they count and refuse is right."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parent / "benchmarks"))

import leave_one_out
import matrix_product_peak

from pipeline.cli import InputError
from pipeline.measuring.flags import ContextLengths

TINY = (
    "--layers 2 --width 32 --heads 4 --vocabulary 48 --long-context-lengths 24 --short-context-length 4"
    " --targets-per-chunk 5 --sample-tokens 256 --repeats 1 --threads 1"
)


@pytest.fixture(autouse=True)
def quick_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_product_peak, "MIN_SECONDS", 0.0)


def run(benchmark: Any, *words: object) -> None:
    benchmark.main(benchmark.parser().parse_args([str(word) for word in words]))


@pytest.mark.slow
def test_every_way_gives_the_same_numbers_and_a_wrong_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.json"
    run(leave_one_out, *TINY.split(), "--out", out)
    rows = json.loads(out.read_text())["rows"]
    assert [row["way"] for row in rows] == [
        "ours, float32", "all-targets loop, float32", "forward per pair, float32",
        "captum FeatureAblation, float32", "ours, bfloat16", "all-targets loop, bfloat16",
    ]  # fmt: skip
    assert all(row["milliseconds_per_pair"] > 0 and row["fraction_of_peak"] > 0 for row in rows)
    out.unlink()
    right = leave_one_out.Ours.influences

    def wrong(self: leave_one_out.Ours, removed: list[int]) -> np.ndarray:
        found = right(self, removed).copy()
        found[-1, 0] += 0.05 * np.nanstd(found)
        return found

    monkeypatch.setattr(leave_one_out.Ours, "influences", wrong)
    with pytest.raises(InputError, match="influence of token 0 on target 4"):
        run(leave_one_out, *TINY.split(), "--out", out)
    assert not out.exists()


def test_what_counting_predicts() -> None:
    # L = 6, s = 1, m = 2: 5 rows; targets 4 and 5 have 3 and 4 far tokens. Whole passes: 4 x 5 = 20
    # token-forwards; suffixes after rows 0, 1, 2, 3: 4 + 3 + 2 + 1 = 10.
    size = leave_one_out.ModelSize(1, 4, 1, 7, 2)
    problem = leave_one_out.Problem(size, ContextLengths(1, 6, 2))
    assert (problem.num_pairs, leave_one_out.predicted_gain(problem)) == (7, 2.0)
    loop = leave_one_out.AllTargetsLoop(problem)
    block = loop.olmo.transformer.blocks[0]
    matrices = (block.att_proj, block.attn_out, block.ff_proj, block.ff_out)
    weights = sum(matrix.weight.numel() for matrix in matrices)
    # 20 rows, 4 passes x (1 + 2 + 3 + 4 + 5) edges of width 4, 7 logits of 7 words; 2 or 4 operations each
    assert leave_one_out.flops_of(loop) == 2 * 20 * weights + 4 * 60 * 4 + 2 * 7 * 4 * 7
    # Ours: keys and values at 5 + 10 rows; the rest at 5 x 2 rows, which see 4 + 5 tokens.
    keys_and_values = 2 * 4 * 4
    rest = 2 * 10 * (weights - keys_and_values) + 4 * 5 * 9 * 4
    assert leave_one_out.flops_of(leave_one_out.Ours(problem)) == 2 * 15 * keys_and_values + rest + 2 * 7 * 28
