"""Whether expected gains are what they say: mean actual gain of targets that are expected to gain so much.

A divergence KL(p(.|long) || p(.|less)) is the gain that the long context would have over less of it if the
next token were drawn from the model's own prediction; it does not see that token. Over targets expected to
gain so much the mean actual gain is as large if the model is calibrated: on the diagonal of the figure,
with slope 1. Where it is not, divergences are no nats of loss, whatever else they tell.

The drawing of calibration: tables of `analysis.losses.calibration` in, Figures out.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.drawing import (
    BARS,
    BLACK,
    FEWEST_TARGETS,
    GREY,
    TEXT_WIDTH,
    LineEnd,
    Role,
    counted,
    draw_with_bars,
    is_above,
    is_below,
    label_line_ends,
    panels,
    put_title,
    sample_size,
    subtitle,
)
from analysis.gap.slopes import cluster_robust_slope
from analysis.read import interval_columns, interval_over_documents, sample_counts
from pipeline.results.statistics import Interval

EXPECTED_AND_ACTUAL = {
    "short_context_divergence": "loss_difference",
    "foreign_context_divergence": "specific_gain",
}
"""Expected gain -> actual gain, columns of loss_differences: over the short context alone, and over the short
context with another document's far context."""
MEANT = {
    "short_context_divergence": "the long context over the short one",
    "foreign_context_divergence": "its far context over another document's",
}
"""Expected gain -> what gains, over what."""
NUM_BINS = 8


def measured_expectations(loss_differences: pd.DataFrame) -> list[str]:
    """The expected gains that results have, of those in `EXPECTED_AND_ACTUAL`; earlier results have none."""
    present = loss_differences.columns[loss_differences.notna().any()]
    return [name for name, actual in EXPECTED_AND_ACTUAL.items() if {name, actual} <= set(present)]


def calibration_bins(loss_differences: pd.DataFrame, expected: str, num_bins: int = NUM_BINS) -> pd.DataFrame:
    """Mean actual gain over equal numbers of targets, by their expected gain.

    Args:
        loss_differences: the artefact, any number of models; targets without the two columns are left out.
        expected: a key of `EXPECTED_AND_ACTUAL`.
        num_bins: of each model; as many as there are targets where these are fewer.

    Returns:
        model, expected (the column's name), bin (from 0, least expected first), num_targets, num_documents,
        then with intervals expected_gain and actual_gain: means, nats.
    """
    rows = []
    for model, targets in _gains(loss_differences, expected).groupby("model"):
        ranks = targets["expected_gain"].rank(method="first")
        bins = pd.qcut(ranks, min(num_bins, len(targets)), labels=False)
        for index, of_bin in targets.groupby(bins):
            rows.append(
                {
                    "model": model, "expected": expected, "bin": index, **sample_counts(of_bin),
                    **_mean(of_bin, "expected_gain"), **_mean(of_bin, "actual_gain"),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def calibration_slopes(loss_differences: pd.DataFrame) -> pd.DataFrame:
    """How actual gains follow expected ones: a row a model and expected gain that results have.

    Args:
        loss_differences: the artefact, any number of models.

    Returns:
        model, expected (the column's name), num_targets, num_documents, then with intervals expected_gain
        and actual_gain (means, nats), ratio (actual / expected, of sums) and slope (of actual on expected by
        least squares, robust to dependence within documents; NaN for fewer than ten). Both are 1 where the
        model is calibrated; the slope is told by the few targets of large expected gain.
    """
    rows = []
    for expected in measured_expectations(loss_differences):
        for model, targets in _gains(loss_differences, expected).groupby("model"):
            documents = targets["document_id"]
            ratio = interval_over_documents(documents, targets["actual_gain"], targets["expected_gain"])
            rows.append(
                {
                    "model": model, "expected": expected, **sample_counts(targets),
                    **_mean(targets, "expected_gain"), **_mean(targets, "actual_gain"),
                    **interval_columns("ratio", ratio), **interval_columns("slope", _slope(targets)),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def calibration_sentences(slopes: pd.DataFrame) -> list[str]:
    """A sentence a model and expected gain: both means, the slope, and whether 1 is within its interval.

    Args:
        slopes: of `calibration_slopes`.
    """
    sentences = []
    for row in slopes.to_dict("records"):
        expected, actual, slope = (
            Interval(row[name], row[f"{name}_low"], row[f"{name}_high"])
            for name in ("expected_gain", "actual_gain", "slope")
        )
        if np.isnan(slope.low):
            verdict = "too few documents for a slope"
        elif slope.low > 1 or slope.high < 1:
            verdict = f"the slope {slope} is not that of a calibrated model, 1"
        else:
            verdict = f"the slope {slope} agrees with that of a calibrated model, 1"
        sentences.append(
            f"{row['model']}: {MEANT[row['expected']]} is expected to gain {expected} nats and gains"
            f" {actual}; {verdict}."
        )
    return sentences


def _gains(loss_differences: pd.DataFrame, expected: str) -> pd.DataFrame:
    columns = {expected: "expected_gain", EXPECTED_AND_ACTUAL[expected]: "actual_gain"}
    targets = loss_differences.dropna(subset=list(columns)).rename(columns=columns)
    return targets.astype({name: "float64" for name in columns.values()})


def _mean(targets: pd.DataFrame, name: str) -> dict:
    return interval_columns(name, interval_over_documents(targets["document_id"], targets[name]))


def _slope(targets: pd.DataFrame) -> Interval:
    return cluster_robust_slope(
        targets["actual_gain"].to_numpy(),
        targets["expected_gain"].to_numpy(),
        np.empty((len(targets), 0)),
        targets["document_id"].to_numpy(),
    )


_PANELS = dict(zip(EXPECTED_AND_ACTUAL, ("over the short context", "over another document's"), strict=True))


def calibration_figure(bins: pd.DataFrame, slopes: pd.DataFrame, roles: Mapping[str, Role]) -> Figure:
    """A panel an expected gain, on one scale: mean actual gain of each bin of it, a line a model.

    Args:
        bins: `calibration.calibration_bins` of one or more expected gains.
        slopes: `calibration.calibration_slopes` of the same models.
        roles: of the models.
    """
    bins = bins[bins["num_targets"] >= min(FEWEST_TARGETS, bins["num_targets"].max())]
    expectations = list(dict.fromkeys(bins["expected"]))
    figure, grid = panels(1, len(expectations), TEXT_WIDTH, 3.2)
    axes = np.ravel(grid)
    for expected, ax in zip(expectations, axes, strict=True):
        actual_against_expected(bins[bins["expected"] == expected], ax, roles)
        ax.set_title(f"gain {_PANELS[expected]}", loc="left")
    limits = [limit for ax in axes for limit in ax.get_ylim()]
    largest = 1.05 * bins["expected_gain"].max()
    for ax in axes:
        ax.set(xlim=(0, largest), ylim=(min(limits), max(*limits, largest)))
    axes[0].set_ylabel("mean actual gain (nats)")
    ends = [LineEnd(largest, largest, "calibrated", GREY)]
    for model, line in bins[bins["expected"] == expectations[-1]].groupby("model", sort=False):
        last, role = line.sort_values("expected_gain").iloc[-1], roles[str(model)]
        ends.append(LineEnd(last["expected_gain"], last["actual_gain"], role.words, role.look.color))
    label_line_ends(axes[-1], ends)
    told = subtitle(f"bins of {sample_size(bins)}", BARS)
    put_title(figure, calibration_title(slopes[slopes["expected"].isin(expectations)]), told)
    return figure


def actual_against_expected(bins: pd.DataFrame, ax: Axes, roles: Mapping[str, Role]) -> Axes:
    """Mean actual gain against mean expected gain of each bin; on the grey diagonal a model is calibrated.

    Args:
        bins: `calibration.calibration_bins`.
        ax: to draw on.
        roles: of the models.
    """
    for model, line in bins.groupby("model", sort=False):
        look = roles[str(model)].look
        draw_with_bars(ax, line["expected_gain"], line, "actual_gain", **look.measured)
    ax.axline((0, 0), slope=1, color=GREY, linewidth=1, linestyle=":")
    ax.axhline(0, color=BLACK, linewidth=0.6)
    ax.set_xlabel("expected gain, a divergence (nats)")
    return ax


def calibration_title(slopes: pd.DataFrame) -> str:
    """Whether actual gains follow expected ones with the slope of a calibrated model, 1.

    Args:
        slopes: `calibration.calibration_slopes`, a row a model and expected gain.
    """
    rows = slopes.dropna(subset=["slope_low"]).to_dict("records")
    if not rows:
        return "Gains that came, beside those that were expected"
    above = sum(is_above(row["slope_low"], 1) for row in rows)
    below = sum(is_below(row["slope_high"], 1) for row in rows)
    if not above and not below:
        return "Gains come as expected: no slope differs clearly from that of a calibrated model, 1"
    said = [
        f"{number} {'is' if number == 1 else 'are'} {side}"
        for number, side in ((above, "steeper"), (below, "flatter"))
        if number
    ]
    return f"Of {counted(len(rows), 'slope')}, {' and '.join(said)} than that of a calibrated model, 1"
