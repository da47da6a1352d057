"""The influence of every far-context token, by leaving each out once for all targets together.

One forward pass over a sequence without row r gives loss(t | long without r) for every target at once,
so a chunk costs one pass a removed token, not one a (target, token) pair (design.md 2). Row r is really
left out, at kept position IDs, which equals masking every attention edge into it (a test).

The null needs the same for a far context from another document. There the tokens that target t sees
depend on t: other-document tokens before t - s, own tokens from t - s on. A packed sequence holds both: the
other document once (it never sees our tokens, so all targets share it), then a window of s own tokens a
target, each of which sees its own window and the other document up to where the window begins.

Shapes: L chunk, S rows of the packed sequence, T targets, R removed rows, F far-context rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.influence.context_loss import ContextLengths
from pipeline.models.causal_lm import CausalLM, Prefix, target_losses


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
    num_sequences = max(1, round(window_rows / int(lengths.num_far_tokens_T[0])))
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


def influences(model: CausalLM, sequence: PackedSequence, tokens_per_batch: int) -> np.ndarray:
    """I_t(i) = loss(t | long without i) - loss(t | long) for every far-context token i: float32 [T, F], nats.

    F is the far context of the last target; entries beyond a target's own far context are NaN.

    Rows before a removed one are as they were, so they are read once and shared: a removal costs the rows
    after it, about half the sequence on average.
    """
    num_rows, num_far = len(sequence.token_ids_S), int(sequence.num_far_tokens_T[-1])
    full_1T = _losses(
        model, sequence, np.arange(num_rows)[None], sequence.query_rows_T[None], sequence.visible_SS, None
    )
    far_tokens_1F = torch.as_tensor(sequence.token_ids_S[None, :num_far], device=model.device)
    far_prefix = model.read(far_tokens_1F, torch.arange(num_far, device=model.device)[None], None)
    losses, start = [], 0
    while start < num_far:
        num_after = num_rows - 1 - start
        # All removals of a batch run the rows from `start` on. A quarter as many removals as rows keeps
        # the rows run in vain, those between `start` and the removed one, to an eighth.
        num_removals = max(1, min(tokens_per_batch, num_after**2 // 4) // num_after)
        removed_R = np.arange(start, min(start + num_removals, num_far))
        losses.append(_losses_without(model, sequence, removed_R, far_prefix.first(start) if start else None))
        start += len(removed_R)
    influence_TF = (np.concatenate(losses) - full_1T).T
    influence_TF[np.arange(num_far) >= sequence.num_far_tokens_T[:, None]] = np.nan
    return influence_TF


def _losses_without(
    model: CausalLM, sequence: PackedSequence, removed_R: np.ndarray, prefix: Prefix | None
) -> np.ndarray:
    """The targets' losses without each of the removed rows: float32 [R, T].

    The prefix holds the rows before the first of them. Where the removed row is a target's own query row,
    the entry is another row's loss; a query row is never far context, so `influences` blanks such entries.
    """
    start = removed_R[0]
    rows_1S = np.arange(start, len(sequence.token_ids_S) - 1)[None]
    kept_RS = rows_1S + (rows_1S >= removed_R[:, None])
    queries_1T = sequence.query_rows_T[None]
    query_rows_RT = (queries_1T - (queries_1T > removed_R[:, None]) - start).clip(min=0)
    # Which far row is gone makes no difference to who sees whom among the rows that stay, save for targets
    # whose far context it is not in, and those entries are blanked: one mask for all removals.
    visible_SK = None if sequence.visible_SS is None else sequence.visible_SS[1 + start :, 1:]
    return _losses(model, sequence, kept_RS, query_rows_RT, visible_SK, prefix)


def _losses(
    model: CausalLM,
    sequence: PackedSequence,
    kept_RS: np.ndarray,
    query_rows_RT: np.ndarray,
    visible_SK: np.ndarray | None,
    prefix: Prefix | None,
) -> np.ndarray:
    """The targets' losses where after the prefix there are only the kept rows: float32 [R, T]."""

    def on_device(array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, device=model.device)

    losses_RT = target_losses(
        model,
        on_device(sequence.token_ids_S[kept_RS]),
        on_device(sequence.position_ids_S[kept_RS]),
        None if visible_SK is None else on_device(visible_SK)[None],
        on_device(query_rows_RT),
        on_device(sequence.target_ids_T).expand(query_rows_RT.shape),
        prefix,
    )
    return losses_RT.cpu().numpy()
