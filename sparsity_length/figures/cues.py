"""Cues, of which only the number differs: excess loss by length and by distance.

Contrasts of the growth with length, and at one distance of the farthest cue, were made at commit 30cc5e52
(analysis/SYNTHETIC.md).
"""

import pandas as pd
from matplotlib.figure import Figure

from sparsity_length.figures import drawing
from sparsity_length.figures.marked_bits import student
from sparsity_length.figures.read import interval_columns, rows_where

BINS = {"up to 64": 64, "64 to 128": 128, "128 to 256": 256, "256 to 512": 512}
"""Distances of the farthest cue -> their upper end, tokens."""
_PANELS = {
    "any distance": ("", "contiguous"),
    "near the question": ("_local", "contiguous"),
    "any distance, PoSE": ("", "pose"),
}
"""Title -> ending of the tasks' names, and positions."""


def cues_figure(plain: pd.DataFrame) -> Figure:
    """Excess loss against length: one panel per place of the cues, one line per number."""
    shown = {title: of for title, of in _PANELS.items() if of[1] in set(plain["positions"])}
    figure, axes = drawing.panels(len(shown), 2.6)
    for ax, (title, (ending, positions)) in zip(axes, shown.items(), strict=True):
        for color, number in zip(drawing.graded(3), (1, 2, 4), strict=True):
            cells = rows_where(plain, task=f"cues_{number}{ending}", positions=positions)
            means = cells.groupby("size")[["excess_loss"]].mean()
            words = drawing.counted(number, "cue")
            drawing.draw_seeds(ax, cells, "size", "excess_loss", drawing.solid(color))
            drawing.draw_line(ax, means.index, means, "excess_loss", drawing.solid(color), words)
        sizes = sorted(plain["size"].unique())
        # Labels of all sizes would touch.
        drawing.length_axis(ax, {*sizes[::3], sizes[-1]}, "length (tokens)")
        ax.set(title=title, yscale="log")
        ax.yaxis.set_major_formatter("{x:g}")
    axes[0].set_ylabel("excess loss (nats)")
    longest = rows_where(plain, size=plain["size"].max())
    longest = longest[longest["task"].isin(["cues_1", "cues_2", "cues_4"])]
    loss = longest.groupby("positions")["excess_loss"].mean()
    title = "How does the loss grow with length if 1, 2 or 4 cues decide?"
    if {"pose", "contiguous"} <= set(loss.index):
        title = (
            f"Cues anywhere, {longest['size'].max():,} tokens: loss exceeds the best possible by"
            f" {loss['contiguous']:.1f} nats; trained with PoSE, by {loss['pose']:.2f}"
        )
    seeds = plain.groupby(["task", "positions"])["seed"].nunique().to_frame("num_seeds")
    drawing.put_title(
        figure,
        title,
        f"thick: means; thin: {drawing.counted_seeds(seeds)}",
        f"trained at {int(plain['largest_train_size'].min())} tokens",
        "excess: beyond the best possible loss",
    )
    return figure


def distances_figure(examples: pd.DataFrame) -> Figure:
    """Excess loss by the distance of the farthest cue, one line per number of cues."""
    figure, (ax,) = drawing.panels(1, 2.6)
    # Bins include their upper end: a cue 64 tokens away is in the first.
    bins = pd.cut(examples["distances"].map(max), [0, *BINS.values()], labels=list(BINS))
    cells = examples.assign(distance=bins).groupby(["task", "distance", "seed"], observed=True)
    # A mean per seed first: the interval is over trainings, and the examples of one model share its own.
    means = cells["excess_loss"].mean().reset_index()
    for color, number in zip(drawing.graded(3), (1, 2, 4), strict=True):
        of_bins = rows_where(means, task=f"cues_{number}").groupby("distance", observed=True)
        line = pd.DataFrame(
            [interval_columns("excess_loss", student(of_bin["excess_loss"])) for _, of_bin in of_bins]
        )
        words = drawing.counted(number, "cue")
        drawing.draw_line(ax, range(len(line)), line, "excess_loss", drawing.solid(color), words)
    ax.set_xticks(range(len(BINS)), list(BINS))
    ax.set(xlabel="distance of the farthest cue (tokens)", ylabel="excess loss (nats)")
    excess = rows_where(means, distance=list(BINS)[-1]).groupby("task")["excess_loss"].mean()
    drawing.put_title(
        figure,
        f"With the farthest cue {list(BINS)[-1]} tokens away, four cues cost"
        f" {excess['cues_4']:.2f} nats, one {excess['cues_1']:.2f}",
        f"{examples['seed'].nunique()} seeds, {len(examples):,} examples",
        "trained at 64 tokens, tested at 64 to 512, plain IDs",
        "bars: 95% over seeds",
        "excess: beyond the best possible loss",
    )
    return figure
