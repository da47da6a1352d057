"""How well the selection rules find the tokens that truly decide, from the rows of `found_dependencies`.

Precision at k is the share of true dependencies among the k tokens selected, recall at k the share of the
true dependencies that are selected; over targets, sums are divided by sums. Each is computed model by model;
three seeds bear no interval, so the range over the seeds stands beside the mean.
"""

from collections.abc import Callable

import pandas as pd

from analysis.titles import counted_seeds

CONDITION = ["task", "positions", "largest_train_size", "largest_train_sparsity", "size", "sparsity"]
SELECTION = ["rule", "intervention"]
_TOKENS_OF_ASSIGNMENT = 3  # left side, =, right side; the prompt begins with one
PARTS: dict[str, dict[str, Callable[[pd.DataFrame], pd.Series]]] = {
    "sparse_parity": {
        "bits": lambda rows: rows["context_token"] != "*",
        "marks": lambda rows: rows["context_token"] == "*",
    },
    "variable_assignment": {
        "right sides": lambda rows: rows["context_position"] % _TOKENS_OF_ASSIGNMENT != 0,
        "left sides": lambda rows: rows["context_position"] % _TOKENS_OF_ASSIGNMENT == 0,
    },
}
"""Task -> the parts that its dependencies play: of a marked bit, of an assignment that is followed."""
_OF_OTHER_TASKS: dict[str, Callable[[pd.DataFrame], pd.Series]] = {
    "true tokens": lambda rows: rows["is_dependency"]
}


def by_k(rows: pd.DataFrame) -> pd.DataFrame:
    """Precision and recall at every k, over seeds.

    Args:
        rows: `found_dependencies` as `read_artefact` reads it.

    Returns:
        A row a condition, rule, intervention and k, with `precision` and `recall`, each with `_lowest` and
        `_highest` over the seeds, `chance_precision`, `chance_recall` (k tokens drawn uniformly), `num_seeds`
        and `num_targets` (of a seed).
    """
    of_one_draw = rows["num_dependencies"] / rows["num_far_tokens"]
    rows = rows.assign(expected_hits=of_one_draw)
    ranks = rows.groupby([*CONDITION, *SELECTION, "model", "rank"], dropna=False).agg(
        hits=("is_dependency", "sum"),
        expected_hits=("expected_hits", "sum"),
        num_dependencies=("num_dependencies", "sum"),
        num_targets=("is_dependency", "size"),
    )
    of_selection = ranks.groupby([*CONDITION, *SELECTION, "model"], dropna=False)
    k = ranks.index.get_level_values("rank").to_numpy()
    hits, expected = of_selection["hits"].cumsum(), of_selection["expected_hits"].cumsum()
    models = ranks.assign(
        precision=hits / (k * ranks["num_targets"]),
        recall=hits / ranks["num_dependencies"],
        chance_precision=expected / (k * ranks["num_targets"]),
        chance_recall=expected / ranks["num_dependencies"],
    ).reset_index(names=[*CONDITION, *SELECTION, "model", "k"])
    over_seeds = models.groupby([*CONDITION, *SELECTION, "k"], dropna=False)
    return over_seeds.agg(
        precision=("precision", "mean"),
        precision_lowest=("precision", "min"),
        precision_highest=("precision", "max"),
        recall=("recall", "mean"),
        recall_lowest=("recall", "min"),
        recall_highest=("recall", "max"),
        chance_precision=("chance_precision", "mean"),
        chance_recall=("chance_recall", "mean"),
        num_seeds=("model", "nunique"),
        num_targets=("num_targets", "min"),
    ).reset_index()


def at_their_number(rows: pd.DataFrame) -> pd.DataFrame:
    """Recall where as many tokens are selected as there are true dependencies, which is the precision too.

    Returns:
        A row a condition, with a column a rule and intervention: the mean over seeds.
    """
    within = rows[rows["rank"] <= rows["num_dependencies"]]
    found = within.groupby([*CONDITION, *SELECTION, "model"], dropna=False)["is_dependency"].mean()
    return found.groupby([*CONDITION, *SELECTION], dropna=False).mean().unstack(SELECTION)


def by_part(rows: pd.DataFrame) -> pd.DataFrame:
    """Which of the true dependencies are found, by the part they play, over seeds.

    Found is what is among the first as many tokens as the target has dependencies. These come in pairs, one
    of each part of the task; what lies in the short context must be whole pairs.

    Args:
        rows: `found_dependencies` as `read_artefact` reads it.

    Returns:
        A row a condition, rule, intervention and part, with `found`, the share of the dependencies of that
        part, `found_lowest` and `found_highest` over the seeds, `chance` (as many tokens drawn uniformly),
        `num_seeds` and `num_targets` (of a seed, the fewest).
    """
    within = rows[rows["rank"] <= rows["num_dependencies"]]
    within = within.assign(chance=within["num_dependencies"] / within["num_far_tokens"])
    tables = []
    for task, of_task in within.groupby("task"):
        parts = PARTS.get(str(task), _OF_OTHER_TASKS)
        for part, is_part in parts.items():
            # A target has as many rows here as dependencies, and a part of these each.
            found = (of_task["is_dependency"] & is_part(of_task)) * len(parts)
            tables.append(of_task.assign(part=part, found=found))
    keys = [*CONDITION, *SELECTION, "part"]
    of_models = pd.concat(tables).groupby([*keys, "model"], dropna=False, sort=False)
    shares = of_models.agg(
        found=("found", "mean"), chance=("chance", "mean"), targets=("rank", lambda ranks: (ranks == 1).sum())
    )
    table = shares.groupby(keys, dropna=False, sort=False).agg(
        found=("found", "mean"), found_lowest=("found", "min"), found_highest=("found", "max"),
        chance=("chance", "mean"), num_seeds=("found", "size"), num_targets=("targets", "min"),
    )  # fmt: skip
    return table.reset_index()


def sample_size(cells: pd.DataFrame) -> str:
    """Of how many seeds and targets the numbers of `by_k` are, for a caption."""
    return f"n = {counted_seeds(cells)}, {cells['num_targets'].min():,} or more targets a sample"
