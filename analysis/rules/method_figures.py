"""The drawing of the benchmark of methods: the table of `analysis.rules.methods` in, a Figure out.

A row is a method, the best at the top; a panel a question; a bar the 95 % interval over documents. No number
is computed here.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import TEXT_WIDTH, panels
from analysis.palette import BLACK, BLUE, GREY, ORANGE, VERMILION
from analysis.rules.methods import SORTED_AT_K

_SEES_COLORS = {"answer": VERMILION, "prediction": BLUE, "attention": ORANGE, "nothing": BLACK}
_ROW_HEIGHT, _FRAME_HEIGHT = 0.19, 1.4  # inches
_PANELS = (
    ("divergence_effect", "{k} tokens beyond the null,\nby the divergence (nats)"),
    ("loss_effect", "the same by\nthe losses (nats)"),
    ("found_dependencies", "synthetic dependencies\nfound (share)"),
    ("found_signs", "planted signs\nfound (share)"),
    ("token_forwards_per_target", "token-forwards\na target"),
)


def methods_figure(table: pd.DataFrame) -> Figure:
    """A row a method, at k = 4 or the largest k below it.

    Args:
        table: of `methods_table`, one intervention.
    """
    k = max((k for k in table["k"].unique() if k <= SORTED_AT_K), default=table["k"].min())
    rows = table[table["k"] == k].iloc[::-1].reset_index(drop=True)
    shown = [panel for panel in _PANELS if rows[panel[0]].notna().any()]
    figure, axes = panels(1, len(shown), TEXT_WIDTH, _FRAME_HEIGHT + _ROW_HEIGHT * len(rows))
    for ax, (name, title) in zip(np.atleast_1d(axes), shown, strict=True):
        _draw(ax, rows, name)
        ax.set_title(title.format(k=k), fontsize="small")
        ax.set_ylim(-0.7, len(rows) - 0.3)
        ax.set_yticks([])
    first = np.atleast_1d(axes)[0]
    first.set_yticks(np.arange(len(rows)), rows["rule"], fontsize="x-small")
    best = rows.iloc[-1]
    for sees, color in _SEES_COLORS.items():
        first.plot([], [], "o", color=color, markersize=3.5, label=f"sees {sees}")
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=len(_SEES_COLORS))
    figure.suptitle(
        f"{best['rule']} stands first: by what {k} tokens are worth to the prediction\n{best['model']},"
        f" {best['intervention']}, tried by {best['judge']}; {rows['num_documents'].max()} documents,"
        f" {rows['num_targets'].max():,} targets; bars: 95 % over documents",
        fontsize="small",
    )
    return figure


def _draw(ax: Axes, rows: pd.DataFrame, name: str) -> None:
    if name == "token_forwards_per_target":
        ax.set_xscale("log")
    else:
        ax.axvline(0, color=GREY, linewidth=0.8, linestyle=":")
    for place, row in enumerate(rows.to_dict("records")):
        if row[name] != row[name] or (name == "token_forwards_per_target" and not row[name]):
            continue
        color = _SEES_COLORS[row["sees"]]
        ends = None
        if f"{name}_low" in row:
            ends = np.abs([[row[name] - row[f"{name}_low"]], [row[f"{name}_high"] - row[name]]])
        ax.errorbar(row[name], place, xerr=ends, fmt="o", markersize=3.5, linewidth=0.9, color=color)
