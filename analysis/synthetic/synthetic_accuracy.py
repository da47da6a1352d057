"""Accuracy on synthetic tasks over seeds: small tables of `synthetic_accuracy`, for the figures.

A cell is what models of one training are tested on: task, positions, K_train, size and k. Three seeds bear no
interval, so the range over the seeds stands beside the mean.
"""

from typing import Any

import pandas as pd

from analysis.titles import counted_seeds

TRAINING = ["task", "positions", "largest_train_size", "largest_train_sparsity"]
"""What the seeds of one training share."""
SOLVED = 0.9


def over_seeds(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Mean exact match of every cell, and its range over the seeds.

    Args:
        accuracy: `synthetic_accuracy` as `read_artefact` reads it.

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


def largest_solved_sizes(cells: pd.DataFrame, threshold: float = SOLVED) -> pd.DataFrame:
    """The largest tested size up to which every tested size is solved, for each training and k.

    Args:
        cells: of `over_seeds`.
        threshold: the mean exact match from which on a size is solved.

    Returns:
        A row a training and k with `largest_solved_size`; null where the smallest is not solved.
    """
    rows = []
    for names, of_one in cells.groupby([*TRAINING, "sparsity"], dropna=False):
        ascending = of_one.sort_values("size")
        is_solved = (ascending["exact_match"] >= threshold).cummin()
        sizes = ascending["size"][is_solved]
        largest = pd.NA if sizes.empty else int(sizes.iloc[-1])
        rows.append([*names, largest])
    table = pd.DataFrame(rows, columns=[*TRAINING, "sparsity", "largest_solved_size"])
    return table.astype({"largest_solved_size": "Int64"})


def sample_size(cells: pd.DataFrame, num_examples: int) -> str:
    """Of how many seeds and examples the numbers are, for a caption."""
    return f"n = {counted_seeds(cells)} a training, {num_examples:,} examples a size"


def verdicts(cells: pd.DataFrame) -> list[str]:
    """A sentence a training and k: up to which multiple of its training size it is solved.

    Args:
        cells: of `over_seeds`.
    """
    solved = largest_solved_sizes(cells)
    is_learnt = cells.groupby([*TRAINING, "sparsity"], dropna=False)["is_learnt"].all()
    return [
        _verdict(row, bool(learnt))
        for (_, row), learnt in zip(solved.iterrows(), is_learnt, strict=True)  # both in the groups' order
    ]


def _verdict(row: "pd.Series[Any]", is_learnt: bool) -> str:
    trained, largest = int(row["largest_train_size"]), row["largest_solved_size"]
    with_k = "" if pd.isna(row["sparsity"]) else f", k = {int(row['sparsity'])}"
    with_training = "" if not with_k else f" with k up to {int(row['largest_train_sparsity'])}"
    name = f"{row['task']}, {row['positions']}{with_k}"
    if not is_learnt:
        return f"{name}: not learnt in distribution by every seed, so its accuracy beyond shows nothing."
    trained_on = f"{name}, trained up to size {trained}{with_training}"
    if pd.isna(largest):
        return f"{trained_on}: not {SOLVED:.0%} of the examples of any tested size are solved."
    times = largest / trained
    return (
        f"{trained_on}: {SOLVED:.0%} of the examples are solved up to size {largest}, {times:.1f} times that."
    )
