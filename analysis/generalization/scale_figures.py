"""The drawing of sparsity and gap by size and training step: `model_scale` in, Axes out."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import TEXT_WIDTH, panels
from analysis.generalization.sparsity_measures import BEYOND_NULL
from analysis.palette import BLACK, MODEL_COLORS, MODEL_MARKERS, RULE_COLORS

SIZE, STEP = "num_parameters", "train_step"
_AXIS_LABELS = {SIZE: "parameters", STEP: "training step"}


def scale_figure(sparsity: pd.DataFrame, gaps: pd.DataFrame, by: str) -> Figure:
    """Four panels: the gain, the share of targets that few tokens carry, the gap, and how it rises with k*.

    Args:
        sparsity: `model_scale.sparsity_by_scale`, of one step a size or of one size.
        gaps: `model_scale.gaps_by_scale`, likewise.
        by: `SIZE` or `STEP`, the horizontal axis.
    """
    figure, ((gain_ax, share_ax), (gap_ax, difference_ax)) = panels(2, 2, TEXT_WIDTH, 5.2)
    gaps = gaps.sort_values("kind", kind="stable")  # so that a kind has its colour in every figure
    k = sparsity["k"].iloc[0]
    gain = sparsity.drop_duplicates([SIZE, STEP]).assign(what="long-trained")
    lines_by_scale(gain, gain_ax, by, "loss_difference", "what", "gain of the long context (nats)")
    lines_by_scale(sparsity, share_ax, by, "share", "measure", f"k* <= {k}, of targets that gain")
    share_ax.set_ylim(0, 1.5)  # room for the legend above every share
    share_ax.set_yticks([0, 0.25, 0.5, 0.75, 1])
    lines_by_scale(gaps, gap_ax, by, "generalization_gap", "kind", "generalization gap (nats)")
    label = f"gap: k* > {k} less k* <= {k} (nats)"
    lines_by_scale(gaps, difference_ax, by, "dense_minus_sparse", "kind", label)
    for ax in (share_ax, gap_ax):
        ax.legend(loc="upper left" if ax is share_ax else "best")
    return figure


def lines_by_scale(table: pd.DataFrame, ax: Axes, by: str, value: str, line: str, label: str) -> Axes:
    """Means and intervals against size or step, a line each value of a column.

    Args:
        table: of `model_scale`.
        ax: to draw on.
        by: `SIZE` or `STEP`; both axes are logarithmic.
        value: the column drawn.
        line: the column whose values are lines.
        label: of the vertical axis.
    """
    for index, (name, rows) in enumerate(table.groupby(line, sort=False)):
        rows = rows.sort_values(by)
        ends = np.array([rows[value] - rows[f"{value}_low"], rows[f"{value}_high"] - rows[value]])
        ax.errorbar(
            rows[by], rows[value], yerr=ends, elinewidth=0.9, label=str(name), **_style(str(name), index)
        )
    ax.axhline(0, color=BLACK, linewidth=0.6)
    ax.set_xscale("log")
    ticks = sorted(table[by].unique())
    ax.set_xticks(ticks, [f"{tick / 1e6:.2g} M" if by == SIZE else f"{tick:,}" for tick in ticks])
    ax.minorticks_off()
    ax.set_xlabel(_AXIS_LABELS[by])
    ax.set_ylabel(label)
    return ax


def _style(name: str, index: int) -> dict[str, Any]:
    """Rules in the colours they have everywhere, hollow beyond their null; other lines by their place."""
    color = RULE_COLORS.get(name.removesuffix(BEYOND_NULL), MODEL_COLORS[index % len(MODEL_COLORS)])
    face = "white" if name.endswith(BEYOND_NULL) else color
    return {"color": color, "markerfacecolor": face, "marker": MODEL_MARKERS[index % len(MODEL_MARKERS)]}
