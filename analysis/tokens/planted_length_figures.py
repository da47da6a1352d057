"""The drawing of planted answers beyond the trained length: the table of `planted_lengths` in, a Figure out.

A line a number of deciding tokens: the mean over models, its band their range. No number is computed here.
"""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figure_texts import LineEnd, label_line_ends, put_title
from analysis.figures import TEXT_WIDTH, panels
from analysis.palette import GREY, graded
from analysis.titles import counted, subtitle
from analysis.tokens.planted_lengths import title_of_lengths, tokens_decide

_HEIGHT = 2.6  # inches
_PANELS = {"right_share": "share of answers that are right", "loss": "loss of the answer (nats)"}


def planted_lengths_figure(cells: pd.DataFrame, which_texts: str = "") -> Figure:
    """Right answers and their loss against length.

    Args:
        cells: of `over_models`, of answers that were learnt.
        which_texts: what the texts have in common, for the subtitle.
    """
    figure, axes = panels(1, 2, TEXT_WIDTH, _HEIGHT)
    lengths = sorted(cells["test_length"].unique())
    for ax, (name, label) in zip(axes, _PANELS.items(), strict=True):
        _draw_against_length(ax, cells, name)
        ax.set_xscale("log", base=2)
        ax.set_xticks(lengths, [str(length) for length in lengths])
        ax.minorticks_off()
        ax.set(xlabel=f"tokens of the document (trained at {lengths[0]})", ylabel=label)
        ax.axvspan(lengths[0] / 1.15, lengths[0] * 1.05, color=GREY, alpha=0.15, linewidth=0)
    axes[0].set_ylim(-0.03, 1.05)
    axes[1].set_ylim(bottom=0)
    _name_lines(axes[1], cells)
    fewest, most = int(cells["num_models"].min()), int(cells["num_models"].max())
    models = counted(most, "model") if fewest == most else f"{fewest} to {most} models"
    texts = int(cells["num_documents"].min())
    put_title(
        figure,
        title_of_lengths(cells),
        subtitle(
            f"n = {models} that learnt the answers, {texts:,} texts{which_texts} or more each",
            "points: mean of the models",
            "bands: their range",
            "shaded: the trained length",
        ),
    )
    return figure


def _draw_against_length(ax: Axes, cells: pd.DataFrame, name: str) -> None:
    ks = sorted(cells["num_planted"].unique())
    for color, k in zip(graded(len(ks)), ks, strict=True):
        line = cells[cells["num_planted"] == k].sort_values("test_length")
        ax.plot(line["test_length"], line[name], color=color, marker="o")
        ax.fill_between(
            line["test_length"],
            line[f"{name}_low"],
            line[f"{name}_high"],
            color=color,
            alpha=0.2,
            linewidth=0,
        )


def _name_lines(ax: Axes, cells: pd.DataFrame) -> None:
    ks = sorted(cells["num_planted"].unique())
    ends = []
    for color, k in zip(graded(len(ks)), ks, strict=True):
        last = cells[cells["num_planted"] == k].sort_values("test_length").iloc[-1]
        ends.append(LineEnd(last["test_length"], last["loss"], tokens_decide(int(k)), color))
    label_line_ends(ax, ends)
