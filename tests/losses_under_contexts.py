"""Losses under windows and whole contexts, by the engine's own passes, for tests that ask for no divergence.

Shapes: L chunk, T targets.
"""

import numpy as np
import torch

from pipeline.influence.batching import Batching
from pipeline.influence.context_loss import measured_windows
from pipeline.influence.foreign_context import measured_in_sequence
from pipeline.influence.leave_one_out import PackedSequence
from pipeline.models.causal_lm import CausalLM
from pipeline.models.divergence import Predictions


def any_reference(model: CausalLM, num_targets: int) -> Predictions:
    """Predictions that find all tokens equally likely: how far others are from them is not looked at."""
    logits_TV = torch.zeros(num_targets, model.vocabulary_size)
    return Predictions(logits_TV, logits_TV.logsumexp(-1), logits_TV.softmax(-1))


def window_losses(
    model: CausalLM, chunk_L: np.ndarray, targets_T: np.ndarray, context_length: int, batching: Batching
) -> np.ndarray:
    """loss(t | exactly the `context_length` tokens before t): float32 [T], nats."""
    reference = any_reference(model, len(targets_T))
    return measured_windows(model, chunk_L, targets_T, context_length, batching, reference).losses


def long_context_losses(model: CausalLM, chunk_L: np.ndarray, targets_T: np.ndarray) -> np.ndarray:
    """loss(t | everything before t in the chunk), all targets in one pass: float32 [T], nats."""
    rows_S = np.arange(len(chunk_L) - 1)
    sequence = PackedSequence(chunk_L[:-1], rows_S, None, targets_T - 1, chunk_L[targets_T], targets_T)
    return measured_in_sequence(model, sequence, any_reference(model, len(targets_T))).losses
