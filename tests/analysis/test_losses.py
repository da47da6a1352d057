"""Mean losses and calibration: sums by hand, planted slopes, answers drawn from known predictions."""

import numpy as np
import pandas as pd
import pytest
from synthetic_results import LONG_MODELS, SHORT_MODELS, Truth

from analysis.losses.losses import (
    calibration_slopes,
    losses_beside_reference,
    losses_by_context_length,
    summarize_models,
)

EXPECTED = "short_context_divergence"
ACTUAL = "loss_difference"


def test_summary_states_sign_and_sample(loss_differences: pd.DataFrame, truth: Truth) -> None:
    summary = summarize_models(loss_differences).set_index("model")
    assert sorted(summary.index) == sorted([*SHORT_MODELS, *LONG_MODELS])
    row = summary.loc["long-seed0"]
    assert row["loss_difference"] == pytest.approx(truth.targets["gain"].mean(), abs=1e-5)
    difference = row["short_context_loss"] - row["long_context_loss"]
    assert difference == pytest.approx(row["loss_difference"], abs=1e-5)
    assert (row["num_targets"], row["num_documents"]) == (384, 24)
    assert row["loss_difference_low"] < row["loss_difference"] < row["loss_difference_high"]


def test_length_losses_weigh_documents_by_their_targets() -> None:
    losses = pd.DataFrame(
        {
            "model": "m",
            "document_id": ["a", "b", "b", "a", "b", "b"],
            "chunk_index": [0, 0, 1, 0, 0, 1],  # several chunks of a document are not several documents
            "context_length": [16, 16, 16, 32, 32, 32],
            "num_targets": [1, 1, 2, 1, 1, 2],
            "mean_loss": [4.0, 3.0, 1.5, 3.0, 1.0, 2.5],
        }
    )
    table = losses_by_context_length(losses).set_index("context_length")
    assert table["loss"].to_dict() == {16: 2.5, 32: 2.25}
    assert (table["num_targets"].to_list(), table["num_documents"].to_list()) == ([4, 4], [2, 2])


def test_the_difference_to_a_reference_is_of_chunks_by_hand() -> None:
    losses = pd.DataFrame(
        {
            "model": ["a", "a", "b", "b"],
            "document_id": ["1", "2"] * 2,
            "chunk_index": 0,
            "context_length": 16,
            "num_targets": [1, 3] * 2,
            "mean_loss": [2.0, 5.0, 2.5, 5.25],
        }
    )
    rows = losses_beside_reference(losses, "a", 16).set_index("model")
    assert rows.loc["b", "difference"] == pytest.approx((1 * 0.5 + 3 * 0.25) / 4)
    assert rows.loc["a", ["difference", "difference_low", "difference_high"]].tolist() == [0, 0, 0]
    # The documents differ by 3 nats, the differences by 0.25: that is what the interval is of.
    plain = losses_by_context_length(losses).set_index("model")
    widths = [
        table.loc["b", f"{name}_high"] - table.loc["b", f"{name}_low"]
        for table, name in ((rows, "difference"), (plain, "loss"))
    ]
    assert 0 < widths[0] < 0.2 * widths[1]


def planted(slope: float, num_documents: int = 60) -> pd.DataFrame:
    """Actual gains of `slope` times the expected ones, with noise of the document and of the target."""
    generator = np.random.default_rng(3)
    documents = np.repeat(np.arange(num_documents), 16)
    expected = generator.gamma(0.5, 0.3, len(documents))
    of_document = generator.normal(0, 0.05, num_documents)[documents]
    actual = slope * expected + of_document + generator.normal(0, 0.3, len(documents))
    return pd.DataFrame(
        {
            "model": "m",
            "document_id": documents.astype(str),
            EXPECTED: expected,
            ACTUAL: actual,
            "foreign_context_divergence": expected,
            "specific_gain": 2 * actual,
        }
    )


@pytest.mark.parametrize("slope", [1.0, 0.4, 0.0])
def test_the_planted_slopes_are_found(slope: float) -> None:
    rows = calibration_slopes(planted(slope)).set_index("expected")
    for expected, truth in ((EXPECTED, slope), ("foreign_context_divergence", 2 * slope)):
        row = rows.loc[expected]
        assert row["slope_low"] <= truth <= row["slope_high"]
        assert row["slope_high"] - row["slope_low"] < 0.5
        assert row["ratio_low"] <= truth <= row["ratio_high"]


def test_answers_drawn_from_the_prediction_lie_on_the_diagonal() -> None:
    """The definition itself: x ~ p, gain = ln p(x) - ln q(x), expected KL(p || q)."""
    generator = np.random.default_rng(0)
    rows = []
    for document in range(200):
        logits_V = generator.normal(0, 1.5, 12)
        for _ in range(10):
            shifted_V = logits_V + generator.normal(0, generator.uniform(0, 1.5), 12)
            p_V, q_V = (np.exp(values) / np.exp(values).sum() for values in (logits_V, shifted_V))
            ratios_V = np.log(p_V / q_V)
            rows.append((str(document), p_V @ ratios_V, ratios_V[generator.choice(12, p=p_V)]))
    table = pd.DataFrame(rows, columns=["document_id", EXPECTED, ACTUAL]).assign(model="m")
    (row,) = calibration_slopes(table).to_dict("records")
    assert row["slope_low"] < 1 < row["slope_high"]
    assert row["slope_high"] - row["slope_low"] < 0.4


def test_results_of_before_have_no_expectation_and_few_documents_no_slope() -> None:
    old = planted(1.0).assign(**{name: np.nan for name in (EXPECTED, "foreign_context_divergence")})
    assert calibration_slopes(old).empty
    without = calibration_slopes(planted(1.0).drop(columns="specific_gain"))
    assert without["expected"].tolist() == [EXPECTED]
    assert calibration_slopes(planted(1.0, num_documents=4))["slope_low"].isna().all()
