"""loss(t | C): the loss of one token under a chosen context, each token at its own position ID.

Coordinates here count from the start of the chunk, and are the position IDs too.

Shapes: L chunk (long_context_length), T targets, C context, N contexts, B contexts of a batch.
"""

import numpy as np
import torch

from pipeline.influence.batching import Batching
from pipeline.models.causal_lm import CausalLM, target_losses


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
    num_contexts, context_length = token_ids_NC.shape
    losses, start = [], 0
    while start < num_contexts:
        rest = slice(start, start + batching.num_sequences(model, context_length))
        batch = token_ids_NC[rest], position_ids_NC[rest], target_ids_N[rest]
        with batching.halved_where_memory_runs_out(len(batch[0]), context_length):
            losses.append(_context_losses(model, *batch))
            start += len(batch[0])
    return np.concatenate(losses)


def _context_losses(
    model: CausalLM, token_ids_BC: np.ndarray, position_ids_BC: np.ndarray, target_ids_B: np.ndarray
) -> np.ndarray:
    token_ids = torch.as_tensor(token_ids_BC, device=model.device)
    losses_B1 = target_losses(
        model,
        token_ids,
        torch.as_tensor(position_ids_BC, device=model.device),
        None,
        torch.full((len(token_ids), 1), token_ids.shape[1] - 1, device=model.device),
        torch.as_tensor(target_ids_B[:, None], device=model.device),
    )
    return losses_B1[:, 0].cpu().numpy()


def window_losses(
    model: CausalLM, chunk_L: np.ndarray, targets_T: np.ndarray, context_length: int, batching: Batching
) -> np.ndarray:
    """loss(t | exactly the `context_length` tokens before t), one window a target: float32 [T].

    Windows are never shared between targets: a token at the window's edge would otherwise carry what it
    saw before the edge into the prediction.
    """
    positions_TC = targets_T[:, None] + np.arange(-context_length, 0)
    return context_losses(model, chunk_L[positions_TC], positions_TC, chunk_L[targets_T], batching)


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
