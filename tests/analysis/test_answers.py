"""The closing tables: their numbers are those of the statistics, and what results lack has none."""

from pathlib import Path

from synthetic_results import Truth

from analysis import summary
from analysis.figures.recovered_loss import token_effects
from analysis.read import interval_of, read_sparse_losses


def test_short_models_and_a_target_aware_rule(scales: tuple[Path, Truth, Truth], results: Path) -> None:
    small = scales[0] / "small"
    tables = dict(summary.tables(small))
    losses = read_sparse_losses(small, only={"model": ["long-seed0"]}, every_evaluator=True)
    evaluated = losses[(losses["evaluator"] == "another-model") & (losses["rule"] == "leave_one_out")]
    (row,) = token_effects(evaluated[evaluated["k"] == 16]).to_dict("records")
    recovered = tables["What k tokens recover that long-seed0 selects by leave_one_out, nats"]
    (shown,) = recovered.query("evaluator == 'another-model' and k == 16").to_dict("records")
    for name in ("recovered", "null_recovered"):
        assert shown[name] == str(interval_of(row, name))
    *_, gaps = tables
    assert "beyond long-seed1" in gaps and {*tables[gaps]["model"]} == {"short-contiguous", "short-pose"}
    assert not any("beyond" in title and "Loss" in title for title, _ in summary.tables(results))
    assert "long-seed0" in summary.page(scales[0] / "early", scales[0])
