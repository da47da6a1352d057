"""What all figures share: colors and markers, words, titles, named lines, points in rows, saving.

A color and marker belong to one kind of training, selection rule or position scheme, everywhere. Solid and
filled is what was measured; dashed and hollow is the null of what has that color and marker. The named
colors are Okabe and Ito's, which color-blind readers tell apart.

A line or point is a mean, its bar or band the 95 % interval over documents. No number is computed here.
"""

import logging
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from scipy.optimize import isotonic_regression

from pipeline.results.read import read_model_facts

BLACK = "#000000"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
BLUE = "#0072B2"
VERMILION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#767676"
_READABLE = 4.5  # contrast with white that the web's guidelines ask of text


@dataclass(frozen=True)
class Style:
    """A color and marker."""

    color: str
    marker: str

    @property
    def measured(self) -> dict[str, Any]:
        """As matplotlib's line takes it: solid, filled."""
        return {"color": self.color, "marker": self.marker, "linestyle": "-"}

    @property
    def null(self) -> dict[str, Any]:
        """The same of its null: dashed, hollow."""
        hollow = {"linestyle": "--", "markerfacecolor": "white", "linewidth": 1}
        return {"color": self.color, "marker": self.marker, **hollow}


TRAINED_LONG = Style(BLUE, "o")
TRAINED_POSE = Style(VERMILION, "s")
TRAINED_CONTIGUOUS = Style(GREEN, "^")
"""Trained short: with PoSE, or with contiguous positions. No rule has these three colors."""
OTHER_MODELS = (Style(BLACK, "D"), Style(GREY, "d"), Style("#5B5BD6", "8"), Style("#8C6D1F", "X"))
"""Of results that do not tell how a model was trained."""
POSITION_STYLES = {
    "contiguous": TRAINED_CONTIGUOUS,
    "pose": TRAINED_POSE,
    "coupled": Style(SKY, "o"),
    "predicted": Style(PURPLE, "h"),
    "randomized": Style(ORANGE, "D"),
}
"""Position schemes of the synthetic tasks; PoSE and contiguous look as they do in text."""
RULE_STYLES = {
    "leave_one_out_divergence": Style(ORANGE, "v"),
    "leave_one_out": Style(PURPLE, "D"),
    "recency": Style(BLACK, "X"),
    "random": Style(GREY, "P"),
    "add_one_in": Style(SKY, "<"),
    "greedy": Style("#7A8B00", ">"),
    "gradient": Style("#8C3B1F", "p"),
    "attention": Style("#00838F", "h"),
    "attention_no_sink": Style("#C2185B", "h"),
    "add_one_in_divergence": Style("#7B3F9E", "<"),
    "greedy_divergence": Style("#4E5A00", ">"),
    "gradient_divergence": Style("#C0653F", "p"),
    "attention_rollout": Style("#00585F", "h"),
}
"""Of every selection rule."""


def rule_style(rule: str) -> Style:
    """That of a selection rule; black circles for one that is not known."""
    return RULE_STYLES.get(rule, Style(BLACK, "o"))


def graded(num_colors: int) -> Sequence[str]:
    """Colours of ordered values, dark to light: cividis without its lightest end, which paper swallows."""
    return [to_hex(colormaps["cividis"](place)) for place in np.linspace(0, 0.85, num_colors)]


def darker(color: str) -> str:
    """A color for text on white: the same hue, as dark as it must be to be read."""
    rgb = np.array(to_rgb(color))
    while contrast_with_white(rgb) < _READABLE:
        rgb = 0.95 * rgb
    return to_hex((float(rgb[0]), float(rgb[1]), float(rgb[2])))


def contrast_with_white(rgb: np.ndarray) -> float:
    """From 1 to 21, by the web's guidelines (WCAG 2.2)."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(1.05 / (linear @ np.array([0.2126, 0.7152, 0.0722]) + 0.05))


BARS = "bars: 95 % over documents"
POSE = "pose"


@dataclass(frozen=True)
class ModelLabel:
    """How figures call and draw a model."""

    text: str
    """Such as "trained at 64, PoSE", with its seed where another model was trained in the same way."""
    style: Style
    num_parameters: int | None
    """None where the results do not say, as of the length."""
    train_context_length: int | None
    """Tokens that it saw at once in training."""

    @property
    def training(self) -> str:
        """The text without the seed: models trained alike share it."""
        return self.text.partition(", seed")[0]

    @property
    def size(self) -> str:
        """Such as "2.3 M parameters"; "" where it is not known."""
        return "" if self.num_parameters is None else f"{self.num_parameters / 1e6:.2g} M parameters"


def model_labels(results: Path, artefact: str) -> dict[str, ModelLabel]:
    """Model -> its label, from what the artefact's files say of its training.

    Of models not trained with PoSE, those are trained long that saw as many tokens as any model here. A model
    whose training is not known has its own name and style.
    """
    facts = read_model_facts(results, artefact)
    longest = max((of_model.get("train_context_length") or 0 for of_model in facts.values()), default=0)
    training = ("train_context_length", "position_scheme", "num_parameters", "train_step")
    labels = {}
    for model, known in facts.items():
        length = known.get("train_context_length")
        size = known.get("num_parameters")
        if length is None:
            text = re.sub(r"-seed(\d+)$", r", seed \1", model).replace("-", " ").replace("_", " ")
            style = OTHER_MODELS[sorted(facts).index(model) % len(OTHER_MODELS)]
        else:
            is_pose = known.get("position_scheme") == POSE
            style = TRAINED_POSE if is_pose else TRAINED_LONG if length == longest else TRAINED_CONTIGUOUS
            text = f"trained at {length}" + (", PoSE" if is_pose else "")
            twins = [of for of in facts.values() if all(of.get(name) == known.get(name) for name in training)]
            if len(twins) > 1 and known.get("seed") is not None:
                text += f", seed {known['seed']}"
        labels[model] = ModelLabel(text, style, size, length)
    return labels


def rule_text(rule: str) -> str:
    """A selection rule's name in words: `leave_one_out_divergence` is "leave one out, by divergence"."""
    if rule.endswith("_divergence"):
        return f"{rule_text(rule.removesuffix('_divergence'))}, by divergence"
    irregular = {"recency": "nearest tokens", "random": "random tokens"}
    return irregular.get(rule, rule.replace("_", " "))


def common_size(labels: Iterable[ModelLabel]) -> str:
    """The size of all these models; "" where it differs or is not known."""
    sizes = {label.size for label in labels}
    return sizes.pop() if len(sizes) == 1 else ""


def counted(number: int, noun: str) -> str:
    """A number and its noun: "1 token", "2,560 targets"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def counted_seeds(cells: pd.DataFrame) -> str:
    """The seeds of every mean, column `num_seeds`, from the fewest to the most: "1 seed", "2 to 3 seeds"."""
    fewest = int(cells["num_seeds"].min())
    most = int(cells["num_seeds"].max())
    return ("" if fewest == most else f"{fewest} to ") + counted(most, "seed")


def sample_size(rows: pd.DataFrame) -> str:
    """The n of a subtitle: targets and documents, from the fewest to the most where the rows drawn differ."""
    counts = []
    for kind in ("targets", "documents"):
        ends = sorted({int(rows[f"num_{kind}"].min()), int(rows[f"num_{kind}"].max())})
        counts.append(" to ".join(f"{end:,}" for end in ends) + f" {kind}")
    return f"n = {', '.join(counts)}"


TITLE = "title"
SUBTITLE = "subtitle"
"""The `gid` of the two texts, by which they are found again."""
# points
_TITLE_SIZE = 10.5
_SUBTITLE_SIZE = 8.5
_LABEL_SIZE = 8.5
_SMALL: dict[str, Any] = {"fontsize": _LABEL_SIZE, "color": GREY}
_LEADING = 1.3
"""Height of a line, of its font's."""
# characters of a line as wide as the page
_TITLE_WIDTH = 74
_SUBTITLE_WIDTH = 98


def put_title(figure: Figure, title: str, *parts: str) -> None:
    """Write the finding above a figure, and n, model, what bars are below it; the figure grows by them.

    Empty parts are left out.
    """
    above = textwrap.fill(title, _TITLE_WIDTH)
    below = textwrap.fill(
        "; ".join(filter(None, parts)).replace(" %", "\N{NO-BREAK SPACE}%"), _SUBTITLE_WIDTH
    )
    shared: dict[str, Any] = {"x": 0.01, "ha": "left"}
    figure.suptitle(above, fontsize=_TITLE_SIZE, weight="bold", gid=TITLE, **shared)
    figure.supxlabel(below, fontsize=_SUBTITLE_SIZE, color=GREY, gid=SUBTITLE, **shared)
    num_lines = above.count("\n") + below.count("\n") + 2
    figure.set_figheight(figure.get_figheight() + num_lines * _TITLE_SIZE * _LEADING / 72)


class LineEnd(NamedTuple):
    """The last point of a line, in the axes' data, and what the line is called."""

    x: float
    y: float
    name: str
    color: str


def draw_line(
    ax: Axes,
    x: Iterable[float],
    rows: pd.DataFrame,
    value: str,
    style: Mapping[str, Any],
    name: str = "",
    *,
    ends: tuple[str, str] = ("low", "high"),
    band: bool = False,
) -> LineEnd:
    """A line of means, one of `rows` at each x, ascending, with the bars, or the band, of their intervals.

    The interval is in the columns `<value>_<end>`, lower first; `style` is matplotlib's, such as
    `Style.measured`.
    """
    places = np.asarray(list(x), dtype=float)
    values = rows[value].to_numpy(dtype=float)
    low, high = (rows[f"{value}_{end}"].to_numpy(dtype=float) for end in ends)
    if band:
        ax.plot(places, values, **style)
        ax.fill_between(places, low, high, color=style["color"], alpha=0.15, linewidth=0)
    else:
        ax.errorbar(places, values, yerr=np.array([values - low, high - values]), elinewidth=0.9, **style)
    return LineEnd(places[-1], values[-1], name, style["color"])


def draw_points(
    ax: Axes,
    heights: Iterable[float],
    rows: pd.DataFrame,
    value: str,
    styles: Iterable[Mapping[str, Any]],
    *,
    ends: tuple[str, str] = ("low", "high"),
) -> None:
    """Points at heights, each with the horizontal bar of its interval; none where the value is NaN.

    Columns and styles as of `draw_line`, one of each a row.
    """
    for height, row, style in zip(heights, rows.to_dict("records"), styles, strict=True):
        if not pd.isna(row[value]):
            bar = [[row[value] - row[f"{value}_{ends[0]}"]], [row[f"{value}_{ends[1]}"] - row[value]]]
            ax.errorbar([row[value]], [height], xerr=np.abs(bar), elinewidth=0.9, **style)


def beside(place: Any, num_places: int) -> Any:
    """How far from the middle the place-th of several things stands, or each of an array of places."""
    return place - (num_places - 1) / 2


def label_line_ends(ax: Axes, ends: Sequence[LineEnd]) -> None:
    """Name each line beside its end, right of the axes, in its color; names that would touch move apart.

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
    heights = [line_height * (end.name.count("\n") + 1) for end in shown]
    bottom = ax.bbox.y0
    top = ax.bbox.y1
    for end, place in zip(shown, moved_apart(places, heights, bottom, top), strict=True):
        ax.annotate(
            end.name,
            (end.x, end.y),
            (1.05, (place - bottom) / (top - bottom)),
            xycoords="data",
            textcoords="axes fraction",
            va="center",
            ha="left",
            fontsize=_LABEL_SIZE,
            color=darker(end.color),
            annotation_clip=False,
            linespacing=1.1,
            arrowprops={
                "arrowstyle": "-",
                "color": end.color,
                "linewidth": 0.6,
                "relpos": (0, 0.5),
                "shrinkA": 1,
                "shrinkB": 3,
            },
        )


def moved_apart(
    places: Sequence[float] | np.ndarray, heights: Sequence[float], bottom: float, top: float
) -> np.ndarray:
    """Middles of boxes one above the other, moved as little as may be so that none touch.

    Least squares under the order of the wished `places`, which ascend; then within `bottom` and `top`, where
    there is room for all.
    """
    halves = np.asarray(heights) / 2
    offsets = np.concatenate([[0], np.cumsum(halves[:-1] + halves[1:])])
    starts = isotonic_regression(np.asarray(places, dtype=float) - offsets).x
    lowest = bottom + halves[0]
    highest = top - halves[-1] - offsets[-1]
    return np.clip(starts, lowest, max(lowest, highest)) + offsets


def name_level(ax: Axes, y: float, text: str, side: str = "right", *, below: bool = False) -> None:
    """A dotted line across the axes at `y`, with its name on it: chance, a threshold, the whole gain.

    The name stands at one `side`, "left" or "right"; below the line if others end above it.
    """
    ax.axhline(y, color=GREY, linewidth=1, linestyle=":", zorder=1)
    place = (0.0 if side == "left" else 1.0, y)
    vertical = "top" if below else "bottom"
    ax.text(*place, text, transform=ax.get_yaxis_transform(), ha=side, va=vertical, **_SMALL)


def name_place(ax: Axes, x: float, text: str) -> None:
    """A dotted upright line at `x`, with its name above the axes: a training length, a short context."""
    ax.axvline(x, color=GREY, linewidth=1, linestyle=":", zorder=1)
    ax.text(x, 1.01, text, transform=ax.get_xaxis_transform(), ha="center", va="bottom", **_SMALL)


_DOTS_AN_INCH = 200
_PAGE_WIDTH = 7.0  # inches
_FIGURES: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
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


def panels(num_columns: int, height: float, num_rows: int = 1) -> tuple[Figure, np.ndarray]:
    """A figure of panels, as wide as a page and `height` inches high, and its Axes row by row."""
    plt.style.use(_FIGURES)
    size = (_PAGE_WIDTH, height)
    figure, axes = plt.subplots(num_rows, num_columns, figsize=size, layout="constrained", squeeze=False)
    return figure, axes.ravel()


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write `<folder>/<name>.png` (200 dots an inch) and `.pdf`; the same figure gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it tells of every glyph of a PDF
    figure.savefig(folder / f"{name}.png", dpi=_DOTS_AN_INCH, metadata={"Software": None})
    figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None})


def tokens_axis(ax: Axes, ks: Iterable[int], label: str = "k tokens") -> None:
    """The horizontal axis of k: powers of two evenly spaced; those studied, and the largest k, are named."""
    ax.set_xscale("log", base=2)
    named = sorted(int(k) for k in ks if not int(k) & (int(k) - 1) or k == max(ks))
    ax.set_xticks(named, [str(k) for k in named])
    ax.minorticks_off()
    ax.set_xlabel(label)


def share_scale(axes: np.ndarray) -> None:
    """Give panels of one quantity the same vertical limits."""
    limits = [limit for ax in axes for limit in ax.get_ylim()]
    for ax in axes:
        ax.set_ylim(min(limits), max(limits))
