"""The drawing of the benchmark of methods: the table of `analysis.rules.methods` in, a Figure out.

A row is a method, in its colour and marker, the best at the top: what its tokens are worth, and the share of
the truth that they find, where it is known. A bar is the 95 % interval over documents, or examples. No number
is computed here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_texts import put_title
from analysis.figures import TEXT_WIDTH, panels
from analysis.own_measurements import needs_null
from analysis.palette import GREY, Look, rule_look
from analysis.roles import rule_words
from analysis.rules.measures import OTHER
from analysis.rules.methods import SORTED_AT_K
from analysis.titles import BARS, counted, is_above, sample_size, subtitle

_ROW_HEIGHT, _FRAME_HEIGHT = 0.21, 1.2  # inches
_WORTH = "divergence_effect"
_FOUND = {"found_signs": "planted signs", "found_dependencies": "synthetic tokens"}


def methods_title(rows: pd.DataFrame) -> str:
    """Which method stands first, and what its tokens are worth; what is shown, where that is not above 0.

    Args:
        rows: of `methods_table`, one intervention and k, the best first.
    """
    best, k = rows.iloc[0], int(rows["k"].iloc[0])
    if not is_above(best["divergence_effect_low"]):
        return f"What the {counted(k, 'token')} of each method are worth to the prediction"
    beyond = " beyond their null" if needs_null(best["rule"]) else ""
    return (
        f"“{rule_words(best['rule'])}” stands first: its {counted(k, 'token')} are worth"
        f" {best['divergence_effect']:.2f} nats to the prediction{beyond}"
    )


def methods_figure(table: pd.DataFrame) -> Figure:
    """A row a method, at k = 4 or the largest k below it.

    Args:
        table: of `methods_table`, one intervention.
    """
    k = max((k for k in table["k"].unique() if k <= SORTED_AT_K), default=table["k"].min())
    of_k = table[table["k"] == k]
    rows = of_k.iloc[::-1].reset_index(drop=True)
    found = [name for name in _FOUND if rows[name].notna().any()]
    height = _FRAME_HEIGHT + _ROW_HEIGHT * len(rows)
    figure, axes = panels(1, 2 if found else 1, TEXT_WIDTH, height)
    worth, *truth = np.atleast_1d(axes)
    _draw(worth, rows, _WORTH)
    worth.set_xlabel(f"worth of {counted(int(k), 'token')}\nto the prediction (nats)")
    for ax in truth:
        for name in found:
            _draw(ax, rows, name, is_beside=name != found[0])
        ax.set_xlabel(f"share found of {_found_words(found)}")
        ax.set_xlim(-0.05, 1.05)
    for ax in np.atleast_1d(axes):
        ax.set_ylim(-0.7, len(rows) - 0.3)
        ax.set_yticks([])
    worth.set_yticks(range(len(rows)), [_label(row) for row in rows.to_dict("records")])
    best = of_k.iloc[0]
    judge = "another seed" if best["judge"] == OTHER else "the model that chose"
    told = (
        f"tried by {judge}", f"intervention: {best['intervention']}",
        "in brackets: what the choice sees, token-forwards a target",
    )  # fmt: skip
    put_title(figure, methods_title(of_k), subtitle(sample_size(rows), *told, BARS))
    return figure


def _label(row: Any) -> str:
    cost = row["token_forwards_per_target"]
    return f"{rule_words(row['rule'])} ({row['sees']}{f', {cost:,.0f}' if cost else ''})"


def _found_words(found: Sequence[str]) -> str:
    first, *others = (_FOUND[name] for name in found)
    return "\n".join([first, *(f"(grey: of {other})" for other in others)])


def _draw(ax: Axes, rows: pd.DataFrame, name: str, *, is_beside: bool = False) -> None:
    """A mark and bar a row; where others stand there already, small and grey below them."""
    ax.axvline(0, color=GREY, linewidth=0.8, linestyle=":")
    for place, row in enumerate(rows.to_dict("records")):
        if row[name] != row[name]:
            continue
        look = Look(GREY, "|") if is_beside else rule_look(row["rule"])
        ends = np.abs([[row[name] - row[f"{name}_low"]], [row[f"{name}_high"] - row[name]]])
        ax.errorbar(
            row[name], place - 0.3 * is_beside, xerr=ends, color=look.color, marker=look.marker, linewidth=0.9
        )
