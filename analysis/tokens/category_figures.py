"""The drawing of token categories: tables of `analysis.tokens.category_statistics` in, Axes out.

A row is a category, in blocks an aspect; a point is a mean and its bar the 95 % interval over documents.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.figures import TEXT_WIDTH, panels
from analysis.generalization.sparsity_classes import NO_GAIN
from analysis.palette import BLACK, GREY, MODEL_COLORS, MODEL_MARKERS

_BETWEEN_ASPECTS = 0.8  # rows left empty
_ASIDE = 0.22  # of a row, between models


def rows_of_categories(table: pd.DataFrame) -> dict[tuple[str, str], float]:
    """(aspect, category) -> its height in a panel, from 0 downwards, with a gap between aspects."""
    pairs = list(dict.fromkeys(zip(table["aspect"], table["category"], strict=True)))
    heights, height, before = {}, 0.0, None
    for aspect, category in pairs:
        height -= _BETWEEN_ASPECTS if before not in (None, aspect) else 0
        heights[aspect, category] = height
        height, before = height - 1, aspect
    return heights


def label_categories(table: pd.DataFrame, ax: Axes) -> Axes:
    """Name the rows of a panel, with the number of targets of each.

    Args:
        table: any of `category_statistics`, one that holds every category.
        ax: the panel to the left.
    """
    heights = rows_of_categories(table)
    sizes = table.groupby(["aspect", "category"])["num_targets"].max()
    ax.set_yticks(list(heights.values()), [f"{pair[1]} ({sizes[pair]:,})" for pair in heights])
    ax.set_ylim(min(heights.values()) - 0.6, 0.6)
    return ax


def means_by_category(table: pd.DataFrame, value: str, label: str, ax: Axes) -> Axes:
    """A point a category and model.

    Args:
        table: of `category_statistics`, one row a category and model.
        value: a column with an interval.
        label: of the horizontal axis.
        ax: to draw on.
    """
    heights = rows_of_categories(table)
    models = list(dict.fromkeys(table["model"]))
    for index, model in enumerate(models):
        rows = table[table["model"] == model]
        aside = _ASIDE * ((len(models) - 1) / 2 - index)
        y = [heights[pair] + aside for pair in zip(rows["aspect"], rows["category"], strict=True)]
        errors = np.array([rows[value] - rows[f"{value}_low"], rows[f"{value}_high"] - rows[value]])
        color, marker = (palette[index % len(palette)] for palette in (MODEL_COLORS, MODEL_MARKERS))
        ax.errorbar(rows[value], y, xerr=errors, fmt=marker, color=color, elinewidth=0.9, label=model)
    ax.axvline(0, color=BLACK, linewidth=0.6)
    ax.set_xlabel(label)
    return ax


def sparsity_shares(shares: pd.DataFrame, ax: Axes) -> Axes:
    """Share of the targets of each category with each k*, as parts of a bar: dark where few tokens suffice.

    Args:
        shares: `category_statistics.sparsity_by_category`, one model and rule.
        ax: to draw on.
    """
    heights = rows_of_categories(shares)
    colors = sparsity_colors(shares)
    for pair in heights:
        rows = shares[(shares["aspect"] == pair[0]) & (shares["category"] == pair[1])]
        left = 0.0
        for row in rows.to_dict("records"):
            ax.barh(heights[pair], row["share"], 0.8, left, color=colors[row["k_star"]], linewidth=0)
            left += row["share"]
    ax.set_xlim(0, 1)
    ax.set_xlabel("share with this k*")
    return ax


def sparsity_colors(shares: pd.DataFrame) -> dict[str, str | tuple[float, float, float, float]]:
    """k* -> its colour: a scale that is as dark in grey as in colour, and light grey for no gain."""
    names = list(dict.fromkeys(shares["k_star"]))
    scale = plt.get_cmap("cividis")(np.linspace(0, 0.95, len(names) - 1))
    reached = [name for name in names if name != NO_GAIN]
    colors = {name: tuple(color) for name, color in zip(reached, scale, strict=True)}
    return colors | {NO_GAIN: "#DDDDDD"}


def categories_figure(
    differences: pd.DataFrame, excess: pd.DataFrame, shares: pd.DataFrame, gaps: pd.DataFrame
) -> Figure:
    """Four panels beside each other: the long context's gain, k tokens beyond the null, k*, and the gap.

    Args:
        differences: `loss_differences_by_category`, one model.
        excess: `excess_by_category`, the same model, one rule and k.
        shares: `sparsity_by_category`, the same model and rule.
        gaps: `gaps_by_category`, any number of short-trained models; may be empty.
    """
    num_rows = len(rows_of_categories(differences))
    figure, axes = panels(1, 4, TEXT_WIDTH, 1.5 + 0.19 * num_rows)
    gain_ax, excess_ax, shares_ax, gap_ax = axes
    means_by_category(differences, "loss_difference", "gain of the long\ncontext (nats)", gain_ax)
    label = f"{excess['k'].iloc[0]} tokens, beyond\nthe null (nats)" if len(excess) else "not measured"
    means_by_category(excess, "excess_loss", label, excess_ax)
    sparsity_shares(shares, shares_ax)
    means_by_category(gaps, "generalization_gap", "generalization\ngap (nats)", gap_ax)
    label_categories(differences, gain_ax)
    for ax in axes[1:]:
        ax.set_yticks([])
        ax.set_ylim(gain_ax.get_ylim())
    for ax in axes:
        ax.grid(axis="x", color=GREY, alpha=0.25, linewidth=0.5)
        ax.set_axisbelow(True)
        ax.tick_params(axis="both", labelsize=7)
    _legend(figure, shares, gap_ax)
    return figure


def _legend(figure: Figure, shares: pd.DataFrame, gap_ax: Axes) -> None:
    """One below all: what colours mean in the panel of k*, and the short-trained models of the gap."""
    parts = [
        Patch(color=color, label=name if name == NO_GAIN else f"k* {name}")
        for name, color in sparsity_colors(shares).items()
    ]
    handles, labels = gap_ax.get_legend_handles_labels()
    figure.legend(
        [*parts, *handles], [*(str(part.get_label()) for part in parts), *labels],
        loc="outside lower center", ncols=5, fontsize=7,
    )  # fmt: skip
