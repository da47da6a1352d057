"""The drawing of calibration: tables of `analysis.calibration` in, Figures out."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.calibration import MEANT
from analysis.figures import TEXT_WIDTH, panels
from analysis.palette import BLACK, GREY, MODEL_COLORS, MODEL_MARKERS


def calibration_figure(bins: pd.DataFrame) -> Figure:
    """A panel an expected gain, on one scale: mean actual gain of each bin of it, a line a model.

    Args:
        bins: `calibration.calibration_bins` of one or more expected gains.
    """
    expectations = list(dict.fromkeys(bins["expected"]))
    figure, grid = panels(1, len(expectations), 0.5 * TEXT_WIDTH * len(expectations), 3.2)
    axes = np.ravel(grid)
    for expected, ax in zip(expectations, axes, strict=True):
        actual_against_expected(bins[bins["expected"] == expected], ax)
        ax.set_title(f"gain of {MEANT[expected]}")
    limits = [limit for ax in axes for limit in ax.get_ylim()]
    largest = 1.05 * bins["expected_gain"].max()
    for ax in axes:
        ax.set(xlim=(0, largest), ylim=(min(limits), max(*limits, largest)))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def actual_against_expected(bins: pd.DataFrame, ax: Axes) -> Axes:
    """Mean actual gain against mean expected gain of each bin; on the grey diagonal a model is calibrated.

    Args:
        bins: `calibration.calibration_bins`.
        ax: to draw on.
    """
    for index, (model, line) in enumerate(bins.groupby("model")):
        ends = [line["actual_gain"] - line["actual_gain_low"], line["actual_gain_high"] - line["actual_gain"]]
        color, marker = (palette[index % len(palette)] for palette in (MODEL_COLORS, MODEL_MARKERS))
        ax.errorbar(
            line["expected_gain"], line["actual_gain"], yerr=ends, elinewidth=0.9, color=color, marker=marker,
            label=str(model),
        )  # fmt: skip
    ax.axline((0, 0), slope=1, color=GREY, linewidth=1, linestyle=":", label="calibrated")
    ax.axhline(0, color=BLACK, linewidth=0.6)
    ax.set_xlabel("expected gain, a divergence (nats)")
    ax.set_ylabel("mean actual gain (nats)")
    return ax
