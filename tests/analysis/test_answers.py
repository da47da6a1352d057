"""The closing page: its numbers are those of the statistics, and what results lack is said."""

from pathlib import Path

import pytest
from sparsity_length.analysis import summary
from synthetic_results import Truth

from sparsity_length.figures.read import interval_of, read_sparse_losses
from sparsity_length.figures.recovered_loss import token_effects


@pytest.mark.slow
def test_short_models_and_a_target_aware_rule(scales: tuple[Path, Truth, Truth], results: Path) -> None:
    small = scales[0] / "small"
    *said, gaps = summary.answers(small)
    (recovered,) = (sentence for sentence in said if "selected by" in sentence)
    losses = read_sparse_losses(small, only={"model": ["long-seed0"]}, every_evaluator=True)
    evaluated = losses[(losses["evaluator"] == "another-model") & (losses["rule"] == "leave_one_out")]
    (row,) = token_effects(evaluated[evaluated["k"] == 16]).to_dict("records")
    own, null = (interval_of(row, name) for name in ("recovered", "null_recovered"))
    assert f"16 distant tokens, selected by leave_one_out, recover {own} of" in recovered
    assert "worth to another-model; " in recovered and f"null baseline: {null}." in recovered
    assert "that of long-seed1: short-contiguous's by" in gaps and ", short-pose's by" in gaps
    assert "add models trained" in list(summary.answers(results))[-1]
    assert "long-seed0" in summary.page(scales[0] / "early", scales[0])
