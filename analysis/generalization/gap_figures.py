"""The drawing of the generalization gap by k*, and of its slopes: tables of `gaps` and `gap_slopes` in."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.figure_texts import LineEnd, label_line_ends, put_title
from analysis.figures import TEXT_WIDTH, draw_with_bars, panels
from analysis.generalization.gap_slopes import ALL_CONTROLS, NO_CONTROLS, WITH_GAIN
from analysis.generalization.gap_verdicts import gap_title, slopes_title
from analysis.generalization.sparsity_classes import NO_GAIN
from analysis.generalization.sparsity_measures import ALL_TARGETS, AMONG_REACHED, measure_words
from analysis.palette import BLACK
from analysis.roles import Role, common_size
from analysis.titles import BARS, FEWEST_TARGETS, sample_size, subtitle

_ASIDE = 0.24  # between models, of a row or class
_ROW_HEIGHT = 0.3  # inches
_BLOCKS = {AMONG_REACHED: "Targets that have a k*", ALL_TARGETS: "All targets (k* = 0: nothing gained)"}
_SLOPE_LABEL = "nats a doubling of k*"


def gap_figure(
    gaps: pd.DataFrame,
    slopes: pd.DataFrame,
    roles: Mapping[str, Role],
    held: str,
    expected: pd.DataFrame | None = None,
) -> Figure:
    """The gap of each class of k*, and beside it how a doubling of k* changes it, other things held constant.

    Args:
        gaps: `gaps.generalization_gap_by_sparsity`.
        slopes: `gap_slopes.gap_slopes`, of the measure behind the classes.
        roles: of the models.
        held: what the slopes hold constant beside the gain, in words.
        expected: as `slopes`, of the expected gap; None: it was not measured.
    """
    figure, (gap_ax, slope_ax) = panels(1, 2, TEXT_WIDTH, 3.1)
    among = slopes[slopes["coding"] == AMONG_REACHED]
    is_large = gaps.groupby("category")["num_targets"].transform("min") >= FEWEST_TARGETS
    gaps_by_class(gaps[is_large], gap_ax, roles)
    adjustments = {NO_CONTROLS: "nothing", ALL_CONTROLS: held, WITH_GAIN: f"{held}\nand the gain"}
    rows = [among[among["adjustment"] == adjustment] for adjustment in adjustments]
    names = list(adjustments.values())
    if expected is not None:
        held_all = (expected["coding"] == AMONG_REACHED) & (expected["adjustment"] == WITH_GAIN)
        rows.append(expected[held_all])
        names.append("the same,\nexpected gap")
    slopes_in_rows(rows, names, slope_ax, roles)
    slope_ax.set_title("held constant:", loc="left")
    measure = measure_words(str(among["measure"].iloc[0]))
    left_out = "" if is_large.all() else f"classes of fewer than {FEWEST_TARGETS} left out"
    told = subtitle(sample_size(among), _size(among, roles), f"k* by {measure}", BARS, left_out)
    put_title(figure, gap_title(among, None if expected is None else rows[-1]), told)
    return figure


def gaps_by_class(gaps: pd.DataFrame, ax: Axes, roles: Mapping[str, Role]) -> Axes:
    """Mean generalization gap of each class of k*, short-trained models beside each other, n below.

    Args:
        gaps: `gaps.generalization_gap_by_sparsity`.
        ax: to draw on.
        roles: of the models.
    """
    categories, models = (list(dict.fromkeys(gaps[name])) for name in ("category", "model"))
    ends = []
    for place, model in enumerate(models):
        rows = gaps[gaps["model"] == model].set_index("category").loc[categories]
        x = np.arange(len(categories)) + _ASIDE * (place - (len(models) - 1) / 2)
        look = roles[model].look
        draw_with_bars(ax, list(x), rows, "generalization_gap", **look.measured | {"linestyle": "none"})
        is_class = [category != NO_GAIN for category in categories]
        ax.plot(x[is_class], rows["generalization_gap"][is_class], color=look.color, linewidth=0.8)
        words = roles[model].words.replace(", ", ",\n")
        ends.append(LineEnd(float(x[-1]), float(rows["generalization_gap"].iloc[-1]), words, look.color))
    counts = gaps.groupby("category")["num_targets"].min()
    names = [
        f"{name.replace('more than ', '>').replace(NO_GAIN, 'none')}\n{counts[name]:,}" for name in categories
    ]
    ax.set_xticks(range(len(categories)), names)
    ax.axhline(0, color=BLACK, linewidth=0.6)
    ax.set_xlabel("k*: tokens needed for 0.9 of the gain\nand number of targets (none: no gain)")
    ax.set_ylabel("generalization gap (nats)")
    label_line_ends(ax, ends)
    return ax


def slopes_in_rows(
    rows: Sequence[pd.DataFrame], names: Sequence[str], ax: Axes, roles: Mapping[str, Role]
) -> Axes:
    """Slope and interval, models below each other in a row.

    Args:
        rows: of `gap_slopes`, a table a row of the panel, a row a model.
        names: of the rows, from above.
        ax: to draw on.
        roles: of the models.
    """
    for height, of_row in enumerate(rows):
        for place, (model, slope) in enumerate(of_row.groupby("model", sort=False)):
            ends = np.array([slope["slope"] - slope["slope_low"], slope["slope_high"] - slope["slope"]])
            y = height + _ASIDE * (place - (of_row["model"].nunique() - 1) / 2)
            ax.errorbar(slope["slope"], [y], xerr=ends, elinewidth=0.9, **roles[str(model)].look.measured)
    ax.axvline(0, color=BLACK, linewidth=0.6)
    ax.set_yticks(range(len(rows)), names)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.set_xlabel(_SLOPE_LABEL)
    return ax


def slopes_figure(slopes: pd.DataFrame, roles: Mapping[str, Role], held: str) -> Figure:
    """Slopes by every measure of k*, with nothing held constant and with everything, on one scale.

    Args:
        slopes: `gap_slopes.gap_slopes`.
        roles: of the models.
        held: what is held constant beside the gain, in words.
    """
    measures = list(dict.fromkeys(slopes["measure"]))
    drawn = slopes[slopes["num_targets"] >= FEWEST_TARGETS]
    num_rows = len(_BLOCKS) * (len(measures) + 1)
    figure, axes = panels(1, 2, TEXT_WIDTH, 0.9 + _ROW_HEIGHT * num_rows)
    panels_of = {NO_CONTROLS: "nothing held constant", WITH_GAIN: f"{held}\nand gain held constant"}
    for ax, (adjustment, title) in zip(axes, panels_of.items(), strict=True):
        rows, names = [], []
        for coding, block in _BLOCKS.items():
            rows.append(slopes.iloc[:0])
            names.append(block)
            for measure in measures:
                is_row = (drawn["measure"] == measure) & (drawn["coding"] == coding)
                rows.append(drawn[is_row & (drawn["adjustment"] == adjustment)])
                count = (
                    f"{rows[-1]['num_targets'].min():,}" if len(rows[-1]) else f"fewer than {FEWEST_TARGETS}"
                )
                names.append(f"{measure_words(measure)} ({count})")
        slopes_in_rows(rows, names if ax is axes[0] else [""] * len(rows), ax, roles)
        ax.tick_params(axis="y", length=0)
        ax.set_title(title, loc="left")
    limits = [limit for ax in axes for limit in ax.get_xlim()]
    for ax in axes:
        ax.set_xlim(min(limits), max(limits))
    for tick, name in zip(axes[0].yaxis.get_major_ticks(), names, strict=True):
        if name in _BLOCKS.values():
            tick.label1.set_fontweight("bold")
    figure.legend(*_model_handles(slopes, roles), loc="outside lower right", ncols=2)
    told = subtitle(sample_size(drawn), _size(slopes, roles), "targets in brackets", BARS)
    put_title(figure, slopes_title(drawn), told)
    return figure


def _size(slopes: pd.DataFrame, roles: Mapping[str, Role]) -> str:
    return common_size(roles[str(model)] for model in slopes["model"].unique())


def _model_handles(slopes: pd.DataFrame, roles: Mapping[str, Role]) -> tuple[list, list[str]]:
    models = [str(model) for model in dict.fromkeys(slopes["model"])]
    return [Line2D([], [], **roles[model].look.measured) for model in models], [
        roles[m].words for m in models
    ]
