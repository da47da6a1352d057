"""The drawing of calibration: tables of `analysis.calibration` in, Figures out."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.calibration import EXPECTED_AND_ACTUAL
from analysis.figure_texts import LineEnd, label_line_ends, put_title
from analysis.figures import TEXT_WIDTH, draw_with_bars, panels
from analysis.palette import BLACK, GREY
from analysis.roles import Role
from analysis.titles import BARS, FEWEST_TARGETS, counted, is_above, is_below, sample_size, subtitle

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
