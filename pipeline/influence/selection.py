"""From far contexts to selections to sparse-context losses, for a chunk's own far context and for its null.

Shapes: L chunk, T targets, K largest k, J studied values of k, N rules times targets.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.influence.batching import Batching
from pipeline.influence.context_lengths import ContextLengths
from pipeline.influence.far_context import FarContext
from pipeline.influence.leave_one_out import null_contexts, own_context
from pipeline.influence.rules import find_rule
from pipeline.models.causal_lm import CausalLM

OWN, OTHER_DOCUMENT = "own", "other_document"


def far_contexts(
    model: CausalLM,
    chunk_L: np.ndarray,
    null_chunk_L: np.ndarray,
    lengths: ContextLengths,
    batching: Batching,
    *,
    with_divergence: bool = False,
    substitute_ids_L: np.ndarray | None = None,
    search_budget: float | None = None,
) -> list[FarContext]:
    """The chunk's own far context and its null (README.md): another document's tokens, same positions.

    Nothing is measured yet. See `FarContext` for the last three arguments.
    """
    of_name = {
        OWN: (chunk_L, (own_context(chunk_L, lengths),)),
        OTHER_DOCUMENT: (null_chunk_L, tuple(null_contexts(chunk_L, null_chunk_L, lengths))),
    }
    return [
        FarContext(
            name, token_ids_L, chunk_L, sequences, model, lengths, batching,
            with_divergence, substitute_ids_L, search_budget,
        )
        for name, (token_ids_L, sequences) in of_name.items()
    ]  # fmt: skip


def selected_positions(
    far_context: FarContext, rule: str, lengths: ContextLengths, max_k: int, seed: Sequence[int]
) -> np.ndarray:
    """The `max_k` tokens that `rule` ranks first, most influential first: int64 [T, K].

    The same seed draws the same positions in the own far context and in its null.
    """
    return find_rule(rule)(far_context, max_k, np.random.default_rng(seed))


def sparse_context_losses(
    far_context: FarContext, positions_of_rule: Mapping[str, np.ndarray], studied_k: Sequence[int]
) -> dict[str, np.ndarray]:
    """loss(t | short context and S_k) for the selection of every rule: rule -> float32 [T, J], nats.

    Args:
        far_context: which the positions were selected in.
        positions_of_rule: rule -> [T, K], most influential first.
        studied_k: J numbers of tokens added to the short context, at most K.
    """
    num_targets = far_context.lengths.targets_per_chunk
    target_index_N = np.tile(np.arange(num_targets), len(positions_of_rule))
    every_rule_NK = np.concatenate(list(positions_of_rule.values()))
    losses_NJ = np.stack(
        [far_context.losses_with(target_index_N, every_rule_NK[:, :k]) for k in studied_k], 1
    )
    return dict(zip(positions_of_rule, np.split(losses_NJ, len(positions_of_rule)), strict=True))
