"""Accuracy on synthetic tasks over seeds: small tables of `synthetic_accuracy`, for the figures.

A cell is what models of one training are tested on: task, positions, K_train, size and k. Three seeds bear no
interval, so the range over the seeds stands beside the mean.
"""

import pandas as pd

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
