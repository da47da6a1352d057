"""Mean losses of models under the short, the long and every studied context, in nats; calibration.

A divergence KL(p(.|long) || p(.|less)) is the gain that the long context would have over less of it if the
next token were drawn from the model's own prediction; it does not see that token. Over targets expected to
gain so much the mean actual gain is as large if the model is calibrated: actual gains rise with expected
ones by slope 1. Where they do not, divergences are no nats of loss, whatever else they say.
"""

from collections.abc import Hashable, Iterable, Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import drawing
from analysis.gap.outcomes import FEWEST_DOCUMENTS
from analysis.read import (
    NO_INTERVAL,
    interval_columns,
    interval_over_documents,
    joined_on_common,
    mean_columns,
    summarized,
)
from pipeline.results.statistics import Interval

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


EXPECTED_AND_ACTUAL = {
    "short_context_divergence": "loss_difference",
    "foreign_context_divergence": "specific_gain",
}
"""Expected gain -> actual gain, columns of loss_differences: over the short context alone, and over the short
context with another document's far context."""


def calibration_slopes(loss_differences: pd.DataFrame) -> pd.DataFrame:
    """How actual gains follow expected ones: a row a model and expected gain that results have.

    Returns:
        model, expected (the column's name), num_targets, num_documents, then with intervals expected_gain
        and actual_gain (means, nats), ratio (actual / expected, of sums) and slope (of actual on expected by
        least squares, robust to dependence within documents; NaN for fewer than ten). Both are 1 where the
        model is calibrated; the few targets of large expected gain decide the slope.
    """

    def numbers(targets: pd.DataFrame) -> dict[Hashable, float]:
        expected, actual, documents = (
            targets[name] for name in ("expected_gain", "actual_gain", "document_id")
        )
        return {
            **mean_columns(targets, "expected_gain", "actual_gain"),
            **interval_columns("ratio", interval_over_documents(documents, actual, expected)),
            **interval_columns("slope", _slope(actual, expected, documents)),
        }

    tables = []
    for columns in EXPECTED_AND_ACTUAL.items():
        if {*columns} <= {*loss_differences}:  # earlier results have none
            targets = loss_differences.dropna(subset=columns).astype(dict.fromkeys(columns, "float64"))
            names = dict(zip(columns, ("expected_gain", "actual_gain"), strict=True))
            targets = targets.rename(columns=names).assign(expected=columns[0])
            tables.append(summarized(targets, ["model", "expected"], numbers))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _slope(actual: pd.Series, expected: pd.Series, documents: pd.Series) -> Interval:
    """Least squares; covariance of Liang and Zeger (1986), Student's with the documents less one."""
    # Imported late: statsmodels takes seconds, and few who read figures fit a regression.
    from statsmodels.regression.linear_model import OLS

    if documents.nunique() < FEWEST_DOCUMENTS or np.ptp(expected) == 0:
        return NO_INTERVAL
    design_T2 = np.column_stack([np.ones(len(expected)), expected])
    groups_T = pd.factorize(documents)[0]
    fit = OLS(actual.to_numpy(), design_T2).fit(cov_type="cluster", cov_kwds={"groups": groups_T}, use_t=True)
    low, high = fit.conf_int()[1]
    return Interval(float(fit.params[1]), float(low), float(high))


def losses_by_context_length(length_losses: pd.DataFrame) -> pd.DataFrame:
    """Mean loss at each context length: a row a model and length.

    Columns model, context_length (tokens), num_targets, num_documents, loss with its interval (nats).
    """
    return _weighed_means(length_losses, "loss", "mean_loss")


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
    return _weighed_means(paired, "difference", "difference")


def _weighed_means(chunks: pd.DataFrame, name: str, column: str) -> pd.DataFrame:
    """A row a model and context length: the mean of a column, weighed by a chunk's targets, called `name`."""

    def numbers(chunks: pd.DataFrame) -> dict[Hashable, float]:
        weights = chunks["num_targets"]
        mean = interval_over_documents(chunks["document_id"], chunks[column] * weights, weights)
        return {"num_targets": int(weights.sum()), **interval_columns(name, mean)}

    return summarized(chunks, ["model", "context_length"], numbers)


def lengths_figure(
    differences: pd.DataFrame,
    labels: Mapping[str, drawing.ModelLabel],
    train_lengths: Iterable[int],
    reference: str,
) -> Figure:
    """`losses_beside_reference` of every model against the context given; training lengths are marked."""
    figure, (ax,) = drawing.panels(1, 3.4)
    models = list(dict.fromkeys(differences["model"]))
    ends = []
    for place, model in enumerate(models):
        line = differences[differences["model"] == model].sort_values("context_length")
        x = line["context_length"] * 1.03 ** drawing.beside(place, len(models))  # the axis is logarithmic
        style = labels[model].style.measured
        name = labels[model].text
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
        figure,
        _whose_loss_is_lower(differences, labels),
        drawing.sample_size(differences),
        size,
        f"{drawing.BARS}, of the difference",
        "points of one length stand side by side",
    )
    return figure


def _whose_loss_is_lower(differences: pd.DataFrame, labels: Mapping[str, drawing.ModelLabel]) -> str:
    """The finding of `lengths_figure`: the loss at the longest context beside that at the shortest.

    A training is named where the intervals of all its seeds leave out the mean at the shortest.
    """
    lengths = differences["context_length"]
    before, after = (
        differences[lengths == length].set_index("model") for length in (lengths.min(), lengths.max())
    )
    trainings = [
        labels[str(model)].text.partition(", seed")[0].replace(", ", " with ") for model in after.index
    ]
    is_so = (
        pd.DataFrame(
            {
                "lower": after["difference_high"] < before["difference"],
                "higher": after["difference_low"] > before["difference"],
            }
        )
        .groupby(trainings, sort=False)
        .all()
    )
    change = f"with {lengths.max():,} tokens of context than with {lengths.min()}"
    for way in is_so:
        if is_so[way].all():
            return f"Every model's loss is {way} {change}"
    named = {way: " or ".join(is_so.index[is_so[way]]) for way in is_so if is_so[way].any()}
    if not named:
        return f"No model's loss is clearly other {change}"
    (way, models), *others = named.items()
    return f"Loss is {way} {change} when {models}" + "".join(
        f", {other} when {those}" for other, those in others
    )
