"""loss(t | C) and divergence(t | C): one token under a chosen context, each token at its own position ID.

Coordinates here count from the start of the chunk, and are the position IDs too.

Shapes: L chunk (long_context_length), T targets, C context, N contexts, B contexts of a batch.
"""

from typing import Literal, NamedTuple

import numpy as np
import torch

from pipeline.influence.batching import Batching
from pipeline.influence.queued_passes import QueuedPasses
from pipeline.models.causal_lm import CausalLM, Prefix
from pipeline.models.divergence import Predictions, unchecked_losses_and_divergences
from pipeline.models.transfers import to_device


class Measured(NamedTuple):
    """What contexts do to targets, float32 arrays of one shape, nats."""

    losses: np.ndarray
    """loss(t | C) = -ln p(x_t | C)."""
    divergences: np.ndarray
    """divergence(t | C) = KL(p(. | long) || p(. | C)): it never sees x_t; 0 at C = long."""


_ROWS_READ_TOGETHER = 512
"""Of tokens that do not see each other, whose attention is computed all the same."""
Criterion = Literal["losses", "divergences"]
"""What is to become small: a field of `Measured`."""


def measured_contexts(
    model: CausalLM,
    token_ids_NC: np.ndarray,
    position_ids_NC: np.ndarray,
    target_ids_N: np.ndarray,
    batching: Batching,
    reference: Predictions,
    reference_index_N: np.ndarray,
    query_rows_N: np.ndarray | None = None,
    prefix: Prefix | None = None,
    prefix_rows_N: np.ndarray | None = None,
) -> Measured:
    """N contexts of C tokens each, nothing else visible anywhere in the network: [N] each.

    A context is a sequence of its own, so leaving tokens out is exact; their IDs keep them in place. The
    last token of each context stands right before the target, and its row predicts the target.

    Args:
        token_ids_NC, position_ids_NC: the contexts' tokens and their position IDs, ascending.
        target_ids_N: the tokens to be predicted.
        reference: predictions that theirs are compared with, under their targets' long contexts.
        reference_index_N: which of these each context belongs to.
        query_rows_N: the row that predicts each target, where that is not the last: what stands behind it is
            not seen, and only fills up.
        prefix: rows already read that all contexts begin with; None: there are none.
        prefix_rows_N: the one row of the prefix that each context begins with; None: all of them.
    """
    num_contexts, context_length = token_ids_NC.shape
    if query_rows_N is None:
        query_rows_N = np.full(num_contexts, context_length - 1)
    contexts = _Contexts(token_ids_NC, position_ids_NC, target_ids_N, query_rows_N, reference_index_N)
    num_before = 0 if prefix is None else prefix.num_rows if prefix_rows_N is None else 1
    queued, start = QueuedPasses(), 0
    while start < num_contexts:
        rest = slice(start, start + batching.num_sequences(model, context_length, num_before))
        batch = _Contexts(*(field[rest] for field in contexts))
        prefix_B = prefix
        if prefix is not None and prefix_rows_N is not None:
            prefix_B = prefix.one_row_each(torch.as_tensor(prefix_rows_N[rest]))
        with batching.halved_where_memory_runs_out(len(batch.target_ids_N), context_length):
            values_B1 = batch.measured(model, reference, prefix_B)
            queued.add(batch.position_ids_NC, batch.query_rows_N[:, None], *values_B1)
            start += len(batch.target_ids_N)
    return Measured(*(np.concatenate(values)[:, 0] for values in queued.read()))


class _Contexts(NamedTuple):
    token_ids_NC: np.ndarray
    position_ids_NC: np.ndarray
    target_ids_N: np.ndarray
    query_rows_N: np.ndarray
    reference_index_N: np.ndarray

    def measured(
        self, model: CausalLM, reference: Predictions, prefix: Prefix | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses and divergences [N, 1], in one pass, which a GPU may still be computing."""
        tokens, positions, targets, queries = (to_device(field, model.device) for field in self[:4])
        inputs = model, tokens, positions, None, queries[:, None], targets[:, None]
        index_N1 = torch.as_tensor(self.reference_index_N)[:, None]
        return unchecked_losses_and_divergences(*inputs, reference, index_N1, prefix)


def measured_windows(
    model: CausalLM,
    chunk_L: np.ndarray,
    targets_T: np.ndarray,
    context_length: int,
    batching: Batching,
    reference: Predictions,
) -> Measured:
    """Under exactly the `context_length` tokens before each target, one window a target: [T] each.

    Windows are never shared between targets: a token at the window's edge would otherwise carry what it
    saw before the edge into the prediction.

    Args:
        reference: what target t's prediction is compared with, at place t.
    """
    positions_TC = targets_T[:, None] + np.arange(-context_length, 0)
    return measured_contexts(
        model, chunk_L[positions_TC], positions_TC, chunk_L[targets_T], batching,
        reference, np.arange(len(targets_T)),
    )  # fmt: skip


def read_alone(model: CausalLM, token_ids_F: np.ndarray) -> Prefix:
    """Each token at its position, with nothing before it in sight: row i of the prefix is the token at i.

    Such a token sees itself only, so its keys and values depend on nothing but itself and its position ID:
    they are computed once, and serve every context that it comes first in.
    """
    parts = []
    for start in range(0, len(token_ids_F), _ROWS_READ_TOGETHER):
        token_ids_1S = torch.as_tensor(token_ids_F[None, start : start + _ROWS_READ_TOGETHER])
        num_rows = token_ids_1S.shape[1]
        inputs = (
            token_ids_1S,
            torch.arange(start, start + num_rows)[None],
            torch.eye(num_rows, dtype=torch.bool)[None],
            torch.zeros(1, 1, dtype=torch.int64),
        )
        parts.append(model.read(*(tensor.to(model.device) for tensor in inputs))[1])
    return parts[0] if len(parts) == 1 else Prefix.together(parts)
