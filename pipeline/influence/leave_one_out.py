"""The influence of every far-context token, by leaving each out once for all targets together.

One forward pass over a sequence without row r gives loss(t | long without r) for every target at once,
so a chunk costs one pass a removed token, not one a (target, token) pair. Row r is really
left out, at kept position IDs, which equals masking every attention edge into it (a test). The same pass
tells how far the whole prediction moves, which needs no target. Under the intervention `substitute` row r
is not left out but holds another token; every pass is then one row longer.

The null needs the same for a far context from another document. There the tokens that target t sees
depend on t: other-document tokens before t - s, own tokens from t - s on. A packed sequence holds both: the
other document once (it never sees our tokens, so all targets share it), then a window of s own tokens a
target, each of which sees its own window and the other document up to where the window begins.

Shapes: L chunk, S rows of the packed sequence, T targets, R removed rows, F far-context rows, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from pipeline.influence.batching import Batching
from pipeline.influence.context_lengths import ContextLengths
from pipeline.influence.queued_passes import QueuedPasses
from pipeline.models.causal_lm import CausalLM, Prefix, losses_of_hidden_states, refuse_not_finite
from pipeline.models.divergence import Predictions, unchecked_losses_and_divergences
from pipeline.models.transfers import to_device


@dataclass(frozen=True)
class PackedSequence:
    """Rows of tokens in which some predict targets. Row r < F holds the far-context token of position r."""

    token_ids_S: np.ndarray
    position_ids_S: np.ndarray
    visible_SS: np.ndarray | None
    """Which row sees which; None: the rows up to itself."""
    query_rows_T: np.ndarray
    """The row that predicts each target: the one holding the token right before it."""
    target_ids_T: np.ndarray
    num_far_tokens_T: np.ndarray
    """Rows [0, this) are the target's far context."""


def own_context(chunk_L: np.ndarray, lengths: ContextLengths) -> PackedSequence:
    """The chunk itself: every target sees all that is before it."""
    return PackedSequence(
        chunk_L[:-1],
        np.arange(len(chunk_L) - 1),
        None,
        lengths.targets_T - 1,
        chunk_L[lengths.targets_T],
        lengths.num_far_tokens_T,
    )


def null_contexts(
    chunk_L: np.ndarray, other_chunk_L: np.ndarray, lengths: ContextLengths
) -> Iterator[PackedSequence]:
    """The same targets with the same short contexts, the far context taken from another document.

    A few targets at a time, so that their windows take about as many rows as the other document does
    and the attention mask stays small.
    """
    window_rows = lengths.targets_per_chunk * lengths.short_context_length
    num_sequences = max(1, round(window_rows / int(lengths.num_far_tokens_T[-1])))
    for targets_T in np.array_split(lengths.targets_T, min(num_sequences, lengths.targets_per_chunk)):
        yield _null_context(chunk_L, other_chunk_L, targets_T, lengths.short_context_length)


def _null_context(
    chunk_L: np.ndarray, other_chunk_L: np.ndarray, targets_T: np.ndarray, short_context_length: int
) -> PackedSequence:
    num_far_T = targets_T - short_context_length
    num_far, num_targets = int(num_far_T[-1]), len(targets_T)
    windows_TC = num_far_T[:, None] + np.arange(short_context_length)
    # The other document is "target" -1; a row sees the rows of its own part up to itself, and a window's
    # rows see those of the other document that stand before the window.
    part_S = np.concatenate([np.full(num_far, -1), np.repeat(np.arange(num_targets), short_context_length)])
    position_ids_S = np.concatenate([np.arange(num_far), windows_TC.ravel()])
    window_start_S = np.concatenate([np.zeros(num_far), np.repeat(num_far_T, short_context_length)])
    same_part_SS = part_S[:, None] == part_S[None, :]
    visible_SS = (same_part_SS & (position_ids_S[:, None] >= position_ids_S[None, :])) | (
        (part_S[None, :] == -1) & (position_ids_S[None, :] < window_start_S[:, None])
    )
    return PackedSequence(
        np.concatenate([other_chunk_L[:num_far], chunk_L[windows_TC].ravel()]),
        position_ids_S,
        visible_SS,
        num_far + short_context_length * np.arange(1, num_targets + 1) - 1,
        chunk_L[targets_T],
        num_far_T,
    )


@dataclass(frozen=True, eq=False)
class Everything:
    """What reading a sequence tells, nothing left out."""

    losses_T: np.ndarray
    """loss(t | all that the target sees): float32, nats."""
    predictions: Predictions
    """Of each target."""
    prefix: Prefix
    """All rows."""


def read_everything(model: CausalLM, sequence: PackedSequence) -> Everything:
    """Read the sequence as it is, in one pass.

    Raises:
        NotFiniteLossError: a loss is not a finite number.
    """
    everything = _Batch(
        sequence.token_ids_S[None],
        sequence.position_ids_S[None],
        sequence.visible_SS,
        sequence.query_rows_T[None],
    )
    inputs = _on_device(model, everything)
    hidden_1TD, all_rows = model.read(*inputs)
    target_ids_1T = to_device(sequence.target_ids_T[None], model.device)
    losses_1T = losses_of_hidden_states(model, hidden_1TD, target_ids_1T)
    refuse_not_finite(losses_1T, inputs[1], inputs[3])
    return Everything(losses_1T[0].cpu().numpy(), Predictions.of(model, hidden_1TD[0]), all_rows)


@dataclass(frozen=True, eq=False)
class LeftOut:
    """What leaving out each far-context token does to each target. NaN beyond a target's own far context."""

    influence_TF: np.ndarray
    """I_t(i) = loss(t | long without i) - loss(t | long): float32, nats; positive = i helps."""
    divergence_TF: np.ndarray
    """KL(reference || p(.|long without i)): float32, nats; blind to the target."""


def leave_each_out(
    model: CausalLM,
    sequence: PackedSequence,
    batching: Batching,
    *,
    everything: Everything | None = None,
    reference: Predictions | None = None,
    substitute_ids_L: np.ndarray | None = None,
    removed_rows_R: np.ndarray | None = None,
) -> LeftOut:
    """Leave out every far-context token in turn; F is the far context of the last target.

    Rows before a removed one are as they were, so they are read once, by the pass that leaves nothing out,
    and shared: a removal costs the rows after it, about half the sequence on average. Losses and divergences
    come from the same passes.

    Args:
        everything: of `read_everything`, where it has been read already.
        reference: what predictions are compared with; None: with those that nothing is left out of.
        substitute_ids_L: the token that stands in for that of position i where i is left out, int64; None:
            nothing does.
        removed_rows_R: the far-context rows to leave out, ascending, the results of all others being NaN;
            None: all.
    """
    everything = everything or read_everything(model, sequence)
    reference = reference or everything.predictions
    rows_R = np.arange(sequence.num_far_tokens_T[-1]) if removed_rows_R is None else removed_rows_R
    queued = _queue_removals(
        model, sequence, batching, everything.prefix, reference, rows_R, substitute_ids_L
    )
    losses, divergences = queued.read()
    return LeftOut(
        _at_rows(
            [part - everything.losses_T[-part.shape[1] :] for part in losses],
            rows_R,
            sequence.num_far_tokens_T,
        ),
        _at_rows(divergences, rows_R, sequence.num_far_tokens_T),
    )


def _queue_removals(
    model: CausalLM,
    sequence: PackedSequence,
    batching: Batching,
    all_rows: Prefix,
    reference: Predictions,
    rows_R: np.ndarray,
    substitute_ids_L: np.ndarray | None,
) -> QueuedPasses:
    """The passes that leave each of the rows out, in batches; nothing here waits for a GPU."""
    queued, rest_R = QueuedPasses(), rows_R
    target_ids_T = to_device(sequence.target_ids_T, model.device)
    while len(rest_R):
        start = int(rest_R[0])
        num_run = len(sequence.token_ids_S) - start - (substitute_ids_L is None)
        # Removals within a quarter of the rows keep the rows run in vain, those between `start` and the
        # removed one, to an eighth.
        num_near = int((rest_R < start + num_run // 4).sum())
        batch_R = rest_R[: max(1, min(batching.num_sequences(model, num_run, start), num_near))]
        with batching.halved_where_memory_runs_out(len(batch_R), num_run):
            # Of earlier targets none of these rows is far context: what would be told is blanked anyway.
            first = int(np.searchsorted(sequence.num_far_tokens_T, start, side="right"))
            batch = _left_out(sequence, batch_R, substitute_ids_L).of_targets_from(first)
            prefix = all_rows.first(start) if start else None
            target_ids_BT = target_ids_T[first:].expand(batch.query_rows_BT.shape)
            values = unchecked_losses_and_divergences(
                model, *_on_device(model, batch), target_ids_BT, reference.at(slice(first, None)),
                prefix=prefix,
            )  # fmt: skip
            queued.add(batch.position_ids_BS, batch.query_rows_BT, *values)
            rest_R = rest_R[len(batch_R) :]
    return queued


def _at_rows(values: list[np.ndarray], rows_R: np.ndarray, num_far_tokens_T: np.ndarray) -> np.ndarray:
    """[T, F] from batches of [R, T] of the last few targets, NaN where a row was not left out."""
    num_targets = len(num_far_tokens_T)
    values_TF = np.full((num_targets, num_far_tokens_T[-1]), np.nan, dtype=np.float32)
    of_all = [
        np.pad(part, ((0, 0), (num_targets - part.shape[1], 0)), constant_values=np.nan) for part in values
    ]
    values_TF[:, rows_R] = np.concatenate(of_all).T
    return far_context_only(values_TF, num_far_tokens_T)


def far_context_only(values_TF: np.ndarray, num_far_tokens_T: np.ndarray) -> np.ndarray:
    """The values, NaN in place of those of positions beyond a target's own far context."""
    return np.where(np.arange(values_TF.shape[1]) < num_far_tokens_T[:, None], values_TF, np.float32(np.nan))


@dataclass(frozen=True)
class _Batch:
    """Rows to run after a prefix; B is 1, or R with one far-context row a sequence left out or replaced."""

    token_ids_BS: np.ndarray
    position_ids_BS: np.ndarray
    visible_SS: np.ndarray | None
    """Among the rows to run; of the prefix every row sees all."""
    query_rows_BT: np.ndarray

    def of_targets_from(self, first: int) -> "_Batch":
        """The same rows, which predict only the targets from number `first` on."""
        return replace(self, query_rows_BT=self.query_rows_BT[:, first:])


def _left_out(sequence: PackedSequence, rows_R: np.ndarray, substitute_ids_L: np.ndarray | None) -> _Batch:
    if substitute_ids_L is None:
        return _without(sequence, rows_R)
    return _substituted(sequence, rows_R, substitute_ids_L)


def _without(sequence: PackedSequence, removed_R: np.ndarray) -> _Batch:
    """The rows after the first removed one, less one each.

    Where the removed row is a target's own query row, the entry is another row's; a query row is never far
    context, so such entries are blanked.
    """
    start = removed_R[0]
    rows_1S = np.arange(start, len(sequence.token_ids_S) - 1)[None]
    kept_RS = rows_1S + (rows_1S >= removed_R[:, None])
    queries_1T = sequence.query_rows_T[None]
    # Which far row is gone makes no difference to who sees whom among the rows that stay, and all of them see
    # all before `start`, save for targets whose far context the removed row is not in, and those entries are
    # blanked: one mask for all removals, and no mask for the prefix.
    return _Batch(
        sequence.token_ids_S[kept_RS],
        sequence.position_ids_S[kept_RS],
        None if sequence.visible_SS is None else sequence.visible_SS[1 + start :, 1 + start :],
        (queries_1T - (queries_1T > removed_R[:, None]) - start).clip(min=0),
    )


def _substituted(sequence: PackedSequence, rows_R: np.ndarray, substitute_ids_L: np.ndarray) -> _Batch:
    """The rows from the first substituted one on, another token in one of them each."""
    start = rows_R[0]
    token_ids_RS = np.tile(sequence.token_ids_S[start:], (len(rows_R), 1))
    token_ids_RS[np.arange(len(rows_R)), rows_R - start] = substitute_ids_L[rows_R]
    return _Batch(
        token_ids_RS,
        sequence.position_ids_S[None, start:],
        None if sequence.visible_SS is None else sequence.visible_SS[start:, start:],
        # A query row before `start` does not see what was replaced; its entry is blanked.
        np.tile((sequence.query_rows_T - start).clip(min=0), (len(rows_R), 1)),
    )


def _on_device(
    model: CausalLM, batch: _Batch
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    return (
        to_device(batch.token_ids_BS, model.device),
        to_device(batch.position_ids_BS, model.device),
        None if batch.visible_SS is None else to_device(batch.visible_SS, model.device)[None],
        to_device(batch.query_rows_BT, model.device),
    )
