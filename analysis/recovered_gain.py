"""How much of a long context's gain k tokens recover, and how much of that is selection.

Losses are in nats; means and intervals as in `analysis.document_intervals`. The baseline is what k tokens are
added to: the short context, or under the intervention `background` it and a foreign far context.
"""

from collections.abc import Hashable

import numpy as np
import pandas as pd

from analysis.document_intervals import interval_columns, interval_over_documents, sample_counts
from analysis.paired_targets import TARGET, joined_on_common, of_common_groups
from pipeline.results.bootstrap import Interval
from pipeline.results.names import OTHER_DOCUMENT, OWN


def is_clear_gain(gain: Interval) -> bool:
    """Whether the interval of a mean gain is above 0: only then is a fraction of it a number."""
    return bool(gain.low > 0)


def with_recovered_losses(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """The artefact with `baseline_loss`, `loss_difference` and `recovered_loss` of each row, nats.

    `recovered_loss` is the baseline's loss less that with k tokens; `loss_difference` is the baseline's less
    L_long with the document's *own* far context in every row, the null's too, so that both are measured on
    one scale. Targets measured under the null only are left out.
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
    rows["baseline_loss"] = baseline_losses(rows)
    rows["loss_difference"] = rows["baseline_loss"] - rows["long_context_loss"]
    rows["recovered_loss"] = rows["baseline_loss"] - rows["sparse_context_loss"]
    return rows


def baseline_losses(sparse_context_losses: pd.DataFrame) -> pd.Series:
    """The loss that k tokens are to lower, nats: of the short context, or with a foreign far context."""
    short_losses = sparse_context_losses["short_context_loss"]
    if "background_loss" not in sparse_context_losses:
        return short_losses
    return sparse_context_losses["background_loss"].astype("float64").fillna(short_losses)


def recovered_losses(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """How much of the long context's gain k tokens recover: a row a model, rule, far context and k.

    The fraction is sum(recovered_loss) / sum(loss_difference), a ratio of sums. Where the mean
    gain's interval reaches 0 (`is_gain_clear` is False) the fraction divides by noise: it is NaN, and the
    recovered loss in nats is what can be read. The rows of the null say how much of either is selection.

    Args:
        sparse_context_losses: the artefact, any number of models.

    Returns:
        model, rule, far_context, k, num_targets, num_documents, baseline_loss, sparse_context_loss,
        long_context_loss (means, nats), then with intervals recovered_loss, loss_difference (nats) and
        recovered_fraction; is_gain_clear.
    """
    rows = []
    groups = with_recovered_losses(sparse_context_losses).groupby(["model", "rule", "far_context", "k"])
    for (model, rule, far_context, k), targets in groups:
        losses = ["baseline_loss", "sparse_context_loss", "long_context_loss"]
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

    Own and null are paired target by target: their difference has no noise of the baseline, and documents are
    resampled with both. Targets that lack either are left out.

    Args:
        sparse_context_losses: the artefact, any number of models.

    Returns:
        model, rule, k, num_targets, num_documents, then with intervals excess_loss (nats),
        loss_difference (nats), excess_fraction (of the gain; NaN where it is not clear); is_gain_clear.
        No rows where the null was not measured.
    """
    losses = with_recovered_losses(sparse_context_losses)
    own, null = (losses[losses["far_context"] == far_context] for far_context in (OWN, OTHER_DOCUMENT))
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
