"""Mean losses of models under the short, the long and every studied context: DataFrames in, small ones out.

Losses are in nats; means and intervals as in `analysis.document_intervals`.
"""

from collections.abc import Hashable

import numpy as np
import pandas as pd

from analysis.document_intervals import interval_columns, interval_over_documents, sample_counts
from analysis.paired_targets import joined_on_common
from pipeline.results.bootstrap import Interval


def summarize_models(loss_differences: pd.DataFrame) -> pd.DataFrame:
    """A row a model: how much its long context helps.

    Args:
        loss_differences: the artefact, any number of models.

    Returns:
        model, num_targets, num_documents, short_context_loss, long_context_loss (means, nats), then with
        intervals loss_difference (nats; positive = the long context helps), expected_gain (the mean
        short_context_divergence) and specific_gain; the last two are NaN where they were not measured.
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
                **_mean_of(targets, "short_context_divergence", "expected_gain"),
                **_mean_of(targets, "specific_gain", "specific_gain"),
            }
        )
    return pd.DataFrame(rows)


def _mean_of(targets: pd.DataFrame, column: str, name: str) -> dict[Hashable, float]:
    """The mean of a column that earlier results lack, as `name`."""
    interval = Interval(np.nan, np.nan, np.nan)
    if column in targets and targets[column].notna().all():
        interval = interval_over_documents(targets["document_id"], targets[column])
    return interval_columns(name, interval)


def losses_beside_reference(length_losses: pd.DataFrame, reference: str, shortest: int) -> pd.DataFrame:
    """Mean loss at each context length, less that of one model at one length, paired by chunk.

    Documents differ far more in loss than models and lengths do; most of that cancels here.

    Args:
        length_losses: the artefact.
        reference: a model.
        shortest: tokens of context at which the reference is taken; shorter contexts are left out.

    Returns:
        model, context_length (tokens), num_targets, num_documents, then with its interval difference (loss of
        the model at this length - loss of the reference at `shortest`, nats).
    """
    keys = ["document_id", "chunk_index"]
    is_reference = (length_losses["model"] == reference) & (length_losses["context_length"] == shortest)
    paired = joined_on_common(
        length_losses[length_losses["context_length"] >= shortest],
        length_losses.loc[is_reference, [*keys, "mean_loss"]],
        keys,
        f"chunks that {reference} was measured on at {shortest} tokens",
        ("", "_reference"),
    )
    rows = []
    for (model, context_length), chunks in paired.groupby(["model", "context_length"]):
        weights = chunks["num_targets"]
        differences = chunks["mean_loss"] - chunks["mean_loss_reference"]
        interval = interval_over_documents(chunks["document_id"], differences * weights, weights)
        rows.append(
            {
                "model": model, "context_length": context_length,
                "num_targets": int(weights.sum()), "num_documents": chunks["document_id"].nunique(),
                **interval_columns("difference", interval),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


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
