"""What all figures share: style, panels, saving, lines with the bars of their intervals, scales.

No number is computed in a module that draws. A line or point is a mean, its band or bar the 95 % interval
over documents. Solid and filled is what was measured, dashed and hollow its null.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from pipeline.results.partial import partial_note

_DOTS_AN_INCH = 200
COLUMN_WIDTH, TEXT_WIDTH = 3.4, 7.0  # inches, of a two-column page
STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "figure.titlesize": 9,
    "figure.labelsize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "errorbar.capsize": 2,
    "figure.dpi": _DOTS_AN_INCH,  # of screens as of files: text is not as wide at every resolution
    "pdf.fonttype": 42,  # text stays text in the PDF
}


def panels(
    num_rows: int = 1, num_columns: int = 1, width: float = COLUMN_WIDTH, height: float = 2.6
) -> tuple[Figure, Any]:
    """A figure of `num_rows` x `num_columns` panels, in the style of all figures here.

    Args:
        num_rows, num_columns: of panels.
        width, height: of the whole figure, inches.

    Returns:
        The figure and its Axes, one or an array of them, as `matplotlib.pyplot.subplots` does.
    """
    plt.style.use(STYLE)
    return plt.subplots(num_rows, num_columns, figsize=(width, height), layout="constrained")


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `<folder>/<name>.png` (200 dots an inch) and `.pdf`; the same figure gives the same bytes.

    A figure of results that were read in part (`pipeline.results.partial`) says so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it tells of every glyph of a PDF
    undated: dict[str, dict[str, Any]] = {"png": {"Software": None}, "pdf": {"CreationDate": None}}
    paths = [folder / f"{name}.{suffix}" for suffix in undated]
    note = partial_note()
    if note:  # below the figure, which grows by it
        figure.text(0.01, -0.02, note, color="red", va="top")
    for path, metadata in zip(paths, undated.values(), strict=True):
        figure.savefig(path, dpi=_DOTS_AN_INCH, metadata=metadata, bbox_inches="tight" if note else None)
    return paths


def _errors(rows: pd.DataFrame, value: str) -> np.ndarray:
    """Distances of the interval's ends from the mean, as errorbar wants them."""
    return np.array([rows[value] - rows[f"{value}_low"], rows[f"{value}_high"] - rows[value]])


def draw_with_bars(
    ax: Axes, x: Sequence[float] | pd.Series, rows: pd.DataFrame, value: str, **style: Any
) -> ErrorbarContainer:
    """A line of means with the bars of their intervals.

    Args:
        ax: to draw on.
        x: of each row.
        rows: with `value`, and its ends as `<value>_low` and `<value>_high`.
        value: the column drawn.
        style: as of matplotlib's `errorbar`.
    """
    return ax.errorbar(x, rows[value], yerr=_errors(rows, value), elinewidth=0.9, **style)


def tokens_axis(ax: Axes, ks: Iterable[int], label: str = "k tokens") -> None:
    """The horizontal axis of k: powers of two evenly spaced, those of them that were studied named."""
    ax.set_xscale("log", base=2)
    powers = [int(k) for k in sorted(ks) if not int(k) & (int(k) - 1)]
    ax.set_xticks(powers, [str(k) for k in powers])
    ax.minorticks_off()
    ax.set_xlabel(label)


def share_scale(axes: np.ndarray, largest: float = np.inf) -> None:
    """Give panels of one quantity the same vertical limits, the upper one `largest` at most."""
    limits = [limit for ax in axes for limit in ax.get_ylim()]
    for ax in axes:
        ax.set_ylim(max(min(limits), -largest), min(max(limits), largest))
