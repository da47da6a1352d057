"""The numbers behind the figures and the closing table: DataFrames of results in, small DataFrames out.

Every mean is over targets and every interval is a 95 % interval over documents. A column
`x` with an interval is followed by `x_low` and `x_high`, in the unit of `x`; losses, and everything
named `*_loss`, `loss_difference` or `*_gap`, are in nats.
"""

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import pandas as pd

from analysis.paired_targets import joined_on_common, of_common_groups
from pipeline.errors import InputError, unknown_name
from pipeline.results.bootstrap import Interval, ratio_of_sums

TARGET = ["document_id", "chunk_index", "target_position"]
OWN, NULL = "own", "other_document"
NO_GAIN = "no gain"


def interval_over_documents(
    document_ids: pd.Series, numerators: pd.Series, denominators: pd.Series | None = None
) -> Interval:
    """sum(numerators) / sum(denominators) over targets, with its interval over documents.

    Args:
        document_ids: the document of each target.
        numerators, denominators: one value a target, same index; the mean of `numerators` where
            `denominators` is None.

    Returns:
        The ends are NaN for fewer than two documents, which say nothing about other documents.
    """
    counted = 1.0 if denominators is None else denominators.astype("float64")
    values = {"numerator": numerators.astype("float64"), "denominator": counted}
    sums_D = pd.DataFrame(values, index=numerators.index).groupby(document_ids).sum()
    if sums_D.empty:
        return Interval(np.nan, np.nan, np.nan)
    return ratio_of_sums(sums_D["numerator"].to_numpy(), sums_D["denominator"].to_numpy())


def interval_columns(name: str, interval: Interval) -> dict[Hashable, float]:
    """`name`, `name`_low and `name`_high of a row."""
    return {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}


def sample_counts(rows: pd.DataFrame) -> dict[Hashable, int]:
    """num_targets and num_documents of a row; `rows` are targets."""
    return {"num_targets": len(rows), "num_documents": rows["document_id"].nunique()}


def multiple_comparison_note(table: pd.DataFrame, value: str) -> str:
    """The sentence that goes with every table or figure of several intervals.

    Each interval covers its own truth in 95 of 100 studies; that all of them do is less likely. The
    level that Bonferroni's bound asks of each, for 95 % together, needs no independence of them.

    Args:
        table: of this module or `analysis.tokens.long_perplexity`, a row an interval.
        value: the column with the intervals; those that could not be measured (NaN) do not count.

    Returns:
        "" for fewer than two intervals.
    """
    num_intervals = int(table[f"{value}_low"].notna().sum())
    if num_intervals < 2:
        return ""
    return (
        f"{num_intervals} intervals of 95 % each: expect {0.05 * num_intervals:.1f} of them to miss the"
        f" truth; for 95 % together each would be one of {100 * (1 - 0.05 / num_intervals):.2f} %."
    )


def is_clear_gain(gain: Interval) -> bool:
    """Whether the interval of a mean L_short - L_long is above 0: only then is a fraction of it a number."""
    return bool(gain.low > 0)


def summarize_models(loss_differences: pd.DataFrame) -> pd.DataFrame:
    """A row a model: how much its long context helps.

    Args:
        loss_differences: the artefact, any number of models.

    Returns:
        model, num_targets, num_documents, short_context_loss, long_context_loss (means, nats),
        loss_difference with its interval (nats; positive = the long context helps).
    """
    rows = []
    for model, targets in loss_differences.groupby("model"):
        means = targets[["short_context_loss", "long_context_loss"]].astype("float64").mean()
        difference = interval_over_documents(targets["document_id"], targets["loss_difference"])
        rows.append(
            {
                "model": model,
                **sample_counts(targets),
                **means.to_dict(),
                **interval_columns("loss_difference", difference),
            }
        )
    return pd.DataFrame(rows)


def with_recovered_losses(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """The artefact with `loss_difference` and `recovered_loss` of each row, nats.

    `recovered_loss` is L_short - L_{short+k}; `loss_difference` is L_short - L_long with the document's
    *own* far context in every row, the null's too, so that both are measured on one scale. Targets
    measured under the null only are left out.
    """
    own_targets = sparse_context_losses.loc[
        sparse_context_losses["far_context"] == OWN, ["model", *TARGET, "long_context_loss"]
    ].drop_duplicates(["model", *TARGET])
    rows = joined_on_common(
        sparse_context_losses.drop(columns="long_context_loss"),
        own_targets,
        ["model", *TARGET],
        "targets with k tokens of their own far context",
    )
    rows["loss_difference"] = rows["short_context_loss"] - rows["long_context_loss"]
    rows["recovered_loss"] = rows["short_context_loss"] - rows["sparse_context_loss"]
    return rows


def recovered_losses(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """How much of the long context's gain k tokens recover: a row a model, rule, far context and k.

    The fraction is sum(L_short - L_{short+k}) / sum(L_short - L_long), a ratio of sums. Where the mean
    gain's interval reaches 0 (`is_gain_clear` is False) the fraction divides by noise: it is NaN, and the
    recovered loss in nats is what can be read. The rows of the null say how much of either is selection.

    Args:
        sparse_context_losses: the artefact, any number of models.

    Returns:
        model, rule, far_context, k, num_targets, num_documents, short_context_loss, sparse_context_loss,
        long_context_loss (means, nats), then with intervals recovered_loss, loss_difference (nats) and
        recovered_fraction; is_gain_clear.
    """
    rows = []
    groups = with_recovered_losses(sparse_context_losses).groupby(["model", "rule", "far_context", "k"])
    for (model, rule, far_context, k), targets in groups:
        losses = ["short_context_loss", "sparse_context_loss", "long_context_loss"]
        rows.append(
            {
                "model": model, "rule": rule, "far_context": far_context, "k": k,
                **sample_counts(targets),
                **targets[losses].astype("float64").mean().to_dict(),
                **_amount_and_fraction(targets, "recovered_loss", "recovered_fraction"),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def _amount_and_fraction(targets: pd.DataFrame, amount: str, fraction: str) -> dict[Hashable, float | bool]:
    """Mean of `amount` in nats, the mean gain, and their ratio where the gain is clear."""
    documents, gains = targets["document_id"], targets["loss_difference"]
    gain = interval_over_documents(documents, gains)
    is_clear = is_clear_gain(gain)
    ratio = (
        interval_over_documents(documents, targets[amount], gains)
        if is_clear
        else Interval(np.nan, np.nan, np.nan)
    )
    return {
        **interval_columns(amount, interval_over_documents(documents, targets[amount])),
        **interval_columns("loss_difference", gain),
        **interval_columns(fraction, ratio),
        "is_gain_clear": is_clear,
    }


def excess_over_null(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """The effect: what k tokens recover beyond what choosing among another document's tokens recovers.

    Own and null are paired target by target: their difference has no noise of L_short, and documents are
    resampled with both. Targets that lack either are left out.

    Args:
        sparse_context_losses: the artefact, any number of models.

    Returns:
        model, rule, k, num_targets, num_documents, then with intervals excess_loss (nats),
        loss_difference (nats), excess_fraction (of the gain; NaN where it is not clear); is_gain_clear.
        No rows where the null was not measured.
    """
    losses = with_recovered_losses(sparse_context_losses)
    own, null = (losses[losses["far_context"] == far_context] for far_context in (OWN, NULL))
    keys = ["model", "rule", "k", *TARGET]
    own, null = of_common_groups(own, null[[*keys, "recovered_loss"]], ["model", "rule", "k"])
    paired = joined_on_common(own, null, keys, "choices of own and null tokens", ("", "_null"))
    paired["excess_loss"] = paired["recovered_loss"] - paired["recovered_loss_null"]
    rows = [
        {
            "model": model, "rule": rule, "k": k,
            **sample_counts(targets),
            **_amount_and_fraction(targets, "excess_loss", "excess_fraction"),
        }
        for (model, rule, k), targets in paired.groupby(["model", "rule", "k"])
    ]  # fmt: skip
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["model", "rule", "k"])


def losses_by_context_length(length_losses: pd.DataFrame) -> pd.DataFrame:
    """Mean loss at each context length: a row a model and length.

    The change from the model's own loss at the shortest length is paired by chunk: documents differ
    far more from each other in loss than lengths do, and that difference cancels there.

    Args:
        length_losses: the artefact, a row a chunk and length, already averaged over its targets.

    Returns:
        model, context_length (tokens), num_targets, num_documents, then with intervals loss and
        loss_change (loss - loss at the shortest length; negative = the added context helps), nats.
    """
    shortest = length_losses[length_losses["context_length"] == length_losses["context_length"].min()]
    keys = ["model", "document_id", "chunk_index"]
    paired = joined_on_common(
        length_losses,
        shortest[[*keys, "mean_loss"]],
        keys,
        "chunks at the shortest length",
        ("", "_shortest"),
    )
    rows = []
    for (model, context_length), chunks in paired.groupby(["model", "context_length"]):
        document_ids, weights = chunks["document_id"], chunks["num_targets"]
        losses = chunks["mean_loss"]
        changes = losses - chunks["mean_loss_shortest"]
        change = interval_over_documents(document_ids, changes * weights, weights)
        rows.append(
            {
                "model": model, "context_length": context_length,
                "num_targets": int(weights.sum()), "num_documents": document_ids.nunique(),
                **interval_columns("loss", interval_over_documents(document_ids, losses * weights, weights)),
                **interval_columns("loss_change", change),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def sparsity_categories(studied_ks: Iterable[int]) -> list[str]:
    """Names of the classes of k*, sparse to dense: each studied k, more than the largest, no gain."""
    ks = sorted(studied_ks)
    return [*map(str, ks), f"more than {ks[-1]}", NO_GAIN]


def sparsity_category(dependency_sparsity: pd.DataFrame, studied_ks: Sequence[int]) -> pd.Series:
    """The class of each target's k*; a censored target helps but needs more than the largest studied k."""
    k_star = dependency_sparsity["dependency_sparsity"]
    reached = k_star.map(lambda k: NO_GAIN if pd.isna(k) else str(int(k)))
    return reached.mask(dependency_sparsity["is_censored"], f"more than {max(studied_ks)}")


def rows_of(frame: pd.DataFrame, model: str) -> pd.DataFrame:
    """The rows of one model.

    Raises:
        InputError: there are none.
    """
    rows = frame[frame["model"] == model]
    if rows.empty:
        raise unknown_name("model", model, frame["model"].unique())
    return rows


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
    dependency_sparsity: pd.DataFrame,
    *,
    short_models: Sequence[str],
    sparsity_model: str,
    reference_model: str,
    studied_ks: Sequence[int],
    rule: str = "leave_one_out",
) -> pd.DataFrame:
    """Mean generalization gap of the tokens of each dependency sparsity k*: a row a short model and class.

    k* and the gap must come from two seeds: a token on which one long-trained model happens to be lucky
    has a large gain and a large gap from that model alone, which would tie the two together.

    Args:
        loss_differences, dependency_sparsity: the artefacts.
        short_models: models trained at a short context.
        sparsity_model: the long-trained model that k* is read from.
        reference_model: the long-trained model that the gap is measured from, best another seed.
        studied_ks: every k that was studied; gives the classes, also those no token falls in.
        rule: the selection rule behind k*.

    Returns:
        model, category (see `sparsity_categories`), num_targets, num_documents, generalization_gap with
        its interval (nats); NaN where a class is empty.

    Raises:
        InputError: no results of one of the models or the rule, or no target that all of them measured.
    """
    sparsity = rows_of(dependency_sparsity, sparsity_model)
    if rule not in set(sparsity["rule"]):
        raise unknown_name("rule", rule, sparsity["rule"].unique())
    sparsity = sparsity[sparsity["rule"] == rule]
    sparsity = sparsity[TARGET].assign(category=sparsity_category(sparsity, studied_ks))
    gaps = generalization_gaps(loss_differences, short_models=short_models, reference_model=reference_model)
    what = f"targets with a gap and with k* of {sparsity_model}"
    tokens = joined_on_common(gaps, sparsity, TARGET, what)
    if tokens.empty:
        raise InputError(
            f"no target is common to the loss differences of {', '.join(short_models)} and the dependency"
            f" sparsity of {sparsity_model}; measure them on the same documents"
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
