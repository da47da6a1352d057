"""The four answers that `summary.py` prints: a sentence each, of results, or of what they lack for it.

Only numbers that mean what they say: what k tokens are worth is told by the measure that is fooled least, of
those that the results have (`PREFERRED_RULES`), beyond its null where it needs one.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.document_intervals import interval_over_documents
from analysis.generalization.gap_slopes import gap_targets, slope_with_gain
from analysis.generalization.model_scale import compared_models
from analysis.generalization.sparsity_measures import BEYOND_NULL, sparsity_measures
from analysis.own_measurements import PREFERRED_RULES, asked_ks, needs_null, read_sparse_losses, read_sparsity
from analysis.recovered_gain import is_clear_gain
from analysis.token_effects import nearest_equivalents, number_in_words, token_effects
from pipeline.errors import InputError
from pipeline.influence.rules import BACKGROUND, CONTROLS, RULES
from pipeline.results.bootstrap import Interval
from pipeline.results.folder import artefacts_in, read_artefact, read_settings
from pipeline.results.names import LOSS

_UNTOLD = "Whether short-trained models lose more where more tokens are needed cannot be told:"
_HOW_TO_CHOOSE = "run influential_tokens with its own choice of rules and intervention"


@dataclass(frozen=True)
class Chosen:
    """The measure that the answers are told by."""

    model: str
    rule: str
    settings: Mapping[str, Any]

    @property
    def is_in_background(self) -> bool:
        """Whether tokens were put into another document's far context."""
        return self.settings.get("intervention") == BACKGROUND


def chosen_measure(results: Path) -> Chosen | None:
    """The least fooled rule of the results, of the first model that has it; None where no tokens were chosen.

    Rules that see the answer come last: of these only the excess over the null is told too.
    """
    if "sparse_context_losses" not in artefacts_in(results):
        return None
    present = read_artefact(results, "sparse_context_losses", ["rule"]).drop_duplicates()
    settings = read_settings(results, "influential_tokens")
    others = [rule for rule in (*RULES, *present["rule"]) if rule not in CONTROLS]
    for rule in dict.fromkeys([*PREFERRED_RULES, *others]):
        for model in present.loc[present["rule"] == rule, "model"]:
            return Chosen(str(model), rule, settings.get(model, {}))
    return None


def answers(results: Path) -> Iterator[str]:
    """Four sentences.

    Raises:
        InputError: no loss differences.
    """
    losses = read_artefact(results, "loss_differences")
    chosen = chosen_measure(results)
    model = _told_model(losses, chosen)
    targets = losses[losses["model"] == model]
    yield worth_of_far_context(targets, model)
    yield own_part(targets, model)
    if chosen is None:
        yield f"How many tokens carry it was not measured: {_HOW_TO_CHOOSE}."
    else:
        yield carried_by(results, chosen)
    yield from short_models_answers(results, losses, chosen)


def _told_model(losses: pd.DataFrame, chosen: Chosen | None) -> str:
    """The model that tokens were chosen with; else the one that gains most."""
    if chosen is not None and chosen.model in set(losses["model"]):
        return chosen.model
    return str(losses.groupby("model")["loss_difference"].mean().idxmax())


def worth_of_far_context(targets: pd.DataFrame, model: str) -> str:
    """What the far context is worth, actually and by the model's own expectation.

    Args:
        targets: rows of loss_differences, one model.
        model: its name.
    """
    actual = interval_over_documents(targets["document_id"], targets["loss_difference"])
    said = f"To {model} the far context is worth {actual} nats a token"
    expected = _told(targets, "short_context_divergence")
    if expected is None:
        return f"{said}."
    return f"{said}; by its own predictions, before it sees the token, {expected}."


def own_part(targets: pd.DataFrame, model: str) -> str:
    """How much of that only this document's far context gives.

    Args:
        targets: rows of loss_differences, one model.
        model: its name.
    """
    specific = _told(targets, "specific_gain")
    if specific is None:
        return "How much of it is this document's own was not measured: run loss_differences again."
    documents, gains = targets["document_id"], targets["loss_difference"]
    said = f"With another document's far context in its place {model} loses {specific} nats a token"
    if not is_clear_gain(interval_over_documents(documents, gains)):
        return f"{said}; what the far context is worth is too unclear for a share of it."
    share = interval_over_documents(documents, targets["specific_gain"], gains)
    return f"{said}: so much, {share} of the whole, is this document's own."


def _told(targets: pd.DataFrame, column: str) -> Interval | None:
    """The mean of a column that earlier results lack."""
    if column not in targets or targets[column].isna().all():
        return None
    return interval_over_documents(targets["document_id"], targets[column])


def effects_of(results: Path, chosen: Chosen) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`token_effects` of the chosen rule by the loss at each k asked for; `nearest_equivalents` of them."""
    only = {"model": [chosen.model], "rule": [chosen.rule, "nearest"]}
    effects = token_effects(read_sparse_losses(results, only=only, every_k=True))
    effects = effects[effects["criterion"] == LOSS]
    equivalents = nearest_equivalents(effects)
    asked = asked_ks(results).get(chosen.model)
    of_rule = effects[effects["rule"] == chosen.rule]
    return of_rule[of_rule["k"].isin(asked)] if asked else of_rule, equivalents


def carried_by(results: Path, chosen: Chosen) -> str:
    """How much of the gain the largest asked number of tokens carries, and how many of the nearest do."""
    effects, equivalents = effects_of(results, chosen)
    if effects.empty:
        return f"How many tokens carry it cannot be told: {chosen.rule} was measured without its null."
    row = effects.sort_values("k").to_dict("records")[-1]
    gain, effect, share = (_interval(row, name) for name in ("gain", "effect", "share"))
    beyond = " beyond what the same search finds in another document" if needs_null(chosen.rule) else ""
    where = (
        "put into another document's far context" if chosen.is_in_background else "added to the short context"
    )
    of_gain = "there is no clear gain"
    if is_clear_gain(gain):
        of_gain = f"{share} of the {gain.estimate:.3f} there are to gain"
    said = f"{row['k']} far tokens ({chosen.rule}), {where}, give {effect} nats{beyond}: {of_gain}"
    if not beyond:
        said += f" (another document's tokens, chosen alike, give {_interval(row, 'null_recovered')})"
    if not effect.low > 0:
        return f"{said}; that is not clearly more than nothing."
    if equivalents.empty:
        return f"{said}."
    (nearest,) = equivalents[equivalents["k"] == row["k"]].to_dict("records")
    return f"{said}; {number_in_words(nearest)} of the nearest tokens do as much."


def short_models_answers(results: Path, losses: pd.DataFrame, chosen: Chosen | None) -> Iterator[str]:
    """Whether short-trained models lose more where more tokens are needed: a sentence each, or what lacks.

    The gain is held constant, as who gains much from the far context has much to lose; and as single losses
    are noisy, k* and the gap come from two long-trained seeds.
    """
    if chosen is None or "dependency_sparsity" not in artefacts_in(results):
        yield f"{_UNTOLD} how many tokens each prediction needs was not measured."
        return
    try:
        compared = compared_models([results])
    except InputError:
        yield f"{_UNTOLD} the results do not say how the models were trained."
        return
    group = next((group for group in compared if chosen.model in group.long_models), None)
    if group is None or not group.short_models:
        yield f"{_UNTOLD} it needs models trained at a short context beside {chosen.model}."
        return
    others = [model for model in group.long_models if model != chosen.model]
    if not others:
        yield f"{_UNTOLD} a second long-trained seed is needed, or one seed's luck would tie both together."
        return
    measured, largest_k = _measured_sparsity(results, chosen)
    targets = gap_targets(
        losses,
        short_models=group.short_models,
        reference_model=others[-1],
        difficulty_model=others[-1],
        gain_model=chosen.model,
        token_counts_V=None,
    )
    for model, of_model in targets.groupby("model", sort=False):
        yield _gap_sentence(str(model), others[-1], of_model, slope_with_gain(of_model, measured, largest_k))


def _measured_sparsity(results: Path, chosen: Chosen) -> tuple[pd.DataFrame, int]:
    """k* of each target by the chosen measure, and the largest k of those asked for."""
    only = {"model": [chosen.model], "rule": [chosen.rule]}
    sparse = read_sparse_losses(results, only=only)
    measured = sparsity_measures(read_sparsity(results, only=only), sparse, chosen.settings)
    measure = chosen.rule + (BEYOND_NULL if needs_null(chosen.rule) else "")
    return measured[measured["measure"] == measure], int(sparse["k"].max())


def _gap_sentence(model: str, reference: str, targets: pd.DataFrame, slope: Interval) -> str:
    gap = interval_over_documents(targets["document_id"], targets["generalization_gap"])
    said = f"Under the long context {model} loses {gap} nats a token more than {reference}"
    if pd.isna(slope.low):
        return f"{said}; too few predictions tell whether more where more tokens are needed."
    clear = "no clear change"
    if not slope.low <= 0 <= slope.high:
        clear = "more where more are needed" if slope.low > 0 else "less where more are needed"
    return (
        f"{said}; with every doubling of the tokens that a prediction needs this changes by {slope} nats"
        f" where as much is to gain: {clear}."
    )


def _interval(row: Mapping[Hashable, Any], name: str) -> Interval:
    return Interval(row[name], row[f"{name}_low"], row[f"{name}_high"])
