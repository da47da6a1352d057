"""Losses under windows and whole contexts, by the engine's own passes, for tests that ask for no divergence.

Shapes: L chunk, T targets.
"""

import numpy as np
import torch

from sparsity_length.measuring.contexts import Batching, measured_windows
from sparsity_length.models.interface import CausalLM, Predictions


def any_reference(model: CausalLM, num_targets: int) -> Predictions:
    """Predictions that find all tokens equally likely: how far others are from them is not looked at."""
    return Predictions.of(torch.zeros(num_targets, model.vocabulary_size))


def window_losses(
    model: CausalLM, chunk_L: np.ndarray, targets_T: np.ndarray, context_length: int, batching: Batching
) -> np.ndarray:
    """loss(t | exactly the `context_length` tokens before t): float32 [T], nats."""
    reference = any_reference(model, len(targets_T))
    return measured_windows(model, chunk_L, targets_T, context_length, batching, reference).losses


def long_context_losses(model: CausalLM, chunk_L: np.ndarray, targets_T: np.ndarray) -> np.ndarray:
    """loss(t | everything before t in the chunk), all targets in one pass: float32 [T], nats."""
    tokens_L = torch.as_tensor(chunk_L)
    rows_T = torch.as_tensor(targets_T - 1)
    rows_S = torch.arange(len(chunk_L) - 1)
    hidden_1TD = model.hidden_states(tokens_L[None, :-1], rows_S[None], None, rows_T[None])
    return Predictions.of(model.logits(hidden_1TD[0])).losses(chunk_L[targets_T])
