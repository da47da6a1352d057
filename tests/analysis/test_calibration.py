"""Calibration: planted slopes are found, sums by hand, and answers drawn from known predictions lie on it."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from analysis.drawing import TRAINED_LONG, Role
from analysis.losses import calibration
from analysis.losses import calibration as calibration_figures

ROLES = {"m": Role("trained at 256", TRAINED_LONG, None, 256)}
EXPECTED, ACTUAL = "short_context_divergence", "loss_difference"


def planted(slope: float, num_documents: int = 60, noise: float = 0.3) -> pd.DataFrame:
    """Actual gains of `slope` times the expected ones, with noise of the document and of the target."""
    generator = np.random.default_rng(3)
    documents = np.repeat(np.arange(num_documents), 16)
    expected = generator.gamma(0.5, 0.3, len(documents))
    of_document = generator.normal(0, 0.05, num_documents)[documents]
    actual = slope * expected + of_document + generator.normal(0, noise, len(documents))
    return pd.DataFrame(
        {
            "model": "m", "document_id": documents.astype(str), EXPECTED: expected, ACTUAL: actual,
            "foreign_context_divergence": expected, "specific_gain": 2 * actual,
        }
    )  # fmt: skip


@pytest.mark.parametrize("slope", [1.0, 0.4, 0.0])
def test_the_planted_slopes_are_found(slope: float) -> None:
    rows = calibration.calibration_slopes(planted(slope)).set_index("expected")
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
    (row,) = calibration.calibration_slopes(table).to_dict("records")
    assert row["slope_low"] < 1 < row["slope_high"]
    assert row["slope_high"] - row["slope_low"] < 0.4
    assert (
        "agrees with that of a calibrated model" in calibration.calibration_sentences(pd.DataFrame([row]))[0]
    )


def test_bins_by_hand() -> None:
    targets = pd.DataFrame(
        {
            "model": "m", "document_id": ["a", "b", "a", "b", "a"],
            EXPECTED: [0.5, 0.1, 0.3, 0.2, np.nan], ACTUAL: [1.0, 0.0, -0.5, 0.25, 9.0],
        }
    )  # fmt: skip
    table = calibration.calibration_bins(targets, EXPECTED, num_bins=2)
    assert table["num_targets"].tolist() == [2, 2]
    assert table["expected_gain"].tolist() == pytest.approx([0.15, 0.4])
    assert table["actual_gain"].tolist() == [0.125, 0.25]
    assert table["num_documents"].tolist() == [1, 1]
    assert table["actual_gain_low"].isna().all()


def test_results_of_before_have_no_expectation() -> None:
    old = planted(1.0).assign(**{name: np.nan for name in (EXPECTED, "foreign_context_divergence")})
    assert calibration.measured_expectations(old) == []
    assert calibration.calibration_slopes(old).empty
    assert calibration.measured_expectations(planted(1.0).drop(columns="specific_gain")) == [EXPECTED]


def test_few_documents_have_no_slope_and_say_so() -> None:
    slopes = calibration.calibration_slopes(planted(1.0, num_documents=4))
    assert slopes["slope_low"].isna().all()
    assert "too few documents for a slope" in calibration.calibration_sentences(slopes)[0]


def test_a_model_that_expects_too_much_is_told() -> None:
    sentences = calibration.calibration_sentences(calibration.calibration_slopes(planted(0.4)))
    assert "is not that of a calibrated model, 1" in sentences[0]


def test_the_figure_draws_every_bin_and_the_diagonal(ax: Axes) -> None:
    bins = calibration.calibration_bins(planted(1.0), EXPECTED)
    calibration_figures.actual_against_expected(bins, ax, ROLES)
    (bars,) = ax.containers
    assert bars.lines[0].get_ydata().tolist() == bins["actual_gain"].tolist()
    diagonal = ax.lines[-2]
    assert (diagonal.get_xy1(), diagonal.get_slope()) == ((0, 0), 1)


def test_panels_share_their_scale() -> None:
    table = planted(1.0)
    both = [calibration.calibration_bins(table, name) for name in calibration.measured_expectations(table)]
    figure = calibration_figures.calibration_figure(
        pd.concat(both), calibration.calibration_slopes(table), ROLES
    )
    first, second = figure.axes
    assert first.get_ylim() == second.get_ylim()
    assert first.get_xlim() == second.get_xlim()
    plt.close(figure)
