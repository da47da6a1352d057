"""The drawing of the trial of the measures: the table of `analysis.rules.measures` in, a Figure out.

A row is a measure, a panel a question; a bar is the 95 % interval over documents. Filled marks are measures
that stand the whole trial. No number is computed here.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import TEXT_WIDTH, panels
from analysis.palette import BLUE, GREY, VERMILION
from analysis.rules.measures import MEASURE, OLD_MEASURE
from pipeline.influence.rules import CONTROLS

_PANELS = (
    ("right_sparsity", "k* is the number\nof planted signs", "share", None),
    ("agreement", "k* of two seeds\nagrees", "rank correlation", 0.0),
    ("excess", "k tokens\nbeyond the null", "nats", 0.0),
)
_MOST_ROWS = 14
_ROW_HEIGHT, _FRAME_HEIGHT = 0.2, 1.5  # inches


def measures_figure(table: pd.DataFrame, k: int) -> Figure:
    """The first measures of the table, the best at the top; and the old one, wherever it stands.

    Args:
        table: of `compared_measures`. Of a rule, intervention and judge the better criterion is drawn.
        k: tokens chosen.
    """
    is_old = (table[list(OLD_MEASURE)] == pd.Series(OLD_MEASURE)).all(axis=1)
    best = table[~table["rule"].isin(CONTROLS)]
    best = pd.concat([best.drop_duplicates(MEASURE[:-1]).head(_MOST_ROWS - 1), table[is_old]])
    rows = best.drop_duplicates(MEASURE).iloc[::-1].reset_index(drop=True)
    figure, axes = panels(1, len(_PANELS), TEXT_WIDTH, _FRAME_HEIGHT + _ROW_HEIGHT * len(rows))
    stands = (rows["finds_nothing"] & rows["agrees"] & rows["helps"]).to_numpy(dtype=bool)
    for ax, (name, title, unit, chance) in zip(axes, _PANELS, strict=True):
        _draw(ax, rows, name, stands)
        ax.set_title(title.replace("k tokens", f"{k} tokens"), fontsize="small")
        ax.set_xlabel(unit)
        if chance is not None:
            ax.axvline(chance, color=GREY, linewidth=0.8, linestyle=":")
        ax.set_ylim(-0.7, len(rows) - 0.3)
        ax.set_yticks([])
    axes[0].set_xlim(0, 1.05)
    axes[0].set_yticks(np.arange(len(rows)), [_name(row) for row in rows.to_dict("records")])
    axes[0].tick_params(axis="y", labelsize="x-small")
    first = table[~table["rule"].isin(CONTROLS)].iloc[0]
    figure.suptitle(
        f"k* is right most often, in {first['right_sparsity']:.0%} of the answers, by\n{_name(first)}",
        fontsize="medium",
    )
    return figure


def _name(row: Any) -> str:
    judge = row["judge"].removeprefix("the ")
    return f"{row['rule']}, {row['intervention']}, {judge}, {row['criterion']}"


def _draw(ax: Axes, rows: pd.DataFrame, name: str, stands: np.ndarray) -> None:
    places = np.arange(len(rows))
    for place, is_standing, row in zip(places, stands, rows.to_dict("records"), strict=True):
        color = BLUE if is_standing else VERMILION
        style: dict[str, Any] = {"color": color, "markerfacecolor": color if is_standing else "white"}
        ends = [[row[name] - row[f"{name}_low"]], [row[f"{name}_high"] - row[name]]]
        ax.errorbar(row[name], place, xerr=np.abs(ends), fmt="o", markersize=3.5, linewidth=0.9, **style)
