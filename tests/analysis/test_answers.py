"""The closing page: its numbers are those of the statistics, and what results lack is said."""

from pathlib import Path

from synthetic_results import Truth

from analysis import answers
from analysis.figures.recovered_loss import token_effects
from analysis.read import interval_of, read_sparse_losses


def test_short_models_and_a_rule_that_sees_the_answer(
    scales: tuple[Path, Truth, Truth], results: Path
) -> None:
    small = scales[0] / "small"
    *_, carried, gaps = answers.answers(small)
    losses = read_sparse_losses(small, only={"model": ["long-seed0"]}, every_evaluator=True)
    evaluated = losses[(losses["evaluator"] == "another-model") & (losses["rule"] == "leave_one_out")]
    (row,) = token_effects(evaluated[evaluated["k"] == 16]).to_dict("records")
    own, null = (interval_of(row, name) for name in ("recovered", "null_recovered"))
    assert f"16 tokens of leave_one_out recover {own} of" in carried
    assert f"nats to another-model; another document's {null}." in carried
    assert gaps.startswith("Nats lost beyond long-seed1 under the long context: short-contiguous ")
    assert ", short-pose " in gaps and gaps.endswith("the tokens needed.")
    assert "it needs models trained at a short context" in list(answers.answers(results))[-1]
    assert "it needs models trained at a short context" in list(answers.answers(scales[0] / "early"))[-1]
