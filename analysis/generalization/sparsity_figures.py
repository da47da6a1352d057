"""The drawing of how many far tokens predictions need: tables of `gain_bins` in, Axes out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes

from analysis.generalization.sparsity_measures import BEYOND_NULL
from analysis.palette import BLACK, GREY, RULE_COLORS


def sparsity_distribution(distribution: pd.DataFrame, ax: Axes) -> Axes:
    """Share of the targets in each class of k*, a colour a rule; hollow where k* is beyond the null.

    Args:
        distribution: `gain_bins.sparsity_distribution`, one bin.
        ax: to draw on.
    """
    categories = list(dict.fromkeys(distribution["category"]))
    measures = list(dict.fromkeys(distribution["measure"]))
    for index, measure in enumerate(measures):
        rows = distribution[distribution["measure"] == measure].set_index("category").loc[categories]
        x = np.arange(len(categories)) + 0.13 * (index - (len(measures) - 1) / 2)
        color = RULE_COLORS.get(measure.removesuffix(BEYOND_NULL), BLACK)
        face = "white" if measure.endswith(BEYOND_NULL) else color
        style = {
            "color": color,
            "marker": "o",
            "markerfacecolor": face,
            "linestyle": "none",
            "label": measure,
        }
        ax.errorbar(x, rows["share"], yerr=_ends(rows, "share"), elinewidth=0.9, **style)
    ax.set_xticks(range(len(categories)), [name.replace("more than", ">") for name in categories])
    ax.set_ylim(bottom=0)
    ax.set_xlabel("k*, tokens needed for 0.9 of the gain")
    ax.set_ylabel("share of targets")
    return ax


def gains_by_bin(gains: pd.DataFrame, ax: Axes, binning_model: str, model: str) -> Axes:
    """Mean gain in each bin, of the seed that binned (hollow) and of the one measured (filled).

    Args:
        gains: `gain_bins.gains_by_bin`.
        ax: to draw on.
        binning_model, model: their names.
    """
    y = np.arange(len(gains))
    for value, name, face, aside in (
        ("binning_gain", f"{binning_model} (binned by)", "white", 0.12),
        ("loss_difference", f"{model} (measured)", BLACK, -0.12),
    ):
        style: dict[str, Any] = {
            "color": BLACK,
            "marker": "o",
            "markerfacecolor": face,
            "linestyle": "none",
            "label": name,
        }
        ax.errorbar(gains[value], y + aside, xerr=_ends(gains, value), elinewidth=0.9, **style)
    ax.axvline(0, color=BLACK, linewidth=0.6)
    bins = zip(gains["gain_bin"], gains["num_targets"], strict=True)
    ax.set_yticks(y, [f"{name}\nn = {num_targets:,}" for name, num_targets in bins])
    ax.set_ylim(-0.5, len(gains) + 0.4)  # room for the legend
    ax.set_xlabel("mean gain (nats)")
    ax.set_ylabel("bin, by gain (nats)")
    ax.legend(loc="upper left", borderpad=0, handletextpad=0.2)
    return ax


def effect_against_k(effects: pd.DataFrame, ax: Axes, label: str) -> Axes:
    """Nats recovered by k tokens, a line a bin; dotted in its colour the gain of the whole long context.

    Args:
        effects: `gain_bins.effects_by_bin`, one model and rule.
        ax: to draw on.
        label: of the vertical axis, up to its unit.
    """
    bins = list(dict.fromkeys(effects["gain_bin"]))
    for gain_bin, color in zip(bins, _dark_to_light(len(bins)), strict=True):
        line = effects[effects["gain_bin"] == gain_bin].sort_values("k")
        ends = _ends(line, "effect_loss")
        ax.errorbar(line["k"], line["effect_loss"], yerr=ends, color=color, marker="o", label=gain_bin)
        ax.axhline(line["loss_difference"].iloc[0], color=color, linewidth=1, linestyle=":")
    ks = sorted(effects["k"].unique())
    ax.axhline(0, color=GREY, linewidth=0.6)
    ax.set_xscale("log", base=2)
    ax.set_xticks(ks, [str(k) for k in ks])
    ax.minorticks_off()
    ax.set_xlabel("k influential tokens")
    ax.set_ylabel(f"{label} (nats)")
    return ax


def _dark_to_light(num_colors: int) -> Sequence[tuple[float, ...]]:
    """Of cividis, which colour-blind readers see as others do; not its lightest end, which paper swallows."""
    return [colormaps["cividis"](place) for place in np.linspace(0, 0.85, num_colors)]


def _ends(rows: pd.DataFrame, value: str) -> np.ndarray:
    return np.array([rows[value] - rows[f"{value}_low"], rows[f"{value}_high"] - rows[value]])
