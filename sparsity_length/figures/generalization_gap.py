"""Do short-context models lose more on predictions that need more distant tokens? The slope of the gap.

    gap = L_short - L_long ~ mean_log2_k + controls        nats per doubling

L is the loss under the long context, a mean over the short-context seeds minus the mean over other
long-context ones (`figures.slopes`). The preregistered studies, whose other outcomes, negative control and
decision were made at commit 9a5d093, have their further checks on analysis/README.md.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from sparsity_length.cli import InputError
from sparsity_length.figures import drawing
from sparsity_length.figures.read import (
    data_of,
    interval_cell,
    is_target_aware,
    joined_on_common,
    mean_columns,
    models_by_training,
    sample_counts,
    shown_rule,
)
from sparsity_length.figures.slopes import (
    FEWEST_DOCUMENTS,
    KEYS,
    LEAST_DIVERGENCE,
    SPARSITY,
    Row,
    contrast,
    design_of,
    of_each,
    with_sparsity,
)
from sparsity_length.measuring.rules import CONTROLS
from sparsity_length.results.read import Results
from sparsity_length.results.schemas import DIVERGENCE
from sparsity_length.text.folder import MANIFEST_FILE, training_token_counts

MEASURED = "long_context_loss"
Trainings = Mapping[str, Sequence[str]]
"""How short-context models were trained, in words -> the seeds."""


def outcome_targets(sparsity: pd.DataFrame, losses: pd.DataFrame, models: Sequence[str]) -> pd.DataFrame:
    """One row per target: its sparsity to each evaluator, what is held constant, and the loss of each model.

    Args:
        sparsity: rows of dependency_sparsity, of one rule and criterion, whose evaluator chose no tokens.
        losses: loss_differences of the evaluators and of `models`.

    Returns:
        document_id, target_position, "mean_log2_k of EVALUATOR" (doublings; null if there is too little to
        recover), divergence and least_divergence (mean and least D(0), nats), gain and difficulty (the
        evaluators' mean loss_difference and long_context_loss, nats), position (tokens), token_id,
        "long_context_loss of MODEL" (nats).
    """
    needed = sparsity.pivot(index=KEYS, columns="evaluator", values=SPARSITY).astype("float64")
    stakes = sparsity.pivot(index=KEYS, columns="evaluator", values="gain").astype("float64")
    # The controls take the evaluators' mean; the threshold takes their least, so that there is enough to
    # recover for each.
    found = needed.add_prefix(f"{SPARSITY} of ").assign(
        divergence=stakes.mean(axis=1), least_divergence=stakes.min(axis=1)
    )
    of_evaluators = losses[losses["model"].isin(sparsity["evaluator"])]
    held = of_evaluators.groupby(KEYS).agg(
        gain=("loss_difference", "mean"),
        difficulty=("long_context_loss", "mean"),
        # The same for every evaluator, as all read the same text.
        position=("num_long_context_tokens", "first"),
        token_id=("target_token_id", "first"),
    )
    of_models = losses[losses["model"].isin(models)]
    outcomes = of_models.pivot(index=KEYS, columns="model", values=MEASURED).astype("float64")
    # Only targets that every model was measured on, so that each gap is between the same models.
    known = held.join(outcomes.add_prefix(f"{MEASURED} of ")).dropna()
    return joined_on_common(
        found.reset_index(), known.reset_index(), KEYS, f"targets with {SPARSITY} and with {MEASURED}"
    )


def compared_models(
    results: Path, long_models: Sequence[str] = (), short_models: Sequence[str] = ()
) -> tuple[pd.DataFrame, Trainings, list[str]]:
    """Find what any results can compare: rows of sparsity, short-context models, other long-context ones.

    The rows are by the divergence, of the most trusted rule that is target-agnostic, to evaluators that did
    not choose its tokens. The long-context models neither chose nor evaluated. Models: as
    `models_by_training` has them.

    Raises:
        InputError: says which model or measurement the results lack.
    """
    columns = [*KEYS, "rule", "evaluator", "criterion", "gain", SPARSITY]
    rows = Results(results).frame("dependency_sparsity", columns, {"criterion": [DIVERGENCE]})
    rows = rows[~rows["rule"].isin(CONTROLS) & ~rows["rule"].map(is_target_aware).astype(bool)]
    if rows[SPARSITY].isna().all():
        raise InputError(f"no rule that is target-agnostic has {SPARSITY}; run influential_tokens anew")
    rows = rows[rows["rule"] == shown_rule(rows["rule"])]
    selections = rows["model"].unique()
    if len(selections) > 1:
        raise InputError(f"tokens chosen by {' and by '.join(selections)} need a results folder each")
    # A plus joins the names of models that selected together.
    selectors = selections[0].split("+")
    rows = rows[~rows["evaluator"].isin(selectors)]
    if rows.empty:
        raise InputError(
            "no model that chose no tokens has evaluated them; run evaluate_tokens with another model"
        )
    labels = drawing.model_labels(results, "loss_differences")
    if unknown := {*rows["evaluator"]} - labels.keys():
        raise InputError(f"the loss differences of the evaluator {min(unknown)} are missing")
    longs, shorts = models_by_training(results, long_models, short_models)
    others = [model for model in longs if model not in {*selectors, *rows["evaluator"]}]
    if not (shorts and others):
        raise InputError(
            "the gap needs a model trained at a short context (--short-models), and a long-context one that"
            " neither chose tokens nor evaluated them"
        )
    at_stake = rows[rows[SPARSITY].notna() & (rows["gain"] >= LEAST_DIVERGENCE)]
    if (num_documents := at_stake["document_id"].nunique()) < FEWEST_DOCUMENTS:
        raise InputError(f"{num_documents} texts have {SPARSITY}, and an interval needs {FEWEST_DOCUMENTS}")
    trainings: dict[str, list[str]] = {}
    for model in shorts:
        trainings.setdefault(labels[model].training, []).append(model)
    return rows, trainings, others


def gap_targets(
    results: Path, data: Path | None = None, long_models: Sequence[str] = (), short_models: Sequence[str] = ()
) -> tuple[pd.DataFrame, Trainings, list[str]]:
    """`outcome_targets` of the gap between the models of `compared_models`, and these, short and long.

    How frequent a token is (log_token_count: natural log of count + 1), and where a text is from (source), is
    held constant if the tokenized data is at hand: in the folder `data`, or in that of this name beside the
    results.
    """
    sparsity, trainings, long = compared_models(results, long_models, short_models)
    losses = Results(results).frame("loss_differences")
    targets = outcome_targets(sparsity, losses, [*chain(*trainings.values()), *long])
    if data is not None or (results.parent / "data" / MANIFEST_FILE).is_file():
        opened = data_of(results, data, "loss_differences")
        counts_V = training_token_counts(opened)
        urls = {document.document_id: document.url or "" for document in opened.evaluation_documents()}
        sources = {name: "Wikipedia" if "wikipedia.org/" in url else "C4" for name, url in urls.items()}
        # Plus one, as a token may never occur in the training text.
        targets["log_token_count"] = np.log(counts_V[targets["token_id"]] + 1.0)
        targets["source"] = targets["document_id"].map(sources)
    return targets, trainings, long


def gap_slope(targets: pd.DataFrame, *, short: Sequence[str], long: Sequence[str]) -> Row:
    """`contrast` of the losses of short- and long-context models, with counts and the evaluators' agreement.

    Args:
        targets: of `outcome_targets`; those without a sparsity to each evaluator, or with a total effect
            below 0.1 nats, are counted and left out.
    """
    known = with_sparsity(targets)
    sparsity = of_each(known, SPARSITY)
    # Above the diagonal, each pair of evaluators appears once.
    pairs = np.triu_indices(sparsity.shape[1], 1)
    return {
        **sample_counts(known),
        "num_left_out": len(targets) - len(known),
        "spearman": float(sparsity.corr("spearman").to_numpy()[pairs].mean()),
        **contrast(design_of(known).least_squares(of_each(known, MEASURED)), short, long),
    }


def binned(targets: pd.DataFrame, *, short: Sequence[str], long: Sequence[str]) -> pd.DataFrame:
    """The gap against mean_log2_k with the controls held constant: one row per eighth of the targets.

    What the regression leaves, with the slope's part and the mean gap: columns mean_log2_k (the eighth's
    mean), num_targets, num_documents, gap with its interval.
    """
    known = with_sparsity(targets)
    sparsity = of_each(known, SPARSITY).mean(axis=1)
    losses = of_each(known, MEASURED)
    gap = losses[list(short)].mean(axis=1) - losses[list(long)].mean(axis=1)
    slope, rest_T = design_of(known).slope_and_rest(gap.to_numpy())
    # Partial residuals: what is left is orthogonal to the mean sparsity, so a least-squares line through
    # these points has exactly the regression's slope.
    held = known[["document_id"]].assign(gap=gap.mean() + slope * (sparsity - sparsity.mean()) + rest_T)
    rows = [
        # The bars take slope and controls as known; only the slope's own interval has their error.
        {SPARSITY: sparsity[eighth.index].mean(), **sample_counts(eighth), **mean_columns(eighth, "gap")}
        # Ties may leave fewer than eight groups.
        for _, eighth in held.groupby(pd.qcut(sparsity, 8, labels=False, duplicates="drop"))
    ]
    return pd.DataFrame(rows)


def gap_figure(bins: pd.DataFrame, slope: Row, models: str = "") -> Figure:
    """The figure of the project: `binned`, titled by what `gap_slope` says; `models` in words."""
    figure, (ax,) = drawing.panels(1, 2.8)
    drawing.draw_line(ax, bins[SPARSITY], bins, "gap", drawing.TRAINED_POSE)
    ax.set(
        xlabel="needed tokens (mean log2 k, doublings)", ylabel="excess loss of short-\ncontext models (nats)"
    )
    more = "neither more nor less"
    if slope["slope_low"] > 0:
        more = "more"
    elif slope["slope_high"] < 0:
        more = "less"
    drawing.put_title(
        figure,
        f"Short-context models lose {more} on predictions that need more tokens",
        models,
        drawing.sample_size(pd.DataFrame([slope])),
        f"slope {interval_cell(slope, 'slope')} nats per doubling, over documents and seeds",
        "total effect, gain, difficulty, frequency, position and source held constant",
        drawing.BARS,
    )
    return figure
