"""The drawing of the regressions of the gap on sparsity: tables of `gap_slopes` in, Figures out."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.figures import TEXT_WIDTH, panels
from analysis.generalization.gap_slopes import ALL_CONTROLS, NO_CONTROLS, RANDOM_EFFECTS, SURFACE, WITH_GAIN
from analysis.palette import BLACK, BLUE, GREEN, ORANGE, PURPLE, VERMILION

ADJUSTMENT_STYLES: dict[str, dict[str, Any]] = {
    NO_CONTROLS: {"color": VERMILION, "marker": "o", "markerfacecolor": "white"},
    SURFACE: {"color": ORANGE, "marker": "s"},
    ALL_CONTROLS: {"color": BLUE, "marker": "D"},
    WITH_GAIN: {"color": PURPLE, "marker": "v"},
    RANDOM_EFFECTS: {"color": GREEN, "marker": "^"},
}
_ROW_HEIGHT = 0.55  # inches a measure


def slopes_figure(slopes: pd.DataFrame) -> Figure:
    """A panel a short model and coding of k*: the slope by every measure, without and with controls.

    Args:
        slopes: `gap_slopes.gap_slopes`.
    """
    models, codings = (list(dict.fromkeys(slopes[name])) for name in ("model", "coding"))
    height = len(codings) * (0.8 + _ROW_HEIGHT * slopes["measure"].nunique()) + 0.6
    figure, grid = panels(len(codings), len(models), TEXT_WIDTH, height)
    for row, coding in zip(np.reshape(grid, (len(codings), len(models))), codings, strict=True):
        for index, (model, ax) in enumerate(zip(models, row, strict=True)):
            chosen = slopes[(slopes["model"] == model) & (slopes["coding"] == coding)]
            slopes_by_measure(chosen, ax, with_names=index == 0)
            ax.set_title(f"{model}\n{coding}")
            if coding == codings[-1]:
                ax.set_xlabel("slope (nats of gap a doubling)")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def slopes_by_measure(slopes: pd.DataFrame, ax: Axes, with_names: bool = True) -> Axes:
    """Slope and interval by measure, a row each, the adjustments below each other in it.

    Args:
        slopes: `gap_slopes.gap_slopes`, one model and coding.
        ax: to draw on.
        with_names: name the measures and their n at the axis.
    """
    measures = list(dict.fromkeys(slopes["measure"]))
    for place, (adjustment, style) in enumerate(ADJUSTMENT_STYLES.items()):
        rows = slopes[slopes["adjustment"] == adjustment].set_index("measure").loc[measures]
        ends = np.array([rows["slope"] - rows["slope_low"], rows["slope_high"] - rows["slope"]])
        y = np.arange(len(measures)) + 0.15 * (place - 2)
        ax.errorbar(rows["slope"], y, xerr=ends, linestyle="none", elinewidth=0.9, label=adjustment, **style)
    ax.axvline(0, color=BLACK, linewidth=0.6)
    counts = slopes.groupby("measure")["num_targets"].first()
    names = [name.replace(" beyond", "\nbeyond") + f"\nn = {counts[name]:,}" for name in measures]
    ax.set_yticks(range(len(measures)), names if with_names else [""] * len(measures))
    ax.set_ylim(len(measures) - 0.5, -0.5)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    return ax
