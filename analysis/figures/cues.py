"""Cues, where only the number of tokens that decide differs: planned contrasts, and the figure.

The outcome of a training is its growth: the slope of excess loss on log2 of the test length, from the trained
64 tokens to eight times that, nats per doubling. Beyond that every model fails, so no straight line describes
it (analysis/LOG.md, 2026-11-25). A contrast is the mean growth of some trainings less that of others. Every
seed has all of them, so contrasts are paired: the interval is Student's over the seeds' differences.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats
from statsmodels.stats.multitest import multipletests

from analysis import drawing
from analysis.figures.marked_bits import over_seeds
from analysis.read import interval_columns, rows_by
from pipeline.results.statistics import Interval

NONE = "none"
LOG_LENGTH = "log_length"
LEARNT = "learnt"
LONGEST = 8
"""Times the trained length that growth is measured to."""
SMALLEST_EFFECT = 0.05
"""Of interest, nats per doubling: written down before the run."""
_SPREAD = ("cues_1", "cues_2", "cues_4")
_NEAR = ("cues_1_local", "cues_2_local", "cues_4_local")
_PANELS = (
    ("near", _NEAR, "contiguous"),
    ("anywhere", _SPREAD, "contiguous"),
    ("anywhere, coupled IDs", _SPREAD, "coupled"),
    ("anywhere, PoSE", _SPREAD, "pose"),
)


class Arm(NamedTuple):
    """Trainings whose growth is averaged."""

    tasks: Sequence[str]
    positions: str = "contiguous"
    attention_scaling: str | None = None
    """None: that of the contrast."""


CONTRASTS = {
    "four cues less one": (Arm(["cues_4"]), Arm(["cues_1"])),
    "near less anywhere": (Arm(_NEAR), Arm(_SPREAD)),
    "coupled less plain positions": (Arm(_SPREAD, "coupled"), Arm(_SPREAD)),
    "growing number less fixed": (Arm(["cues_growing"]), Arm(["cues_32_weak"])),
    "scaled attention less plain": (Arm(_SPREAD, "contiguous", LOG_LENGTH), Arm(_SPREAD, "contiguous", NONE)),
}
"""Name -> the two sides; the first four are asked of plain and of scaled attention."""
FURTHER_CONTRASTS = {
    "growing number less eight": (Arm(["cues_growing"]), Arm(["cues_8_weak"])),
    "scaled attention less plain, 32 weak": (
        Arm(["cues_32_weak"], "contiguous", LOG_LENGTH),
        Arm(["cues_32_weak"], "contiguous", NONE),
    ),
    "PoSE less plain positions": (Arm(_SPREAD, "pose"), Arm(_SPREAD)),
    "four cues less one, PoSE": (Arm(["cues_4"], "pose"), Arm(["cues_1"], "pose")),
    "learnt scale less plain": (Arm(_SPREAD, "contiguous", LEARNT), Arm(_SPREAD, "contiguous", NONE)),
    "four cues less one, learnt scale": (
        Arm(["cues_4"], "contiguous", LEARNT),
        Arm(["cues_1"], "contiguous", LEARNT),
    ),
}
"""Asked after the five were read, and planned before they were run, but for PoSE's last (analysis/LOG.md)."""


def growths(accuracy: pd.DataFrame) -> pd.DataFrame:
    """A row a training: task, positions, attention_scaling, seed, trained_excess_loss (nats), growth."""
    within = accuracy[accuracy["size"] <= LONGEST * accuracy["largest_train_size"]]
    rows = []
    for names, tests in within.groupby(["task", "positions", "attention_scaling", "seed"]):
        doublings = np.log2(tests["size"] / tests["largest_train_size"])
        slope = np.polyfit(doublings, tests["excess_loss"], 1)[0]
        rows.append((*names, tests["excess_loss"][doublings == 0].mean(), slope))
    columns = ["task", "positions", "attention_scaling", "seed", "trained_excess_loss", "growth"]
    return pd.DataFrame(rows, columns=columns)


def contrasts(of_trainings: pd.DataFrame) -> pd.DataFrame:
    """The contrasts of `growths`; of those that lack a training of either side, no row.

    Returns:
        A row a contrast and attention scaling: num_seeds, first and second (mean growths), difference with
        its interval (nats per doubling), p_value, and holm_p_value of the five that decide: those of
        `CONTRASTS` with plain attention.
    """
    rows = []
    for name, (first, second) in (CONTRASTS | FURTHER_CONTRASTS).items():
        for scaling in (NONE,) if first.attention_scaling else (NONE, LOG_LENGTH):
            sides = {
                "first": _of_seeds(of_trainings, first, first.attention_scaling or scaling),
                "second": _of_seeds(of_trainings, second, second.attention_scaling or scaling),
            }
            paired = pd.DataFrame(sides).dropna()
            if len(paired) < 2:
                continue
            differences = paired["first"] - paired["second"]
            tested = stats.ttest_1samp(differences, 0.0)
            low, high = tested.confidence_interval()
            rows.append(
                {
                    "contrast": name,
                    "attention_scaling": scaling,
                    "num_seeds": len(paired),
                    **paired.mean(),
                    **interval_columns("difference", Interval(float(differences.mean()), low, high)),
                    "p_value": tested.pvalue,
                }
            )
    table = pd.DataFrame(rows)
    if table.empty:
        return table
    decides = (table["attention_scaling"] == NONE) & table["contrast"].isin(CONTRASTS)
    table.loc[decides, "holm_p_value"] = multipletests(table.loc[decides, "p_value"], method="holm")[1]
    return table


def _of_seeds(of_trainings: pd.DataFrame, arm: Arm, scaling: str) -> pd.Series:
    """Seed -> mean growth over the tasks of the arm; null where one is missing."""
    is_arm = (of_trainings["positions"] == arm.positions) & (of_trainings["attention_scaling"] == scaling)
    wide = of_trainings[is_arm].pivot(index="seed", columns="task", values="growth")
    return wide.reindex(columns=list(arm.tasks)).mean(axis=1, skipna=False)


def cues_figure(accuracy: pd.DataFrame) -> Figure:
    """Excess loss against length: a panel a place of the cues, a line a number; dashed: scaled attention."""
    shown = [panel for panel in _PANELS if panel[2] in set(accuracy["positions"])]
    figure, axes = drawing.panels(len(shown), 3.0)
    colors = drawing.graded(len(_SPREAD))
    all_ends = []
    for ax, (title, tasks, positions) in zip(axes, shown, strict=True):
        ends = []
        of_numbers = list(zip(colors, tasks, (1, 2, 4), strict=True))
        for scaling in (LOG_LENGTH, NONE):  # the last drawn is on top: plain, of one cue
            for color, task, number in reversed(of_numbers):
                cells = accuracy[
                    (accuracy["task"] == task)
                    & (accuracy["positions"] == positions)
                    & (accuracy["attention_scaling"] == scaling)
                ]
                if cells.empty:
                    continue
                of_sizes = cells.groupby("size")["excess_loss"].agg(["mean", "min", "max"]).reset_index()
                line = of_sizes.set_axis(["size", "excess", "excess_low", "excess_high"], axis=1)
                style = drawing.Style(color, "o")
                look = style.measured if scaling == NONE else style.null
                words = drawing.counted(number, "cue") if scaling == NONE else ""
                ends.append(drawing.draw_line(ax, line["size"], line, "excess", look, words, band=True))
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        sizes = sorted(accuracy["size"].unique())
        ax.set_xticks(sizes[::3], [f"{size:,}" for size in sizes[::3]])
        ax.set_xticks(sizes, [""] * len(sizes), minor=True)
        ax.set_xlabel("length (tokens)")
        ax.set_title(title)
        all_ends.append([end for end in ends if end.name])
    axes[0].set_ylabel("loss beyond the best possible (nats)")
    drawing.share_scale(axes)
    for ax, ends in zip(axes, all_ends, strict=True):
        drawing.label_line_ends(ax, ends)
    num_seeds = accuracy.groupby(["task", "positions", "attention_scaling"])["seed"].nunique()
    trained = int(accuracy["largest_train_size"].min())
    drawing.put_title(
        figure,
        "How does the loss grow with length if 1, 2 or 4 cues decide?",
        f"n = {drawing.counted_seeds(num_seeds.to_frame('num_seeds'))} of each training",
        f"trained at {trained} tokens",
        "bands: range of seeds",
        "hollow, dashed: attention scaled with log length, where it was tried",
    )
    return figure


SMALLEST_EXCESS = 0.05
"""SESOI of the number of cues at one distance of the farthest, nats."""
BINS = (64, 128, 256, 512)
"""Edges of the distances of the farthest (or mean) cue, tokens."""


def cue_distances(examples: pd.DataFrame, by: Any = np.max) -> pd.DataFrame:
    """Excess loss by number of cues and distance of the farthest one: a row a task, seed and bin, nats."""
    distance = examples["distances"].map(by)
    bins = pd.cut(distance, [0, *BINS], labels=["up to 64", "64 to 128", "128 to 256", "256 to 512"])
    cells = examples.assign(distance=bins).groupby(["task", "seed", "distance"], observed=True)
    return cells["excess_loss"].agg(["mean", "size"]).reset_index()


def cue_contrasts(cells: pd.DataFrame, more: str = "cues_4", fewer: str = "cues_1") -> pd.DataFrame:
    """Excess with more cues less that with fewer, same distance: a row a bin beyond 64, and their mean."""
    wide = cells.pivot(index=["seed", "distance"], columns="task", values="mean")
    differences = (wide[more] - wide[fewer]).unstack("distance").drop(columns="up to 64")
    differences["mean"] = differences.mean(axis=1)
    rows = []
    for name in differences:
        of_seeds = differences[name].dropna()
        rows.append({"distance": name, "num_seeds": len(of_seeds), **over_seeds(of_seeds, "difference")})
    return pd.DataFrame(rows)


def verdict_of_distances(contrasts: pd.DataFrame) -> str:
    """By the rule of the log, of the mean over bins."""
    mean = rows_by(contrasts, "distance")["mean"]
    low = mean["difference_low"]
    high = mean["difference_high"]
    if low > SMALLEST_EXCESS:
        return "number has an effect of its own"
    if high < -SMALLEST_EXCESS:
        return "the other way"
    return "no effect of its own" if low > -SMALLEST_EXCESS and high < SMALLEST_EXCESS else "open"


def distances_figure(examples: pd.DataFrame, said: str) -> Figure:
    """Excess loss by the distance of the farthest cue and by their mean distance, a line a number of cues."""
    figure, axes = drawing.panels(2, 2.8)
    for ax, (label, by) in zip(axes, {"farthest cue": np.max, "cues, mean": np.mean}.items(), strict=True):
        cells = cue_distances(examples, by)
        ends = []
        for color, number in zip(drawing.graded(3), (1, 2, 4), strict=True):
            of_bins = cells[cells["task"] == f"cues_{number}"].groupby("distance", observed=True)["mean"]
            means = of_bins.mean()
            num_seeds = examples["seed"].nunique()
            errors = of_bins.sem() * stats.t.ppf(0.975, num_seeds - 1)
            line = means.to_frame("excess").assign(excess_low=means - errors, excess_high=means + errors)
            places = range(len(line))
            words = drawing.counted(number, "cue")
            look = drawing.Style(color, "o").measured
            ends.append(drawing.draw_line(ax, places, line, "excess", look, words))
            ax.set_xticks(list(places), [str(name) for name in line.index], fontsize=7)
        ax.set_xlabel(f"distance of the {label} (tokens)")
        drawing.label_line_ends(ax, ends)
    drawing.share_scale(axes)
    axes[0].set_ylabel("loss beyond the best possible (nats)")
    titles = {
        "number has an effect of its own": "At one distance of the farthest cue four cues lose more than one",
        "the other way": "At one distance of the farthest cue, one cue loses more than four",
        "no effect of its own": "At one distance of the farthest cue, their number makes no difference",
        "open": "At one distance of the farthest cue: no clear effect of the number of cues",
    }
    drawing.put_title(
        figure,
        titles[said],
        f"{examples['seed'].nunique()} seeds, {len(examples):,} examples",
        "trained at 64 tokens, tested at 64 to 512, plain IDs",
        "bars: 95% over seeds",
    )
    return figure
