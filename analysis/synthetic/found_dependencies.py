"""How well the selection rules find the tokens that truly decide, from the rows of `found_dependencies`.

Precision at k is the share of true dependencies among the k tokens selected, recall at k the share of the
true dependencies that are selected; over targets, sums are divided by sums. Each is computed model by model;
three seeds bear no interval, so the range over the seeds stands beside the mean.
"""

import pandas as pd

CONDITION = ["task", "positions", "largest_train_size", "largest_train_sparsity", "size", "sparsity"]
SELECTION = ["rule", "intervention"]


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


def by_token(rows: pd.DataFrame) -> pd.DataFrame:
    """Which of the true dependencies are found, by what token they are, where a rule ranked every far token.

    Returns:
        A row a condition, token, rule and intervention, with `found` (share of the true dependencies with
        that token whose rank is within their target's number of them) and `num_dependencies`.
    """
    is_whole = rows.groupby(CONDITION, dropna=False)["rank"].transform("max") >= rows["num_far_tokens"]
    true_ones = rows[is_whole & rows["is_dependency"]]
    found = true_ones.assign(found=true_ones["rank"] <= true_ones["num_dependencies"])
    return (
        found.groupby([*CONDITION, "context_token", *SELECTION], dropna=False)["found"]
        .agg(found="mean", num_dependencies="size")
        .reset_index()
    )


def selection_name(rule: str, intervention: object) -> str:
    """A rule as legends and tables name it."""
    return f"{rule} ({intervention})" if isinstance(intervention, str) else rule


def sample_size(cells: pd.DataFrame) -> str:
    """Of how many seeds and targets the numbers of `by_k` are, for a caption."""
    fewest, most = cells["num_seeds"].min(), cells["num_seeds"].max()
    seeds = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    return f"n = {seeds} seeds, {cells['num_targets'].min():,} or more targets a sample"
