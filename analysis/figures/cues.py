"""Cues, where only the number of tokens that decide differs: planned contrasts, and the figure.

The outcome of a training is its growth: the slope of excess loss on log2 of the test length, from the trained
64 tokens to eight times that, nats per doubling. Beyond that every model fails, so no straight line describes
it (analysis/LOG.md, 2026-11-25). A contrast is the mean growth of some trainings less that of others. Every
seed has all of them, so contrasts are paired: the interval is Student's over the seeds' differences.
"""

from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats
from statsmodels.stats.multitest import multipletests

from analysis import drawing
from analysis.drawing import Shown
from analysis.figures.marked_bits import over_seeds
from analysis.read import rows_by
from pipeline.results.read import read_artefact

NONE = "none"
LOG_LENGTH = "log_length"
LEARNT = "learnt"
LONGEST = 8
"""Times the trained length that growth is measured to."""
SMALLEST_EXCESS = 0.05
"""SESOI of the number of cues at one distance of the farthest, nats."""
BINS = {"up to 64": 64, "64 to 128": 128, "128 to 256": 256, "256 to 512": 512}
"""Distances of the farthest (or mean) cue -> their upper end, tokens."""
_SPREAD = ("cues_1", "cues_2", "cues_4")
_NEAR = ("cues_1_local", "cues_2_local", "cues_4_local")
_TRAINING = ["task", "positions", "attention_scaling", "seed"]


class Arm(NamedTuple):
    """Trainings whose growth is averaged."""

    tasks: Sequence[str]
    positions: str = "contiguous"
    attention_scaling: str = NONE


CONTRASTS = {
    "four cues less one": (Arm(["cues_4"]), Arm(["cues_1"])),
    "near less anywhere": (Arm(_NEAR), Arm(_SPREAD)),
    "coupled less plain positions": (Arm(_SPREAD, "coupled"), Arm(_SPREAD)),
    "growing number less fixed": (Arm(["cues_growing"]), Arm(["cues_32_weak"])),
    "scaled attention less plain": (Arm(_SPREAD, "contiguous", LOG_LENGTH), Arm(_SPREAD)),
}
"""Name -> the two sides; these five decide."""
FURTHER_CONTRASTS = {
    "growing number less eight": (Arm(["cues_growing"]), Arm(["cues_8_weak"])),
    "scaled attention less plain, 32 weak": (
        Arm(["cues_32_weak"], "contiguous", LOG_LENGTH),
        Arm(["cues_32_weak"]),
    ),
    "PoSE less plain positions": (Arm(_SPREAD, "pose"), Arm(_SPREAD)),
    "four cues less one, PoSE": (Arm(["cues_4"], "pose"), Arm(["cues_1"], "pose")),
    "learnt scale less plain": (Arm(_SPREAD, "contiguous", LEARNT), Arm(_SPREAD)),
    "four cues less one, learnt scale": (
        Arm(["cues_4"], "contiguous", LEARNT),
        Arm(["cues_1"], "contiguous", LEARNT),
    ),
}
"""Asked after the five were read, and planned before they were run, but for PoSE's last (analysis/LOG.md)."""


def growths(accuracy: pd.DataFrame) -> pd.DataFrame:
    """A row a training: task, positions, attention_scaling, seed, growth."""
    within = accuracy[accuracy["size"] <= LONGEST * accuracy["largest_train_size"]]
    within = within.fillna({"attention_scaling": NONE})
    within = within.assign(doublings=np.log2(within["size"] / within["largest_train_size"]))
    rows = [
        (*names, np.polyfit(tests["doublings"], tests["excess_loss"], 1)[0])
        for names, tests in within.groupby(_TRAINING)
    ]
    return pd.DataFrame(rows, columns=[*_TRAINING, "growth"])


def contrasts(of_trainings: pd.DataFrame) -> pd.DataFrame:
    """The contrasts of `growths`; of those that lack a training of either side, no row.

    Returns:
        A row a contrast: num_seeds, first and second (mean growths), difference with its interval (nats per
        doubling), p_value, and holm_p_value of the five that decide.
    """
    rows = []
    for name, (first, second) in (CONTRASTS | FURTHER_CONTRASTS).items():
        growth = {"first": _of_seeds(of_trainings, first), "second": _of_seeds(of_trainings, second)}
        paired = pd.DataFrame(growth).dropna()
        if len(paired) > 1:
            differences = paired["first"] - paired["second"]
            row: dict[Hashable, Any] = {"contrast": name, "num_seeds": len(paired)}
            row |= {**paired.mean().to_dict(), **over_seeds(differences, "difference")}
            rows.append(row | {"p_value": stats.ttest_1samp(differences, 0.0).pvalue})
    table = pd.DataFrame(rows)
    if len(table):
        decides = table["contrast"].isin(CONTRASTS)
        table.loc[decides, "holm_p_value"] = multipletests(table.loc[decides, "p_value"], method="holm")[1]
    return table


def _of_seeds(of_trainings: pd.DataFrame, arm: Arm) -> pd.Series:
    """Seed -> mean growth over the tasks of the arm; null where one is missing."""
    is_arm = of_trainings["positions"] == arm.positions
    is_arm &= of_trainings["attention_scaling"] == arm.attention_scaling
    wide = of_trainings[is_arm].pivot(index="seed", columns="task", values="growth")
    return wide.reindex(columns=list(arm.tasks)).mean(axis=1, skipna=False)


_PANELS = {
    "any distance": (_SPREAD, "contiguous"),
    "near the question": (_NEAR, "contiguous"),
    "any distance, PoSE": (_SPREAD, "pose"),
}
"""Title -> tasks by their number of cues, and positions."""


def cues_figure(accuracy: pd.DataFrame) -> Figure:
    """Excess loss against length without scaled attention: a panel a place of the cues, a line a number."""
    plain = accuracy[accuracy["attention_scaling"].fillna(NONE) == NONE]
    shown = {title: of for title, of in _PANELS.items() if of[1] in set(plain["positions"])}
    figure, axes = drawing.panels(len(shown), 2.6)
    ends: list[list[drawing.LineEnd]] = []
    for ax, (title, (tasks, positions)) in zip(axes, shown.items(), strict=True):
        ends.append([])
        for color, task, number in zip(drawing.graded(3), tasks, (1, 2, 4), strict=True):
            cells = plain[(plain["task"] == task) & (plain["positions"] == positions)]
            means = cells.groupby("size")["excess_loss"].mean().to_frame().reset_index()
            if len(means):
                words = drawing.counted(number, "cue")
                style = drawing.solid(color)
                ends[-1].append(drawing.draw_line(ax, means["size"], means, "excess_loss", style, words))
        sizes = sorted(plain["size"].unique())
        drawing.length_axis(ax, sizes[::3] or sizes, "length (tokens)")
        ax.set(title=title, yscale="log")
    axes[0].set_ylabel("excess loss (nats)")
    for ax, of_panel in zip(axes, ends, strict=True):
        drawing.label_line_ends(ax, of_panel)
    seeds = plain.groupby(["task", "positions"])["seed"].nunique().to_frame("num_seeds")
    longest = plain[(plain["size"] == plain["size"].max()) & plain["task"].isin(_SPREAD)]
    loss = longest.groupby("positions")["excess_loss"].mean()
    title = "How does the loss grow with length if 1, 2 or 4 cues decide?"
    if {"pose", "contiguous"} <= set(loss.index):
        title = (
            f"At {longest['size'].max():,} tokens, loss exceeds the best possible by"
            f" {loss['contiguous']:.1f} nats; trained with PoSE, by {loss['pose']:.2f}"
        )
    drawing.put_title(
        figure,
        title,
        f"means of {drawing.counted_seeds(seeds)}",
        f"trained at {int(plain['largest_train_size'].min())} tokens",
        "excess: beyond the best possible loss",
    )
    return figure


def cue_distances(examples: pd.DataFrame, by: Any = np.max) -> pd.DataFrame:
    """Excess loss by number of cues and distance of the farthest one: a row a task, seed and bin, nats."""
    bins = pd.cut(examples["distances"].map(by), [0, *BINS.values()], labels=list(BINS))
    cells = examples.assign(distance=bins).groupby(["task", "seed", "distance"], observed=True)
    return cells["excess_loss"].agg(["mean", "size"]).reset_index()


def cue_contrasts(cells: pd.DataFrame) -> pd.DataFrame:
    """Excess with four cues less that with one, same distance: a row a bin beyond 64, and their mean."""
    wide = cells.pivot(index=["seed", "distance"], columns="task", values="mean")
    differences = (wide["cues_4"] - wide["cues_1"]).unstack("distance").drop(columns="up to 64")
    differences["mean"] = differences.mean(axis=1)
    rows = [
        {"distance": name, "num_seeds": of_seeds.count(), **over_seeds(of_seeds.dropna(), "difference")}
        for name, of_seeds in differences.items()
    ]
    return pd.DataFrame(rows)


def verdict_of_distances(contrasts: pd.DataFrame) -> str:
    """Decide by the rule of the log, of the mean over bins."""
    mean = rows_by(contrasts, "distance")["mean"]
    low = mean["difference_low"]
    high = mean["difference_high"]
    if low > SMALLEST_EXCESS:
        return "number has an effect of its own"
    if high < -SMALLEST_EXCESS:
        return "the other way"
    return "no effect of its own" if low > -SMALLEST_EXCESS and high < SMALLEST_EXCESS else "open"


def distances_figure(examples: pd.DataFrame) -> Figure:
    """Excess loss by the distance of the farthest cue, a line a number of cues."""
    figure, (ax,) = drawing.panels(1, 2.6)
    cells = cue_distances(examples)
    ends = {}
    for color, number in zip(drawing.graded(3), (1, 2, 4), strict=True):
        of_bins = cells[cells["task"] == f"cues_{number}"].groupby("distance", observed=True)["mean"]
        line = pd.DataFrame([over_seeds(of_seeds, "excess") for _, of_seeds in of_bins])
        words = drawing.counted(number, "cue")
        ends[number] = drawing.draw_line(ax, range(len(line)), line, "excess", drawing.solid(color), words)
    ax.set_xticks(range(len(BINS)), list(BINS))
    ax.set(xlabel="distance of the farthest cue (tokens)", ylabel="excess loss (nats)")
    drawing.label_line_ends(ax, list(ends.values()))
    drawing.put_title(
        figure,
        f"With the farthest cue {list(BINS)[-1]} tokens away, four cues cost {ends[4].y:.2f} nats, one"
        f" {ends[1].y:.2f}",
        f"{examples['seed'].nunique()} seeds, {len(examples):,} examples",
        "trained at 64 tokens, tested at 64 to 512, plain IDs",
        "bars: 95% over seeds",
        "excess: beyond the best possible loss",
    )
    return figure


def report(kept: Path) -> Iterator[Shown]:
    """Contrasts by distance and the verdict."""
    examples = read_artefact(kept / "cues", "synthetic_examples")
    of_means = cue_contrasts(cue_distances(examples, np.mean))
    yield Shown("D. Four cues less one, by the mean distance", of_means)
    table = cue_contrasts(cue_distances(examples))
    figures = {"cue_distances": distances_figure(examples)}
    words = f"Verdict: {verdict_of_distances(table)}"
    yield Shown("D. Four cues less one, by the farthest distance", table, words, figures)
