"""Signs, where only the number of tokens that decide differs: planned contrasts, and the figure.

The outcome of a training is its growth: the slope of excess loss on log2 of the test length, from the trained
64 tokens to eight times that, nats per doubling. Beyond that every model fails, so no straight line describes
it (analysis/LOG.md, 2026-11-25). A contrast is the mean growth of some trainings less that of others. Every
seed has all of them, so contrasts are paired: the interval is Student's over the seeds' differences.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats
from statsmodels.stats.multitest import multipletests

from analysis import drawing
from analysis.read import interval_columns
from pipeline.results.statistics import Interval

NONE = "none"
LOG_LENGTH = "log_length"
LEARNT = "learnt"
LONGEST = 8
"""Times the trained length that growth is measured to."""
SMALLEST_EFFECT = 0.05
"""Of interest, nats per doubling: written down before the run."""
_SPREAD = ("signs_1", "signs_2", "signs_4")
_NEAR = ("signs_1_local", "signs_2_local", "signs_4_local")
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
    "four signs less one": (Arm(["signs_4"]), Arm(["signs_1"])),
    "near less anywhere": (Arm(_NEAR), Arm(_SPREAD)),
    "coupled less plain positions": (Arm(_SPREAD, "coupled"), Arm(_SPREAD)),
    "growing number less fixed": (Arm(["signs_growing"]), Arm(["signs_32_weak"])),
    "scaled attention less plain": (Arm(_SPREAD, "contiguous", LOG_LENGTH), Arm(_SPREAD, "contiguous", NONE)),
}
"""Name -> the two sides; the first four are asked of plain and of scaled attention."""
FURTHER_CONTRASTS = {
    "growing number less eight": (Arm(["signs_growing"]), Arm(["signs_8_weak"])),
    "scaled attention less plain, 32 weak": (
        Arm(["signs_32_weak"], "contiguous", LOG_LENGTH),
        Arm(["signs_32_weak"], "contiguous", NONE),
    ),
    "PoSE less plain positions": (Arm(_SPREAD, "pose"), Arm(_SPREAD)),
    "four signs less one, PoSE": (Arm(["signs_4"], "pose"), Arm(["signs_1"], "pose")),
    "learnt scale less plain": (Arm(_SPREAD, "contiguous", LEARNT), Arm(_SPREAD, "contiguous", NONE)),
    "four signs less one, learnt scale": (
        Arm(["signs_4"], "contiguous", LEARNT),
        Arm(["signs_1"], "contiguous", LEARNT),
    ),
}
"""Asked after the five were read, and planned before they were run, but for PoSE's last (analysis/LOG.md)."""


def over_lengths(accuracy: pd.DataFrame) -> pd.DataFrame:
    """A row a task, positions, attention_scaling and test size: means over seeds.

    Columns: excess_loss (nats), times_trained (excess_loss over that at the trained length), sign_attention
    (the share of attention on the signs by the head with most of it), num_seeds.
    """
    training = ["task", "positions", "attention_scaling", "seed"]
    trained = accuracy[accuracy["size"] == accuracy["largest_train_size"]].set_index(training)["excess_loss"]
    of_seeds = accuracy.join(trained.rename("trained_excess_loss"), training).assign(
        times_trained=lambda rows: rows["excess_loss"] / rows["trained_excess_loss"],
        sign_attention=lambda rows: rows["sign_attention"].map(max),
    )
    cells = of_seeds.groupby([*training[:3], "size"])
    means = cells[["excess_loss", "times_trained", "sign_attention"]].mean()
    return means.assign(num_seeds=cells["seed"].nunique()).reset_index()


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
    if not rows:
        return pd.DataFrame()
    table = pd.DataFrame(rows)
    decides = (table["attention_scaling"] == NONE) & table["contrast"].isin(CONTRASTS)
    table.loc[decides, "holm_p_value"] = multipletests(table.loc[decides, "p_value"], method="holm")[1]
    return table


def _of_seeds(of_trainings: pd.DataFrame, arm: Arm, scaling: str) -> pd.Series:
    """Seed -> mean growth over the tasks of the arm; null where one is missing."""
    is_arm = (of_trainings["positions"] == arm.positions) & (of_trainings["attention_scaling"] == scaling)
    wide = of_trainings[is_arm].pivot(index="seed", columns="task", values="growth")
    return wide.reindex(columns=list(arm.tasks)).mean(axis=1, skipna=False)


def signs_figure(accuracy: pd.DataFrame) -> Figure:
    """Excess loss against length: a panel a place of the signs, a line a number; dashed: scaled attention."""
    shown = [panel for panel in _PANELS if panel[2] in set(accuracy["positions"])]
    figure, axes = drawing.panels(len(shown), 3.0)
    colors = drawing.graded(len(_SPREAD))
    all_ends = []
    for ax, (title, tasks, positions) in zip(axes, shown, strict=True):
        ends = []
        of_numbers = list(zip(colors, tasks, (1, 2, 4), strict=True))
        for scaling in (LOG_LENGTH, NONE):  # the last drawn is on top: plain, of one sign
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
                words = drawing.counted(number, "sign") if scaling == NONE else ""
                ends.append(drawing.draw_line(ax, line["size"], line, "excess", look, words, band=True))
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        sizes = sorted(accuracy["size"].unique())
        named = sorted({*sizes[::3], sizes[-1]})
        ax.set_xticks(named, [f"{size:,}" for size in named])
        ax.get_xticklabels()[-1].set_horizontalalignment("left")  # else it touches the one before
        ax.set_xticks(sizes, [""] * len(sizes), minor=True)
        ax.set_xlabel("length (tokens)")
        ax.set_title(title)
        all_ends.append([end for end in ends if end.name])
    axes[0].set_ylabel("loss beyond the best possible (nats)")
    drawing.share_scale(axes)
    for ax, ends in zip(axes, all_ends, strict=True):
        drawing.label_line_ends(ax, ends)
    of_trainings = growths(accuracy)
    num_seeds = of_trainings.groupby(["task", "positions", "attention_scaling"]).size()
    trained = int(accuracy["largest_train_size"].min())
    title = "How does the loss grow with length where 1, 2 or 4 signs decide?"
    if (table := contrasts(of_trainings)).size:
        of_plain = table[table["attention_scaling"] == NONE].set_index("contrast")
        names = [*list(CONTRASTS)[:3], "PoSE less plain positions"]
        low, high = (of_plain[f"difference_{end}"].reindex(names) for end in ("low", "high"))
        if low.iloc[0] > 0 > high.iloc[1:].max(skipna=False):
            title = (
                f"From {trained} to {LONGEST * trained} tokens the loss of four signs anywhere grows more"
                " than that of one; near ones, coupled IDs and PoSE mend most of it (solid lines)"
            )
    numbers = sorted({num_seeds.min(), num_seeds.max()})
    drawing.put_title(
        figure,
        title,
        f"n = {' to '.join(map(str, numbers))} seeds of each training",
        f"trained at {trained} tokens",
        "bands: range of seeds",
        "hollow, dashed: attention scaled with log length, where it was tried",
    )
    return figure
