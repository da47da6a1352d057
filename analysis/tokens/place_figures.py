"""Where influential tokens are: tables of `analysis.tokens.influential_places` in, a Figure out.

Solid and filled is the document's own far context, hollow the null; a grey tick is what a choice at random
among the same far positions has on average. Bars are 95 % intervals over documents.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_texts import put_title
from analysis.figures import TEXT_WIDTH, panels
from analysis.palette import GREY, rule_look
from analysis.roles import Role, rule_words, size_words
from analysis.titles import BARS, is_above, percent, sample_size, subtitle
from analysis.tokens.influential_places import OTHER
from pipeline.results.names import OTHER_DOCUMENT, OWN

_ASIDE = 0.13


def places_title(relation: pd.DataFrame) -> str:
    """Which relation the k tokens have most beyond chance; what is shown, where none is clearly above.

    Args:
        relation: `relation_shares`, one model, rule and k.
    """
    own = relation[(relation["far_context"] == OWN) & (relation["relation"] != OTHER)]
    own = own.sort_values("chosen_beyond_available")
    if own.empty or not is_above(own["chosen_beyond_available_low"].iloc[-1]):
        return "What the influential tokens have to do with their targets, and how far they are"
    most = own.iloc[-1]
    is_null = (relation["far_context"] == OTHER_DOCUMENT) & (relation["relation"] == most["relation"])
    beside = [f"{100 * share:.1f} % in the null" for share in relation.loc[is_null, "chosen"]]
    beside.append(f"{100 * most['available']:.1f} % by chance")
    rest = relation[(relation["far_context"] == OWN) & (relation["relation"] == OTHER)]["chosen"].sum()
    return (
        f"{100 * most['chosen']:.1f} % of the first {most['k']} tokens are “{most['relation']}”,"
        f" {', '.join(beside)};"
        f" {percent(rest)} have none of the relations looked for"
    )


def places_figure(relation: pd.DataFrame, distance: pd.DataFrame, role: Role) -> Figure:
    """Two panels on one scale: relations, and distances.

    Args:
        relation, distance: `relation_shares` and `distance_shares`, one model, rule and k.
        role: of the model.
    """
    figure, axes = panels(1, 2, TEXT_WIDTH, 2.6)
    relations_to_target(relation, axes[0])
    distances(distance, axes[1])
    right = max(ax.get_xlim()[1] for ax in axes)
    for ax in axes:
        ax.set_xlim(0, right)
        ax.set_xlabel("share of the k tokens")
    rule = rule_words(relation["rule"].iloc[0])
    told = "hollow: the null", "grey: chance", BARS
    parts = sample_size(relation), rule, role.words, size_words(role.num_parameters), *told
    put_title(figure, places_title(relation), subtitle(*parts))
    return figure


def shares_of(table: pd.DataFrame, column: str, labels: Sequence[str], ax: Axes) -> None:
    """Share of the k tokens with each value, own above null, each with its tick for a choice at random.

    Args:
        table: `relation_shares` or `distance_shares`, one model, rule and k.
        column: "relation" or "from_distance"; a row a value, from the top.
        labels: of the rows.
        ax: to draw on.
    """
    values = list(dict.fromkeys(table[column]))
    look = rule_look(str(table["rule"].iloc[0]))
    for far_context, style, aside in ((OWN, look.measured, _ASIDE), (OTHER_DOCUMENT, look.null, -_ASIDE)):
        rows = table[table["far_context"] == far_context].set_index(column).reindex(values)
        y = aside - np.arange(len(values))
        ends = np.array([rows["chosen"] - rows["chosen_low"], rows["chosen_high"] - rows["chosen"]])
        ax.errorbar(rows["chosen"], y, xerr=ends, elinewidth=0.9, **style | {"linestyle": "none"})
        ax.vlines(rows["available"], y - 0.12, y + 0.12, color=GREY, linewidth=1.6, zorder=0)
    ax.set_yticks(-np.arange(len(values)), labels)
    ax.set_ylim(0.5 - len(values), 0.5)


def distances(table: pd.DataFrame, ax: Axes) -> None:
    """How far the k tokens are from their targets.

    Args:
        table: `distance_shares`, one model, rule and k.
        ax: to draw on.
    """
    bins = table.drop_duplicates("from_distance")
    labels = [f"{row.from_distance}–{row.to_distance}" for row in bins.itertuples()]
    shares_of(table, "from_distance", labels, ax)
    ax.set_ylabel("distance (tokens)")


def relations_to_target(table: pd.DataFrame, ax: Axes) -> None:
    """What the k tokens have to do with their targets; the share of "other" is what is left to 1.

    Args:
        table: `relation_shares`, one model, rule and k.
        ax: to draw on.
    """
    table = table[table["relation"] != OTHER]
    shares_of(table, "relation", list(dict.fromkeys(table["relation"])), ax)
