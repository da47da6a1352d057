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
from pipeline.results.names import LOSS

_PANELS = (
    ("excess", "4 tokens beyond\nthe null (nats)", 0.0),
    ("foreign_excess", "the same where the far\ncontext is foreign (nats)", 0.0),
    ("found", "planted signs\nfound (share)", None),
    ("agreement", "k* of two seeds\n(rank correlation)", 0.0),
)
_ROW_HEIGHT, _FRAME_HEIGHT = 0.19, 1.3  # inches


def measures_figure(table: pd.DataFrame, k: int) -> Figure:
    """A row a measure that is judged by the losses, in the table's order, the best at the top.

    Args:
        table: of `compared_measures`.
        k: tokens chosen.
    """
    rows = table[table["criterion"] == LOSS].iloc[::-1].reset_index(drop=True)
    height = _FRAME_HEIGHT + _ROW_HEIGHT * len(rows)
    figure, axes = panels(1, len(_PANELS), TEXT_WIDTH, height)
    stands = (rows["finds_nothing"] & rows["agrees"] & rows["helps"]).to_numpy()
    for ax, (name, title, wanted) in zip(axes, _PANELS, strict=True):
        _draw(ax, rows, name, stands)
        ax.set_title(title.replace("4 tokens", f"{k} tokens"), fontsize="small")
        if wanted is not None:
            ax.axvline(wanted, color=GREY, linewidth=0.8, linestyle=":")
        ax.set_ylim(-0.7, len(rows) - 0.3)
        ax.set_yticks([])
    names = [f"{row['rule']}, {row['intervention']}, {row['judge']}" for row in rows.to_dict("records")]
    axes[0].set_yticks(np.arange(len(rows)), names, fontsize="x-small")
    num_standing = int(stands.sum())
    figure.suptitle(
        f"{num_standing} of {len(rows)} measures stand the trial"
        f"\nfilled: nothing where the far context is foreign, an excess where it is not, and agreement;"
        f" {rows['num_documents'].max()} documents of real text; bars: 95 % over documents",
        fontsize="small",
    )
    return figure


def _draw(ax: Axes, rows: pd.DataFrame, name: str, stands: np.ndarray) -> None:
    places = np.arange(len(rows))
    for place, is_standing, row in zip(places, stands, rows.to_dict("records"), strict=True):
        color = BLUE if is_standing else VERMILION
        style: dict[str, Any] = {"color": color, "markerfacecolor": color if is_standing else "white"}
        ends = [[row[name] - row[f"{name}_low"]], [row[f"{name}_high"] - row[name]]]
        ax.errorbar(row[name], place, xerr=np.abs(ends), fmt="o", markersize=3.5, linewidth=0.9, **style)
