"""From influences to selections to sparse-context losses, for a chunk's own far context and for its null.

Shapes: L chunk, T targets, F far-context positions, K largest k, C context (k + s tokens).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.influence.context_loss import ContextLengths, context_losses
from pipeline.influence.leave_one_out import PackedSequence, influences, null_contexts, own_context
from pipeline.influence.rules import find_rule
from pipeline.models.causal_lm import CausalLM

OWN, OTHER_DOCUMENT = "own", "other_document"


@dataclass(frozen=True)
class FarContext:
    """Where the far tokens come from, and what each does to each target's loss."""

    name: str
    """OWN, or OTHER_DOCUMENT for the null."""
    token_ids_L: np.ndarray
    influence_TF: np.ndarray
    """float32, nats; NaN beyond a target's far context."""


def far_contexts(
    model: CausalLM,
    chunk_L: np.ndarray,
    null_chunk_L: np.ndarray,
    lengths: ContextLengths,
    tokens_per_batch: int,
) -> list[FarContext]:
    """The chunk's own far context and its null (design.md 1): another document's tokens, same positions."""
    own = [own_context(chunk_L, lengths)]
    null = list(null_contexts(chunk_L, null_chunk_L, lengths))
    return [
        FarContext(OWN, chunk_L, _influences_of(model, own, tokens_per_batch)),
        FarContext(OTHER_DOCUMENT, null_chunk_L, _influences_of(model, null, tokens_per_batch)),
    ]


def _influences_of(model: CausalLM, sequences: Sequence[PackedSequence], tokens_per_batch: int) -> np.ndarray:
    """Influences of all targets [T, F], from sequences that hold a few targets each."""
    parts = [influences(model, sequence, tokens_per_batch) for sequence in sequences]
    num_far = parts[-1].shape[1]  # the last target's far context is the longest
    return np.concatenate(
        [np.pad(part, ((0, 0), (0, num_far - part.shape[1])), constant_values=np.nan) for part in parts]
    )


def selected_positions(
    far_context: FarContext, rule: str, lengths: ContextLengths, max_k: int, seed: Sequence[int]
) -> np.ndarray:
    """The `max_k` tokens that `rule` ranks first, most influential first: int64 [T, K].

    The same seed draws the same positions in the own far context and in its null.
    """
    return find_rule(rule)(
        far_context.influence_TF, lengths.num_far_tokens_T, max_k, np.random.default_rng(seed)
    )


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
    short_TC = lengths.targets_T[:, None] + np.arange(-lengths.short_context_length, 0)
    token_ids, position_ids = [], []
    for far_context, positions_TK in selections.values():
        far_Tk = np.sort(positions_TK[:, :k], axis=1)
        token_ids.append(np.concatenate([far_context.token_ids_L[far_Tk], chunk_L[short_TC]], axis=1))
        position_ids.append(np.concatenate([far_Tk, short_TC], axis=1))
    losses = context_losses(
        model,
        np.concatenate(token_ids),
        np.concatenate(position_ids),
        np.tile(chunk_L[lengths.targets_T], len(selections)),
        tokens_per_batch,
    )
    return dict(zip(selections, np.split(losses, len(selections)), strict=True))
