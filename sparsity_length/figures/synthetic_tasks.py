"""Accuracy on synthetic tasks over seeds: small tables of `synthetic_accuracy`, and their figures.

A cell is what models of one training are tested on: task, positions, K_train, size and k. Three seeds bear no
interval, so the range over the seeds stands beside the mean: in figures a line is the mean, its band the
range. A task that some seed has not learned in distribution shows nothing beyond it: it is drawn thin and
gray, and named so.
"""

from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sparsity_length.figures import drawing
from sparsity_length.figures.read import rows_where
from sparsity_length.results.statistics import Interval

TRAINING = ["task", "positions", "largest_train_size", "largest_train_sparsity"]
"""What the seeds of one training share."""


def over_seeds(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Mean exact match of every cell, and its range over the seeds.

    Returns:
        One row per cell, ascending, with `exact_match`, its range (`exact_match_low`, `exact_match_high`),
        `num_seeds` and `is_learnt`: whether every seed learned the task in distribution.
    """
    # Tasks without a k have a null there, and `groupby` drops nulls by default.
    cells = accuracy.groupby([*TRAINING, "sparsity", "size"], dropna=False)
    return cells.agg(
        exact_match=("exact_match", "mean"),
        exact_match_low=("exact_match", "min"),
        exact_match_high=("exact_match", "max"),
        num_seeds=("seed", "nunique"),
        is_learnt=("is_learnt", "all"),
    ).reset_index()


def beyond(accuracy: pd.DataFrame, k: int, trained_k: int, *, per_hop: bool = False) -> Interval:
    """Exact match of one model at k minus that at `trained_k`, at the largest size: Newcombe's interval.

    With `per_hop` it compares k-th roots, as errors multiply along a chain. A row per size and k, with
    Wilson's ends (`exact_match_low`, `exact_match_high`).
    """
    at_end = accuracy[accuracy["size"] == accuracy["size"].max()].set_index("sparsity")
    ends = at_end[["exact_match", "exact_match_low", "exact_match_high"]]
    mean, low, high = ends.loc[k] ** (1 / k if per_hop else 1)
    trained, trained_low, trained_high = ends.loc[trained_k] ** (1 / trained_k if per_hop else 1)
    difference = mean - trained
    # Newcombe 1998, Statistics in Medicine 17, method 10.
    below = np.hypot(mean - low, trained_high - trained)
    return Interval(difference, difference - below, difference + np.hypot(high - mean, trained - trained_low))


POSITION_WORDS = {
    "predicted": "predicted position IDs (PPC)",
    "coupled": "position IDs given",
    "pose": "PoSE",
    "randomized": "randomized positions",
    "contiguous": "contiguous positions",
    "alibi": "ALiBi",
    "nope": "NoPE",
    "dape_nope": "DAPE V2 over NoPE",
    "dape_alibi": "DAPE V2 over ALiBi",
    "sparse": "the 8 largest scores",
}
"""Scheme -> its name in figures; the figure of positions draws the first two that learn a task."""
GUESSED = {"sparse_parity": 50, "planted_correlation": 50}
"""Percent right by guessing, if the target is one of two."""
DECIDING = {
    "planted_correlation": ("planted token", "tokens"),
    "variable_assignment_hops": ("hop", "assignments"),
}
"""What k and size count in a task; elsewhere bits and tokens."""
_MARKERS = "osD^vPX*"  # of tasks, whose color is their scheme's; of k, whose colors are graded
_BANDS = "bands: range of seeds; shaded: trained sizes"


def positions_figure(cells: pd.DataFrame, num_examples: int) -> Figure:
    """Exact match against size in multiples of training's: one panel per scheme, one line per task."""
    # A scheme is worth a panel if every seed learns at least one task with it.
    is_learnt = cells.groupby(["positions", "task"])["is_learnt"].all().groupby("positions").any()
    present = sorted(is_learnt.index, key=list(POSITION_WORDS).index)
    shown = [scheme for scheme in present if is_learnt[scheme]][:2] or present[:1]
    cells = cells.assign(size=cells["size"] / cells["largest_train_size"])
    figure, axes = drawing.panels(len(shown), 2.8)
    tasks = sorted(cells["task"].unique())
    for scheme, ax in zip(shown, axes, strict=True):
        for task, line in cells[cells["positions"] == scheme].groupby("task"):
            marker = _MARKERS[tasks.index(str(task)) % len(_MARKERS)]
            style = drawing.POSITION_STYLES[scheme] | {"marker": marker}
            _draw_line(line, ax, str(task).replace("_", " "), style)
        _finish(ax, 1, "test size / largest training size", POSITION_WORDS[scheme])
    axes[0].set_ylabel("exact match (%)")
    # Tasks are tested up to different multiples of their training size.
    last = cells.loc[cells.groupby(["positions", "task"])["size"].idxmax()]
    solved = (last["exact_match"] >= 0.9).groupby(last["positions"]).agg(["sum", "size"]).loc[shown]
    counts = [f"{POSITION_WORDS[scheme]} {num} of {of}" for scheme, num, of in solved.itertuples()]
    title = f"Tasks solved (90%) at the largest size: {', '.join(counts)}"
    drawing.put_title(figure, title, _sample_size(cells, num_examples), _BANDS)
    return figure


def sparsity_figure(cells: pd.DataFrame, num_examples: int) -> Figure:
    """Exact match against size within the training on the most bits: one line per k."""
    most = int(cells["largest_train_sparsity"].max())
    task = str(cells["task"].iloc[0])
    within = cells[(cells["largest_train_sparsity"] == most) & (cells["sparsity"] <= most)]
    noun, unit = DECIDING.get(task, ("bit", "tokens"))
    figure, (ax,) = drawing.panels(1, 2.8)
    styles = map(drawing.solid, drawing.graded(most), cycle(_MARKERS))
    for (k, line), style in zip(within.groupby("sparsity"), styles, strict=False):
        _draw_line(line, ax, drawing.counted(int(float(str(k))), noun), style)
    if task in GUESSED:
        drawing.name_level(ax, GUESSED[task], "chance", below=True)
    _finish(
        ax,
        int(cells["largest_train_size"].iloc[0]),
        f"test size ({unit})",
        f"trained on up to {most} {noun}s",
    )
    ax.set_ylabel("exact match (%)")
    last = rows_where(within, size=within["size"].max()).sort_values("sparsity")["exact_match"]
    drawing.put_title(
        figure,
        f"At {cells['size'].max():,} {unit}, {last.iloc[0]:.0%} of targets of one {noun} are right,"
        f" {last.iloc[-1]:.0%} of those of {most}",
        f"{task.replace('_', ' ')}, {POSITION_WORDS[cells['positions'].iloc[0]]}",
        _sample_size(cells, num_examples),
        _BANDS,
    )
    return figure


def _sample_size(cells: pd.DataFrame, num_examples: int) -> str:
    return f"n = {drawing.counted_seeds(cells)} per training, {num_examples:,} examples per size"


def _draw_line(cells: pd.DataFrame, ax: Axes, words: str, style: drawing.Style) -> None:
    line = cells.sort_values("size")
    if not line["is_learnt"].all():
        style = style | {"color": drawing.GREY, "linewidth": 0.7, "markersize": 2.5}
        words = f"{words}:\nnot learned by every seed"
    drawing.draw_line(ax, line["size"], line, "exact_match", style, words, band=True, scale=100)


def _finish(ax: Axes, trained: float, label: str, title: str) -> None:
    drawing.shade(ax, 0, trained)
    ax.set(title=title, xlabel=label, ylim=(-3, 103), xlim=(0, 1.03 * ax.dataLim.x1))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))


def found_shares(found_dependencies: pd.DataFrame) -> pd.DataFrame:
    """Share of the true dependencies that selection rules find: one row per cell, rule and ablation.

    Found is what stands among the first as many tokens as a target has true dependencies in its distant
    context, where precision and recall are one number.

    Returns:
        the columns of `TRAINING`, size, sparsity, rule, ablation, then found with the range over the seeds
        (found_lowest, found_highest), chance (as many tokens drawn uniformly), num_seeds.
    """
    within = found_dependencies[found_dependencies["rank"] <= found_dependencies["num_dependencies"]]
    # Of F tokens, n drawn uniformly find n / F of the n true ones on average.
    within = within.assign(chance=within["num_dependencies"] / within["num_distant_tokens"])
    keys = [*TRAINING, "size", "sparsity", "rule", "ablation"]
    of_models = within.groupby([*keys, "model"], dropna=False, sort=False)
    # A mean per model first, so that the range is over seeds.
    means = of_models[["is_dependency", "chance"]].mean()
    table = means.groupby(keys, dropna=False, sort=False).agg(
        found=("is_dependency", "mean"),
        found_lowest=("is_dependency", "min"),
        found_highest=("is_dependency", "max"),
        chance=("chance", "mean"),
        num_seeds=("chance", "size"),
    )
    return table.reset_index()
