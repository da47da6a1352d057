"""Experiment C: functions of k marked bits, beyond the trained length.

Plan: analysis/LOG.md, 2026-11-27. Parity, OR, majority, the last marked bit, look-up, with k of 9 bits,
trained at 18 tokens.
"""

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from analysis import drawing
from analysis.drawing import Shown
from analysis.read import interval_columns
from pipeline.results.read import read_artefact
from pipeline.results.statistics import Interval
from pipeline.synthetic.tasks import task_called, test_examples

EARLIER_PARITY = Path(__file__).parents[1] / "reference" / "synthetic" / "parity"
FUNCTIONS = {"parity": "parity", "or": "OR", "majority": "majority", "last": "last bit", "lookup": "look-up"}
"""Name of a function -> that in tables and figures."""


def over_seeds(values: pd.Series, name: str = "exact_match") -> dict[Hashable, float]:
    """Mean over seeds with Student's 95% interval, as columns."""
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval() if len(values) > 1 else (np.nan, np.nan)
    return interval_columns(name, Interval(float(values.mean()), low, high))


def marked_bits(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Accuracy by function, k and size: mean over the seeds that learned it, with Student's interval."""
    rows = [
        {"task": task, "k": k, "size": size, "num_seeds": len(cells), **over_seeds(cells["exact_match"])}
        for (task, k, size), cells in accuracy[accuracy["is_learnt"]].groupby(["task", "sparsity", "size"])
    ]
    return pd.DataFrame(rows).astype({"k": int})


def earlier_parity_beside_or() -> pd.DataFrame:
    """How far the accuracy of the earlier parity models is from what OR would have: a row a seed and size.

    `difference` is the largest over k = 2 to 7, on the same test examples.
    """
    accuracy = read_artefact(EARLIER_PARITY, "synthetic_accuracy")
    rows = list[dict[Hashable, Any]]()
    for size, cells in accuracy[accuracy["size"] > 18].groupby("size"):
        of_or = {}
        for k in range(2, 8):
            examples, _ = test_examples(task_called("sparse_parity"), (int(str(size)), k), 500, test_seed=0)
            bits = [example.token_ids_S[list(example.dependencies[0])[1::2]] for example in examples]
            answers = [example.target_ids_T[0] for example in examples]
            of_or[k] = np.mean([of.max() == answer for of, answer in zip(bits, answers, strict=True)])
        between = cells[cells["sparsity"].between(2, 7)]
        differences = (between["exact_match"] - between["sparsity"].map(of_or)).abs()
        for seed, largest in differences.groupby(between["seed"]).max().items():
            rows.append({"seed": seed, "size": size, "difference": largest})
    return pd.DataFrame(rows)


def verdict(accuracy: pd.DataFrame) -> tuple[str, dict[Hashable, float]]:
    """Decide by the rule of the log; with its difference: OR less parity, k = 5 to 8, at 180 tokens."""
    at_end = accuracy[accuracy["is_learnt"] & (accuracy["size"] == accuracy["size"].max())]
    of_or = at_end[(at_end["task"] == "sparse_or") & (at_end["sparsity"] == 8)]["exact_match"].mean()
    many = at_end[at_end["sparsity"].between(5, 8)].groupby(["task", "seed"])["exact_match"].mean()
    difference = over_seeds((many["sparse_or"] - many["sparse_parity"]).dropna())
    if difference["exact_match_low"] <= 0:
        return "open", difference
    if of_or >= 0.9:
        return "the cause is not the number of tokens", difference
    return ("the number fails" if of_or <= 0.6 else "in part"), difference


def figure_of(cells: pd.DataFrame) -> Figure:
    """Accuracy by k at ten times the trained length, a line a function; parity and OR decide."""
    figure, (ax,) = drawing.panels(1, 2.8)
    percent = ["exact_match", "exact_match_low", "exact_match_high"]
    at_end = cells[cells["size"] == cells["size"].max()].sort_values("k")
    at_end = at_end.assign(**{name: 100 * at_end[name] for name in percent})
    colors = {"parity": drawing.VERMILION, "or": drawing.BLUE}
    ends = {}
    for marker, (name, words) in zip("osD^v", FUNCTIONS.items(), strict=True):
        rows = at_end[at_end["task"] == f"sparse_{name}"]
        style = drawing.solid(colors.get(name, "#B5B5B5"), marker)
        if name not in colors:  # a band each would hide the two that decide
            rows = rows.drop(columns=percent[1:])
        ends[name] = drawing.draw_line(ax, rows["k"], rows, "exact_match", style, words, band=True)
    drawing.name_level(ax, 50, "chance", below=True)
    ax.set(xlabel="marked bits k", ylabel="accuracy (%)", ylim=(20, 103))
    drawing.label_line_ends(ax, list(ends.values()))
    drawing.put_title(
        figure,
        f"At ten times the trained length, OR of 8 bits is right in {ends['or'].y:.0f}% of cases, parity in"
        f" {ends['parity'].y:.0f}%",
        f"means of {drawing.counted_seeds(cells)} that learned the task",
        "bands of parity and OR: 95% over seeds",
        "180 tokens",
    )
    return figure


def report(kept: Path) -> Iterator[Shown]:
    """Accuracies, the verdict and its checks."""
    accuracy = read_artefact(kept / "functions", "synthetic_accuracy")
    cells = marked_bits(accuracy)
    said, difference = verdict(accuracy)
    words = f"OR less parity, k = 5 to 8, 180 tokens: {difference}\nVerdict: {said}"
    at_ends = cells[cells["size"].isin([18, 72, 180])]
    yield Shown("C. Marked bits: accuracy", at_ends, words, {"marked_bits": figure_of(cells)})
    yield Shown("C. The earlier parity models beside OR: largest difference", earlier_parity_beside_or())
