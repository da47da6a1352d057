"""Looks that all figures share: colors and markers, words, titles, named lines, saving.

A color and marker belong to one kind of training, selection rule or position scheme, everywhere. Solid and
filled is what was measured; dashed and hollow is its null baseline. The named colors are Okabe and Ito's,
which color-blind readers tell apart.

A line or point is a mean, its bar or band the 95% interval over documents. No number is computed here.
"""

import logging
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
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

from sparsity_length.results.read import Results

BLACK = "#000000"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
BLUE = "#0072B2"
VERMILION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#767676"
Style = dict[str, Any]
"""A color and marker, as the line of matplotlib takes them."""


def solid(color: str, marker: str = "o") -> Style:
    """Style of what was measured."""
    return {"color": color, "marker": marker, "linestyle": "-"}


def hollow(style: Style) -> Style:
    """Style of the null baseline of what has this one."""
    return style | {"linestyle": "--", "markerfacecolor": "white", "linewidth": 1}


TRAINED_LONG = solid(BLUE)
TRAINED_POSE = solid(VERMILION, "s")
TRAINED_CONTIGUOUS = solid(GREEN, "^")
"""Trained short: with PoSE, or with contiguous positions. No rule has these three colors."""
OTHER_MODELS = (solid(BLACK, "D"), solid(GREY, "d"), solid("#5B5BD6", "8"), solid("#8C6D1F", "X"))
"""Styles of models whose training the results do not tell."""
POSITION_STYLES = {
    "contiguous": TRAINED_CONTIGUOUS,
    "pose": TRAINED_POSE,
    "coupled": solid(SKY),
    "predicted": solid(PURPLE, "h"),
    "randomized": solid(ORANGE, "D"),
    "alibi": solid(BLUE, "s"),
    "nope": solid(BLACK, "X"),
    "dape_nope": solid("#5B5BD6", "8"),
    "dape_alibi": solid("#8C6D1F", "v"),
    "sparse": solid(GREY, "P"),
}
"""Position schemes of the synthetic tasks; PoSE and contiguous look as they do in text."""
RULE_STYLES = {
    "leave_one_out_divergence": solid(ORANGE, "v"),
    "leave_one_out": solid(PURPLE, "D"),
    "recency": solid(BLACK, "X"),
    "random": solid(GREY, "P"),
    "add_one_in": solid(SKY, "<"),
    "greedy": solid("#7A8B00", ">"),
    "gradient": solid("#8C3B1F", "p"),
    "attention": solid("#00838F", "h"),
    "attention_no_sink": solid("#C2185B", "h"),
    "add_one_in_divergence": solid("#7B3F9E", "<"),
    "greedy_divergence": solid("#4E5A00", ">"),
    "gradient_divergence": solid("#C0653F", "p"),
    "attention_rollout": solid("#00585F", "h"),
}


def rule_style(rule: str) -> Style:
    """Style of a selection rule; black circles for one that is not known."""
    return RULE_STYLES.get(rule, solid(BLACK))


def graded(num_colors: int) -> Sequence[str]:
    """Colors of ordered values, dark to light: cividis without its lightest end, which paper swallows."""
    return [to_hex(colormaps["cividis"](place)) for place in np.linspace(0, 0.85, num_colors)]


BARS = "bars: 95% over documents"


class ModelLabel(NamedTuple):
    """Name and look of a model in figures."""

    text: str
    """Such as "trained at 64, PoSE, seed 0"."""
    style: Style
    size: str
    """Such as "2.3 M parameters"; "" if it is not known."""
    train_context_length: int | None
    """Tokens seen at once in training; None if the results do not say."""

    @property
    def training(self) -> str:
        """The text without the seed: models trained alike share it."""
        return self.text.partition(", seed")[0]


def model_labels(results: Path, artefact: str) -> dict[str, ModelLabel]:
    """Model -> its label, from what the artefact's files say of its training.

    Of models not trained with PoSE, those are trained long that saw as many tokens as any model here. A model
    whose training is not known has its own name and style.
    """
    facts = Results(results).facts(artefact)
    longest = max((known.get("train_context_length") or 0 for known in facts.values()), default=0)
    labels = {}
    for model, known in facts.items():
        length = known.get("train_context_length")
        if length is None:
            # `ModelLabel.training` cuts at this comma: seeds of an unknown training share a name, too.
            text = re.sub(r"-seed(\d+)$", r", seed \1", model)
            # By its place among all names: a model looks alike in every figure of this artefact.
            style = OTHER_MODELS[sorted(facts).index(model) % len(OTHER_MODELS)]
        else:
            is_pose = known.get("position_scheme") == "pose"
            style = TRAINED_LONG if length == longest else TRAINED_CONTIGUOUS
            if is_pose:
                style = TRAINED_POSE
            seed = "" if known.get("seed") is None else f", seed {known['seed']}"
            text = f"trained at {length}{', PoSE' if is_pose else ''}{seed}"
        millions = (known.get("num_parameters") or 0) / 1e6
        digits = ".0f" if millions > 10 else ".2g"
        size = f"{millions:{digits}} M parameters" if millions else ""
        labels[model] = ModelLabel(text, style, size, length)
    return labels


def rule_text(rule: str) -> str:
    """A selection rule's name in words: `leave_one_out_divergence` is "leave one out, by KL"."""
    return rule.replace("_divergence", ", by KL").replace("_", " ")


def counted(number: int, noun: str) -> str:
    """A number and its noun: "1 token", "2,560 targets"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def ranged(numbers: pd.Series) -> str:
    """Whole numbers from the fewest to the most: "2 to 3", or "1,280" if they do not differ."""
    return " to ".join(f"{end:,}" for end in sorted({int(numbers.min()), int(numbers.max())}))


def counted_seeds(cells: pd.DataFrame) -> str:
    """The seeds of every mean, column `num_seeds`: "1 seed", "2 to 3 seeds"."""
    return f"{ranged(cells['num_seeds'])} seed" + ("" if cells["num_seeds"].max() == 1 else "s")


def sample_size(rows: pd.DataFrame) -> str:
    """The n of a subtitle: targets and documents."""
    return f"n = {ranged(rows['num_targets'])} targets, {ranged(rows['num_documents'])} documents"


# points
_TITLE_SIZE = 11
_LABEL_SIZE = 9
_SMALL: dict[str, Any] = {"fontsize": _LABEL_SIZE, "color": GREY}
_LEADING = 1.3
"""Height of a line, of its font's."""


def put_title(figure: Figure, title: str, *parts: str) -> None:
    """Finish a figure: name its lines, write the finding above, and n, model, what bars are below.

    Call it when the axes have their limits and scales. Empty parts are left out; the figure grows by the
    text.
    """
    for ax in figure.axes:
        _label_line_ends(figure, ax)
    # So many characters are as wide as the page.
    above = textwrap.fill(title, 72)
    below = textwrap.fill("; ".join(filter(None, parts)), 98)
    shared: dict[str, Any] = {"x": 0.01, "ha": "left"}
    figure.suptitle(above, fontsize=_TITLE_SIZE, weight="bold", **shared)
    figure.supxlabel(below, fontsize=8.5, color=GREY, **shared)
    # The constrained layout takes the text's room from the axes. The figure grows by as much, in inches of 72
    # points, so that the axes keep their height; each text has one line more than it has line breaks.
    num_lines = above.count("\n") + below.count("\n") + 2
    figure.set_figheight(figure.get_figheight() + num_lines * _TITLE_SIZE * _LEADING / 72)


def draw_line(
    ax: Axes,
    x: Iterable[float],
    rows: pd.DataFrame,
    value: str,
    style: Mapping[str, Any],
    name: str = "",
    *,
    band: bool = False,
    scale: float = 1,
) -> None:
    """A line of means, one of `rows` at each x, ascending, with the bars, or the band, of their intervals.

    The interval is in the columns `<value>_low` and `<value>_high`; without them none is drawn. `put_title`
    writes the name beside the line's end. All is multiplied by `scale`: 100 for percent. No rows, no line.
    """
    places = np.asarray(list(x), dtype=float)
    # Ends that are absent become NaN, for which matplotlib draws no bar.
    columns = rows.reindex(columns=[value, f"{value}_low", f"{value}_high"])
    values, low, high = scale * columns.to_numpy(float).T
    if band:
        line = ax.plot(places, values, **style)[0]
        ax.fill_between(places, low, high, color=style["color"], alpha=0.15, linewidth=0)
    else:
        errors = (values - low, high - values)
        line = ax.errorbar(places, values, yerr=errors, elinewidth=0.9, **style)[0]
    line.set_label(name)


def draw_seeds(
    ax: Axes, rows: pd.DataFrame, x: str, value: str, style: Mapping[str, Any], scale: float = 1
) -> None:
    """A thin line per seed, behind the means; columns seed, `x` and `value`."""
    for _, of_seed in rows.sort_values(x).groupby("seed"):
        ax.plot(of_seed[x], scale * of_seed[value], color=style["color"], linewidth=0.6, alpha=0.45)


def _label_line_ends(figure: Figure, ax: Axes) -> None:
    """Write each line's name right of the axes, in its color; names that would touch move apart.

    Lines of one name are named once, at the end of the last.
    """
    named = {str(line.get_label()): line for line in ax.lines if np.size(line.get_xdata())}
    # A line that nobody named is called _child0 or the like by matplotlib.
    ends = {
        name: np.asarray(line.get_xydata())[-1]
        for name, line in named.items()
        if name and not name.startswith("_")
    }
    shown = sorted((name for name in ends if np.isfinite(ends[name][1])), key=lambda name: ends[name][1])
    if not shown:
        return
    figure.draw_without_rendering()  # now the axes have their height
    places = ax.transData.transform([ends[name] for name in shown])[:, 1]
    line_height = _LABEL_SIZE * _LEADING * figure.dpi / 72
    heights = [line_height * (name.count("\n") + 1) for name in shown]
    moved = moved_apart(places, heights, ax.bbox.y0, ax.bbox.y1)
    # The leader runs from the left edge of a name, at half its height, to the end of its line.
    arrow = {"arrowstyle": "-", "linewidth": 0.6, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 3}
    for name, height in zip(shown, (moved - ax.bbox.y0) / ax.bbox.height, strict=True):
        color = named[name].get_color()
        ax.annotate(
            name,
            tuple(ends[name]),
            (1.05, height),
            textcoords="axes fraction",
            va="center",
            fontsize=_LABEL_SIZE,
            color=to_hex(tuple(0.6 * np.array(to_rgb(color)))),  # dark enough to be read on white
            annotation_clip=False,
            linespacing=1.1,
            arrowprops=arrow | {"color": color},
        )


def moved_apart(places: np.ndarray, heights: Sequence[float], bottom: float, top: float) -> np.ndarray:
    """Middles of boxes one above the other, moved as little as may be so that none touch.

    Least squares under the order of the wished `places`, which ascend; then within `bottom` and `top`, if
    there is room for all.
    """
    halves = np.asarray(heights) / 2
    # With y = middle - offset, no boxes overlap if and only if y ascends: an isotonic regression.
    # Heights of 10, 10 and 20 have the offsets 0, 10 and 25.
    offsets = np.concatenate([[0], np.cumsum(halves[:-1] + halves[1:])])
    lowest = bottom + halves[0]
    highest = top - halves[-1] - offsets[-1]
    # Clipping keeps an ascending sequence ascending, so boxes pushed in from an end don't overlap either.
    return np.clip(isotonic_regression(places - offsets).x, lowest, max(lowest, highest)) + offsets


def name_level(ax: Axes, y: float, text: str, *, side: str = "right", below: bool = False) -> None:
    """A dotted line across the axes at `y`, with its name on it: chance, a threshold, the whole gain."""
    ax.axhline(y, color=GREY, linewidth=1, linestyle=":", zorder=1)
    place = (0.02 if side == "left" else 1.0, y)
    vertical = "top" if below else "bottom"
    ax.text(*place, text, transform=ax.get_yaxis_transform(), ha=side, va=vertical, **_SMALL)


def name_place(ax: Axes, x: float, text: str) -> None:
    """A dotted upright line at `x`, with its name above the axes: a training length."""
    ax.axvline(x, color=GREY, linewidth=1, linestyle=":", zorder=1)
    ax.text(x, 1.01, text, transform=ax.get_xaxis_transform(), ha="center", va="bottom", **_SMALL)


def shade(ax: Axes, start: float, end: float) -> None:
    """Mark the trained lengths, sizes or positions on a horizontal axis."""
    ax.axvspan(start, end, color=GREY, alpha=0.12, linewidth=0)


_DOTS_AN_INCH = 200
_FIGURES: dict[str, Any] = {
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "errorbar.capsize": 2,
    "figure.dpi": _DOTS_AN_INCH,  # of screens as of files: text is not as wide at every resolution
    "text.parse_math": False,  # a model's name may have dollars
    "pdf.fonttype": 42,  # text stays text in the PDF
}


def panels(num_columns: int, height: float, *, sharey: bool = True) -> tuple[Figure, np.ndarray]:
    """A figure of panels, as wide as a page and `height` inches high, and its Axes.

    `sharey`: they have one vertical scale.
    """
    # Not in an `rc_context`: saving, long after this returns, still reads some of them (pdf.fonttype).
    plt.style.use(_FIGURES)
    figure, axes = plt.subplots(
        1, num_columns, sharey=sharey, squeeze=False, figsize=(7.0, height), layout="constrained"
    )
    return figure, axes.ravel()


def save(figure: Figure, folder: Path, name: str, *, with_pdf: bool = True) -> None:
    """Write `<folder>/<name>.png` (200 dots per inch) and `.pdf`; the same figure gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it tells of every glyph of a PDF
    # The matplotlib version and the date would change the bytes of an unchanged figure.
    figure.savefig(folder / f"{name}.png", dpi=_DOTS_AN_INCH, metadata={"Software": None})
    if with_pdf:
        figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None})


def length_axis(ax: Axes, lengths: Iterable[int], label: str) -> None:
    """A horizontal axis on which powers of two are evenly spaced, and these lengths are named."""
    ax.set_xscale("log", base=2)
    named = sorted(int(length) for length in lengths)
    ax.set_xticks(named, [f"{length:,}" for length in named])
    # The minor ticks of a log axis may have labels of their own, between these.
    ax.minorticks_off()
    ax.set_xlabel(label)
