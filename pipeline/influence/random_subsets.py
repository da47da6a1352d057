"""What a token does on average over random contexts: its Banzhaf value, by sampling.

The Banzhaf value of far token i is the mean, over all subsets of the other far tokens, of what adding i
changes (Banzhaf 1965; for data: Wang and Jia 2023, "Data Banzhaf"). It is estimated here from N subsets,
each token in or out by the toss of a coin, shared by all targets of a chunk and by all tokens: the mean over
the subsets without i less the mean over those with it ("maximum sample reuse"). A choice by it cannot be
fitted to a single context. Subsets come in pairs, one and the rest, so that every token is in half of them.
Of subsets of one size the mean would not be the value: with i in it, one holds fewer of the others.

Every target sees the tokens of a subset that lie in its own far context, and its own short context: the
packed sequence of the null, the rows outside the subset left out, or another document's tokens in them.

Shapes: L chunk, T targets, F far-context positions (of the last target), N subsets, V vocabulary, S rows.
"""

from typing import NamedTuple

import numpy as np
import torch

from pipeline.influence.batching import Batching
from pipeline.influence.context_lengths import ContextLengths
from pipeline.influence.context_loss import Measured
from pipeline.influence.leave_one_out import PackedSequence, far_context_only, null_contexts
from pipeline.models.causal_lm import CausalLM
from pipeline.models.divergence import Predictions, losses_and_divergences


class SubsetEffects(NamedTuple):
    """How much each far token lowers on average, float32 [T, F], nats; NaN beyond a target's far context."""

    losses: np.ndarray
    """Mean loss without the token less mean loss with it; positive = it helps."""
    divergences: np.ndarray
    """The same of the divergence."""

    @classmethod
    def over_subsets(
        cls, measured_NT: Measured, kept_NF: np.ndarray, num_far_tokens_T: np.ndarray
    ) -> "SubsetEffects":
        """The average effects of all far tokens over the subsets."""
        return cls(
            *(
                far_context_only(mean_differences(values_NT, kept_NF), num_far_tokens_T)
                for values_NT in measured_NT
            )
        )


def measured_in_subsets(
    model: CausalLM,
    far_token_ids_L: np.ndarray,
    chunk_L: np.ndarray,
    lengths: ContextLengths,
    batching: Batching,
    reference: Predictions,
    kept_NF: np.ndarray,
    background_L: np.ndarray | None = None,
) -> Measured:
    """Losses and divergences of every target under every subset: float32 [N, T], nats, one pass a subset.

    Args:
        far_token_ids_L: where the far tokens come from.
        chunk_L: where short contexts and targets come from.
        reference: what target t's predictions are compared with, at place t.
        kept_NF: bool; whether each far position is in each subset.
        background_L: tokens that stand where the subset has none; None: nothing stands there.
    """
    measured, first = [], 0
    for sequence in null_contexts(chunk_L, far_token_ids_L, lengths):
        targets = slice(first, first + len(sequence.target_ids_T))
        measured.append(_measured(model, sequence, batching, reference.at(targets), kept_NF, background_L))
        first = targets.stop
    return Measured(*(np.concatenate(parts, axis=1) for parts in zip(*measured, strict=True)))


def random_subsets(num_far: int, num_subsets: int, seed: tuple[int, ...]) -> np.ndarray:
    """Pairs of a random subset of the far positions and its complement, whether each is in: bool [N, F]."""
    generator = np.random.default_rng([*seed, 3])
    first_PF = generator.integers(2, size=(num_subsets // 2, num_far), dtype=np.int8).astype(bool)
    return np.stack([first_PF, ~first_PF], axis=1).reshape(num_subsets, num_far)


def mean_differences(values_NT: np.ndarray, kept_NF: np.ndarray) -> np.ndarray:
    """Mean over the subsets without each token less the mean over those with it: float32 [T, F]."""
    with_NF = kept_NF / kept_NF.sum(0)
    without_NF = ~kept_NF / (~kept_NF).sum(0)
    return (values_NT.T.astype(np.float64) @ (without_NF - with_NF)).astype(np.float32)


def _measured(
    model: CausalLM,
    sequence: PackedSequence,
    batching: Batching,
    reference: Predictions,
    kept_NF: np.ndarray,
    background_L: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Losses and divergences of the sequence's targets under every subset: float32 [N, T] each."""
    num_far = int(sequence.num_far_tokens_T[-1])
    results: list[list[np.ndarray]] = [[], []]
    start = 0
    while start < len(kept_NF):
        num_rows = len(sequence.token_ids_S)
        size = max(1, batching.num_sequences(model, num_rows))
        kept_BF = kept_NF[start : start + size, :num_far]
        with batching.halved_where_memory_runs_out(len(kept_BF), num_rows):
            for values, result in zip(
                _one_pass(model, sequence, reference, kept_BF, background_L), results, strict=True
            ):
                result.append(values)
            start += len(kept_BF)
    losses, divergences = (np.concatenate(parts) for parts in results)
    return losses, divergences


def _one_pass(
    model: CausalLM,
    sequence: PackedSequence,
    reference: Predictions,
    kept_BF: np.ndarray,
    background_L: np.ndarray | None,
) -> list[np.ndarray]:
    """[B, T] each."""
    num_rows, num_far = len(sequence.token_ids_S), kept_BF.shape[1]
    token_ids_BS = np.tile(sequence.token_ids_S, (len(kept_BF), 1))
    assert sequence.visible_SS is not None
    visible_BSS = np.broadcast_to(sequence.visible_SS, (len(kept_BF), num_rows, num_rows))
    if background_L is None:
        is_there_BS = np.concatenate([kept_BF, np.ones((len(kept_BF), num_rows - num_far), bool)], axis=1)
        # A row outside the subset sees itself, for it must see something, and no other row sees it.
        visible_BSS = visible_BSS & (is_there_BS[:, None, :] | np.eye(num_rows, dtype=bool))
    else:
        token_ids_BS[:, :num_far] = np.where(kept_BF, token_ids_BS[:, :num_far], background_L[:num_far])
    num_subsets = len(kept_BF)

    def on_device(array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, device=model.device)

    both = losses_and_divergences(
        model,
        on_device(token_ids_BS),
        on_device(sequence.position_ids_S)[None],
        on_device(np.array(visible_BSS)),
        on_device(sequence.query_rows_T).expand(num_subsets, -1),
        on_device(sequence.target_ids_T).expand(num_subsets, -1),
        reference,
    )
    return [values_BT.cpu().numpy() for values_BT in both]
