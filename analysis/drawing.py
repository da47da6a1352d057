"""One colour and marker for each role, everywhere: a kind of training, a selection rule, a position scheme.

The named colours are Okabe and Ito's, which colour-blind readers tell apart. Solid and filled is a
measurement, hollow and dashed always the null of what has that colour and marker. What a model's role is:
`analysis.drawing`.

Words on a figure: its title and subtitle, the names of lines at their ends, of thresholds along them.

Titles that say no more than the data: what an interval supports, and the line below of n and model.

Each figure's own sentence stands beside its numbers or its drawing; here are the words that all share.

What stands in a figure, in words: models by how they were trained, selection rules by what they do.

A model's role comes from what its results tell of it (`model_facts`), never from its place
in a list.

What all figures share: style, panels, saving, lines with the bars of their intervals, scales.

No number is computed in a module that draws. A line or point is a mean, its band or bar the 95 % interval
over documents. Solid and filled is what was measured, dashed and hollow its null.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.text import Text

from pipeline.results.files import partial_note
from pipeline.results.read import read_model_facts

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY = "#767676"
_READABLE = 4.5  # contrast with white that the web's guidelines ask of text


@dataclass(frozen=True)
class Look:
    """A role's colour and marker."""

    color: str
    marker: str

    @property
    def measured(self) -> dict[str, Any]:
        """As matplotlib's line takes it: solid, filled."""
        return {"color": self.color, "marker": self.marker, "linestyle": "-"}

    @property
    def null(self) -> dict[str, Any]:
        """The same of its null: dashed, hollow."""
        return {
            "color": self.color,
            "marker": self.marker,
            "linestyle": "--",
            "markerfacecolor": "white",
            "linewidth": 1,
        }


TRAINED_LONG = Look(BLUE, "o")
TRAINED_POSE = Look(VERMILION, "s")
TRAINED_CONTIGUOUS = Look(GREEN, "^")
"""Trained short: with PoSE, or with contiguous positions. No rule has these three colours."""
OTHER_MODELS = (Look(BLACK, "D"), Look(GREY, "d"), Look("#5B5BD6", "8"), Look("#8C6D1F", "X"))
"""Of results that do not tell how a model was trained."""
POSITION_LOOKS = {
    "contiguous": TRAINED_CONTIGUOUS,
    "pose": TRAINED_POSE,
    "coupled": Look(SKY, "o"),
    "predicted": Look(PURPLE, "h"),
    "randomized": Look(ORANGE, "D"),
}
"""Position schemes of the synthetic tasks; PoSE and contiguous look as they do in text."""
RULE_LOOKS = {
    "leave_one_out_divergence": Look(ORANGE, "v"), "leave_one_out": Look(PURPLE, "D"),
    "nearest": Look(BLACK, "X"), "random": Look(GREY, "P"),
    "add_one_in": Look(SKY, "<"), "greedy": Look("#7A8B00", ">"), "gradient": Look("#8C3B1F", "p"),
    "attention": Look("#00838F", "h"),
    "leave_one_out_search": Look("#00456B", "8"), "banzhaf": Look("#8C6D1F", "H"),
    "add_one_in_divergence": Look("#7B3F9E", "<"), "greedy_divergence": Look("#4E5A00", ">"),
    "gradient_divergence": Look("#C0653F", "p"), "banzhaf_divergence": Look("#A33E5B", "H"),
    "context_length_probing": Look("#B8860B", "d"), "context_length_probing_divergence": Look("#6B4E00", "d"),
    "surrogate": Look("#E377C2", "^"), "surrogate_divergence": Look("#9E2A7D", "^"),
    "attention_rollout": Look("#00585F", "h"), "learned_attention": Look("#FF8C69", "s"),
    "learned_attention_divergence": Look("#B5533C", "s"), "input_x_gradient": Look("#5B5BD6", "o"),
    "integrated_gradients": Look("#2E2E8C", "o"),
}  # fmt: skip
"""Of every selection rule."""
_UNKNOWN_RULE = Look(BLACK, "o")


def rule_look(rule: str) -> Look:
    """That of a selection rule; black circles for one that is not known."""
    return RULE_LOOKS.get(rule, _UNKNOWN_RULE)


def graded(num_colors: int) -> Sequence[str]:
    """Colours of ordered values, from dark to light: of cividis, which colour-blind readers see as others do.

    Without its lightest end, which paper swallows.
    """
    return [to_hex(colormaps["cividis"](place)) for place in np.linspace(0, 0.85, num_colors)]


def ink(color: str) -> str:
    """A colour for text on white: the same hue, as dark as it must be to be read."""
    rgb = np.array(to_rgb(color))
    while _contrast_with_white(rgb) < _READABLE:
        rgb = 0.95 * rgb
    red, green, blue = map(float, rgb)
    return to_hex((red, green, blue))


def _contrast_with_white(rgb: np.ndarray) -> float:
    """Of the web's guidelines (WCAG 2.2), from 1 to 21."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(1.05 / (linear @ np.array([0.2126, 0.7152, 0.0722]) + 0.05))


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


OVER_DOCUMENTS = "95 % over documents"
BARS = f"bars: {OVER_DOCUMENTS}"
BANDS = f"bands: {OVER_DOCUMENTS}"
FEWEST_TARGETS = 30
"""Classes of fewer targets are not drawn: their intervals would set a figure's scale."""
SHOWN_K = 4
"""Tokens that a title tells of, where so many were studied."""
_SAMPLED = ("targets", "documents")


def is_above(low: float, bound: float = 0.0) -> bool:
    """Whether an interval lies above `bound`: only then may a title say "more". False where it is NaN."""
    return bool(low > bound)


def is_below(high: float, bound: float = 0.0) -> bool:
    """Whether an interval lies below `bound`. False where it is NaN."""
    return bool(high < bound)


def lie_apart(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether two intervals (low, high) do not touch; False where an end is not known."""
    return bool(first[0] > second[1] or second[0] > first[1])


def percent(share: float) -> str:
    """A share of one as "65 %"."""
    return f"{100 * share:.0f} %"


def counted(number: int, noun: str) -> str:
    """A number and its noun: "1 token", "2,560 targets"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def counted_seeds(cells: pd.DataFrame) -> str:
    """The seeds of every mean, column `num_seeds`, from the fewest to the most: "1 seed", "2 to 3 seeds"."""
    fewest, most = int(cells["num_seeds"].min()), int(cells["num_seeds"].max())
    return ("" if fewest == most else f"{fewest} to ") + counted(most, "seed")


def sample_size(rows: pd.DataFrame) -> str:
    """The n of a subtitle: targets and documents, from the fewest to the most where the rows drawn differ."""
    sizes = [(int(rows[f"num_{kind}"].min()), int(rows[f"num_{kind}"].max())) for kind in _SAMPLED]
    counts = (f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in sizes)
    return "n = " + ", ".join(f"{count} {kind}" for count, kind in zip(counts, _SAMPLED, strict=True))


def carried_share(of_rule: pd.DataFrame, nearest: pd.DataFrame, share: str, beyond: str = "") -> str:
    """What a few chosen tokens carry of what the far context is worth, and as many of the nearest.

    Nothing is said of a share whose interval reaches 0, nor of the nearest where the intervals touch.

    Args:
        of_rule: a row a k of one rule, with the share and its interval.
        nearest: the same of the nearest tokens; may be empty.
        share: the column.
        beyond: said after the share, such as " beyond their null".
    """
    ks = sorted(of_rule["k"].unique())
    k = int(SHOWN_K if SHOWN_K in ks else ks[len(ks) // 2])
    row = of_rule[of_rule["k"] == k].iloc[0]
    tokens, carry = counted(k, "token"), "carries" if k == 1 else "carry"
    low, high = row[f"{share}_low"], row[f"{share}_high"]
    if not is_above(low):
        return f"{tokens} {carry} no clear share of what the far context is worth{beyond}"
    title = f"{tokens} {carry} {percent(row[share])} of what the far context is worth{beyond}"
    for of_nearest in nearest[nearest["k"] == k].to_dict("records"):
        if lie_apart((low, high), (of_nearest[f"{share}_low"], of_nearest[f"{share}_high"])):
            title += f", the nearest {k} {carry} {percent(of_nearest[share])}"
    return title


def subtitle(*parts: str) -> str:
    """n, model and interval as one line; empty parts, which are not known, are left out."""
    return "; ".join(part for part in parts if part)


POSE = "pose"
_RULE_WORDS = {
    "nearest": "nearest tokens",
    "random": "random tokens",
    "input_x_gradient": "input times gradient",
    "leave_one_out_search": "leave one out, searched",
}
_DIVERGENCE = "_divergence"


@dataclass(frozen=True)
class Role:
    """How a model is called and drawn in figures."""

    words: str
    """Such as "trained at 64, PoSE", with its seed where another model was trained alike."""
    look: Look
    num_parameters: int | None
    """None where the results do not tell, as of the length."""
    train_context_length: int | None
    """Tokens that it saw at once in training."""


def model_roles(results: Path, artefact: str) -> dict[str, Role]:
    """Model -> its role, of all models of an artefact.

    With PoSE a model is trained short. Of the others, those are trained long that saw as many tokens as any
    model here. Earlier results do not tell how a model was trained: it has its name, and a look of its own.

    Raises:
        InputError: the artefact's files are damaged or not complete.
    """
    facts = read_model_facts(results, artefact)
    lengths = [of_model.get("train_context_length") or 0 for of_model in facts.values()]
    roles = {}
    for model, of_model in facts.items():
        look = _look(of_model, max(lengths), sorted(facts).index(model))
        told = (of_model.get(name) for name in ("num_parameters", "train_context_length"))
        roles[model] = Role(_words(model, facts), look, *told)
    return roles


def _look(facts: dict[str, Any], longest: int, place: int) -> Look:
    length = facts.get("train_context_length")
    if length is None:
        return OTHER_MODELS[place % len(OTHER_MODELS)]
    if facts.get("position_scheme") == POSE:
        return TRAINED_POSE
    return TRAINED_LONG if length == longest else TRAINED_CONTIGUOUS


def _words(model: str, facts: dict[str, dict[str, Any]]) -> str:
    told = facts[model]
    if told.get("train_context_length") is None:
        return re.sub(r"-seed(\d+)$", r", seed \1", model).replace("-", " ").replace("_", " ")
    names = ("train_context_length", "position_scheme", "num_parameters", "train_step")
    alike = [other for other in facts if all(facts[other].get(name) == told.get(name) for name in names)]
    scheme = ", PoSE" if told.get("position_scheme") == POSE else ""
    seed = f", seed {told['seed']}" if len(alike) > 1 and told.get("seed") is not None else ""
    return f"trained at {told['train_context_length']}{scheme}{seed}"


def rule_words(rule: str) -> str:
    """A selection rule's name in words: `leave_one_out_divergence` is "leave one out, by divergence"."""
    if rule in _RULE_WORDS:
        return _RULE_WORDS[rule]
    if rule.endswith(_DIVERGENCE):
        return f"{rule_words(rule.removesuffix(_DIVERGENCE))}, by divergence"
    return rule.replace("_", " ")


def common_size(roles: Iterable[Role]) -> str:
    """The size of all these models, such as "2.3 M parameters"; "" where it differs or is not known."""
    sizes = {size_words(role.num_parameters) for role in roles}
    return sizes.pop() if len(sizes) == 1 else ""


def size_words(num_parameters: int | None) -> str:
    """A model's size, such as "2.3 M parameters"; "" where it is not known."""
    return "" if num_parameters is None else f"{num_parameters / 1e6:.2g} M parameters"


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

    A figure of results that were read in part (`pipeline.results.files`) says so.
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
