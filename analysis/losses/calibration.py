"""Whether expected gains are what they say: mean actual gain of targets that are expected to gain so much.

A divergence KL(p(.|long) || p(.|less)) is the gain that the long context would have over less of it if the
next token were drawn from the model's own prediction; it does not see that token. Over targets expected to
gain so much the mean actual gain is as large if the model is calibrated: on the diagonal of the figure,
with slope 1. Where it is not, divergences are no nats of loss, whatever else they say.
"""

from collections.abc import Hashable, Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import drawing
from analysis.gap.slopes import cluster_robust_slope
from analysis.read import interval_columns, interval_of, interval_over_documents, mean_columns, summarized

EXPECTED_AND_ACTUAL = {
    "short_context_divergence": "loss_difference",
    "foreign_context_divergence": "specific_gain",
}
"""Expected gain -> actual gain, columns of loss_differences: over the short context alone, and over the short
context with another document's far context."""
_OVER = dict(zip(EXPECTED_AND_ACTUAL, ("the short context", "another document's"), strict=True))
NUM_BINS = 8


def measured_expectations(loss_differences: pd.DataFrame) -> list[str]:
    """The expected gains that results have, of those in `EXPECTED_AND_ACTUAL`; earlier results have none."""
    present = loss_differences.columns[loss_differences.notna().any()]
    return [name for name, actual in EXPECTED_AND_ACTUAL.items() if {name, actual} <= set(present)]


def calibration_bins(loss_differences: pd.DataFrame, expected: str, num_bins: int = NUM_BINS) -> pd.DataFrame:
    """Mean actual gain over equal numbers of targets, by their expected gain; a key of `EXPECTED_AND_ACTUAL`.

    Returns:
        model, expected (the column's name), bin (from 0, least expected first), num_targets, num_documents,
        then with intervals expected_gain and actual_gain: means, nats.
    """
    targets = _gains(loss_differences, expected)
    targets["bin"] = targets.groupby("model")["expected_gain"].transform(
        lambda gains: pd.qcut(gains.rank(method="first"), min(num_bins, len(gains)), labels=False)
    )
    keys, means = ["model", "expected", "bin"], ("expected_gain", "actual_gain")
    return summarized(targets, keys, lambda of_bin: mean_columns(of_bin, *means))


def calibration_slopes(loss_differences: pd.DataFrame) -> pd.DataFrame:
    """How actual gains follow expected ones: a row a model and expected gain that results have.

    Returns:
        model, expected (the column's name), num_targets, num_documents, then with intervals expected_gain
        and actual_gain (means, nats), ratio (actual / expected, of sums) and slope (of actual on expected by
        least squares, robust to dependence within documents; NaN for fewer than ten). Both are 1 where the
        model is calibrated; the few targets of large expected gain decide the slope.
    """

    def numbers(targets: pd.DataFrame) -> dict[Hashable, float]:
        expected, actual, documents = (
            targets[name] for name in ("expected_gain", "actual_gain", "document_id")
        )
        slope = cluster_robust_slope(
            actual.to_numpy(), expected.to_numpy(), np.empty((len(targets), 0)), documents.to_numpy()
        )
        return {
            **mean_columns(targets, "expected_gain", "actual_gain"),
            **interval_columns("ratio", interval_over_documents(documents, actual, expected)),
            **interval_columns("slope", slope),
        }

    tables = [
        summarized(_gains(loss_differences, expected), ["model", "expected"], numbers)
        for expected in measured_expectations(loss_differences)
    ]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def calibration_sentences(slopes: pd.DataFrame) -> list[str]:
    """A sentence a row of `calibration_slopes`: both means, and the slope."""
    return [
        f"{row['model']}: over {_OVER[row['expected']]} it is expected to gain"
        f" {interval_of(row, 'expected_gain')} nats and gains {interval_of(row, 'actual_gain')}; slope"
        f" {interval_of(row, 'slope')} (1: calibrated)."
        for row in slopes.to_dict("records")
    ]


def _gains(loss_differences: pd.DataFrame, expected: str) -> pd.DataFrame:
    columns = {expected: "expected_gain", EXPECTED_AND_ACTUAL[expected]: "actual_gain"}
    targets = loss_differences.dropna(subset=list(columns)).rename(columns=columns)
    return targets.astype(dict.fromkeys(columns.values(), "float64")).assign(expected=expected)


def calibration_figure(bins: pd.DataFrame, labels: Mapping[str, drawing.ModelLabel]) -> Figure:
    """A panel an expected gain, on one scale: mean actual gain of `calibration_bins`, a line a model."""
    bins = bins[bins["num_targets"] >= min(drawing.FEWEST_TARGETS, bins["num_targets"].max())]
    expectations = list(dict.fromkeys(bins["expected"]))
    figure, axes = drawing.panels(len(expectations), 3.2)
    largest = 1.05 * bins["expected_gain"].max()
    for expected, ax in zip(expectations, axes, strict=True):
        ends = [drawing.LineEnd(largest, largest, "calibrated", drawing.GREY)]
        for model, line in bins[bins["expected"] == expected].groupby("model", sort=False):
            style, text = labels[str(model)].style.measured, labels[str(model)].text
            ends.append(drawing.draw_line(ax, line["expected_gain"], line, "actual_gain", style, text))
        ax.axline((0, 0), slope=1, color=drawing.GREY, linewidth=1, linestyle=":")
        ax.axhline(0, color=drawing.BLACK, linewidth=0.6)
        ax.set(xlim=(0, largest), xlabel="expected gain, a divergence (nats)")
        ax.set_ylim(top=max(ax.get_ylim()[1], largest))
        ax.set_title(f"gain over {_OVER[expected]}", loc="left")
    drawing.share_scale(axes)
    axes[0].set_ylabel("mean actual gain (nats)")
    drawing.label_line_ends(axes[-1], ends)
    size = f"bins of {drawing.sample_size(bins)}"
    drawing.put_title(figure, "Do gains come as the model expects them?", size, drawing.BARS)
    return figure
