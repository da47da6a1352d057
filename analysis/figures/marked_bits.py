"""Experiment C: functions of k marked bits, beyond the trained length.

Plan: analysis/LOG.md, 2026-11-27. Parity, OR, majority, the last marked bit, look-up, with k of 9 bits,
trained at 18 tokens.
"""

from collections.abc import Hashable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import drawing
from analysis.read import interval_columns
from pipeline.results.statistics import ratio_of_sums

FUNCTIONS = {"parity": "parity", "or": "OR", "majority": "majority", "last": "last bit", "lookup": "look-up"}
"""Name of a function -> that in tables and figures."""


def over_seeds(rows: pd.DataFrame, name: str) -> dict[Hashable, float]:
    """The mean of a column over seeds, a row each, with its interval, as columns."""
    return interval_columns(name, ratio_of_sums(rows[name].to_numpy(), np.ones(len(rows))))


def marked_bits(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Accuracy by function, k and size: mean over the seeds that learned it, with Student's interval."""
    rows = [
        {"task": task, "k": k, "size": size, "num_seeds": len(cells), **over_seeds(cells, "exact_match")}
        for (task, k, size), cells in accuracy[accuracy["is_learnt"]].groupby(["task", "sparsity", "size"])
    ]
    return pd.DataFrame(rows).astype({"k": int})


def verdict(accuracy: pd.DataFrame) -> str:
    """Decide by the rule of the log: by OR of eight bits at 180 tokens, if OR clearly beats parity."""
    at_end = accuracy[accuracy["is_learnt"] & (accuracy["size"] == accuracy["size"].max())]
    of_or = at_end[(at_end["task"] == "sparse_or") & (at_end["sparsity"] == 8)]["exact_match"].mean()
    # A mean over k first: the seeds that learned both functions are the sample, in pairs.
    many = at_end[at_end["sparsity"].between(5, 8)].groupby(["task", "seed"])["exact_match"].mean()
    lead = (many["sparse_or"] - many["sparse_parity"]).dropna().to_frame("lead")
    # NaN where one seed, or no OR of eight bits, was learned.
    if np.isnan(of_or) or not over_seeds(lead, "lead")["lead_low"] > 0:
        return "open"
    # Both thresholds are the plan's, fixed before any run; chance is 0.5.
    if of_or >= 0.9:
        return "the cause is not the number of tokens"
    return "the number fails" if of_or <= 0.6 else "in part"


def figure_of(cells: pd.DataFrame) -> Figure:
    """Accuracy by k at ten times the trained length, a line a function; parity and OR decide."""
    figure, (ax,) = drawing.panels(1, 2.8)
    at_end = cells[cells["size"] == cells["size"].max()].sort_values("k")
    colors = {"parity": drawing.VERMILION, "or": drawing.BLUE}
    percent = {}
    for marker, (name, words) in zip("osD^v", FUNCTIONS.items(), strict=True):
        rows = at_end[at_end["task"] == f"sparse_{name}"]
        style = drawing.solid(colors.get(name, "#B5B5B5"), marker)
        if name not in colors:  # a band each would hide the two that decide
            rows = rows.drop(columns=["exact_match_low", "exact_match_high"])
        percent[name] = drawing.draw_line(
            ax, rows["k"], rows, "exact_match", style, words, band=True, scale=100
        )
    drawing.name_level(ax, 50, "chance", below=True)
    ax.set(xlabel="marked bits k", ylabel="accuracy (%)", ylim=(20, 103))
    drawing.put_title(
        figure,
        f"At ten times the trained length, OR of 8 bits is right in {percent['or']:.0f}% of cases, parity in"
        f" {percent['parity']:.0f}%",
        f"means of {drawing.counted_seeds(cells)} that learned the task",
        "bands of parity and OR: 95% over seeds",
        "180 tokens",
    )
    return figure
