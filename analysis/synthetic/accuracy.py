"""Accuracy on synthetic tasks over seeds: small tables of `synthetic_accuracy`, and their figures.

A cell is what models of one training are tested on: task, positions, K_train, size and k. Three seeds bear no
interval, so the range over the seeds stands beside the mean: in figures a line is the mean, its band the
range. What is not learnt in distribution by every seed shows nothing beyond it: it is drawn thin and grey,
and named so.
"""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis import drawing

TRAINING = ["task", "positions", "largest_train_size", "largest_train_sparsity"]
"""What the seeds of one training share."""


def over_seeds(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Mean exact match of every cell, and its range over the seeds.

    Returns:
        A row a cell, ascending, with `exact_match`, `lowest`, `highest`, `num_seeds` and `is_learnt`: whether
        every seed had learnt the task in distribution.
    """
    cells = accuracy.groupby([*TRAINING, "sparsity", "size"], dropna=False)
    return cells.agg(
        exact_match=("exact_match", "mean"),
        lowest=("exact_match", "min"),
        highest=("exact_match", "max"),
        num_seeds=("seed", "nunique"),
        is_learnt=("is_learnt", "all"),
    ).reset_index()


def sample_size(cells: pd.DataFrame, num_examples: int) -> str:
    """Of how many seeds and examples the numbers are, for a caption."""
    return f"n = {drawing.counted_seeds(cells)} per training, {num_examples:,} examples per size"


POSITION_WORDS = {
    "predicted": "predicted position IDs (PPC)",
    "coupled": "position IDs given",
    "pose": "PoSE",
    "randomized": "randomized positions",
    "contiguous": "contiguous positions",
}
"""Scheme -> its name in figures; the figure of positions draws the first two that learn a task."""
GUESSED = {"sparse_parity": 0.5, "planted_correlation": 0.5}
"""Exact match of guessing, where the answer is one of two."""
DECIDING = {"planted_correlation": "planted token"}
"""What k counts in a task; bits elsewhere."""
# inches
_MOST_PANELS = 2
_HEIGHT = 2.8
_MARKERS = "osD^vPX*"  # of tasks, whose colour is their scheme's; of k, whose colours are graded
_BANDS = "bands: range of seeds"
_EXACT_MATCH = "exact match (share)"
# of the axis: of all shares, and where none falls far below guessing
_BOTTOM = -0.03
_BELOW_GUESSING = 0.35


def task_words(task: str) -> str:
    """A task's name in figures."""
    return {"parity_scratchpad": "parity with scratchpad"}.get(task, task.replace("_", " "))


def _schemes(cells: pd.DataFrame) -> tuple[list[str], list[str]]:
    """The schemes under which some task is learnt, and those under which none is."""
    present = [scheme for scheme in POSITION_WORDS if scheme in set(cells["positions"])]
    learnt = [
        scheme
        for scheme in present
        if cells[cells["positions"] == scheme].groupby("task")["is_learnt"].all().any()
    ]
    return learnt, [scheme for scheme in present if scheme not in learnt]


def positions_figure(cells: pd.DataFrame, num_examples: int) -> Figure:
    """Exact match against size, in multiples of the training size: a panel a scheme, a line a task."""
    learnt, unlearnt = _schemes(cells)
    shown = learnt[:_MOST_PANELS] or unlearnt[:1]
    figure, axes = drawing.panels(len(shown), _HEIGHT)
    tasks = sorted(cells["task"].unique())
    for scheme, ax in zip(shown, axes, strict=True):
        of_scheme = cells[cells["positions"] == scheme]
        ends = []
        for task, line in of_scheme.groupby("task"):
            look = drawing.Style(
                drawing.POSITION_STYLES[scheme].color, _MARKERS[tasks.index(str(task)) % len(_MARKERS)]
            )
            times = line.assign(size=line["size"] / line["largest_train_size"])
            ends.append(_draw_line(times, ax, task_words(str(task)), look))
        _finish(ax, 1, "test size / largest training size", POSITION_WORDS[scheme])
        ax.set_xlim(0, 1.03 * (cells["size"] / cells["largest_train_size"]).max())
        drawing.label_line_ends(ax, ends)
    figure.axes[0].set_ylabel(_EXACT_MATCH)
    solved = "solved: 0.90, learnt: 0.99 in the sizes of training, guessing: about 0"
    title = "How far beyond the training size is each task solved?"
    drawing.put_title(figure, title, sample_size(cells, num_examples), _BANDS, solved)
    return figure


def sparsity_figure(cells: pd.DataFrame, num_examples: int) -> Figure:
    """Exact match against size: across trainings, each at its most bits, and within the last, by k."""
    own = cells[cells["sparsity"] == cells["largest_train_sparsity"]]
    most = int(cells["largest_train_sparsity"].max())
    task = str(cells["task"].iloc[0])
    within = cells[(cells["largest_train_sparsity"] == most) & (cells["sparsity"] <= most)]
    noun = DECIDING.get(task, "bit")
    shown = [("sparsity", within, f"one training, on up to {drawing.counted(most, noun)}", "{}")]
    if own["largest_train_sparsity"].nunique() > 1:
        shown.insert(0, ("largest_train_sparsity", own, f"each training at its most {noun}s", "up to {}"))
    figure, axes = drawing.panels(len(shown), _HEIGHT)
    colors = drawing.graded(most)
    for (column, lines, title, words), ax in zip(shown, axes, strict=True):
        ends = []
        for bits, line in lines.groupby(column):
            number = int(float(str(bits)))
            look = drawing.Style(colors[number - 1], _MARKERS[(number - 1) % len(_MARKERS)])
            ends.append(_draw_line(line, ax, words.format(drawing.counted(number, noun)), look))
        _finish(ax, int(cells["largest_train_size"].iloc[0]), "test size (tokens)", title)
        ax.set_xlim(0, 1.03 * cells["size"].max())
        if task in GUESSED:
            drawing.name_level(ax, GUESSED[task], "guessing" if ax is axes[0] else "", below=True)
            if pd.concat([own, within])["lowest"].min() > _BELOW_GUESSING:
                ax.set_ylim(bottom=_BELOW_GUESSING)
        drawing.label_line_ends(ax, ends)
    figure.axes[0].set_ylabel(_EXACT_MATCH)
    names = f"{task_words(task)}, {POSITION_WORDS[cells['positions'].iloc[0]]}"
    is_ordered = True
    beyond = cells["size"] > cells["largest_train_size"]
    for column, lines, *_ in shown:
        by_k = lines[beyond[lines.index]].pivot(index="size", columns=column, values="exact_match")
        is_ordered &= bool((by_k.diff(axis=1).iloc[:, 1:] <= 0).all(axis=None))
    where = "across trainings and within one" if len(shown) > 1 else "within one training"
    finding = (
        f"Beyond the trained sizes, answers of fewer {noun}s are on average right at least as often, {where}"
    )
    if not is_ordered:
        finding = f"Beyond the trained sizes, answers of fewer {noun}s are not right more often at every size"
    drawing.put_title(figure, finding, names, sample_size(cells, num_examples), _BANDS)
    return figure


def _draw_line(cells: pd.DataFrame, ax: Axes, words: str, look: drawing.Style) -> drawing.LineEnd:
    ascending = cells.sort_values("size")
    ascending = ascending.rename(columns={"lowest": "exact_match_lowest", "highest": "exact_match_highest"})
    style = look.measured
    ends = ("lowest", "highest")
    if not ascending["is_learnt"].all():
        style |= {"color": drawing.GREY, "linewidth": 0.7, "markersize": 2.5}
        words = f"{words}:\nnot learnt by every seed"
    return drawing.draw_line(
        ax, ascending["size"], ascending, "exact_match", style, words, ends=ends, band=True
    )


def _finish(ax: Axes, trained: float, label: str, title: str) -> None:
    ax.axvspan(0, trained, color=drawing.GREY, alpha=0.12, linewidth=0)
    ax.annotate(
        "trained",
        (0, 0),
        (2, 2),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="left",
        va="bottom",
        fontsize=8,
        color=drawing.GREY,
    )
    ax.set_title(title)
    ax.set_xlabel(label)
    ax.set_ylim(_BOTTOM, 1.03)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
