"""Schemes of attention and positions if the deciding tokens are few and far, near, or many.

Plan: analysis/LOG.md, 2026-11-29. Rows are those of `synthetic_accuracy`. A scheme's accuracy at a multiple
of the trained length is the mean over the seeds that learned the task; of copy, of right letters.
"""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sparsity_length.figures import drawing
from sparsity_length.figures.marked_bits import welch
from sparsity_length.figures.synthetic_tasks import POSITION_WORDS
from sparsity_length.results.statistics import Interval

FIRST = "sparse_first"
LAST = "sparse_last"
TASK_WORDS = {
    FIRST: "first marked bit (far)",
    "copy": "copy (far)",
    "variable_assignment": "variable assignment",
    LAST: "last marked bit (near)",
    "sparse_majority": "majority (many)",
    "parity_scratchpad": "parity with scratchpad (far)",
}
DRAWN = (FIRST, LAST, "sparse_majority", "copy")
"""Tasks of the figure; at length, parity with scratchpad is at chance with every scheme."""
MANY_BITS = 8
"""k that decides; at k = 1 the first and the last marked bit are one function."""
LEAST_LEAD = 0.2
HOLDS = 0.8
FEWEST_SEEDS = 3
CONTRASTS = {
    "F1": ("first marked bit: PoSE minus ALiBi", (FIRST, "pose"), (FIRST, "alibi")),
    "F2": ("copy: coupled IDs minus ALiBi", ("copy", "coupled"), ("copy", "alibi")),
    "N": ("ALiBi: last minus first marked bit", (LAST, "alibi"), (FIRST, "alibi")),
}
"""Name -> words, and what is compared: (task, scheme) that shall hold, and that shall fail."""


def of_cells(accuracy: pd.DataFrame, k: int = MANY_BITS) -> pd.DataFrame:
    """Rows at k, of tasks without k all, with `times` (the trained length) and `value`, the accuracy."""
    rows = accuracy[accuracy["sparsity"].isna() | (accuracy["sparsity"] == k)]
    return rows.assign(times=rows["size"] / rows["largest_train_size"], value=rows["token_accuracy"])


def seeds_of(cells: pd.DataFrame, task: str, scheme: str, times: float = 10) -> pd.Series:
    """Accuracy of each seed that learned the task."""
    is_cell = (cells["task"] == task) & (cells["positions"] == scheme) & (cells["times"] == times)
    return cells[is_cell & cells["is_learnt"]].set_index("seed")["value"]


def contrast(cells: pd.DataFrame, name: str) -> tuple[Interval | None, str]:
    """One of `CONTRASTS` at ten times the trained length, with Welch's interval, and its verdict."""
    _, holding, failing = CONTRASTS[name]
    pair = seeds_of(cells, *holding), seeds_of(cells, *failing)
    if min(map(len, pair)) < FEWEST_SEEDS:
        return None, "inconclusive"
    lead = welch(*pair)
    if lead.high < LEAST_LEAD:
        return lead, "refuted"
    is_shown = lead.estimate >= LEAST_LEAD and lead.low > 0 and pair[0].mean() >= HOLDS
    return lead, "supported" if is_shown else "inconclusive"


def verdict(cells: pd.DataFrame) -> str:
    """If few deciding tokens are far, ALiBi fails and PoSE or coupled IDs do not; if near, ALiBi does not."""
    words = {name: contrast(cells, name)[1] for name in CONTRASTS}
    if set(words.values()) == {"supported"}:
        return "supported"
    is_refuted = words["N"] == "refuted" or words["F1"] == words["F2"] == "refuted"
    return "refuted" if is_refuted else "inconclusive"


def cell_words(cells: pd.DataFrame, task: str, scheme: str) -> str:
    """Accuracy at ten times the trained length: mean, lowest and highest of the seeds that learned the task.

    Behind it how many did, of all; empty if none was trained.
    """
    is_cell = (cells["task"] == task) & (cells["positions"] == scheme) & (cells["times"] == 10)
    seeds = 100 * seeds_of(cells, task, scheme)
    if not is_cell.any():
        return ""
    counts = f"({len(seeds)}/{is_cell.sum()})"
    if not len(seeds):
        return counts
    ends = f"[{seeds.min():.0f}, {seeds.max():.0f}] " if len(seeds) > 1 else ""
    return f"{seeds.mean():.0f}% {ends}{counts}"


def figure_of(cells: pd.DataFrame) -> Figure:
    """Accuracy against the length in multiples of the trained one: a panel per task, a line per scheme."""
    tasks = [task for task in DRAWN if task in set(cells["task"])]
    figure, axes = drawing.panels(len(tasks), 2.8)
    learned = cells[cells["is_learnt"]]
    for task, ax in zip(tasks, axes, strict=True):
        for scheme, style in drawing.POSITION_STYLES.items():
            is_line = (learned["task"] == task) & (learned["positions"] == scheme)
            means = learned[is_line].groupby("times")[["value"]].mean()
            if len(means):
                drawing.draw_line(ax, means.index, means, "value", style, scale=100)
        drawing.shade(ax, 0, 1)
        ax.set(title=TASK_WORDS[task].replace(" (", "\n("), xlabel="× trained", ylim=(0, 103))
    axes[0].set_ylabel("accuracy (%)")
    # Not every panel has every line, so that no panel's ends would name all.
    lines = [
        Line2D([], [], label=words, **drawing.POSITION_STYLES[scheme])
        for scheme, words in POSITION_WORDS.items()
        if scheme in set(learned["positions"])
    ]
    figure.legend(handles=lines, loc="outside right center")
    pairs = [
        [f"{seeds_of(cells, task, scheme).mean():.0%}" for scheme in ("pose", "alibi")]
        for task in (FIRST, LAST)
    ]
    drawing.put_title(
        figure,
        f"At ten times the trained length, PoSE tells the first marked bit in {pairs[0][0]} of cases, ALiBi"
        f" in {pairs[0][1]}; the last in {pairs[1][0]} and {pairs[1][1]}",
        "means of the seeds that learned the task",
        f"marked bits: k = {MANY_BITS}",
        "shaded: trained lengths",
    )
    return figure
