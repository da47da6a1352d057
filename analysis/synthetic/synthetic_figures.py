"""Figures of the synthetic tasks: tables of `analysis.synthetic.synthetic_accuracy` in, Axes out.

A line is the mean over seeds, its band their range; a line is dashed where a seed has not learnt the task in
distribution, for what it does beyond then shows nothing. A dotted upright line is the largest training size.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis.figures import TEXT_WIDTH, panels
from analysis.palette import BLUE, GREEN, GREY, MODEL_COLORS, MODEL_MARKERS, ORANGE, VERMILION

POSITION_COLORS = {
    "contiguous": GREY, "pose": VERMILION, "randomized": ORANGE, "coupled": GREEN, "predicted": BLUE,
}  # fmt: skip


def rows_of_panels(num_panels: int, per_row: int) -> tuple[Figure, list[Axes]]:
    """A figure at text width of so many panels, with no empty ones.

    Args:
        num_panels: at least one.
        per_row: at most.
    """
    num_columns = min(num_panels, per_row)
    num_rows = -(-num_panels // num_columns)
    figure, axes = panels(num_rows, num_columns, TEXT_WIDTH, 0.4 + 2.6 * num_rows)  # inches
    of_all = np.atleast_1d(axes).ravel()
    for ax in of_all[num_panels:]:
        ax.remove()
    return figure, list(of_all[:num_panels])


def legend_below(figure: Figure, axes: Sequence[Axes], num_columns: int = 5) -> None:
    """One legend below all panels: every label of any of them, once."""
    handles: dict[str, Artist] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=num_columns)


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
    """A heat map, K_train by k, of the largest solved size; a dash: not even the smallest is."""
    table = solved.pivot(index="largest_train_sparsity", columns="sparsity", values="largest_solved_size")
    numbers = table.astype("float64").to_numpy()
    image = ax.imshow(numbers, cmap="cividis", origin="lower", aspect="auto")
    middle = sum(image.get_clim()) / 2
    for (row, column), number in np.ndenumerate(numbers):
        text = "-" if np.isnan(number) else f"{int(number)}"
        color = "white" if number < middle else "black"  # white on the dark half of the colours
        ax.text(column, row, text, ha="center", va="center", color=color)
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
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
