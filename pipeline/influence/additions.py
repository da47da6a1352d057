"""Adding one far token to the short context and the tokens chosen so far: each of them, or those worth a try.

A screen tells of all additions at once what each would do, to first order: the derivative of the criterion by
a closed gate on the token (`models/candidate_gates.py`). For that a token is taken as it is alone, also where
chosen ones stand before it. Only the best of the screen are then measured.

Shapes: T targets, F far-context positions (of the last target), K chosen positions, C context (K + s tokens),
B targets of a batch.
"""

import numpy as np
import torch

from pipeline.errors import InputError
from pipeline.influence.context_loss import Criterion
from pipeline.influence.far_context import FarContext
from pipeline.influence.ranking import ranked
from pipeline.models.candidate_gates import ScreenedLM
from pipeline.models.inspectable_lm import NotInspectableError


def additions(context: FarContext, criterion: Criterion, chosen_TK: np.ndarray | None = None) -> np.ndarray:
    """loss(t | short, the chosen positions, i), or its divergence: float32 [T, F], nats.

    NaN for the chosen, and for tokens that a screen by the criterion has left out
    (`Measurement.num_candidates`).

    Args:
        chosen_TK: None: none; rules share that.
    """
    if context.measurement.num_candidates is None:
        measured = context.first_additions if chosen_TK is None else context.measured_additions(chosen_TK)
        return np.asarray(getattr(measured, criterion))
    if chosen_TK is None:
        return context.once(_first_by_losses if criterion == "losses" else _first_by_divergences)
    return _screened(context, criterion, chosen_TK, context.measurement.num_candidates)


def _first_by_losses(context: FarContext) -> np.ndarray:
    return additions(context, "losses", context.no_tokens)


def _first_by_divergences(context: FarContext) -> np.ndarray:
    return additions(context, "divergences", context.no_tokens)


def _screened(
    context: FarContext, criterion: Criterion, chosen_TK: np.ndarray, num_candidates: int
) -> np.ndarray:
    """The criterion of the additions that a screen by it puts first, NaN of all others: [T, F]."""
    is_tried_TF = context.is_candidate(chosen_TK)
    if is_tried_TF.sum(1).max() > num_candidates:
        derivatives_TF = derivatives_by_gates(context, criterion, chosen_TK)
        is_best_TF = np.zeros_like(is_tried_TF)
        np.put_along_axis(is_best_TF, ranked(-derivatives_TF, num_candidates), True, axis=1)
        is_tried_TF &= is_best_TF
    return np.asarray(getattr(context.measured_additions(chosen_TK, is_tried_TF), criterion))


def derivatives_by_gates(context: FarContext, criterion: Criterion, chosen_TK: np.ndarray) -> np.ndarray:
    """Derivative of the criterion by the gate of each candidate, all gates at 0: float32 [T, F], nats.

    NaN for tokens that are chosen, or beyond a target's own far context.

    Raises:
        InputError: the model cannot be looked into.
    """
    model, alone, lengths = context.model, context.alone, context.lengths
    if not isinstance(model, ScreenedLM):
        raise InputError(
            f"--num-candidates looks inside the model, which {type(model).__name__} does not offer;"
            " leave it out"
        )
    is_candidate_TF, chosen_TK = context.is_candidate(chosen_TK), np.sort(chosen_TK, axis=1)
    short_TC = lengths.targets_T[:, None] + np.arange(-lengths.short_context_length, 0)
    positions_TC = np.concatenate([chosen_TK, short_TC], axis=1)
    token_ids_TC = np.concatenate([context.token_ids_L[chosen_TK], context.chunk_L[short_TC]], axis=1)
    # Every layer's activations are kept for the backward pass, of which the estimate knows one layer's.
    num_fitting = context.measurement.batching.num_sequences(model, positions_TC.shape[1], alone.num_rows)
    size = max(1, num_fitting // len(alone.keys_and_values))
    parts = []
    for start in range(0, len(positions_TC), size):
        batch = slice(start, start + size)
        positions_BC = torch.as_tensor(positions_TC[batch], device=model.device)
        is_before_BCF = torch.arange(alone.num_rows, device=model.device) < positions_BC[..., None]
        answers = context.reference.probs_TV[batch]
        if criterion == "losses":
            answers = torch.as_tensor(context.chunk_L[lengths.targets_T[batch]], device=model.device)
        tokens_BC, is_candidate_BF = (
            torch.as_tensor(array_T[batch], device=model.device)
            for array_T in (token_ids_TC, is_candidate_TF)
        )
        try:
            derivatives_BF = model.candidate_gradients(
                tokens_BC, positions_BC, answers, alone, is_before_BCF & is_candidate_BF[:, None]
            )
        except NotInspectableError as error:
            raise InputError(f"{error}; leave out --num-candidates") from error
        parts.append(derivatives_BF.cpu().numpy())
    return np.where(is_candidate_TF, np.concatenate(parts), np.float32(np.nan))
