"""Context length probing: what a prediction changes by when the context reaches one token further back.

Cífka and Liutkus 2023, "Black-box language model explanation by context length probing", arXiv 2212.14815.
The score of far token i is the difference that the two contexts make that begin at i and right behind it:

    score(i) = loss(t | from i + 1 on) - loss(t | from i on)

so that the scores of all far tokens add up to L_short - L_long (a test). One pass over the tokens from a
start on serves all targets. Theirs restarts the position IDs at every start, as a text cut off has it; here
tokens keep theirs. In a background what stands before the start is another document's.

Shapes: L chunk, S rows of the packed sequence, T targets, F far-context positions (of the last target),
E = F + 1 starts, B starts of a batch, R rows of a pass.
"""

from dataclasses import dataclass

import numpy as np
import torch

from pipeline.influence.batching import Batching
from pipeline.influence.context_loss import Measured
from pipeline.influence.far_context import FarContext
from pipeline.influence.leave_one_out import PackedSequence
from pipeline.models.causal_lm import CausalLM, Prefix
from pipeline.models.divergence import Predictions, losses_and_divergences


def context_length_probing(context: FarContext) -> np.ndarray:
    """What reaching back to each far token lowers the loss by: [T, F], nats.

    It looks at the target. Cost: the sum over starts i = 1 ... F - 1 of n - i, with F the last target's, and
    in a background F to read it; the long and the short context are measured anyway.
    """
    return _differences(context.once(measured_from_each_start).losses)


def context_length_probing_divergence(context: FarContext) -> np.ndarray:
    """What reaching back to each far token brings the prediction nearer to the long context's: [T, F], nats.

    Blind to the target; it fits the prediction. Cost: the passes of context_length_probing, shared.
    """
    return _differences(context.once(measured_from_each_start).divergences)


def _differences(values_TE: np.ndarray) -> np.ndarray:
    return np.diff(values_TE.astype(np.float64))  # in which float32 differences are exact


def measured_from_each_start(context: FarContext) -> Measured:
    """loss(t | the tokens from each start on), and its divergence: [T, E] each, NaN behind the short context.

    Start 0 is the long context; the start of t's short context is that or, in a background, the baseline.
    """
    num_far_T = context.num_far_tokens_T
    of_fills = [_behind_first(context, fill_L) for fill_L in context.fills]
    predictions, every_T = context.predictions, torch.arange(len(num_far_T), device=context.model.device)
    long_divergences_T = context.reference.divergences(predictions.log_probs_TV, every_T)
    ends = zip(
        (context.long_losses_T, long_divergences_T.cpu().numpy()),
        context.background or context.short,
        zip(*of_fills, strict=True),
        strict=True,
    )
    return Measured(*(_between(long_T, base_T, parts, num_far_T) for long_T, base_T, parts in ends))


def _between(
    long_T: np.ndarray, baseline_T: np.ndarray, parts: tuple[np.ndarray, ...], num_far_T: np.ndarray
) -> np.ndarray:
    """[T, E] of the two ends and, as a mean over fills, what lies between."""
    values_TE = np.mean(parts, axis=0)
    values_TE[:, 0] = long_T
    values_TE[np.arange(len(num_far_T)), num_far_T] = baseline_T
    values_TE[np.arange(values_TE.shape[1]) > num_far_T[:, None]] = np.nan
    return values_TE


def _behind_first(context: FarContext, fill_L: np.ndarray | None) -> Measured:
    """[T, E] each, right from start 1 up to right before each target's short context."""
    num_starts = int(context.num_far_tokens_T[-1]) + 1
    parts, first = [], 0
    for sequence in context.sequences:
        targets = slice(first, first + len(sequence.target_ids_T))
        of_sequence = _of_sequence(
            context.model, sequence, context.measurement.batching, context.reference.at(targets), fill_L
        )
        parts.append([_padded(values_ET, num_starts).T for values_ET in of_sequence])
        first = targets.stop
    return Measured(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def _padded(values_ET: np.ndarray, num_starts: int) -> np.ndarray:
    """Values of the starts from 1 on, with NaN for start 0 and those that are missing."""
    return np.pad(values_ET, ((1, num_starts - 1 - len(values_ET)), (0, 0)), constant_values=np.nan)


@dataclass(frozen=True, eq=False)
class _Pass:
    """One forward pass, a sequence a start."""

    token_ids_BR: np.ndarray
    position_ids_BR: np.ndarray
    """Or a single row for all."""
    visible_BRK: np.ndarray | None
    query_rows_BT: np.ndarray
    prefix: Prefix | None


def _of_sequence(
    model: CausalLM,
    sequence: PackedSequence,
    batching: Batching,
    reference: Predictions,
    fill_L: np.ndarray | None,
) -> list[np.ndarray]:
    """Losses and divergences of the sequence's targets from the starts 1 on: [F - 1, T] each."""
    starts_E = np.arange(1, sequence.num_far_tokens_T[-1])
    before = None if fill_L is None else _read(model, fill_L[: len(starts_E)])
    num_targets = len(sequence.target_ids_T)
    results: list[list[np.ndarray]] = [[np.empty((0, num_targets), np.float32)] for _ in range(2)]
    while len(starts_E):
        first = int(starts_E[0])
        num_rows, num_before = len(sequence.token_ids_S) - first, 0 if before is None else first
        # Starts within a quarter of the rows keep the rows run in vain to an eighth.
        num_fitting = batching.num_sequences(model, num_rows, num_before)
        starts_B = starts_E[: max(1, min(num_fitting, num_rows // 4))]
        with batching.halved_where_memory_runs_out(len(starts_B), num_rows):
            if fill_L is None or before is None:
                one_pass = _cut_off(sequence, starts_B)
            else:
                one_pass = _replaced(sequence, starts_B, fill_L, before.first(first))
            both = _run(model, one_pass, sequence.target_ids_T, reference)
            for values_BT, result in zip(both, results, strict=True):
                result.append(values_BT.cpu().numpy())
            starts_E = starts_E[len(starts_B) :]
    return [np.concatenate(parts) for parts in results]


def _read(model: CausalLM, token_ids_S: np.ndarray) -> Prefix:
    token_ids_1S = torch.as_tensor(token_ids_S[None], device=model.device)
    position_ids_1S = torch.arange(len(token_ids_S), device=model.device)[None]
    return model.read(token_ids_1S, position_ids_1S, None, position_ids_1S[:, -1:])[1]


def _cut_off(sequence: PackedSequence, starts_B: np.ndarray) -> _Pass:
    """Nothing before each start. Copies of the last row, which no other sees, fill up the shorter ones."""
    last = len(sequence.token_ids_S) - 1
    rows_BR = starts_B[:, None] + np.arange(last + 1 - starts_B[0])
    is_there_BR = rows_BR <= last
    rows_BR = rows_BR.clip(max=last)
    visible_BRK = None
    if sequence.visible_SS is not None:
        visible_BRK = sequence.visible_SS[rows_BR[:, :, None], rows_BR[:, None, :]] & is_there_BR[:, None]
    return _Pass(
        sequence.token_ids_S[rows_BR],
        sequence.position_ids_S[rows_BR],
        visible_BRK,
        # A query row before the start is that of a target whose short context it is; its entry is blanked.
        (sequence.query_rows_T - starts_B[:, None]).clip(min=0),
        None,
    )


def _replaced(sequence: PackedSequence, starts_B: np.ndarray, fill_L: np.ndarray, before: Prefix) -> _Pass:
    """Other tokens before each start, those before the first as a prefix."""
    first = int(starts_B[0])
    token_ids_BR = np.tile(sequence.token_ids_S[first:], (len(starts_B), 1))
    for row_R, start in zip(token_ids_BR, starts_B, strict=True):
        row_R[: start - first] = fill_L[first:start]
    return _Pass(
        token_ids_BR,
        sequence.position_ids_S[None, first:],
        None if sequence.visible_SS is None else sequence.visible_SS[None, first:],
        np.tile((sequence.query_rows_T - first).clip(min=0), (len(starts_B), 1)),
        before,
    )


def _run(
    model: CausalLM, one_pass: _Pass, target_ids_T: np.ndarray, reference: Predictions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses and divergences of the targets: [B, T] each."""

    def on_device(array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, device=model.device)

    queries_BT = on_device(one_pass.query_rows_BT)
    return losses_and_divergences(
        model,
        on_device(one_pass.token_ids_BR),
        on_device(one_pass.position_ids_BR),
        None if one_pass.visible_BRK is None else on_device(one_pass.visible_BRK),
        queries_BT,
        on_device(target_ids_T).expand(queries_BT.shape),
        reference,
        prefix=one_pass.prefix,
    )
