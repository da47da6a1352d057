"""What is measured of the tokens of one text.

Shapes: L measured tokens, T targets, K largest k, J studied values of k, F far-context positions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.explaining.asked import Asked, Part
from pipeline.influence.batching import Batching
from pipeline.influence.context_loss import Measured
from pipeline.influence.far_context import FarContext
from pipeline.influence.foreign_context import measured_in_foreign_context
from pipeline.influence.measurement import Measurement
from pipeline.influence.rules import RULES
from pipeline.influence.selection import far_contexts, selected_positions, sparse_contexts
from pipeline.influence.sparsity import dependency_sparsity
from pipeline.models.causal_lm import CausalLM
from pipeline.results.names import OTHER_DOCUMENT, OWN


@dataclass(frozen=True, eq=False)
class Chosen:
    """The far tokens that a rule chose in one far context, and what they are worth."""

    positions_TK: np.ndarray
    """Places among the measured tokens, most influential first."""
    sparse_TJ: Measured
    """With the short context and the first k of them."""
    influence_TK: np.ndarray | None
    """loss(t | long without i) - loss(t | long), nats, NaN where not measured; None: of none."""
    divergence_TK: np.ndarray | None
    """KL(p(.|long) || p(.|long without i)), nats; None where no rule left tokens out."""


@dataclass(frozen=True, eq=False)
class OfRule:
    """What a rule chose for every target."""

    own: Chosen
    null: Chosen | None
    """Of the foreign text, at the same positions; None of a rule that needs no null."""
    k_star_T: list[int | None]
    """The least studied k that recovers most of the gain; None where there is no gain, or none does."""
    is_censored_T: np.ndarray
    """bool: none does."""
    expected: tuple[list[int | None], np.ndarray]
    """Both by the divergence: of the gain that is expected before the target is seen."""


@dataclass(frozen=True, eq=False)
class Measurements:
    """What is measured of every target, nats."""

    long_losses_T: np.ndarray
    short: Measured
    foreign: Measured
    """With the foreign text's far context in the place of the own one."""
    of_rule: Mapping[str, OfRule]


def measure(
    model: CausalLM,
    batching: Batching,
    token_ids_L: np.ndarray,
    foreign_ids_L: np.ndarray,
    part: Part,
    asked: Asked,
) -> Measurements:
    """Measure every target of a part of a text.

    Args:
        token_ids_L, foreign_ids_L: the part's tokens, and as many of another text: int64.

    Raises:
        NotFiniteLossError: the model gives what is no number.
    """
    measurement = Measurement(model, part.lengths, batching, seed=(asked.seed,))
    contexts = far_contexts(measurement, token_ids_L, foreign_ids_L)
    own, foreign = contexts[OWN], contexts[OTHER_DOCUMENT]
    chosen = {rule: selected_positions(own, rule, part.ks[-1], (asked.seed,)) for rule in asked.rules}
    null = {
        rule: selected_positions(foreign, rule, part.ks[-1], (asked.seed,))
        for rule in asked.rules
        if RULES[rule].needs_null
    }
    of_own, of_null = _chosen(own, chosen, part.ks), _chosen(foreign, null, part.ks)
    return Measurements(
        own.long_losses_T,
        own.short,
        measured_in_foreign_context(model, token_ids_L, foreign_ids_L, part.lengths, own.predictions),
        {
            rule: OfRule(chosen_own, of_null.get(rule), *_k_stars(own, chosen_own.sparse_TJ, part.ks, asked))
            for rule, chosen_own in of_own.items()
        },
    )


def _chosen(
    context: FarContext, positions_of_rule: Mapping[str, np.ndarray], ks: Sequence[int]
) -> dict[str, Chosen]:
    sparse = sparse_contexts(context, positions_of_rule, dict.fromkeys(positions_of_rule, ks))
    # Told by whatever pass a rule has asked for; no pass is run to tell more.
    is_left_out = context.every_influence_TF is not None
    influence_TF = context.measured_influence_TF
    divergence_TF = context.divergence_TF if is_left_out else None

    def of_chosen(values_TF: np.ndarray | None, positions_TK: np.ndarray) -> np.ndarray | None:
        return None if values_TF is None else np.take_along_axis(values_TF, positions_TK, axis=1)

    return {
        rule: Chosen(
            positions_TK,
            sparse[rule],
            of_chosen(influence_TF, positions_TK),
            of_chosen(divergence_TF, positions_TK),
        )
        for rule, positions_TK in positions_of_rule.items()
    }


def _k_stars(
    own: FarContext, sparse_TJ: Measured, ks: Sequence[int], asked: Asked
) -> tuple[list[int | None], np.ndarray, tuple[list[int | None], np.ndarray]]:
    """k* and whether it is censored by the loss, and the same by the divergence."""

    def k_star(gains_T: np.ndarray, recovered_TJ: np.ndarray) -> tuple[list[int | None], np.ndarray]:
        return dependency_sparsity(
            gains_T,
            recovered_TJ,
            np.array(ks),
            recovery_fraction=asked.recovery_fraction,
            minimum_gain=asked.minimum_gain,
        )

    short = own.short
    by_loss = k_star(short.losses - own.long_losses_T, short.losses[:, None] - sparse_TJ.losses)
    by_divergence = k_star(short.divergences, short.divergences[:, None] - sparse_TJ.divergences)
    return *by_loss, by_divergence
