"""The drawing of where influential tokens are: tables of `analysis.tokens.influential_places` in, Axes out.

Filled marks are the document's own far context, hollow ones the null; a grey tick is what a choice at random
among the same far positions has on average. Bars are 95 % intervals over documents.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figures import TEXT_WIDTH, panels
from analysis.palette import BLUE, GREY, VERMILION
from analysis.tokens.influential_places import OTHER, RELATIONS
from pipeline.results.names import OTHER_DOCUMENT, OWN

_STYLE: dict[str, dict[str, Any]] = {
    OWN: {"color": BLUE, "marker": "o"},
    OTHER_DOCUMENT: {"color": VERMILION, "marker": "s", "markerfacecolor": "white"},
}
_ASIDE = 0.13


def _bars(rows: pd.DataFrame) -> np.ndarray:
    return np.array([rows["chosen"] - rows["chosen_low"], rows["chosen_high"] - rows["chosen"]])


def shares_of(table: pd.DataFrame, column: str, ax: Axes) -> Axes:
    """Share of the k tokens with each value, own beside null, each with its tick for a choice at random.

    Args:
        table: `relation_shares` or `distance_shares`, one model, rule and k.
        column: "relation" or "from_distance".
        ax: to draw on; values go along the horizontal axis.
    """
    values = list(dict.fromkeys(table[column]))
    for far_context, aside in ((OWN, -_ASIDE), (OTHER_DOCUMENT, _ASIDE)):
        rows = table[table["far_context"] == far_context].set_index(column).reindex(values)
        x = np.arange(len(values)) + aside
        ax.errorbar(
            x, rows["chosen"], yerr=_bars(rows), linestyle="none", elinewidth=0.9, **_STYLE[far_context]
        )
        ax.hlines(rows["available"], x - 0.1, x + 0.1, color=GREY, linewidth=1.6, zorder=0)
    ax.set_xlim(-0.5, len(values) - 0.5)
    return ax


def distances(table: pd.DataFrame, ax: Axes) -> Axes:
    """How far the k tokens are from their targets.

    Args:
        table: `distance_shares`, one model, rule and k.
        ax: to draw on.
    """
    shares_of(table, "from_distance", ax)
    bins = table.drop_duplicates("from_distance")
    labels = [f"{row.from_distance}–{row.to_distance}" for row in bins.itertuples()]
    ax.set_xticks(range(len(labels)), labels, fontsize=7, rotation=35, ha="right")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("distance (tokens)")
    ax.set_ylabel("share of the k tokens")
    return ax


def relations_to_target(table: pd.DataFrame, ax: Axes) -> Axes:
    """What the k tokens have to do with their targets; the share of "other" is what is left to 1.

    Args:
        table: `relation_shares`, one model, rule and k.
        ax: to draw on.
    """
    table = table[table["relation"] != OTHER]
    shares_of(table, "relation", ax)
    names = [name for name in RELATIONS if name != OTHER]
    ax.set_xticks(range(len(names)), names, fontsize=7, rotation=35, ha="right")
    ax.set_ylim(bottom=0)
    ax.set_ylabel("share of the k tokens")
    return ax


def copies_by_rank(table: pd.DataFrame, ax: Axes) -> Axes:
    """Share of copies of the target, with or without its predecessor, at each rank of the choice.

    Args:
        table: `influential_places.copies_by_rank`, one model and rule.
        ax: to draw on.
    """
    for far_context in (OWN, OTHER_DOCUMENT):
        rows = table[table["far_context"] == far_context].sort_values("rank")
        style = _STYLE[far_context] | {"markersize": 3}
        ax.plot(rows["rank"], rows["chosen"], **style)
        ax.fill_between(
            rows["rank"],
            rows["chosen_low"],
            rows["chosen_high"],
            color=style["color"],
            alpha=0.15,
            linewidth=0,
        )
        ax.plot(rows["rank"], rows["available"], color=GREY, linestyle="-" if far_context == OWN else ":")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("rank among the k")
    ax.set_ylabel("share of copies")
    return ax


def places_figure(relation: pd.DataFrame, distance: pd.DataFrame, by_rank: pd.DataFrame) -> Figure:
    """Three panels: relations, distances, and copies by rank.

    Args:
        relation, distance: `relation_shares` and `distance_shares`, one model, rule and k.
        by_rank: as `copies_by_rank` takes it, the same model and rule.
    """
    figure, axes = panels(1, 3, TEXT_WIDTH, 2.9)
    relations_to_target(relation, axes[0])
    distances(distance, axes[1])
    copies_by_rank(by_rank, axes[2])
    handles = [
        *(Line2D([], [], linestyle="none", **_STYLE[far_context]) for far_context in (OWN, OTHER_DOCUMENT)),
        Line2D([], [], color=GREY, linewidth=1.6),
    ]
    labels = ["own far context", "the null's choice", "any far token (dotted: the null's)"]
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure
