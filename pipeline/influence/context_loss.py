"""loss(t | C) and divergence(t | C): one token under a chosen context, each token at its own position ID.

Coordinates here count from the start of the chunk, and are the position IDs too.

Shapes: L chunk (long_context_length), T targets, C context, N contexts, B contexts of a batch.
"""

from typing import NamedTuple

import numpy as np
import torch

from pipeline.influence.batching import Batching
from pipeline.models.causal_lm import CausalLM, target_losses
from pipeline.models.divergence import Predictions, losses_and_divergences


class Measured(NamedTuple):
    """What contexts do to targets, float32 arrays of one shape, nats."""

    losses: np.ndarray
    """loss(t | C) = -ln p(x_t | C)."""
    divergences: np.ndarray
    """divergence(t | C) = KL(p(. | long) || p(. | C)): it never sees x_t; 0 at C = long."""


def context_losses(
    model: CausalLM,
    token_ids_NC: np.ndarray,
    position_ids_NC: np.ndarray,
    target_ids_N: np.ndarray,
    batching: Batching,
) -> np.ndarray:
    """loss(t | C) for N contexts of C tokens each, nothing else visible anywhere in the network: float32 [N].

    A context is a sequence of its own, so leaving tokens out is exact; their IDs keep them in place. The
    last token of each context stands right before the target, and its row predicts the target.

    Args:
        token_ids_NC, position_ids_NC: the contexts' tokens and their position IDs, ascending.
        target_ids_N: the tokens to be predicted.
    """
    contexts = _Contexts.ending_before_targets(token_ids_NC, position_ids_NC, target_ids_N)
    return contexts.in_batches(model, batching, None, None)[0]


def measured_contexts(
    model: CausalLM,
    token_ids_NC: np.ndarray,
    position_ids_NC: np.ndarray,
    target_ids_N: np.ndarray,
    batching: Batching,
    reference: Predictions,
    reference_index_N: np.ndarray,
    query_rows_N: np.ndarray | None = None,
) -> Measured:
    """`context_losses`, and how far each prediction is from a reference.

    Args:
        reference: predictions that theirs are compared with, under their targets' long contexts.
        reference_index_N: which of these each context belongs to.
        query_rows_N: the row that predicts each target, where that is not the last: what stands behind it is
            not seen, and only fills up.
    """
    contexts = _Contexts.ending_before_targets(token_ids_NC, position_ids_NC, target_ids_N)
    if query_rows_N is not None:
        contexts = contexts._replace(query_rows_N=query_rows_N)
    return Measured(*contexts.in_batches(model, batching, reference, reference_index_N))


class _Contexts(NamedTuple):
    token_ids_NC: np.ndarray
    position_ids_NC: np.ndarray
    target_ids_N: np.ndarray
    query_rows_N: np.ndarray

    @classmethod
    def ending_before_targets(
        cls, token_ids_NC: np.ndarray, position_ids_NC: np.ndarray, target_ids_N: np.ndarray
    ) -> "_Contexts":
        """Contexts whose last row predicts."""
        return cls(
            token_ids_NC, position_ids_NC, target_ids_N, np.full(len(token_ids_NC), token_ids_NC.shape[1] - 1)
        )

    def in_batches(
        self,
        model: CausalLM,
        batching: Batching,
        reference: Predictions | None,
        reference_index_N: np.ndarray | None,
    ) -> list[np.ndarray]:
        """Losses [N], and divergences [N] where there is a reference: float32, nats."""
        num_contexts, context_length = self.token_ids_NC.shape
        parts: list[list[np.ndarray]] = []
        start = 0
        while start < num_contexts:
            rest = slice(start, start + batching.num_sequences(model, context_length))
            batch = _Contexts(*(field[rest] for field in self))
            index_B = None if reference_index_N is None else reference_index_N[rest]
            with batching.halved_where_memory_runs_out(len(batch.target_ids_N), context_length):
                parts.append(batch._measured(model, reference, index_B))
                start += len(batch.target_ids_N)
        return [np.concatenate(values) for values in zip(*parts, strict=True)]

    def _measured(
        self, model: CausalLM, reference: Predictions | None, index_B: np.ndarray | None
    ) -> list[np.ndarray]:
        tokens, positions, targets, queries = (torch.as_tensor(field, device=model.device) for field in self)
        inputs = model, tokens, positions, None, queries[:, None], targets[:, None]
        if reference is None:
            return [target_losses(*inputs)[:, 0].cpu().numpy()]
        index_B1 = torch.as_tensor(index_B, device=model.device)[:, None]
        both = losses_and_divergences(*inputs, reference, index_B1)
        return [values_B1[:, 0].cpu().numpy() for values_B1 in both]


def window_losses(
    model: CausalLM, chunk_L: np.ndarray, targets_T: np.ndarray, context_length: int, batching: Batching
) -> np.ndarray:
    """loss(t | exactly the `context_length` tokens before t), one window a target: float32 [T].

    Windows are never shared between targets: a token at the window's edge would otherwise carry what it
    saw before the edge into the prediction.
    """
    positions_TC = targets_T[:, None] + np.arange(-context_length, 0)
    return context_losses(model, chunk_L[positions_TC], positions_TC, chunk_L[targets_T], batching)


def measured_windows(
    model: CausalLM,
    chunk_L: np.ndarray,
    targets_T: np.ndarray,
    context_length: int,
    batching: Batching,
    reference: Predictions,
) -> Measured:
    """`window_losses`, and the divergence from `reference`, whose place t is that of target t: [T] each."""
    positions_TC = targets_T[:, None] + np.arange(-context_length, 0)
    return measured_contexts(
        model, chunk_L[positions_TC], positions_TC, chunk_L[targets_T], batching,
        reference, np.arange(len(targets_T)),
    )  # fmt: skip


def long_context_losses(model: CausalLM, chunk_L: np.ndarray, targets_T: np.ndarray) -> np.ndarray:
    """loss(t | everything before t in the chunk), all targets in one forward pass: float32 [T]."""
    token_ids_1S = torch.as_tensor(chunk_L[None, :-1], device=model.device)
    losses_1T = target_losses(
        model,
        token_ids_1S,
        torch.arange(token_ids_1S.shape[1], device=model.device)[None],
        None,
        torch.as_tensor(targets_T[None] - 1, device=model.device),
        torch.as_tensor(chunk_L[targets_T][None], device=model.device),
    )
    return losses_1T[0].cpu().numpy()
