"""A foreign far context: another document's tokens before the short context, at the same positions.

What is lost by it is the *specific gain*: the part of the long context's gain that is this document's own.

Shapes: L chunk, T targets.
"""

import numpy as np
import torch

from pipeline.influence.context_lengths import ContextLengths
from pipeline.influence.context_loss import Measured
from pipeline.influence.leave_one_out import PackedSequence, null_contexts
from pipeline.models.causal_lm import CausalLM
from pipeline.models.divergence import Predictions, losses_and_divergences


def measured_in_foreign_context(
    model: CausalLM,
    chunk_L: np.ndarray,
    other_chunk_L: np.ndarray,
    lengths: ContextLengths,
    reference: Predictions,
) -> Measured:
    """loss(t | the other document's far context and t's short one), and its divergence: float32 [T] each.

    Args:
        reference: what target t's prediction is compared with, at place t.
    """
    parts, first = [], 0
    for sequence in null_contexts(chunk_L, other_chunk_L, lengths):
        targets = slice(first, first + len(sequence.target_ids_T))
        parts.append(measured_in_sequence(model, sequence, reference.at(targets)))
        first = targets.stop
    return Measured(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def measured_in_sequence(model: CausalLM, sequence: PackedSequence, reference: Predictions) -> Measured:
    """Losses and divergences of a packed sequence's targets, in one pass: float32 [T] each."""
    visible_SS = sequence.visible_SS

    def on_device(array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, device=model.device)[None]

    losses_1T, divergences_1T = losses_and_divergences(
        model,
        on_device(sequence.token_ids_S),
        on_device(sequence.position_ids_S),
        None if visible_SS is None else on_device(visible_SS),
        on_device(sequence.query_rows_T),
        on_device(sequence.target_ids_T),
        reference,
    )
    return Measured(losses_1T[0].cpu().numpy(), divergences_1T[0].cpu().numpy())
