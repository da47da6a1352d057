"""The generalization gap of every target, and its mean by k*: DataFrames of results in, small ones out.

Means and intervals as in `analysis.document_intervals`; gaps are in nats.
"""

from collections.abc import Sequence

import pandas as pd

from analysis.document_intervals import interval_columns, interval_over_documents, sample_counts
from analysis.generalization.sparsity_classes import sparsity_categories, sparsity_category
from analysis.paired_targets import TARGET, joined_on_common, rows_of
from pipeline.errors import InputError


def generalization_gaps(
    loss_differences: pd.DataFrame, *, short_models: Sequence[str], reference_model: str
) -> pd.DataFrame:
    """Per token, how much worse a short-trained model is at the long context than a long-trained one.

    Args:
        loss_differences: the artefact.
        short_models: models trained at a short context.
        reference_model: the model trained at the long context.

    Returns:
        model (each of `short_models`), document_id, chunk_index, target_position, generalization_gap:
        L_long of the short-trained model - L_long of the reference, nats. Targets both have, no others.

    Raises:
        InputError: no results of one of the models.
    """
    columns = [*TARGET, "long_context_loss"]
    reference = rows_of(loss_differences, reference_model)[columns]
    shorts = pd.concat([rows_of(loss_differences, model)[["model", *columns]] for model in short_models])
    what = f"targets of {', '.join(short_models)} and of {reference_model}"
    pairs = joined_on_common(shorts, reference, TARGET, what, ("", "_reference"))
    pairs["generalization_gap"] = pairs["long_context_loss"] - pairs["long_context_loss_reference"]
    return pairs[["model", *TARGET, "generalization_gap"]]


def generalization_gap_by_sparsity(
    loss_differences: pd.DataFrame,
    sparsity: pd.DataFrame,
    *,
    short_models: Sequence[str],
    reference_model: str,
    studied_ks: Sequence[int],
) -> pd.DataFrame:
    """Mean generalization gap of the tokens of each dependency sparsity k*: a row a short model and class.

    k* and the gap must come from two seeds: a token on which one long-trained model happens to be lucky
    has a large gain and a large gap from that model alone, which would tie the two together.

    Args:
        loss_differences: the artefact.
        sparsity: of `sparsity_measures.sparsity_measures`, one measure: k* of a long-trained model.
        short_models: models trained at a short context.
        reference_model: the long-trained model that the gap is measured from, best another seed.
        studied_ks: every k that was studied; gives the classes, also those no token falls in.

    Returns:
        model, category (see `sparsity_categories`), num_targets, num_documents, generalization_gap with
        its interval (nats); NaN where a class is empty.

    Raises:
        InputError: no results of one of the models, or no target that all of them measured.
    """
    sparsity = sparsity[TARGET].assign(category=sparsity_category(sparsity, studied_ks))
    gaps = generalization_gaps(loss_differences, short_models=short_models, reference_model=reference_model)
    what = "targets with a gap and with k*"
    tokens = joined_on_common(gaps, sparsity, TARGET, what)
    if tokens.empty:
        raise InputError(
            f"no target is common to the loss differences of {', '.join(short_models)} and k*; measure them"
            " on the same documents"
        )
    rows = []
    for model in short_models:
        for category in sparsity_categories(studied_ks):
            chosen = tokens[(tokens["model"] == model) & (tokens["category"] == category)]
            gap = interval_over_documents(chosen["document_id"], chosen["generalization_gap"])
            rows.append(
                {
                    "model": model, "category": category,
                    **sample_counts(chosen),
                    **interval_columns("generalization_gap", gap),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)
