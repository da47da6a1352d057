"""From far contexts to selections to sparse contexts, for a chunk's own far context and for its null.

Shapes: L chunk, T targets, K largest k, J studied values of k, N rules times targets, B backgrounds.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.influence.background import FarContextInBackground
from pipeline.influence.context_loss import Measured
from pipeline.influence.far_context import FarContext
from pipeline.influence.leave_one_out import null_contexts, own_context
from pipeline.influence.measurement import Measurement
from pipeline.influence.rules import find_rule
from pipeline.results.names import OTHER_DOCUMENT, OWN


def far_contexts(
    measurement: Measurement,
    chunk_L: np.ndarray,
    null_chunk_L: np.ndarray,
    *,
    substitute_ids_L: np.ndarray | None = None,
    background_ids_BL: np.ndarray | None = None,
) -> dict[str, FarContext]:
    """The chunk's own far context and its null: another document's tokens, same positions.

    Nothing is measured yet.

    Args:
        substitute_ids_L: what stands in for left-out tokens under the intervention `substitute`.
        background_ids_BL: what does under `background`, of documents that are neither of the two.
    """

    def context(name: str, token_ids_L: np.ndarray, own: FarContext | None) -> FarContext:
        lengths = measurement.lengths
        sequences = (
            (own_context(chunk_L, lengths),)
            if own is None
            else tuple(null_contexts(chunk_L, token_ids_L, lengths))
        )
        fields = name, token_ids_L, chunk_L, sequences, measurement, substitute_ids_L, own
        if background_ids_BL is None:
            return FarContext(*fields)
        return FarContextInBackground(*fields, background_ids_BL=background_ids_BL)

    own = context(OWN, chunk_L, None)
    return {OWN: own, OTHER_DOCUMENT: context(OTHER_DOCUMENT, null_chunk_L, own)}


def selected_positions(far_context: FarContext, rule: str, max_k: int, seed: Sequence[int]) -> np.ndarray:
    """The `max_k` tokens that `rule` ranks first, most influential first: int64 [T, K].

    The same seed draws the same positions in the own far context and in its null.
    """
    return find_rule(rule)(far_context, max_k, np.random.default_rng(seed))


def sparse_contexts(
    far_context: FarContext,
    positions_of_rule: Mapping[str, np.ndarray],
    numbers_of_rule: Mapping[str, Sequence[int]],
) -> dict[str, Measured]:
    """loss(t | short context and S_k), and its divergence, for every rule: rule -> [T, J] each.

    Args:
        far_context: which the positions are of; its model measures, whichever chose them.
        positions_of_rule: rule -> [T, K], most influential first.
        numbers_of_rule: rule -> J numbers of tokens added to the short context, at most K.
    """
    num_targets = far_context.lengths.targets_per_chunk
    of_rule_and_k: dict[tuple[str, int], Measured] = {}
    for k in sorted({k for numbers in numbers_of_rule.values() for k in numbers}):
        # All rules at once: they often choose the same.
        rules = [rule for rule in positions_of_rule if k in numbers_of_rule[rule]]
        measured = far_context.measured_with(
            np.tile(np.arange(num_targets), len(rules)),
            np.concatenate([positions_of_rule[rule][:, :k] for rule in rules]),
        )
        for place, rule in enumerate(rules):
            of_rule = slice(place * num_targets, (place + 1) * num_targets)
            of_rule_and_k[rule, k] = Measured(measured.losses[of_rule], measured.divergences[of_rule])
    return {
        rule: Measured(
            *(np.stack([of_rule_and_k[rule, k][field] for k in numbers], axis=1) for field in range(2))
        )
        for rule, numbers in numbers_of_rule.items()
    }
