"""From far contexts to selections to sparse-context losses, for a chunk's own far context and for its null.

Shapes: L chunk, T targets, K largest k.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.influence.context_loss import ContextLengths, context_losses
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
    tokens_per_batch: int,
    *,
    with_divergence: bool = False,
    substitute_ids_L: np.ndarray | None = None,
    search_budget: float | None = None,
) -> list[FarContext]:
    """The chunk's own far context and its null (design.md 1): another document's tokens, same positions.

    Nothing is measured yet. See `FarContext` for the last three arguments.
    """
    of_name = {
        OWN: (chunk_L, (own_context(chunk_L, lengths),)),
        OTHER_DOCUMENT: (null_chunk_L, tuple(null_contexts(chunk_L, null_chunk_L, lengths))),
    }
    return [
        FarContext(
            name, token_ids_L, chunk_L, sequences, model, lengths, tokens_per_batch,
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
    model: CausalLM,
    chunk_L: np.ndarray,
    selections: Mapping[tuple[str, str], tuple[FarContext, np.ndarray]],
    k: int,
    lengths: ContextLengths,
    tokens_per_batch: int,
) -> dict[tuple[str, str], np.ndarray]:
    """loss(t | short context and S_k), for every selection at once: key -> float32 [T], nats.

    Args:
        chunk_L: the chunk, which the short contexts and the targets come from.
        selections: key -> far context and the positions selected in it, [T, K], K >= k.
        k: how many of them are added to the short context.
    """
    every_target_T = np.arange(lengths.targets_per_chunk)
    gathered = [
        far_context.gathered(every_target_T, positions_TK[:, :k])
        for far_context, positions_TK in selections.values()
    ]
    losses = context_losses(
        model,
        np.concatenate([token_ids for token_ids, _ in gathered]),
        np.concatenate([position_ids for _, position_ids in gathered]),
        np.tile(chunk_L[lengths.targets_T], len(selections)),
        tokens_per_batch,
    )
    return dict(zip(selections, np.split(losses, len(selections)), strict=True))
