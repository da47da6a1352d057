"""Mean losses under the short, the long and every studied context, and how much context a model needs."""

from collections.abc import Hashable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from sparsity_length.figures import drawing
from sparsity_length.figures.read import (
    NO_INTERVAL,
    interval_columns,
    interval_over_documents,
    joined_on_common,
    mean_columns,
    rows_where,
    summarized,
)
from sparsity_length.results.statistics import interval_of_statistic, ratio_of_sums

_CHUNK = ["document_id", "chunk_index"]


def summarize_models(loss_differences: pd.DataFrame) -> pd.DataFrame:
    """One row per model: how much its long context helps.

    Returns:
        model, num_targets, num_documents, short_context_loss, long_context_loss (means, nats), then with
        intervals loss_difference (nats; positive = the long context helps), expected_gain (the mean
        short_context_divergence) and document_specific_gain; the last two are NaN if they were not
        measured.
    """

    def numbers(targets: pd.DataFrame) -> dict[Hashable, float]:
        means = targets[["short_context_loss", "long_context_loss"]].astype("float64").mean().to_dict()
        means |= mean_columns(targets, "loss_difference")
        for name, column in (("expected_gain", "short_context_divergence"), ("document_specific_gain",) * 2):
            interval = NO_INTERVAL
            # With some targets missing, the mean would be over other targets than the gain's.
            if column in targets and targets[column].notna().all():
                interval = interval_over_documents(targets["document_id"], targets[column])
            means |= interval_columns(name, interval)
        return means

    return summarized(loss_differences, ["model"], numbers)


def losses_by_context_length(length_losses: pd.DataFrame) -> pd.DataFrame:
    """Mean loss at each context length: one row per model and length.

    Columns model, context_length (tokens), num_targets, num_documents, loss with its interval (nats).
    """
    return _weighed_means(length_losses, "loss", "mean_loss")


def losses_beside_reference(length_losses: pd.DataFrame, reference: str, shortest: int) -> pd.DataFrame:
    """Mean loss at each context length minus that of one model at one length, paired by chunk.

    Documents differ far more in loss than models and lengths do; most of that cancels here. Contexts shorter
    than `shortest` tokens are left out.

    Returns:
        model, context_length (tokens), num_targets, num_documents, then with its interval difference (loss of
        the model at this length - loss of the reference at `shortest`, nats).
    """
    longer = length_losses[length_losses["context_length"] >= shortest]
    of_reference = rows_where(length_losses, model=reference, context_length=shortest)[[*_CHUNK, "mean_loss"]]
    what = f"chunks that {reference} was measured on at {shortest} tokens"
    paired = joined_on_common(longer, of_reference, _CHUNK, what, ("", "_reference"))
    paired["difference"] = paired["mean_loss"] - paired["mean_loss_reference"]
    return _weighed_means(paired, "difference", "difference")


def _weighed_means(chunks: pd.DataFrame, name: str, column: str) -> pd.DataFrame:
    """One row per model and context length: the mean of a column, weighted by targets, called `name`."""

    def numbers(chunks: pd.DataFrame) -> dict[Hashable, float]:
        weights = chunks["num_targets"]
        # A chunk's mean times its number of targets is the sum over them.
        mean = interval_over_documents(chunks["document_id"], chunks[column] * weights, weights)
        return {"num_targets": int(weights.sum()), **interval_columns(name, mean)}

    return summarized(chunks, ["model", "context_length"], numbers)


def lengths_figure(
    curves: pd.DataFrame,
    labels: Mapping[str, drawing.ModelLabel],
    train_lengths: Iterable[int],
    reference: str,
) -> Figure:
    """`losses_beside_reference` of every model against the context given; training lengths are marked.

    Models trained alike, but for the seed, look alike and are named once. Of a single model, whose reference
    would be itself, `losses_by_context_length`.
    """
    has_reference = "difference" in curves
    value = "difference" if has_reference else "loss"
    figure, (ax,) = drawing.panels(1, 3.2)
    # A model's own change: the lines stand at different heights, as they share one reference.
    changes: dict[str, list[float]] = {}
    for model, line in curves.sort_values("context_length").groupby("model", sort=False):
        label = labels[str(model)]
        drawing.draw_line(ax, line["context_length"], line, value, label.style, label.training)
        own = line[value].iloc[-1] - line[value].iloc[0]
        changes.setdefault(label.training, []).append(own)
    if has_reference:
        ax.axhline(0, color=drawing.BLACK, linewidth=0.6)
    ticks: list[int] = []  # the longest first: none so near the next that their labels touch
    for length in sorted(curves["context_length"].unique(), reverse=True):
        if not ticks or ticks[-1] >= 1.45 * length:
            ticks.append(int(length))
    drawing.length_axis(ax, ticks, "context given (tokens)")
    ax.set_ylabel("loss minus the reference's (nats)" if has_reference else "loss (nats)")
    shortest = curves["context_length"].min()
    for length in sorted(set(train_lengths)):
        drawing.name_place(ax, length, f"trained at {length}")
    means = {training: sum(of_models) / len(of_models) for training, of_models in changes.items()}
    best = min(means, key=means.__getitem__)
    worst = max(means, key=means.__getitem__)
    of_both = f" ({best}) to {means[worst]:+.2f} ({worst})"
    sizes = {label.size for model, label in labels.items() if model in set(curves["model"])}
    drawing.put_title(
        figure,
        f"From {shortest} to {max(ticks)} tokens of context, loss changes by {means[best]:+.2f} nats"
        + (of_both if len(means) > 1 else ""),
        drawing.sample_size(curves),
        sizes.pop() if len(sizes) == 1 else "",
        f"reference: {reference} with {shortest} tokens" if has_reference else reference,
        f"{drawing.BARS}, of the difference" if has_reference else drawing.BARS,
    )
    return figure


KEPT = (90, 95, 99)
"""Percent of the worth."""


def needed_context(length_losses: pd.DataFrame) -> pd.DataFrame:
    """Windows that keep 90, 95 and 99 % of the longest context's worth: one row per model and criterion.

    The longest context is worth what it gives more than the shortest. A window here is all that a prediction
    can see. Sliding-window attention of w tokens in several layers sees further, so it loses at most this
    much, if the model has learned to do without.

    Returns:
        model, criterion, num_targets, num_documents, then with intervals over documents worth (nats) and
        window_90 and so on (tokens; NaN if the loss is not clearly lower with the longest context).
    """
    rows: list[dict[Hashable, Any]] = []
    for model, chunks in length_losses.groupby("model", sort=False):
        has_worth = chunks["context_length"].nunique() > 1
        for criterion in ("loss", "divergence"):
            column = chunks[f"mean_{criterion}"]
            if not has_worth or column.isna().any():
                continue
            weighed = chunks.assign(value=column.astype("float64") * chunks["num_targets"])
            sums = weighed.groupby(["document_id", "context_length"])[["value", "num_targets"]].sum()
            # The lengths ascend: place 0 is the shortest context, -1 the longest.
            values_DJ = sums["value"].unstack()
            # Every length is measured on every target, so one column has their number.
            num_targets_D = sums["num_targets"].unstack().iloc[:, -1].to_numpy()
            sums_JD = values_DJ.to_numpy().T
            worth = ratio_of_sums(sums_JD[0] - sums_JD[-1], num_targets_D)
            if criterion == "loss":  # if the loss does not fall, the divergence shows harm
                has_worth = bool(worth.low > 0)  # NaN of a single document: it says nothing of others
            row: dict[Hashable, Any] = {
                "model": model,
                "criterion": criterion,
                "num_targets": int(num_targets_D.sum()),
                "num_documents": len(num_targets_D),
                **interval_columns("worth", worth),
            }
            for percent in KEPT:
                keeping = partial(windows_keeping, lengths_J=np.array(values_DJ.columns), percent=percent)
                window = interval_of_statistic(list(sums_JD), keeping) if has_worth else NO_INTERVAL
                row |= interval_columns(f"window_{percent}", window)
            rows.append(row)
    return pd.DataFrame(rows)


def windows_keeping(values_XJ: np.ndarray, lengths_J: np.ndarray, percent: float) -> np.ndarray:
    """The least context that keeps so much of what the longest gives more than the shortest: float64 [X].

    Between measured lengths by straight lines in log2 of the length; NaN if the longest gives no more.

    Args:
        values_XJ: losses or divergences, at J ascending lengths.
    """
    # X is 1 for the estimate, and the number of resamples for its interval.
    places_X = np.arange(len(values_XJ))
    log2_J = np.log2(lengths_J)
    with np.errstate(divide="ignore", invalid="ignore"):
        kept_XJ = (values_XJ[:, :1] - values_XJ) / (values_XJ[:, :1] - values_XJ[:, -1:])
        # Noise can make a longer context worse; the first length that reaches the share counts.
        rising_XJ = np.maximum.accumulate(kept_XJ, axis=1)
        # The shortest keeps 0, so the first to reach the share is a later one; `clip` only saves rows without
        # worth, which become NaN below, from the index -1.
        reached_X = (rising_XJ >= percent / 100).argmax(1).clip(min=1)
        before_X = rising_XJ[places_X, reached_X - 1]
        part_X = (percent / 100 - before_X) / (rising_XJ[places_X, reached_X] - before_X)
    # Halfway between 64 and 128 tokens is 91.
    windows_X = 2 ** (log2_J[reached_X - 1] + part_X * (log2_J[reached_X] - log2_J[reached_X - 1]))
    return np.where(values_XJ[:, 0] > values_XJ[:, -1], windows_X, np.nan)
