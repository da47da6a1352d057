"""Figures of the synthetic tasks: tables of `analysis.synthetic.synthetic_accuracy` in, Axes out.

A line is the mean over seeds, its band their range; a line is dashed where a seed has not learnt the task in
distribution, for what it does beyond then shows nothing. A dotted upright line is the largest training size.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from analysis.figures import BLUE, GREEN, GREY, MODEL_COLORS, MODEL_MARKERS, ORANGE, VERMILION

POSITION_COLORS = {
    "contiguous": GREY, "pose": VERMILION, "randomized": ORANGE, "coupled": GREEN, "predicted": BLUE,
}  # fmt: skip


def accuracy_by_sparsity(cells: pd.DataFrame, ax: Axes) -> None:
    """Exact match against size, a line a k: of one training, which has a K_train."""
    _mark_training(cells, ax)
    for index, (sparsity, of_k) in enumerate(cells.groupby("sparsity")):
        colour, marker = _look(index)
        _line(of_k, ax, f"k = {int(float(str(sparsity)))}", colour, marker)
    _finish(ax, f"$K_{{train}}$ = {int(cells['largest_train_sparsity'].iloc[0])}")


def accuracy_by_positions(cells: pd.DataFrame, ax: Axes) -> None:
    """Exact match against size, a line a position scheme: of one task."""
    _mark_training(cells, ax)
    for positions, marker in zip(POSITION_COLORS, MODEL_MARKERS, strict=False):
        of_scheme = cells[cells["positions"] == positions]
        if len(of_scheme):
            _line(of_scheme, ax, positions, POSITION_COLORS[positions], marker)
    _finish(ax, str(cells["task"].iloc[0]))


def largest_solved_size(solved: pd.DataFrame, ax: Axes) -> None:
    """A heat map, K_train by k, of the largest solved size; an empty cell: not even the smallest is."""
    table = solved.pivot(index="largest_train_sparsity", columns="sparsity", values="largest_solved_size")
    numbers = table.astype("float64").to_numpy()
    ax.imshow(numbers, cmap="viridis", origin="lower", aspect="auto")
    for (row, column), number in np.ndenumerate(numbers):
        if not np.isnan(number):
            ax.text(column, row, f"{int(number)}", ha="center", va="center", color="white")
    ax.set_xticks(range(len(table.columns)), [f"{int(k)}" for k in table.columns])
    ax.set_yticks(range(len(table.index)), [f"{int(k)}" for k in table.index])
    ax.set_xlabel("k in testing")
    ax.set_ylabel("$K_{train}$")
    ax.set_title("Largest size solved")


def _look(index: int) -> tuple[str, str]:
    return MODEL_COLORS[index % len(MODEL_COLORS)], MODEL_MARKERS[index % len(MODEL_MARKERS)]


def _line(cells: pd.DataFrame, ax: Axes, label: str, colour: str, marker: str) -> None:
    ascending = cells.sort_values("size")
    style = "-" if ascending["is_learnt"].all() else "--"
    ax.plot(ascending["size"], ascending["exact_match"], style, color=colour, marker=marker, label=label)
    ax.fill_between(
        ascending["size"], ascending["lowest"], ascending["highest"], color=colour, alpha=0.2, linewidth=0
    )


def _mark_training(cells: pd.DataFrame, ax: Axes) -> None:
    for size in cells["largest_train_size"].unique():
        ax.axvline(size, color=GREY, linestyle=":", linewidth=1)


def _finish(ax: Axes, title: str) -> None:
    ax.set_title(title)
    ax.set_xlabel("size of test examples")
    ax.set_ylabel("exact match")
    ax.set_ylim(-0.03, 1.03)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend()
