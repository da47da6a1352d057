"""The drawing of what k tokens are worth: tables of `analysis.token_effects` in, Figures out."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import TEXT_WIDTH, panels
from analysis.own_measurements import needs_null
from analysis.palette import BLACK, GREY, RULE_COLORS, RULE_MARKERS
from analysis.token_effects import CRITERIA
from pipeline.influence.rules import CONTROLS


def effects_figure(effects: pd.DataFrame) -> Figure:
    """A panel a criterion: what k tokens are worth, a line a rule, the controls up to the whole far context.

    Args:
        effects: `token_effects.token_effects`, one model and judge.
    """
    present = [criterion for criterion in CRITERIA if criterion in set(effects["criterion"])]
    figure, grid = panels(1, len(present), 0.5 * TEXT_WIDTH * len(present), 3.4)
    axes = np.ravel(grid)
    for criterion, ax in zip(present, axes, strict=True):
        effects_against_k(effects[effects["criterion"] == criterion], ax)
        ax.set_title(f"judged by the {criterion}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def effects_against_k(effects: pd.DataFrame, ax: Axes) -> Axes:
    """Nats against k, a line and the bars of its interval a rule; the controls are dashed.

    Args:
        effects: `token_effects.token_effects`, one model, judge and criterion.
        ax: to draw on.
    """
    for rule, line in effects.groupby("rule", sort=False):
        line = line.sort_values("k")
        name = str(rule)
        ends = [line["effect"] - line["effect_low"], line["effect_high"] - line["effect"]]
        ax.errorbar(
            line["k"], line["effect"], yerr=ends, elinewidth=0.9, color=RULE_COLORS.get(name, BLACK),
            marker=RULE_MARKERS.get(name, "o"), linestyle="--" if name in CONTROLS else "-",
            label=f"{name}, beyond its null" if needs_null(name) else name,
        )  # fmt: skip
    ax.axhline(effects["gain"].iloc[0], color=GREY, linewidth=1, linestyle=":", label="the whole gain")
    ax.axhline(0, color=BLACK, linewidth=0.6)
    ks = sorted(effects["k"].unique())
    powers = [k for k in ks if not k & (k - 1)]
    ax.set_xscale("log", base=2)
    ax.set_xticks(powers, [str(k) for k in powers])
    ax.minorticks_off()
    ax.set_xlabel("k tokens")
    ax.set_ylabel("worth (nats)")
    return ax
