"""What categories of tokens differ in: loss difference, excess over the null, k*, generalization gap.

`by_category` applies any statistic to the targets of each category; intervals as in
`analysis.document_intervals`. Categories differ in more than what their names say (numbers are rarer than
function words, and harder), so a difference between two is a description and no cause.
"""

from collections.abc import Callable, Sequence
from functools import partial

import pandas as pd

from analysis.document_intervals import interval_columns, interval_over_documents, sample_counts
from analysis.generalization.expected_gaps import expected_gaps, mean_gaps
from analysis.generalization.gaps import generalization_gaps
from analysis.generalization.sparsity_classes import sparsity_categories, sparsity_category
from analysis.mean_losses import summarize_models
from analysis.paired_targets import TARGET, joined_on_common, of_targets
from analysis.recovered_gain import excess_over_null
from analysis.tokens.token_categories import ASPECTS, by_repeats
from pipeline.results.bootstrap import Interval


def by_category(
    rows: pd.DataFrame, categories: pd.DataFrame, statistic: Callable[[pd.DataFrame], pd.DataFrame]
) -> pd.DataFrame:
    """A statistic of the targets of each category.

    Args:
        rows: any table whose rows name a target.
        categories: `token_categories.categories_of_targets`.
        statistic: rows of the targets of one category -> its table.

    Returns:
        aspect, category, then the statistic's columns; aspects in the order of `ASPECTS`, as are categories.
        Nothing of categories without rows, nor of an aspect that is null.
    """
    tables = []
    labels = categories[[*TARGET, *ASPECTS]]
    labelled = joined_on_common(rows, labels, TARGET, "targets with a category", may_right_have_more=True)
    for aspect, names in ASPECTS.items():
        for name in names:
            chosen = labelled[labelled[aspect] == name]
            if len(chosen):
                table = statistic(chosen.drop(columns=list(ASPECTS)))
                table.insert(0, "category", name)
                table.insert(0, "aspect", aspect)
                tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["aspect", "category"])


def loss_differences_by_category(loss_differences: pd.DataFrame, categories: pd.DataFrame) -> pd.DataFrame:
    """How much the long context helps: a row a category and model, the columns of `summarize_models`."""
    return by_category(loss_differences, categories, summarize_models)


def with_shares(differences: pd.DataFrame, overall: "pd.Series[float]") -> pd.DataFrame:
    """What part of the targets and of their whole gain a category is: `share_of_targets`, `share_of_gain`.

    Args:
        differences: `loss_differences_by_category`, one model.
        overall: the row of `summarize_models` of the same model and targets.
    """
    share_of_targets = differences["num_targets"] / overall["num_targets"]
    share_of_gain = share_of_targets * differences["loss_difference"] / overall["loss_difference"]
    return differences.assign(share_of_targets=share_of_targets, share_of_gain=share_of_gain)


def excess_by_category(sparse_context_losses: pd.DataFrame, categories: pd.DataFrame) -> pd.DataFrame:
    """What k tokens recover beyond the null: a row a category, model, rule and k, as `excess_over_null`."""
    return by_category(sparse_context_losses, categories, excess_over_null)


def sparsity_by_category(
    dependency_sparsity: pd.DataFrame, categories: pd.DataFrame, studied_ks: Sequence[int]
) -> pd.DataFrame:
    """How many far tokens the targets of each category need.

    Args:
        dependency_sparsity: the artefact.
        categories: `token_categories.categories_of_targets`.
        studied_ks: every k that was studied.

    Returns:
        aspect, category, model, rule, k_star (each of `sparsity_categories`), num_targets, num_documents (of
        the category), share of its targets with this k*, with interval.
    """
    statistic = partial(_shares_of_sparsity, studied_ks=studied_ks)
    return by_category(dependency_sparsity, categories, statistic)


def _shares_of_sparsity(targets: pd.DataFrame, studied_ks: Sequence[int]) -> pd.DataFrame:
    rows = []
    for (model, rule), group in targets.groupby(["model", "rule"]):
        k_star = sparsity_category(group, studied_ks)
        for name in sparsity_categories(studied_ks):
            share = interval_over_documents(group["document_id"], (k_star == name).astype("float64"))
            rows.append(
                {
                    "model": model, "rule": rule, "k_star": name,
                    **sample_counts(group),
                    **interval_columns("share", share),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def gaps_by_category(
    loss_differences: pd.DataFrame,
    categories: pd.DataFrame,
    *,
    short_models: Sequence[str],
    reference_model: str,
) -> pd.DataFrame:
    """Generalization gap of short-trained models: a row a category and model.

    Args:
        loss_differences: the artefact.
        categories: `token_categories.categories_of_targets`.
        short_models: models trained at a short context.
        reference_model: the model trained at the long context.

    Returns:
        aspect, category, model, num_targets, num_documents, generalization_gap with its interval, nats.
    """
    gaps = generalization_gaps(loss_differences, short_models=short_models, reference_model=reference_model)
    return by_category(gaps, categories, _mean_gaps)


def _mean_gaps(gaps: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for model, group in gaps.groupby("model"):
        gap = interval_over_documents(group["document_id"], group["generalization_gap"])
        rows.append({"model": model, **sample_counts(group), **interval_columns("generalization_gap", gap)})
    return pd.DataFrame(rows)


def gaps_by_repeats(
    loss_differences: pd.DataFrame, categories: pd.DataFrame, *, short_models: Sequence[str], floor_model: str
) -> pd.DataFrame:
    """Sampled and expected gap where copying can foretell the target, and elsewhere: a row a kind and model.

    The kinds are told by the token that came, and so is the sampled gap: where copying foretells it, a model
    that copies less looks worse, elsewhere better. The expected gap does not see that token.

    Args:
        loss_differences: the artefact, measured with --reference-model.
        categories: `token_categories.categories_of_targets`.
        short_models: models trained at a short context.
        floor_model: a long-trained seed that is not the reference.

    Returns:
        kind (of `token_categories.by_repeats`), then the columns of `expected_gaps.mean_gaps`.
    """
    gaps = expected_gaps(loss_differences, short_models=short_models, floor_model=floor_model)
    kinds = by_repeats(categories).items()
    tables = [mean_gaps(of_targets(gaps, targets)).assign(kind=kind) for kind, targets in kinds]
    table = pd.concat(tables, ignore_index=True)
    return table[["kind", *table.columns.drop("kind")]]


def extremes(table: pd.DataFrame, value: str, unit: str = "nats") -> str:
    """A sentence for each aspect: the category where `value` is largest and the one where it is smallest.

    That two intervals do not overlap is said only where they do not. Categories are picked by what is told of
    them, so the ends flatter the difference; the sentence says of how many they were picked.

    Args:
        table: of this module, one row a category (of one model, rule and k).
        value: a column with an interval.
        unit: of the column.
    """
    sentences = []
    for aspect, rows in table.groupby("aspect", sort=False):
        ordered = rows.dropna(subset=f"{value}_low").sort_values(value).to_dict("records")
        if len(ordered) < 2:
            continue
        least, most = ordered[0], ordered[-1]
        ends = [
            f"{row['category']} {Interval(row[value], row[f'{value}_low'], row[f'{value}_high'])} {unit}"
            f" (n = {row['num_targets']:,})"
            for row in (most, least)
        ]
        apart = "apart" if most[f"{value}_low"] > least[f"{value}_high"] else "not clearly apart"
        sentences.append(
            f"{aspect}: largest for {ends[0]}, smallest for {ends[1]}; the ends of {len(ordered)} categories,"
            f" their intervals {apart}."
        )
    return "\n".join(sentences)
