"""Losses under chosen contexts without divergences, which the pipeline always computes: to compare with.

Shapes: L chunk, T targets, N contexts of C tokens.
"""

import numpy as np
import torch

from pipeline.models.interface import CausalLM, target_losses


def context_losses(
    model: CausalLM,
    token_ids_NC: np.ndarray,
    position_ids_NC: np.ndarray,
    target_ids_N: np.ndarray,
    tokens_per_batch: int,
) -> np.ndarray:
    """loss(t | C), the last token of each context right before its target: float32 [N], nats."""
    context_length = token_ids_NC.shape[1]
    num_contexts = max(1, tokens_per_batch // context_length)
    last_row_11 = torch.tensor([[context_length - 1]])
    parts = []
    for start in range(0, len(token_ids_NC), num_contexts):
        tokens, positions, targets = (
            torch.as_tensor(array[start : start + num_contexts], device=model.device)
            for array in (token_ids_NC, position_ids_NC, target_ids_N)
        )
        queries_N1 = last_row_11.expand(len(tokens), 1).to(model.device)
        parts.append(target_losses(model, tokens, positions, None, queries_N1, targets[:, None])[:, 0].cpu())
    return torch.cat(parts).numpy()


def window_losses(
    model: CausalLM, chunk_L: np.ndarray, targets_T: np.ndarray, context_length: int, tokens_per_batch: int
) -> np.ndarray:
    """loss(t | exactly the `context_length` tokens before t): float32 [T], nats."""
    positions_TC = targets_T[:, None] + np.arange(-context_length, 0)
    return context_losses(model, chunk_L[positions_TC], positions_TC, chunk_L[targets_T], tokens_per_batch)
