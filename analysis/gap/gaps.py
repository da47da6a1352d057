"""The generalization gap of every target, drawn and expected; how many far tokens predictions need.

A gap is how much worse a short-trained model is than a long-trained one under the long context, in nats. The
drawn gap is of one token, the one that came. If that were drawn from the prediction of a long-trained
reference, the gap of a short-trained model to another long-trained seed would be

    KL(p_ref || p_short) - KL(p_ref || p_seed)

The second term, the seed-to-seed floor, takes off that two seeds of one training differ too. This expected
gap says which model resembles the reference more. It stands for the drawn gap only where the drawn gap rises
by one nat for each of its own: so it is never told without that slope (`analysis.gap.slopes.mean_gaps`).

Where targets are binned by their gain, L_short - L_long, it is another seed's gain: binned by its own, the
top bin would hold the targets on which the measured model was lucky. For the same reason the measured seed's
gain falls back there (regression to the mean): both are shown.
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from analysis.losses.token_worth import token_effects
from analysis.read import (
    TARGET,
    interval_columns,
    interval_over_documents,
    joined_on_common,
    mean_columns,
    rows_of,
    sample_counts,
    summarized,
)
from pipeline.cli import InputError
from pipeline.results.schemas import LOSS

NO_GAIN = "no gain"
_REFERENCE = "reference_divergence"
_KEYS = ["model", *TARGET]


def sparsity_categories(studied_ks: Iterable[int]) -> list[str]:
    """Names of the classes of k*, sparse to dense: each studied k, more than the largest, no gain."""
    ks = sorted(studied_ks)
    return [*map(str, ks), f"more than {ks[-1]}", NO_GAIN]


def sparsity_category(dependency_sparsity: pd.DataFrame, studied_ks: Sequence[int]) -> pd.Series:
    """The class of each target's k*; a censored target helps but needs more than the largest studied k."""
    k_star = dependency_sparsity["dependency_sparsity"]
    reached = k_star.map(lambda k: NO_GAIN if pd.isna(k) else str(int(k)))
    return reached.mask(dependency_sparsity["is_censored"], f"more than {max(studied_ks)}")


def generalization_gaps(
    loss_differences: pd.DataFrame, *, short_models: Sequence[str], reference_model: str
) -> pd.DataFrame:
    """Per token, how much worse a short-trained model is at the long context than a long-trained one.

    Returns:
        model (each of `short_models`), document_id, chunk_index, target_position, generalization_gap:
        L_long of the short-trained model - L_long of the reference, nats. Targets both have, no others.
    """
    columns = [*TARGET, "long_context_loss"]
    reference = rows_of(loss_differences, reference_model)[columns]
    shorts = pd.concat([rows_of(loss_differences, model)[["model", *columns]] for model in short_models])
    what = f"targets of {', '.join(short_models)} and of {reference_model}"
    pairs = joined_on_common(shorts, reference, TARGET, what, ("", "_reference"))
    pairs["generalization_gap"] = pairs["long_context_loss"] - pairs["long_context_loss_reference"]
    return pairs[[*_KEYS, "generalization_gap"]]


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
        sparsity: of `gap.sparsity.sparsity_measures`, one measure: k* of a long-trained model.
        short_models: models trained at a short context.
        reference_model: the long-trained model that the gap is measured from, best another seed.
        studied_ks: every k that was studied; gives the classes, also those no token falls in.

    Returns:
        model, category (see `sparsity_categories`), num_targets, num_documents, generalization_gap with
        its interval (nats); NaN where a class is empty.
    """
    sparsity = sparsity[TARGET].assign(category=sparsity_category(sparsity, studied_ks))
    gaps = generalization_gaps(loss_differences, short_models=short_models, reference_model=reference_model)
    tokens = joined_on_common(gaps, sparsity, TARGET, "targets with a gap and with k*")
    if tokens.empty:
        raise InputError(
            f"no target is common to the loss differences of {', '.join(short_models)} and k*; measure them"
            " on the same documents"
        )
    rows = []
    for model in short_models:
        for category in sparsity_categories(studied_ks):
            chosen = tokens[(tokens["model"] == model) & (tokens["category"] == category)]
            numbers = sample_counts(chosen) | mean_columns(chosen, "generalization_gap")
            rows.append({"model": model, "category": category, **numbers})
    return pd.DataFrame(rows)


def floor_models(loss_differences: pd.DataFrame, long_models: Sequence[str]) -> list[str]:
    """Of these long-trained models those that can be the floor: compared with the reference, and not it."""
    if _REFERENCE not in loss_differences:
        return []
    largest = loss_differences.groupby("model")[_REFERENCE].max()  # of the reference to itself it is 0
    return [model for model in long_models if largest.get(model, 0) > 0]


def expected_gaps(
    loss_differences: pd.DataFrame, *, short_models: Sequence[str], floor_model: str
) -> pd.DataFrame:
    """Both gaps of every target, to the same long-trained seed, which is not the reference.

    Short-trained models that were not compared with the reference (--reference-model) are left out.

    Returns:
        model, document_id, chunk_index, target_position, generalization_gap (of the drawn token, to
        `floor_model`), reference_divergence, floor_divergence and expected_gap, nats.
    """
    drawn = generalization_gaps(loss_differences, short_models=short_models, reference_model=floor_model)
    compared = loss_differences.dropna(subset=[_REFERENCE])
    floor = rows_of(compared, floor_model)[[*TARGET, _REFERENCE]]
    shorts = compared.loc[compared["model"].isin(short_models), [*_KEYS, _REFERENCE]]
    floor = floor.rename(columns={_REFERENCE: "floor_divergence"})
    what = f"targets compared with the reference, and those of {floor_model}"
    both = joined_on_common(shorts, floor, TARGET, what)
    both["expected_gap"] = both[_REFERENCE] - both["floor_divergence"]
    drawn = drawn[drawn["model"].isin(set(both["model"]))]
    return joined_on_common(drawn, both, _KEYS, "targets with a drawn and an expected gap")


GAIN_EDGES = (-np.inf, 0.0, 0.1, 0.5, 1.0, np.inf)
"""Nats; a bin holds its lower edge. 0.1 is the least gain that the stage gives a k* to."""


def gain_bins(
    loss_differences: pd.DataFrame, binning_model: str, edges: Sequence[float] = GAIN_EDGES
) -> pd.DataFrame:
    """The bin of every target, by the gain of another model than is measured in the bins.

    Returns:
        document_id, chunk_index, target_position, gain_bin (ordered categorical), binning_gain (nats).
    """

    def name(low: float, high: float) -> str:
        if np.isinf(low):
            return f"below {high:g}"
        return f"{low:g} and more" if np.isinf(high) else f"{low:g} to {high:g}"

    targets = rows_of(loss_differences, binning_model)
    gains = targets["loss_difference"].astype("float64")
    bins = pd.cut(gains, list(edges), right=False, labels=[name(*ends) for ends in pairwise(edges)])
    return targets[TARGET].assign(gain_bin=bins, binning_gain=gains)


def gains_by_bin(loss_differences: pd.DataFrame, bins: pd.DataFrame, model: str) -> pd.DataFrame:
    """Mean gain in each bin, of the seed that binned and of the one measured: how far the latter falls back.

    Returns:
        gain_bin, num_targets, num_documents, then with intervals binning_gain and loss_difference (nats).
    """
    measured = rows_of(loss_differences, model)[[*TARGET, "loss_difference"]]
    targets = joined_on_common(measured, bins, TARGET, f"targets of {model} and of the bins")
    return summarized(targets, ["gain_bin"], lambda of: mean_columns(of, "binning_gain", "loss_difference"))


def effects_by_bin(sparse_context_losses: pd.DataFrame, bins: pd.DataFrame) -> pd.DataFrame:
    """`token_effects` in each bin, `gain_bin`, by the loss."""
    of_target = bins[[*TARGET, "gain_bin"]]
    losses = joined_on_common(sparse_context_losses, of_target, TARGET, "targets of k tokens and of the bins")
    tables = [
        token_effects(of_bin.drop(columns="gain_bin")).assign(gain_bin=str(gain_bin))
        for gain_bin, of_bin in losses.groupby("gain_bin", observed=True)
    ]
    effects = pd.concat(tables, ignore_index=True)
    return effects[effects["criterion"] == LOSS]


def sparsity_distribution(
    measured: pd.DataFrame, studied_ks: Sequence[int], bins: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Share of the targets in each class of k*, censored targets and those without a gain among them.

    Returns:
        measure, gain_bin ("all" without bins), category (see `sparsity_categories`), num_targets and
        num_documents (of the measure and bin), share with its interval.
    """
    targets = measured.assign(category=sparsity_category(measured, studied_ks), gain_bin="all")
    if bins is not None:
        targets = targets.drop(columns="gain_bin")
        targets = joined_on_common(targets, bins, TARGET, "targets with k* and with a bin")
    rows = []
    for measure, of_measure in targets.groupby("measure", sort=False):
        for gain_bin, of_bin in of_measure.groupby("gain_bin", observed=True):
            for category in sparsity_categories(studied_ks):
                key = {"measure": measure, "gain_bin": str(gain_bin), "category": category}
                rows.append(key | _share(of_bin, of_bin["category"] == category))
    return pd.DataFrame(rows)


def shares_of_gaining_targets(measured: pd.DataFrame, studied_ks: Sequence[int]) -> pd.DataFrame:
    """Of the targets that gain enough to have a k*, the share that needs at most so many far tokens.

    Returns:
        measure, k (each studied one), num_targets, num_documents, share of them with k* <= k, with interval;
        no rows where no target gains enough.
    """
    columns = ["measure", "k", "num_targets", "num_documents", "share", "share_low", "share_high"]
    gaining = measured[measured["dependency_sparsity"].notna() | measured["is_censored"]]
    rows = []
    for measure, targets in gaining.groupby("measure", sort=False):
        for k in sorted(studied_ks):
            is_enough = targets["dependency_sparsity"] <= k
            rows.append({"measure": measure, "k": k, **_share(targets, is_enough)})
    return pd.DataFrame(rows, columns=columns)


def _share(targets: pd.DataFrame, is_counted: pd.Series) -> dict[Hashable, Any]:
    """The sample, and the share of it that is counted with its interval."""
    interval = interval_over_documents(targets["document_id"], is_counted.astype("float64"))
    return {**sample_counts(targets), **interval_columns("share", interval)}
