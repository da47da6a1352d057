"""Adding one far token to a context: what is known of a token alone, and which additions are worth a try.

A token that nothing stands before sees itself only, so its keys and values depend on nothing but itself and
its position ID: they are computed once, and serve every context that it comes first in.

A screen tells of all additions at once what each would do, to first order: the derivative of the criterion by
a closed gate on the token (`models/candidate_gates.py`). For that a token is taken as it is alone, also where
chosen ones stand before it. Only the best of the screen are then measured.

Shapes: T targets, F far-context positions (of the last target), K chosen positions, C context (K + s tokens),
B targets of a batch.
"""

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from pipeline.errors import InputError
from pipeline.influence.context_loss import Measured
from pipeline.influence.rules import ranked
from pipeline.models.candidate_gates import ScreenedLM
from pipeline.models.causal_lm import CausalLM, Prefix
from pipeline.models.inspectable_lm import NotInspectableError

if TYPE_CHECKING:
    from pipeline.influence.far_context import FarContext

Criterion = Literal["losses", "divergences"]
"""What is to become small: a field of `Measured`."""
_ROWS_READ_TOGETHER = 512
"""Of tokens that do not see each other, whose attention is computed all the same."""


def far_tokens_alone(context: "FarContext") -> Prefix:
    """Each far token as it is wherever it comes first: row i of the prefix is the token at i."""
    return read_alone(context.model, context.token_ids_L[: context.num_far_tokens_T[-1]])


def read_alone(model: CausalLM, token_ids_F: np.ndarray) -> Prefix:
    """Each token at its position, with nothing before it in sight."""
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


def no_tokens(context: "FarContext") -> np.ndarray:
    """Nothing chosen: int64 [T, 0]."""
    return np.empty((context.lengths.targets_per_chunk, 0), dtype=np.int64)


def measured_additions(
    context: "FarContext", chosen_TK: np.ndarray, is_tried_TF: np.ndarray | None = None
) -> Measured:
    """loss(t | short, the chosen positions, i) and its divergence: [T, F] each, NaN of what is not tried.

    Args:
        is_tried_TF: which tokens are added, one at a time; None: all that are not chosen.
    """
    if is_tried_TF is None:
        is_tried_TF = _is_candidate(context, chosen_TK)
    target_index_N, added_N = np.nonzero(is_tried_TF)
    sets_NK = np.sort(np.concatenate([chosen_TK[target_index_N], added_N[:, None]], axis=1), axis=1)
    measured = context.measure_sets(target_index_N, sets_NK, context.once(far_tokens_alone))
    of_all_TF = []
    # Of all these sets those that a rule will select: single tokens, and of larger sets the best.
    is_kept_N = np.full(len(sets_NK), sets_NK.shape[1] == 1)
    for values_N in measured:
        values_TF = np.full(is_tried_TF.shape, np.nan, dtype=np.float32)
        values_TF[is_tried_TF] = values_N
        of_all_TF.append(values_TF)
        is_kept_N |= values_N == np.nanmin(values_TF, axis=1)[target_index_N]
    kept = Measured(*(values_N[is_kept_N] for values_N in measured))
    context.remember(target_index_N[is_kept_N], sets_NK[is_kept_N], kept)
    return Measured(*of_all_TF)


def screened_additions(
    context: "FarContext", criterion: Criterion, chosen_TK: np.ndarray | None = None
) -> np.ndarray:
    """A criterion of the additions that a screen by it puts first, NaN of all others: float32 [T, F], nats.

    Args:
        chosen_TK: None: none; rules share that.
    """
    if chosen_TK is None:
        return context.once(_first_by_losses if criterion == "losses" else _first_by_divergences)
    is_tried_TF = _is_candidate(context, chosen_TK)
    num_candidates = context.measurement.num_candidates
    assert num_candidates is not None, "nothing is to be screened"
    if is_tried_TF.sum(1).max() > num_candidates:
        derivatives_TF = derivatives_by_gates(context, criterion, chosen_TK)
        is_best_TF = np.zeros_like(is_tried_TF)
        np.put_along_axis(is_best_TF, ranked(-derivatives_TF, num_candidates), True, axis=1)
        is_tried_TF &= is_best_TF
    return np.asarray(getattr(measured_additions(context, chosen_TK, is_tried_TF), criterion))


def _first_by_losses(context: "FarContext") -> np.ndarray:
    return screened_additions(context, "losses", no_tokens(context))


def _first_by_divergences(context: "FarContext") -> np.ndarray:
    return screened_additions(context, "divergences", no_tokens(context))


def _is_candidate(context: "FarContext", chosen_TK: np.ndarray) -> np.ndarray:
    """Whether each position is far context of the target and not chosen: bool [T, F]."""
    num_far_T = context.num_far_tokens_T
    is_candidate_TF = np.arange(num_far_T[-1]) < num_far_T[:, None]
    np.put_along_axis(is_candidate_TF, chosen_TK, False, axis=1)
    return is_candidate_TF


def derivatives_by_gates(context: "FarContext", criterion: Criterion, chosen_TK: np.ndarray) -> np.ndarray:
    """Derivative of the criterion by the gate of each candidate, all gates at 0: float32 [T, F], nats.

    NaN for tokens that are chosen, or beyond a target's own far context.

    Raises:
        InputError: the model cannot be looked into.
    """
    model, alone, lengths = context.model, context.once(far_tokens_alone), context.lengths
    if not isinstance(model, ScreenedLM):
        raise InputError(
            f"--num-candidates looks inside the model, which {type(model).__name__} does not offer;"
            " leave it out"
        )
    is_candidate_TF, chosen_TK = _is_candidate(context, chosen_TK), np.sort(chosen_TK, axis=1)
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
