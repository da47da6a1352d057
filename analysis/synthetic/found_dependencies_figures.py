"""Figures of found dependencies: tables of `analysis.synthetic.found_dependencies` in, Axes out.

A line is the mean over seeds, its band their range; solid where a left-out token is removed, dashed and
hollow where it is replaced; the dotted grey line is what uniform draws would find.
"""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from analysis.palette import GREY, RULE_COLORS, RULE_MARKERS
from analysis.synthetic.found_dependencies import selection_name


def precision_against_k(cells: pd.DataFrame, ax: Axes) -> None:
    """Share of true dependencies among the k selected: of one condition of `by_k`."""
    _against_k(cells, ax, "precision")
    ax.set_title(_condition(cells))


def recall_against_k(cells: pd.DataFrame, ax: Axes) -> None:
    """Share of the true dependencies that are selected: of one condition of `by_k`."""
    _against_k(cells, ax, "recall")
    ax.set_xlabel("k, tokens selected")


def _against_k(cells: pd.DataFrame, ax: Axes, value: str) -> None:
    for rule, color in RULE_COLORS.items():
        of_rule = cells[cells["rule"] == rule]
        for intervention, line in of_rule.groupby("intervention", dropna=False):
            style: dict[str, Any] = {"linestyle": "-"}
            if intervention == "substitute":
                style = {"linestyle": "--", "markerfacecolor": "white"}
            ax.plot(
                line["k"], line[value], color=color, marker=RULE_MARKERS[rule], markersize=3,
                label=selection_name(rule, intervention), **style,
            )  # fmt: skip
            low, high = line[f"{value}_lowest"], line[f"{value}_highest"]
            ax.fill_between(line["k"], low, high, color=color, alpha=0.2, linewidth=0)
    chance = cells.groupby("k")[f"chance_{value}"].mean()
    ax.plot(chance.index, chance, ":", color=GREY)
    ax.set_ylim(-0.03, 1.03)
    ax.set_ylabel(f"{value} at k")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _condition(cells: pd.DataFrame) -> str:
    first = cells.iloc[0]
    of_k = "" if pd.isna(first["sparsity"]) else f", k = {int(first['sparsity'])}"
    return f"{first['task']}, size {first['size']}{of_k}\n{first['positions']}"
