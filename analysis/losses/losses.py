"""Mean losses of models under the short, the long and every studied context, in nats; loss against length."""

from collections.abc import Hashable, Iterable, Mapping

import pandas as pd
from matplotlib.figure import Figure

from analysis import drawing
from analysis.read import (
    NO_INTERVAL,
    interval_columns,
    interval_over_documents,
    joined_on_common,
    mean_columns,
    summarized,
)

_CHUNK = ["document_id", "chunk_index"]


def summarize_models(loss_differences: pd.DataFrame) -> pd.DataFrame:
    """A row a model: how much its long context helps.

    Returns:
        model, num_targets, num_documents, short_context_loss, long_context_loss (means, nats), then with
        intervals loss_difference (nats; positive = the long context helps), expected_gain (the mean
        short_context_divergence) and specific_gain; the last two are NaN where they were not measured.
    """

    def numbers(targets: pd.DataFrame) -> dict[Hashable, float]:
        means = targets[["short_context_loss", "long_context_loss"]].astype("float64").mean().to_dict()
        means |= mean_columns(targets, "loss_difference")
        for name, column in (("expected_gain", "short_context_divergence"), ("specific_gain",) * 2):
            interval = NO_INTERVAL
            if column in targets and targets[column].notna().all():
                interval = interval_over_documents(targets["document_id"], targets[column])
            means |= interval_columns(name, interval)
        return means

    return summarized(loss_differences, ["model"], numbers)


def losses_by_context_length(length_losses: pd.DataFrame) -> pd.DataFrame:
    """Mean loss at each context length: a row a model and length.

    The change from the model's own loss at the shortest length is paired by chunk: documents differ
    far more from each other in loss than lengths do, and that difference cancels there.

    Returns:
        model, context_length (tokens), num_targets, num_documents, then with intervals loss and
        loss_change (loss - loss at the shortest length; negative = the added context helps), nats.
    """
    shortest = length_losses[length_losses["context_length"] == length_losses["context_length"].min()]
    keys, what = ["model", *_CHUNK], "chunks at the shortest length"
    shortest = shortest[[*keys, "mean_loss"]]
    paired = joined_on_common(length_losses, shortest, keys, what, ("", "_shortest"))
    paired["loss_change"] = paired["mean_loss"] - paired["mean_loss_shortest"]
    return _weighed_means(paired, {"loss": "mean_loss", "loss_change": "loss_change"})


def losses_beside_reference(length_losses: pd.DataFrame, reference: str, shortest: int) -> pd.DataFrame:
    """Mean loss at each context length, less that of one model at one length, paired by chunk.

    Documents differ far more in loss than models and lengths do; most of that cancels here. Contexts shorter
    than `shortest` tokens are left out.

    Returns:
        model, context_length (tokens), num_targets, num_documents, then with its interval difference (loss of
        the model at this length - loss of the reference at `shortest`, nats).
    """
    is_reference = (length_losses["model"] == reference) & (length_losses["context_length"] == shortest)
    longer = length_losses[length_losses["context_length"] >= shortest]
    of_reference = length_losses.loc[is_reference, [*_CHUNK, "mean_loss"]]
    what = f"chunks that {reference} was measured on at {shortest} tokens"
    paired = joined_on_common(longer, of_reference, _CHUNK, what, ("", "_reference"))
    paired["difference"] = paired["mean_loss"] - paired["mean_loss_reference"]
    return _weighed_means(paired, {"difference": "difference"})


def _weighed_means(chunks: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """A row a model and context length: means of columns, weighed by a chunk's targets, as `names` are."""

    def numbers(chunks: pd.DataFrame) -> dict[Hashable, float]:
        documents, weights = chunks["document_id"], chunks["num_targets"]
        columns: dict[Hashable, float] = {"num_targets": int(weights.sum())}
        for name, column in names.items():
            interval = interval_over_documents(documents, chunks[column] * weights, weights)
            columns |= interval_columns(name, interval)
        return columns

    return summarized(chunks, ["model", "context_length"], numbers)


def lengths_figure(
    differences: pd.DataFrame, labels: Mapping[str, drawing.ModelLabel], train_lengths: Iterable[int],
    reference: str,
) -> Figure:  # fmt: skip
    """`losses_beside_reference` of every model against the context given; training lengths are marked."""
    figure, (ax,) = drawing.panels(1, 3.4)
    models, ends = list(dict.fromkeys(differences["model"])), []
    for place, model in enumerate(models):
        line = differences[differences["model"] == model].sort_values("context_length")
        x = line["context_length"] * 1.03 ** drawing.beside(place, len(models))  # the axis is logarithmic
        style, name = labels[model].style.measured, labels[model].text
        ends.append(drawing.draw_line(ax, x, line, "difference", style, name))
    ax.axhline(0, color=drawing.BLACK, linewidth=0.6)
    ax.set_xscale("log", base=2)
    ticks: list[int] = []  # the longest first: none so near the next that their labels touch
    for length in sorted(differences["context_length"].unique(), reverse=True):
        if not ticks or ticks[-1] >= 1.45 * length:
            ticks.append(int(length))
    ax.set_xticks(ticks, [str(length) for length in ticks])
    ax.minorticks_off()
    ax.set_xlabel("context given (tokens)")
    shortest = differences["context_length"].min()
    ax.set_ylabel(f"loss (nats), less that of\n{labels[reference].text}\ngiven {shortest} tokens")
    for length in sorted(set(train_lengths)):
        drawing.name_place(ax, length, f"trained at {length}")
    drawing.label_line_ends(ax, ends)
    size = drawing.common_size(labels[model] for model in models)
    drawing.put_title(
        figure, "Does a longer context help each model?", drawing.sample_size(differences), size,
        f"{drawing.BARS}, of the difference",
    )  # fmt: skip
    return figure
