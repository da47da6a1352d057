"""LongPPL of Fang et al. (2024, arXiv 2410.23771): perplexity over tokens that need their long context.

LSD is ln p(t | long) - ln p(t | short), the `loss_difference` of this project; LCL is ln p(t | long), minus
the `long_context_loss`. A token is a *key token* where LSD > alpha and LCL > beta, both strictly, and LongPPL
is exp(mean long_context_loss over key tokens). The defaults alpha = 2 and beta = -2 (nats) are theirs, chosen
for models of billions of parameters and a short context of 4,096 tokens.

Where ours differs from theirs:

- Tokens are the targets of the results, the last m positions of each chunk, and no others. A chunk stands for
  their text; with m = ℓ - s - 1 every token is a target that has a far context at all.
- Key tokens come from `short_context_loss`, exact windows, or from `windowed_short_context_loss`, the
  approximation in their code, where that was measured.
- Key tokens of all documents are pooled, and intervals resample documents. They score one text at a time.

Key tokens are chosen by an `evaluator`, as in their paper, and LongPPL may be any model's. A model that
chooses its own is flattered: LCL > beta keeps only what it predicts well, so its LongPPL is below exp(-beta)
whatever it is. Choosing also looks at the answer, so differences on key tokens are no means over text.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.read import TARGET, interval_over_documents, joined_on_common, mean_columns, sample_counts
from pipeline.cli import InputError, unknown_name
from pipeline.results.statistics import Interval

ALPHA, BETA = 2.0, -2.0
SHORT_LOSS = {"exact": "short_context_loss", "windowed": "windowed_short_context_loss"}
"""Kind of short context -> the column of its loss."""
COLUMNS = [*TARGET, *SHORT_LOSS.values(), "long_context_loss"]
"""What the functions here need of the artefact `loss_differences`, beside the model."""


def is_key_token(
    targets: pd.DataFrame, short_context: str = "exact", alpha: float = ALPHA, beta: float = BETA
) -> pd.Series:
    """Whether LSD > alpha and LCL > beta: bool, a value a target.

    `short_context` is a key of `SHORT_LOSS`, thresholds are in nats; a beta of -inf asks for none.
    """
    lsd = targets[SHORT_LOSS[short_context]] - targets["long_context_loss"]
    return (lsd > alpha) & (-targets["long_context_loss"] > beta)


def long_perplexities(
    loss_differences: pd.DataFrame,
    evaluator: str | None = None,
    alphas: Sequence[float] = (ALPHA,),
    betas: Sequence[float] = (BETA,),
) -> pd.DataFrame:
    """LongPPL of every model at every pair of thresholds, exact beside windowed where that was measured.

    Args:
        loss_differences: the artefact, any number of models.
        evaluator: the model whose losses choose the key tokens, for all models; each its own where None.
        alphas, betas: thresholds, nats.

    Returns:
        model, short_context ("exact" or "windowed"), alpha, beta, num_targets (those that the evaluator
        measured too), num_documents, num_key_tokens, perplexity (over all targets), long_perplexity with its
        interval: null where there is no key token, and the interval also where a single document has any.

    Raises:
        InputError: no results of the evaluator, or a model has no target in common with it.
    """
    rows = []
    of_model = {str(model): targets for model, targets in loss_differences.groupby("model")}
    if evaluator is not None and evaluator not in of_model:
        raise unknown_name("evaluator", evaluator, of_model)
    for model, targets in of_model.items():
        chosen_by = targets if evaluator is None else of_model[evaluator]
        pairs = targets[[*TARGET, "long_context_loss"]].rename(columns={"long_context_loss": "loss"})
        what = f"targets of {model} and of the evaluator"
        pairs = joined_on_common(pairs, chosen_by[COLUMNS], TARGET, what)
        if pairs.empty:
            raise InputError(
                f"model '{model}' and the evaluator '{evaluator}' have no target in common; measure them on"
                " the same documents"
            )
        rows += [
            {"model": model, "short_context": kind, "alpha": alpha, "beta": beta}
            | _long_perplexity(pairs, is_key_token(pairs, kind, alpha, beta))
            for kind in _measured(pairs)
            for alpha in alphas
            for beta in betas
        ]
    table = pd.DataFrame(rows)
    nullable = [name for name in table if str(name).startswith("long_perplexity")]
    return table.astype(dict.fromkeys(nullable, "Float64"))


def _measured(targets: pd.DataFrame) -> list[str]:
    return [kind for kind, column in SHORT_LOSS.items() if targets[column].notna().all()]


def _long_perplexity(targets: pd.DataFrame, is_key: pd.Series) -> dict[Hashable, Any]:
    """Of one model: `loss` over key tokens. Documents without any are resampled too, as they might recur."""
    keys = targets[is_key]
    mean_loss = Interval(np.nan, np.nan, np.nan)
    if len(keys):
        mean_loss = interval_over_documents(targets["document_id"], targets["loss"] * is_key, is_key)
    has_interval = keys["document_id"].nunique() >= 2
    return {
        "num_targets": len(targets),
        "num_documents": targets["document_id"].nunique(),
        "num_key_tokens": len(keys),
        "perplexity": np.exp(targets["loss"].astype("float64").mean()),
        "long_perplexity": np.exp(mean_loss.estimate),
        "long_perplexity_low": np.exp(mean_loss.low) if has_interval else np.nan,
        "long_perplexity_high": np.exp(mean_loss.high) if has_interval else np.nan,
    }


def windowing_differences(loss_differences: pd.DataFrame) -> pd.DataFrame:
    """How far shared windows are from exact ones, token by token: a row a model that has both.

    Returns:
        model, num_targets, num_documents, then, with intervals, means in nats of loss_difference (LSD from
        exact windows), windowed_loss_difference (from shared ones) and windowing_difference, the first minus
        the second, positive where the tokens more that a shared window shows help;
        mean_absolute_difference. No rows where shared windows were not measured.
    """
    rows = []
    for model, targets in loss_differences.groupby("model"):
        if "windowed" not in _measured(targets):
            continue
        exact, windowed = (
            targets[column].astype("float64") - targets["long_context_loss"] for column in SHORT_LOSS.values()
        )
        means = {"loss_difference": exact, "windowed_loss_difference": windowed,
                 "windowing_difference": exact - windowed}  # fmt: skip
        rows.append(
            {"model": model, **sample_counts(targets), **mean_columns(targets.assign(**means), *means)}
            | {"mean_absolute_difference": (exact - windowed).abs().mean()}
        )
    return pd.DataFrame(rows)


def key_token_agreement(
    loss_differences: pd.DataFrame, alphas: Sequence[float] = (ALPHA,), betas: Sequence[float] = (BETA,)
) -> pd.DataFrame:
    """How many key tokens shared windows and exact ones agree on: a row a model and pair of thresholds.

    Returns:
        model, alpha, beta, num_targets, num_exact, num_windowed, num_both (key tokens), jaccard: both over
        either, null where there is neither. No rows where shared windows were not measured.
    """
    rows = []
    for model, targets in loss_differences.groupby("model"):
        if "windowed" not in _measured(targets):
            continue
        for alpha in alphas:
            for beta in betas:
                exact, windowed = (is_key_token(targets, kind, alpha, beta) for kind in SHORT_LOSS)
                num_both, num_either = int((exact & windowed).sum()), int((exact | windowed).sum())
                rows.append(
                    {
                        "model": model, "alpha": alpha, "beta": beta, "num_targets": len(targets),
                        "num_exact": int(exact.sum()), "num_windowed": int(windowed.sum()),
                        "num_both": num_both, "jaccard": num_both / num_either if num_either else np.nan,
                    }
                )  # fmt: skip
    table = pd.DataFrame(rows)
    return table.astype({"jaccard": "Float64"}) if rows else table
