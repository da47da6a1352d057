"""Experiment C: functions of k marked bits, beyond the trained length.

Plan: analysis/LOG.md, 2026-11-27. Parity, OR, majority, the last marked bit, look-up, with k of 9 bits,
trained at 18 tokens.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from analysis import drawing
from analysis.read import interval_columns
from pipeline.results.read import read_artefact
from pipeline.results.statistics import Interval
from pipeline.synthetic.evaluation import test_examples
from pipeline.synthetic.tasks import MARKED_FUNCTIONS, task_called

EARLIER_PARITY = Path(__file__).parents[1] / "reference" / "synthetic" / "parity"
FUNCTIONS = ("parity", "or", "majority", "last", "lookup")


def over_seeds(values: pd.Series, name: str = "exact_match") -> dict[Hashable, float]:
    """Mean over seeds with Student's 95% interval, as columns."""
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval() if len(values) > 1 else (np.nan, np.nan)
    return interval_columns(name, Interval(float(values.mean()), low, high))


def marked_bits(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Accuracy by function, k and size: mean over the seeds that learnt it, with Student's interval."""
    learnt = accuracy[accuracy["is_learnt"]]
    rows = []
    for (task, k, size), cells in learnt.groupby(["task", "sparsity", "size"]):
        interval = over_seeds(cells["exact_match"])
        rows.append({"task": task, "k": k, "size": size, "num_seeds": len(cells), **interval})
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
            batch, _ = test_examples(task_called("sparse_parity"), (int(str(size)), k), 500, test_seed=0)
            bits = [example.token_ids_S[list(example.dependencies[0])[1::2]] for example in batch.examples]
            answers = [example.target_ids_T[0] for example in batch.examples]
            of_or[k] = np.mean([of.max() == answer for of, answer in zip(bits, answers, strict=True)])
        between = cells[cells["sparsity"].between(2, 7)]
        differences = (between["exact_match"] - between["sparsity"].map(of_or)).abs()
        for seed, largest in differences.groupby(between["seed"]).max().items():
            rows.append({"seed": seed, "size": size, "difference": largest})
    return pd.DataFrame(rows)


def simpler_rules(examples: pd.DataFrame) -> pd.DataFrame:
    """How often each parity model answers as another function would: a row a seed and size.

    Of the examples with two marked bits or more.
    """
    parity = examples[(examples["task"] == "sparse_parity") & (examples["sparsity"] > 1)].copy()
    bits = [[int(bit) for bit in tokens.split()[1::2]] for tokens in parity["decisive_tokens"]]
    answers = parity["answer"].to_numpy()
    for name, function in MARKED_FUNCTIONS.items():
        parity[name] = [answer == str(function(of)) for answer, of in zip(answers, bits, strict=True)]
    return parity.groupby(["seed", "size"])[list(MARKED_FUNCTIONS)].mean().reset_index()


def verdict(accuracy: pd.DataFrame) -> tuple[str, dict[Hashable, float]]:
    """By the rule of the log, and the difference that it needs: OR less parity, k = 5 to 8, at 180 tokens."""
    at_end = accuracy[accuracy["is_learnt"] & (accuracy["size"] == accuracy["size"].max())]
    of_or = at_end[(at_end["task"] == "sparse_or") & (at_end["sparsity"] == 8)]["exact_match"].mean()
    many = at_end[at_end["sparsity"].between(5, 8)].groupby(["task", "seed"])["exact_match"].mean()
    difference = over_seeds((many["sparse_or"] - many["sparse_parity"]).dropna())
    if difference["exact_match_low"] <= 0:
        return "open", difference
    if of_or >= 0.9:
        return "the number of tokens is not what fails", difference
    return ("the number fails" if of_or <= 0.6 else "in part"), difference


def figure_of(cells: pd.DataFrame, said: str) -> Figure:
    """Accuracy by k at four and at ten times the trained length, a line a function."""
    figure, axes = drawing.panels(2, 2.8)
    for ax, size in zip(axes, (72, 180), strict=True):
        ends = []
        for color, marker, name in zip(drawing.graded(len(FUNCTIONS)), "osD^v", FUNCTIONS, strict=True):
            rows = cells[(cells["task"] == f"sparse_{name}") & (cells["size"] == size)].sort_values("k")
            if len(rows):
                look = drawing.Style(color, marker).measured
                words = name.replace("lookup", "look-up")
                if name not in ("parity", "or"):  # a band each would hide the two that decide
                    rows = rows.assign(exact_match_low=np.nan, exact_match_high=np.nan)
                ends.append(drawing.draw_line(ax, rows["k"], rows, "exact_match", look, words, band=True))
        ax.set_title(f"{size} tokens ({size // 18} times the trained length)")
        ax.set_xlabel("marked bits k")
        ax.set_ylim(0.3, 1.03)
        drawing.name_level(ax, 0.5, "guessing", below=True)
        drawing.label_line_ends(ax, ends)
    axes[0].set_ylabel("accuracy")
    titles = {
        "the number of tokens is not what fails": "Parity fails as k rises, OR does not",
        "the number fails": "OR fails as k rises, as parity does: the number of tokens fails",
        "in part": "OR of many bits holds better than their parity, and not fully",
        "open": "OR and parity of many bits do not differ clearly",
    }
    drawing.put_title(
        figure,
        titles[said],
        f"means of {drawing.counted_seeds(cells)} that learnt the task",
        "bands of parity and OR: 95% over seeds",
    )
    return figure
