"""Figure of what predicted position IDs depend on: the table of `found_ids.by_kind` in, a Figure out.

A panel a kind of ID, a row a rule; a bar is the range over seeds.
"""

import pandas as pd
from matplotlib.figure import Figure

from analysis.figure_texts import put_title
from analysis.figures import TEXT_WIDTH, panels
from analysis.palette import GREY, rule_look
from analysis.synthetic.found_dependencies import sample_size
from analysis.synthetic.found_dependencies_figures import selection_words
from analysis.synthetic.found_ids import kinds_title
from analysis.titles import subtitle

_ROW_HEIGHT, _FRAME_HEIGHT = 0.2, 0.9  # inches


def found_ids_figure(kinds: pd.DataFrame) -> Figure:
    """The share of the deciding tokens that each rule finds, the rules that find most on top.

    Args:
        kinds: of `by_kind`, one condition.
    """
    named = kinds.assign(
        row=[
            selection_words(rule, what)
            for rule, what in zip(kinds["rule"], kinds["intervention"], strict=True)
        ]
    )
    rows = list(named.groupby("row")["found"].mean().sort_values(kind="stable").index)
    parts = list(dict.fromkeys(named["part"]))
    height = _FRAME_HEIGHT + _ROW_HEIGHT * len(rows)
    figure, axes = panels(1, len(parts), TEXT_WIDTH, height)
    for part, ax in zip(parts, [axes] if len(parts) == 1 else axes, strict=True):
        of_part = named[named["part"] == part]
        for row in of_part.to_dict("records"):
            look = rule_look(row["rule"])
            ends = [[row["found"] - row["found_lowest"]], [row["found_highest"] - row["found"]]]
            y = rows.index(row["row"])
            ax.errorbar(row["found"], y, xerr=ends, color=look.color, marker=look.marker, elinewidth=0.9)
        ax.axvline(of_part["chance"].mean(), color=GREY, linewidth=1, linestyle=":", zorder=0)
        ax.set_xlim(-0.04, 1.06)
        ax.set_ylim(-0.6, len(rows) - 0.4)
        ax.set_yticks(range(len(rows)), rows if part == parts[0] else [""] * len(rows))
        ax.set_title(f"ID of {part}" if len(parts) > 1 else part)
        ax.set_xlabel("found first (share)")
    note = "bars: range of seeds; dotted: chance"
    put_title(figure, kinds_title(kinds), subtitle(sample_size(kinds), note))
    return figure
