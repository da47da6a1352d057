"""Mean losses of models under the short, the long and every studied context: DataFrames in, small ones out.

Losses are in nats; means and intervals as in `analysis.read`.

The drawing of losses against the length of the context: tables of `mean_losses` in, Figures out.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.drawing import (
    BARS,
    BLACK,
    TEXT_WIDTH,
    LineEnd,
    Role,
    common_size,
    draw_with_bars,
    is_above,
    is_below,
    label_line_ends,
    name_place,
    panels,
    put_title,
    sample_size,
    subtitle,
)
from analysis.read import interval_columns, interval_over_documents, joined_on_common, sample_counts
from pipeline.results.statistics import Interval


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


_BESIDE = 1.03  # factor on a logarithmic axis between the bars of models


def lengths_figure(
    differences: pd.DataFrame, changes: pd.DataFrame, roles: Mapping[str, Role], train_lengths: Iterable[int]
) -> Figure:
    """Loss of every model against the context it is given, less that of a reference model.

    Args:
        differences: `mean_losses.losses_beside_reference`.
        changes: `mean_losses.losses_by_context_length`, from the same shortest length on; for the title.
        roles: of the models.
        train_lengths: tokens that models were trained at, which are marked.
    """
    figure, ax = panels(1, 1, TEXT_WIDTH, 3.4)
    models = list(dict.fromkeys(differences["model"]))
    for place, model in enumerate(models):
        line = differences[differences["model"] == model].sort_values("context_length")
        x = line["context_length"] * _BESIDE ** (place - (len(models) - 1) / 2)
        draw_with_bars(ax, x, line, "difference", **roles[model].look.measured)
    ax.axhline(0, color=BLACK, linewidth=0.6)
    ax.set_xscale("log", base=2)
    lengths = sorted(differences["context_length"].unique())
    ticks = legible_ticks(lengths)
    ax.set_xticks(ticks, [str(length) for length in ticks])
    ax.minorticks_off()
    ax.set_xlabel("context given (tokens)")
    reference, shortest = _reference(differences)
    ax.set_ylabel(f"loss (nats), less that of\n{roles[reference].words}\ngiven {shortest} tokens")
    for length in sorted(set(train_lengths)):
        name_place(ax, length, f"trained at {length}")
    last = differences[differences["context_length"] == lengths[-1]].to_dict("records")
    label_line_ends(
        ax,
        [
            LineEnd(lengths[-1], row["difference"], roles[row["model"]].words, roles[row["model"]].look.color)
            for row in last
        ],
    )
    told = [
        sample_size(differences),
        common_size(roles[model] for model in models),
        f"{BARS}, of the difference",
    ]
    put_title(figure, lengths_title(changes, roles), subtitle(*told))
    return figure


def _reference(differences: pd.DataFrame) -> tuple[str, int]:
    """The model and length that are 0 by definition."""
    shortest = differences[differences["context_length"] == differences["context_length"].min()]
    row = shortest.loc[(shortest["difference"].abs() + shortest["difference_high"].abs()).idxmin()]
    return str(row["model"]), int(row["context_length"])


def lengths_title(changes: pd.DataFrame, roles: Mapping[str, Role]) -> str:
    """Who loses and who gains from the shortest context to the longest, as far as each interval tells.

    Args:
        changes: `mean_losses.losses_by_context_length`.
        roles: of the models.
    """
    lengths = sorted(changes["context_length"].unique())
    longest = changes[changes["context_length"] == lengths[-1]]
    worse = [row["model"] for row in longest.to_dict("records") if is_above(row["loss_change_low"])]
    better = [row["model"] for row in longest.to_dict("records") if is_below(row["loss_change_high"])]
    tokens = f"{lengths[-1]:,} tokens"
    if len(worse) == len(longest) > 1:
        return f"Every model is worse with {tokens} than with {lengths[0]}"
    if len(better) == len(longest) > 1:
        return f"Every model is better with {tokens} than with {lengths[0]}"
    said = [
        f"{verb} models {_named(models, longest['model'], roles)}"
        for verb, models in (("help", better), ("hurt", worse))
        if models
    ]
    if not said:
        return f"No model is clearly better or worse with {tokens} than with {lengths[0]}"
    return f"{tokens} instead of {lengths[0]} {', and '.join(said)}"


def _named(models: Sequence[str], among: Iterable[str], roles: Mapping[str, Role]) -> str:
    """The models in words; without the seed where all that were trained alike are among them."""

    def training(model: str) -> str:
        return roles[model].words.partition(", seed")[0]

    split = {training(model) for model in among if model not in models}
    names = [roles[model].words if training(model) in split else training(model) for model in models]
    return " and ".join(name.replace(", PoSE", " with PoSE") for name in dict.fromkeys(names))


def legible_ticks(lengths: Iterable[int]) -> list[int]:
    """The lengths to label, the longest first among them: none so near the next that their labels touch."""
    ticks: list[int] = []
    for length in sorted(lengths, reverse=True):
        if not ticks or ticks[-1] >= 1.45 * length:
            ticks.append(int(length))
    return ticks[::-1]
