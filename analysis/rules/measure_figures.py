"""The drawing of the trial of the measures: the table of `analysis.rules.measures` in, a Figure out.

A row is a measure, in the colour and marker of its rule, the best at the top; a bar is the 95 % interval over
documents. Measures that do not stand the whole trial say so. No number is computed here.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_texts import name_place, put_title
from analysis.figures import TEXT_WIDTH, panels
from analysis.palette import rule_look
from analysis.roles import rule_words
from analysis.rules.measures import MEASURE, OLD_MEASURE, OTHER
from analysis.titles import BARS, lie_apart, percent, sample_size, subtitle
from pipeline.influence.rules import BACKGROUND, CONTROLS, REMOVE, SUBSTITUTE

_IN_THE_PLACE = {
    REMOVE: "nothing in its place",
    SUBSTITUTE: "a token in its place",
    BACKGROUND: "in a background",
}
_PANELS = (
    ("right_sparsity", "k* is the number of planted signs", "share of the answers", None),
    ("agreement", "k* of two seeds agrees", "rank correlation", 0.0),
)
_MOST_ROWS = 10
_ROW_HEIGHT, _FRAME_HEIGHT = 0.36, 0.9  # inches


def measure_words(row: Any, between: str = ", ") -> str:
    """A measure in words: its rule, what stands in a token's place, and who judges."""
    judge = "judged by another seed" if row["judge"] == OTHER else "judged by itself"
    return f"{rule_words(row['rule'])},{between[1:]}{_IN_THE_PLACE[row['intervention']]}, {judge}"


def shown_measures(table: pd.DataFrame) -> pd.DataFrame:
    """The first measures of the table, the best first; and the old one, wherever it stands.

    Args:
        table: of `compared_measures`. Of a rule, intervention and judge the better criterion is drawn.
    """
    best = table[~table["rule"].isin(CONTROLS)].drop_duplicates(MEASURE[:-1])
    rows = pd.concat([best.head(_MOST_ROWS - 1), table[_is_old(table)]])
    return rows.drop_duplicates(MEASURE).reset_index(drop=True)


def _is_old(table: pd.DataFrame) -> pd.Series:
    return (table[list(OLD_MEASURE)] == pd.Series(OLD_MEASURE)).all(axis=1)


def measures_title(table: pd.DataFrame) -> str:
    """How often the k* of the best measure is right, and that of the old one, where their intervals part.

    Args:
        table: of `compared_measures`.
    """
    rows = shown_measures(table)
    best = rows.iloc[0]
    title = f"“{measure_words(best)}” counts the right k* in {percent(best['right_sparsity'])} of the answers"
    for old in rows[_is_old(rows)].to_dict("records"):
        ends = [[row["right_sparsity_low"], row["right_sparsity_high"]] for row in (best, old)]
        if lie_apart(*ends):
            return f"{title}, the paper's kind in {percent(old['right_sparsity'])}"
    return title


def measures_figure(table: pd.DataFrame) -> Figure:
    """Whether k* is right where it is known, and whether two seeds agree: a row a measure.

    Args:
        table: of `compared_measures`.
    """
    rows = shown_measures(table).iloc[::-1].reset_index(drop=True)
    figure, axes = panels(1, len(_PANELS), TEXT_WIDTH, _FRAME_HEIGHT + _ROW_HEIGHT * len(rows))
    for ax, (name, title, unit, chance) in zip(axes, _PANELS, strict=True):
        _draw(ax, rows, name)
        ax.set_title(title, fontsize=8.5, pad=14)
        ax.set_xlabel(unit)
        if chance is not None:
            name_place(ax, chance, "chance")
        ax.set_ylim(-0.7, len(rows) - 0.3)
        ax.set_yticks([])
    axes[0].set_xlim(0, 1.05)
    axes[0].set_yticks(range(len(rows)), [_label(row) for row in rows.to_dict("records")])
    agreed = rows["num_agreement_targets"].agg(["min", "max"])
    told = f"agreement of {agreed['min']:.0f} to {agreed['max']:.0f} of these targets"
    put_title(figure, measures_title(table), subtitle(sample_size(rows), told, BARS))
    return figure


def _label(row: Any) -> str:
    stands = row["finds_nothing"] and row["agrees"] and row["helps"]
    is_old = all(row[name] == value for name, value in OLD_MEASURE.items())
    note = " (the paper's kind)" if is_old else "" if stands else " (fails elsewhere)"
    return f"{measure_words(row, between=',' + chr(10))}{note}"


def _draw(ax: Axes, rows: pd.DataFrame, name: str) -> None:
    for place, row in enumerate(rows.to_dict("records")):
        look = rule_look(row["rule"])
        ends = [[row[name] - row[f"{name}_low"]], [row[f"{name}_high"] - row[name]]]
        ax.errorbar(row[name], place, xerr=np.abs(ends), color=look.color, marker=look.marker, linewidth=1)
