"""Figure of found dependencies: the table of `found_dependencies.by_part` in, a Figure out.

A row is a rule, a point the share of the true tokens of one part that it finds, over all seeds; a bar is the
range over seeds. Parts stand apart: of a marked bit, the bit and its mark.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_texts import put_title
from analysis.figures import TEXT_WIDTH, panels
from analysis.palette import GREY, rule_look
from analysis.roles import rule_words
from analysis.synthetic.found_dependencies import CONDITION, sample_size
from analysis.synthetic.synthetic_figures import task_words
from analysis.titles import counted, percent, subtitle
from pipeline.influence.rules import REMOVE, SUBSTITUTE

_WHAT_HAPPENS = {REMOVE: ", token removed", SUBSTITUTE: ", token replaced"}
_MOST_PANELS = 2
_ROW_HEIGHT, _FRAME_HEIGHT = 0.24, 1.0  # inches
_ASIDE = 0.14  # of a row, between parts


def selection_words(rule: str, intervention: object) -> str:
    """A rule, and what happens to a token that is left out, in words."""
    return rule_words(rule) + _WHAT_HAPPENS.get(str(intervention), "")


def drawn_conditions(parts: pd.DataFrame) -> list[pd.DataFrame]:
    """At most two: of each task that with the most relevant bits, which has more than one token to find."""
    of_task = [rows for _, rows in parts.groupby("task")]
    most = [rows[rows["sparsity"].isna() | (rows["sparsity"] == rows["sparsity"].max())] for rows in of_task]
    return [next(one for _, one in rows.groupby(CONDITION, dropna=False)) for rows in most][:_MOST_PANELS]


def found_title(parts: pd.DataFrame) -> str:
    """What the best rule finds of the first condition's parts, the one most found and the one least.

    It says what is shown where the ranges of the seeds touch, or there is one part only.

    Args:
        parts: of `by_part`.
    """
    first = drawn_conditions(parts)[0]
    best = first.sort_values("found", ascending=False, kind="stable").iloc[0]
    is_best = (first["rule"] == best["rule"]) & first["intervention"].isin([best["intervention"]])
    rows = first[is_best].sort_values("found").to_dict("records")
    least, most = rows[0], rows[-1]
    if most["found_lowest"] <= least["found_highest"]:
        return "What the rules find of the tokens that truly decide, part by part"
    name = selection_words(best["rule"], best["intervention"])
    return (
        f"{name[0].upper()}{name[1:]}, finds {percent(most['found'])} of the {most['part']} that decide and"
        f" {percent(least['found'])} of the {least['part']}"
    )


def found_figure(parts: pd.DataFrame) -> Figure:
    """A panel a task, a row a rule, a point a part; the panels share their axis.

    Args:
        parts: of `by_part`.
    """
    shown = drawn_conditions(parts)
    keys = parts[["rule", "intervention"]].drop_duplicates().astype(object)
    rows = [(str(rule), what) for rule, what in keys.itertuples(index=False)]
    best = parts.groupby(["rule", "intervention"], dropna=False)["found"].max()
    rows.sort(key=lambda row: best[row[0]][best[row[0]].index.isin([row[1]])].iloc[0])
    height = _FRAME_HEIGHT + _ROW_HEIGHT * len(rows)
    figure, axes = panels(1, len(shown), TEXT_WIDTH, height)
    for of_one, ax in zip(shown, np.atleast_1d(axes), strict=True):
        _draw(of_one, rows, ax)
    np.atleast_1d(axes)[0].set_yticks(range(len(rows)), [selection_words(*row) for row in rows])
    note = "share among the first as many tokens as there are true ones; bars: range of seeds"
    put_title(figure, found_title(parts), subtitle(sample_size(parts), note))
    return figure


def _draw(of_one: pd.DataFrame, rows: list[tuple[str, object]], ax: Axes) -> None:
    parts = list(dict.fromkeys(of_one["part"]))
    named: dict[str, float] = {}
    for row in of_one.to_dict("records"):
        place = next(i for i, (rule, what) in enumerate(rows) if rule == row["rule"] and _same(what, row))
        y = place + _ASIDE * ((len(parts) - 1) / 2 - parts.index(row["part"])) * 2
        look = rule_look(row["rule"])
        ends = [[row["found"] - row["found_lowest"]], [row["found_highest"] - row["found"]]]
        marker = "os"[parts.index(row["part"]) % 2]
        ax.errorbar(row["found"], y, xerr=ends, color=look.color, marker=marker, elinewidth=0.9)
        if place == len(rows) - 1:
            named[row["part"]] = row["found"]
    chance = of_one["chance"].mean()
    ax.axvline(chance, color=GREY, linewidth=1, linestyle=":", zorder=0)
    ax.text(chance + 0.02, -0.85, "chance", va="center", color=GREY)
    for part, found in named.items():
        ax.annotate(
            part, (found, 1), (0, 2), xycoords=("data", "axes fraction"), textcoords="offset points",
            ha="center", va="bottom",
        )  # fmt: skip
    ax.set_xlim(-0.03, 1.06)
    ax.set_ylim(-1.2, len(rows) - 0.4)
    ax.set_yticks([])
    first = of_one.iloc[0]
    of_k = "" if pd.isna(first["sparsity"]) else f" of {counted(int(first['sparsity']), 'bit')}"
    ax.set_title(f"{task_words(first['task'])}{of_k}", pad=16)
    ax.set_xlabel("true tokens found (share)")


def _same(intervention: object, row: Mapping[Hashable, Any]) -> bool:
    """Whether they are of one intervention, where none is NaN, which equals nothing."""
    return str(intervention) == str(row["intervention"])
