"""Schemes of attention and positions if the deciding tokens are few and far, near, or many.

Plan: analysis/LOG.md, 2026-11-29. Rows are those of `synthetic_accuracy`. A scheme's accuracy at a multiple
of the trained length is the mean over the seeds that learned the task; of copy, of right letters.
"""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sparsity_length.figures import drawing
from sparsity_length.figures.marked_bits import welch
from sparsity_length.figures.read import rows_where
from sparsity_length.figures.synthetic_tasks import POSITION_WORDS
from sparsity_length.results.statistics import Interval, decided

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
    learned = rows_where(cells, task=task, positions=scheme, times=times, is_learnt=True)
    return learned.set_index("seed")["value"]


def contrast(cells: pd.DataFrame, name: str) -> tuple[Interval | None, str]:
    """One of `CONTRASTS` at ten times the trained length, with Welch's interval, and its verdict.

    Supported: a lead of `LEAST_LEAD` or more, above 0 with its interval, and what shall hold is right in 80 %
    or more. Refuted: the interval ends below `LEAST_LEAD`. Neither with fewer than three seeds.
    """
    _, holding, failing = CONTRASTS[name]
    pair = seeds_of(cells, *holding), seeds_of(cells, *failing)
    if min(map(len, pair)) < 3:
        return None, "inconclusive"
    lead = welch(*pair)
    is_shown = lead.estimate >= LEAST_LEAD and lead.low > 0 and pair[0].mean() >= 0.8
    return lead, decided(supported=is_shown, refuted=lead.high < LEAST_LEAD)


def verdict(cells: pd.DataFrame) -> str:
    """If few deciding tokens are far, ALiBi fails and PoSE or coupled IDs do not; if near, ALiBi does not."""
    words = {name: contrast(cells, name)[1] for name in CONTRASTS}
    return decided(
        supported=set(words.values()) == {"supported"},
        refuted=words["N"] == "refuted" or words["F1"] == words["F2"] == "refuted",
    )


def cell_words(cells: pd.DataFrame, task: str, scheme: str) -> str:
    """Accuracy at ten times the trained length: mean, lowest and highest of the seeds that learned the task.

    Behind it how many did, of all; empty if none was trained.
    """
    num_trained = len(rows_where(cells, task=task, positions=scheme, times=10))
    seeds = 100 * seeds_of(cells, task, scheme)
    mean = f"{seeds.mean():.0f}% " if len(seeds) else ""
    ends = f"[{seeds.min():.0f}, {seeds.max():.0f}] " if len(seeds) > 1 else ""
    return f"{mean}{ends}({len(seeds)}/{num_trained})" if num_trained else ""


def figure_of(cells: pd.DataFrame) -> Figure:
    """Accuracy against the length in multiples of the trained one: a panel per task, a line per scheme."""
    figure, axes = drawing.panels(len(DRAWN), 2.8)
    learned = cells[cells["is_learnt"]]
    for task, ax in zip(DRAWN, axes, strict=True):
        for scheme, style in drawing.POSITION_STYLES.items():
            means = rows_where(learned, task=task, positions=scheme).groupby("times")[["value"]].mean()
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
