"""The classes of targets by k*: each studied k, more than the largest, and no gain to speak of.

The generalization gap of every target, and its mean by k*: DataFrames of results in, small ones out.

Means and intervals as in `analysis.read`; gaps are in nats.

The generalization gap that is expected, beside the one that was drawn.

The gap of a token is the loss of one draw, the token that came next. If it were drawn from the prediction of
a long-trained model, the reference, the gap of a short-trained model to another long-trained seed would be

    KL(p_ref || p_short) - KL(p_ref || p_seed)

all under the long context. Two seeds of one training differ too: the second term, the seed-to-seed floor,
takes that off. It is far less noisy than the drawn gap, and is true as far as the reference's prediction is.

How many far tokens a prediction needs, by how much its long context is worth.

Targets are binned by the gain, L_short - L_long, of another seed than the one that is measured. Binned by its
own gain, the top bin would hold the targets on which that model was lucky: its gain would be too large there,
and what k tokens recover of it too small. In a bin by another seed's gain the measured seed's is smaller than
that one's for the same reason (regression to the mean): both are shown.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from analysis.losses.token_worth import excess_over_null, recovered_losses
from analysis.read import (
    TARGET,
    interval_columns,
    interval_over_documents,
    joined_on_common,
    needs_null,
    rows_of,
    sample_counts,
)
from pipeline.cli import InputError
from pipeline.results.schemas import OWN
from pipeline.results.statistics import Interval

NO_GAIN = "no gain"


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


DIVERGENCE = "reference_divergence"


def floor_models(loss_differences: pd.DataFrame, long_models: Sequence[str]) -> list[str]:
    """The long-trained models that can be the floor: compared with the reference, and not it.

    Args:
        loss_differences: the artefact.
        long_models: models trained at the long context.
    """
    if DIVERGENCE not in loss_differences:
        return []
    of_model = loss_differences.groupby("model")[DIVERGENCE]
    is_other = of_model.count().gt(0) & of_model.max().gt(0)
    return [model for model in long_models if is_other.get(model, False)]


def expected_gaps(
    loss_differences: pd.DataFrame, *, short_models: Sequence[str], floor_model: str
) -> pd.DataFrame:
    """Both gaps of every target, to the same long-trained seed.

    Args:
        loss_differences: the artefact, measured with --reference-model.
        short_models: models trained at a short context; those that were not compared are left out.
        floor_model: a long-trained seed that is not the reference.

    Returns:
        model, document_id, chunk_index, target_position, generalization_gap (of the drawn token, to
        `floor_model`), expected_gap, reference_divergence and floor_divergence, nats.

    Raises:
        InputError: no results of one of the models.
    """
    drawn = generalization_gaps(loss_differences, short_models=short_models, reference_model=floor_model)
    compared = loss_differences.dropna(subset=[DIVERGENCE])
    floor = rows_of(compared, floor_model)[[*TARGET, DIVERGENCE]]
    shorts = compared.loc[compared["model"].isin(short_models), ["model", *TARGET, DIVERGENCE]]
    both = joined_on_common(
        shorts, floor.rename(columns={DIVERGENCE: "floor_divergence"}), TARGET,
        f"targets compared with the reference, and those of {floor_model}",
    )  # fmt: skip
    both["expected_gap"] = both[DIVERGENCE] - both["floor_divergence"]
    drawn = drawn[drawn["model"].isin(set(both["model"]))]
    return joined_on_common(drawn, both, ["model", *TARGET], "targets with a drawn and an expected gap")


def mean_gaps(gaps: pd.DataFrame) -> pd.DataFrame:
    """A row a model: its drawn and its expected gap.

    Args:
        gaps: of `expected_gaps`.

    Returns:
        model, num_targets, num_documents, then with intervals generalization_gap, expected_gap and
        floor_divergence, nats.
    """
    rows = []
    for model, targets in gaps.groupby("model", sort=False):
        row = {"model": model, **sample_counts(targets)}
        for name in ("generalization_gap", "expected_gap", "floor_divergence"):
            row |= interval_columns(name, interval_over_documents(targets["document_id"], targets[name]))
        rows.append(row)
    return pd.DataFrame(rows)


def gap_sentences(means: pd.DataFrame, floor_model: str) -> list[str]:
    """A sentence a model.

    Args:
        means: of `mean_gaps`.
        floor_model: what the gaps are measured from.
    """
    return [
        f"{row.model} (n = {row.num_targets:,}): the gap to {floor_model} is expected to be"
        f" {row.expected_gap:.3f} nats [{row.expected_gap_low:.3f}, {row.expected_gap_high:.3f}], with the"
        f" seed-to-seed {row.floor_divergence:.3f} taken off; of the tokens that came it is"
        f" {row.generalization_gap:.3f}"
        f" [{row.generalization_gap_low:.3f}, {row.generalization_gap_high:.3f}]."
        for row in means.itertuples()
    ]


GAIN_EDGES = (-np.inf, 0.0, 0.1, 0.5, 1.0, np.inf)
"""Nats; a bin holds its lower edge. 0.1 is the least gain that the stage gives a k* to."""
_AMOUNTS = ("effect_loss", "loss_difference", "effect_fraction")


def gain_bins(
    loss_differences: pd.DataFrame, binning_model: str, edges: Sequence[float] = GAIN_EDGES
) -> pd.DataFrame:
    """The bin of every target.

    Args:
        loss_differences: the artefact.
        binning_model: whose gain decides; not the model that is measured in the bins.
        edges: ascending, nats.

    Returns:
        document_id, chunk_index, target_position, gain_bin (ordered categorical), binning_gain (nats).

    Raises:
        InputError: no results of the model.
    """
    targets = rows_of(loss_differences, binning_model)
    names = [_bin_name(low, high) for low, high in pairwise(edges)]
    gains = targets["loss_difference"].astype("float64")
    bins = pd.cut(gains, list(edges), right=False, labels=names)
    return targets[TARGET].assign(gain_bin=bins, binning_gain=gains)


def _bin_name(low: float, high: float) -> str:
    if np.isinf(low):
        return f"below {high:g}"
    return f"{low:g} and more" if np.isinf(high) else f"{low:g} to {high:g}"


def gains_by_bin(loss_differences: pd.DataFrame, bins: pd.DataFrame, model: str) -> pd.DataFrame:
    """Mean gain in each bin, of the seed that binned and of the one measured: how far the latter falls back.

    Args:
        loss_differences: the artefact.
        bins: of `gain_bins`.
        model: the one measured.

    Returns:
        gain_bin, num_targets, num_documents, then with intervals binning_gain and loss_difference (nats).
    """
    measured = rows_of(loss_differences, model)[[*TARGET, "loss_difference"]]
    targets = joined_on_common(measured, bins, TARGET, f"targets of {model} and of the bins")
    return pd.DataFrame(
        {
            "gain_bin": gain_bin,
            **sample_counts(of_bin),
            **_interval(of_bin, "binning_gain"),
            **_interval(of_bin, "loss_difference"),
        }
        for gain_bin, of_bin in _by_bin(targets)
    )


def effects_by_bin(sparse_context_losses: pd.DataFrame, bins: pd.DataFrame) -> pd.DataFrame:
    """What k tokens recover in each bin: beyond the null by rules that need one, plainly by others.

    Args:
        sparse_context_losses: the artefact, any models.
        bins: of `gain_bins`.

    Returns:
        model, rule, gain_bin, k, num_targets, num_documents, then with intervals effect_loss,
        loss_difference (nats) and effect_fraction (of the gain; NaN where that is not clear).
    """
    of_target = bins[[*TARGET, "gain_bin"]]
    losses = joined_on_common(sparse_context_losses, of_target, TARGET, "targets of k tokens and of the bins")
    has_null = losses["rule"].map(needs_null).astype(bool)
    beyond_null = _tables_by_bin(losses[has_null], excess_over_null, "excess")
    own = losses[~has_null & (losses["far_context"] == OWN)]
    return pd.concat([beyond_null, _tables_by_bin(own, recovered_losses, "recovered")], ignore_index=True)


def sparsity_distribution(
    measured: pd.DataFrame, studied_ks: Sequence[int], bins: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Share of the targets in each class of k*, censored targets and those without a gain among them.

    Args:
        measured: of `sparsity_measures.sparsity_measures`.
        studied_ks: every k that was studied.
        bins: of `gain_bins`; all targets together where None.

    Returns:
        measure, gain_bin ("all" without bins), category (see `sparsity_classes.sparsity_categories`),
        num_targets and num_documents (of the measure and bin), share with its interval.
    """
    targets = measured.assign(category=sparsity_category(measured, studied_ks))
    targets = (
        targets.assign(gain_bin="all")
        if bins is None
        else joined_on_common(targets, bins, TARGET, "targets with k* and with a bin")
    )
    rows = []
    for measure, of_measure in targets.groupby("measure", sort=False):
        for gain_bin, of_bin in _by_bin(of_measure):
            for category in sparsity_categories(studied_ks):
                share = _share(of_bin, of_bin["category"] == category)
                rows.append(
                    {
                        "measure": measure, "gain_bin": gain_bin, "category": category,
                        **sample_counts(of_bin),
                        **share,
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


def shares_of_gaining_targets(measured: pd.DataFrame, studied_ks: Sequence[int]) -> pd.DataFrame:
    """Of the targets that gain enough to have a k*, the share that needs at most so many far tokens.

    Args:
        measured, studied_ks: as `sparsity_distribution` takes them.

    Returns:
        measure, k (each studied one), num_targets, num_documents, share of them with k* <= k, with interval;
        no rows where no target gains enough.
    """
    columns = ["measure", "k", "num_targets", "num_documents", "share", "share_low", "share_high"]
    gaining = measured[measured["dependency_sparsity"].notna() | measured["is_censored"]]
    rows = []
    for measure, targets in gaining.groupby("measure", sort=False):
        for k in sorted(studied_ks):
            share = _share(targets, targets["dependency_sparsity"] <= k)
            rows.append({"measure": measure, "k": k, **sample_counts(targets), **share})
    return pd.DataFrame(rows, columns=columns)


def share_sentences(shares: pd.DataFrame) -> list[str]:
    """A sentence a measure: the shares of targets that need the least and the largest studied k.

    Args:
        shares: of `shares_of_gaining_targets`.
    """
    return [
        f"k* by {measure}: of {rows['num_targets'].iloc[0]:,} targets whose long context helps,"
        f" {_said(rows.iloc[0], 'share')} need {rows['k'].iloc[0]} far token at most,"
        f" {_said(rows.iloc[-1], 'share')} at most {rows['k'].iloc[-1]}."
        for measure, rows in shares.groupby("measure", sort=False)
    ]


def effect_sentences(effects: pd.DataFrame) -> list[str]:
    """A sentence a model, rule and bin: what the largest studied k recovers there.

    Args:
        effects: of `effects_by_bin`.
    """
    return [
        f"{row['model']}, {row['rule']}, gain {row['gain_bin']} (n = {row['num_targets']:,}): {row['k']}"
        f" tokens recover {_said(row, 'effect_loss')} nats{_beyond(row)}"
        + ("." if np.isnan(row["effect_fraction"]) else f", {_said(row, 'effect_fraction')} of the gain.")
        for row in effects[effects["k"] == effects["k"].max()].to_dict("records")
    ]


def _said(row: Mapping[Hashable, Any] | pd.Series, name: str) -> str:
    return str(Interval(row[name], row[f"{name}_low"], row[f"{name}_high"]))


def _beyond(row: Mapping[Hashable, Any]) -> str:
    return " beyond the null" if needs_null(str(row["rule"])) else ""


def _share(targets: pd.DataFrame, is_counted: pd.Series) -> dict[Hashable, float]:
    interval = interval_over_documents(targets["document_id"], is_counted.astype("float64"))
    return interval_columns("share", interval)


def _interval(targets: pd.DataFrame, name: str) -> dict[Hashable, float]:
    return interval_columns(name, interval_over_documents(targets["document_id"], targets[name]))


def _by_bin(targets: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for gain_bin, of_bin in targets.groupby("gain_bin", observed=True):
        yield str(gain_bin), of_bin


def _tables_by_bin(
    losses: pd.DataFrame, table_of: Callable[[pd.DataFrame], pd.DataFrame], name: str
) -> pd.DataFrame:
    """A table of `losses.token_worth` for the targets of each bin, its columns `name`_* as effect_*."""
    tables = [
        table_of(of_bin.drop(columns="gain_bin")).assign(gain_bin=gain_bin)
        for gain_bin, of_bin in _by_bin(losses)
    ]
    ends = [f"{amount}{end}" for amount in _AMOUNTS for end in ("", "_low", "_high")]
    columns = ["model", "rule", "gain_bin", "k", "num_targets", "num_documents", *ends]
    if not tables:
        return pd.DataFrame(columns=columns)
    return pd.concat(tables).rename(columns=lambda column: column.replace(f"{name}_", "effect_"))[columns]
