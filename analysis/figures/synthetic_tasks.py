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
_MARKERS = "osD^vPX*"  # of tasks, whose color is their scheme's; of k, whose colors are graded
_BANDS = "bands: range of seeds"
_EXACT_MATCH = "exact match (share)"


def task_words(task: str) -> str:
    """A task's name in figures."""
    return {"parity_scratchpad": "parity with scratchpad"}.get(task, task.replace("_", " "))


def positions_figure(cells: pd.DataFrame, num_examples: int) -> Figure:
    """Exact match against size, in multiples of the training size: a panel a scheme, a line a task."""
    is_learnt = cells.groupby(["positions", "task"])["is_learnt"].all().groupby("positions").any()
    present = [scheme for scheme in POSITION_WORDS if scheme in is_learnt.index]
    shown = [scheme for scheme in present if is_learnt[scheme]][:_MOST_PANELS] or present[:1]
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
    axes[0].set_ylabel(_EXACT_MATCH)
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
        drawing.label_line_ends(ax, ends)
    axes[0].set_ylabel(_EXACT_MATCH)
    names = f"{task_words(task)}, {POSITION_WORDS[cells['positions'].iloc[0]]}"
    title = f"How far beyond the trained sizes are answers of k {noun}s right?"
    drawing.put_title(figure, title, names, sample_size(cells, num_examples), _BANDS)
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
    ax.text(0.01, 0.01, "trained", transform=ax.transAxes, fontsize=8, color=drawing.GREY)
    ax.set(title=title, xlabel=label, ylim=(-0.03, 1.03))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))


_CONDITION = ["task", "positions", "largest_train_size", "largest_train_sparsity", "size", "sparsity"]


def found_shares(found_dependencies: pd.DataFrame) -> pd.DataFrame:
    """How many of the tokens that truly decide the selection rules find: a row a cell, rule, ablation.

    Found is what stands among the first as many tokens as a target has true dependencies in its distant
    context, where precision and recall are one number.

    Returns:
        the columns of `_CONDITION`, rule, ablation, then found with the range over the seeds
        (found_lowest, found_highest), chance (as many tokens drawn uniformly), num_seeds.
    """
    within = found_dependencies[found_dependencies["rank"] <= found_dependencies["num_dependencies"]]
    within = within.assign(chance=within["num_dependencies"] / within["num_distant_tokens"])
    keys = [*_CONDITION, "rule", "ablation"]
    of_models = within.groupby([*keys, "model"], dropna=False, sort=False)
    means = of_models[["is_dependency", "chance"]].mean()
    table = means.groupby(keys, dropna=False, sort=False).agg(
        found=("is_dependency", "mean"),
        found_lowest=("is_dependency", "min"),
        found_highest=("is_dependency", "max"),
        chance=("chance", "mean"),
        num_seeds=("chance", "size"),
    )
    return table.reset_index()
