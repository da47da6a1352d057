"""Words on a figure: its title and subtitle, the names of lines at their ends, of thresholds along them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from analysis.palette import GREY, ink

TITLE, SUBTITLE = "title", "subtitle"
"""The `gid` of the two texts, by which they are found again."""
_TITLE_SIZE, _SUBTITLE_SIZE, _LABEL_SIZE = 10.5, 8.5, 8.5  # points
_LEADING, _MARGIN = 1.3, 0.08  # height of a line, of its font's; inches around the texts


def put_title(figure: Figure, title: str, subtitle: str) -> None:
    """Write a title and below it a subtitle, at the left above the panels; the figure grows by their height.

    Call it last: the names at line ends (`label_line_ends`) may come before or after.

    Args:
        figure: of `figures.panels`.
        title: what the figure shows, in words.
        subtitle: n, model, what bars and bands are.
    """
    sizes = {TITLE: _TITLE_SIZE, SUBTITLE: _SUBTITLE_SIZE}
    texts = [
        figure.text(
            0, 1, words, gid=kind, fontsize=sizes[kind], ha="left", va="top", linespacing=_LEADING,
            weight="bold" if kind == TITLE else "normal", color="black" if kind == TITLE else GREY,
        )
        for kind, words in ((TITLE, title), (SUBTITLE, subtitle))
    ]  # fmt: skip
    width, height = figure.get_size_inches()
    for text in texts:
        _wrap(text, width - 2 * _MARGIN)
        text.set_in_layout(False)
    heights = [_extent_inches(text)[1] for text in texts]
    grown = height + sum(heights) + 2.5 * _MARGIN
    figure.set_size_inches(width, grown)
    top = grown - _MARGIN
    for text, own in zip(texts, heights, strict=True):
        text.set_position((_MARGIN / width, top / grown))
        top -= own + 0.5 * _MARGIN
    engine = figure.get_layout_engine()
    assert engine is not None, "figures are made by figures.panels"
    engine.set(rect=(0, 0, 1, height / grown))  # type: ignore[call-arg]


def _wrap(text: Text, width: float) -> None:
    """Break a text into lines of at most `width` inches, at spaces, but for that of "95 %"."""
    lines: list[str] = []
    for word in re.split(r" (?!%)", text.get_text()):
        longer = f"{lines[-1]} {word}" if lines else word
        text.set_text(longer)
        if lines and _extent_inches(text)[0] <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    text.set_text("\n".join(lines))


def _extent_inches(text: Text) -> tuple[float, float]:
    figure = text.get_figure(root=True)
    assert figure is not None
    extent = text.get_window_extent(dpi=figure.dpi)
    return extent.width / figure.dpi, extent.height / figure.dpi


@dataclass(frozen=True)
class LineEnd:
    """The last point of a line, in the axes' data, and what the line is called."""

    x: float
    y: float
    words: str
    color: str


def label_line_ends(ax: Axes, ends: Sequence[LineEnd]) -> None:
    """Name each line beside its end, right of the axes, in its colour; names that would touch move apart.

    Call it when the axes have their limits and scales.
    """
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # now the axes have their height
    shown = [end for end in ends if np.isfinite(end.y)]
    if not shown:
        return
    shown.sort(key=lambda end: end.y)
    places = ax.transData.transform([(end.x, end.y) for end in shown]).reshape(-1, 2)[:, 1]
    line_height = _LABEL_SIZE * _LEADING * figure.dpi / 72
    heights = [line_height * (end.words.count("\n") + 1) for end in shown]
    bottom, top = ax.bbox.y0, ax.bbox.y1
    for end, place in zip(shown, moved_apart(places, heights, bottom, top), strict=True):
        ax.annotate(
            end.words, (end.x, end.y), (1.05, (place - bottom) / (top - bottom)), xycoords="data",
            textcoords="axes fraction", va="center", ha="left", fontsize=_LABEL_SIZE, color=ink(end.color),
            annotation_clip=False, linespacing=1.1,
            arrowprops={"arrowstyle": "-", "color": end.color, "linewidth": 0.6, "relpos": (0, 0.5),
                        "shrinkA": 1, "shrinkB": 3},
        )  # fmt: skip


def moved_apart(
    places: Sequence[float] | np.ndarray, heights: Sequence[float], bottom: float, top: float
) -> np.ndarray:
    """Middles of boxes one above the other, moved as little as may be so that none touch.

    Least squares under the order, by pooling neighbours that touch; then within `bottom` and `top`, where
    there is room for all.

    Args:
        places: the middles wished for, ascending.
        heights: of the boxes, in the same unit.
        bottom, top: between which all should lie.
    """
    if not len(places):
        return np.empty(0)
    halves = np.asarray(heights) / 2
    offsets = np.concatenate([[0], np.cumsum(halves[:-1] + halves[1:])])
    pools: list[list[float]] = []  # of wished places less offsets, which must ascend
    for wish in np.asarray(places, dtype=float) - offsets:
        pools.append([wish])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    starts = np.repeat([np.mean(pool) for pool in pools], [len(pool) for pool in pools])
    lowest, highest = bottom + halves[0], top - halves[-1] - offsets[-1]
    return np.clip(starts, lowest, max(lowest, highest)) + offsets


def name_level(ax: Axes, y: float, words: str, side: str = "right", *, below: bool = False) -> None:
    """A dotted line across the axes at `y`, with its name on it: chance, a threshold, the whole gain.

    Args:
        ax: to draw on, with its horizontal limits.
        y: the level, in data.
        words: its name.
        side: "left" or "right", where the name stands.
        below: under the line, where lines end above it.
    """
    ax.axhline(y, color=GREY, linewidth=1, linestyle=":", zorder=1)
    ax.annotate(
        words, (0 if side == "left" else 1, y), (2 if side == "left" else -2, -2 if below else 2),
        xycoords=("axes fraction", "data"), textcoords="offset points", ha=side,
        va="top" if below else "bottom", fontsize=_LABEL_SIZE, color=GREY,
    )  # fmt: skip


def name_place(ax: Axes, x: float, words: str) -> None:
    """A dotted upright line at `x`, with its name above the axes: a training length, a short context."""
    ax.axvline(x, color=GREY, linewidth=1, linestyle=":", zorder=1)
    ax.annotate(
        words, (x, 1), (0, 2), xycoords=("data", "axes fraction"), textcoords="offset points", ha="center",
        va="bottom", fontsize=_LABEL_SIZE, color=GREY,
    )  # fmt: skip
