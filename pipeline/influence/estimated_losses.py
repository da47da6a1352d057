"""About loss(t | long without i) for every far token i, by running few rows again.

The rows run again for a removal are its window: the rows right after the removed one, and those up to each
query row. Every other row keeps the keys and values it had with token i in sight, so what i told a target
through such rows alone is missed: where the window is the whole sequence, nothing is, and the loss is exact.
With windows of the query rows only, the estimate is the direct effect of path patching.

The windows of many removals are rows of one sequence, each looking at its own window and at one prefix that
holds all rows as they were.

Shapes: S rows of the packed sequence, T targets, F far-context rows, R removals of a batch, N rows of their
windows.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeline.influence.batching import Batching
from pipeline.influence.leave_one_out import PackedSequence, far_context_only
from pipeline.influence.queued_passes import QueuedPasses
from pipeline.models.causal_lm import CausalLM, Prefix, losses_of_hidden_states
from pipeline.models.transfers import to_device

NUM_AFTER_REMOVED = 2
"""Rows run again right after the removed one: words of several tokens are put together there."""


@dataclass(frozen=True)
class Reruns:
    """Which rows are run again when a far row is left out, and what that costs."""

    sequence: PackedSequence
    num_before_query: int
    """Rows run again before each query row."""
    is_substituted: bool = False
    """Whether the row left out is run again too, with another token."""

    @cached_property
    def cost(self) -> int:
        """Token-forwards of `estimated_losses`: of reading the sequence, and of all windows."""
        num_rows, num_far = len(self.sequence.token_ids_S), int(self.sequence.num_far_tokens_T[-1])
        after = np.arange(num_far)[:, None] + self._offsets
        num_own = (after < num_rows) & ~np.isin(after, self._rows_up_to_queries)
        return num_rows + num_far * len(self._rows_up_to_queries) + int(num_own.sum())

    def window(self, left_out: int) -> np.ndarray:
        """The rows run again, ascending: int64."""
        after = left_out + self._offsets
        return np.union1d(after[after < len(self.sequence.token_ids_S)], self._rows_up_to_queries)

    @cached_property
    def _offsets(self) -> np.ndarray:
        return np.arange(0 if self.is_substituted else 1, 1 + NUM_AFTER_REMOVED)

    @cached_property
    def _rows_up_to_queries(self) -> np.ndarray:
        rows = self.sequence.query_rows_T[:, None] - np.arange(self.num_before_query + 1)
        return np.unique(rows.clip(min=0))


def estimated_losses(
    model: CausalLM, reruns: Reruns, batching: Batching, substitute_ids_L: np.ndarray | None = None
) -> np.ndarray:
    """About loss(t | long without i): float32 [T, F], nats, NaN beyond a target's own far context.

    Args:
        substitute_ids_L: where `reruns` substitutes, the token that stands in for that of position i.
    """
    sequence = reruns.sequence
    num_far = int(sequence.num_far_tokens_T[-1])
    everything = _read(model, sequence)
    # Windows do not look at each other, so attention among them is computed in vain: it stays below a fifth.
    num_most, num_run = len(sequence.token_ids_S) // 4, len(reruns.window(0))
    queued, start = QueuedPasses(), 0
    while start < num_far:
        num_fitting = batching.num_sequences(model, num_run, len(sequence.token_ids_S))
        num_removals = max(1, min(num_fitting, num_most // num_run))
        left_out_R = np.arange(start, min(start + num_removals, num_far))
        with batching.halved_where_memory_runs_out(len(left_out_R), num_run):
            _queue_without(queued, model, reruns, left_out_R, everything, substitute_ids_L)
            start += len(left_out_R)
    losses = np.concatenate([losses_1N[0] for losses_1N in queued.read()[0]])
    return far_context_only(losses.reshape(num_far, -1).T, sequence.num_far_tokens_T)


def _read(model: CausalLM, sequence: PackedSequence) -> Prefix:
    visible_SS = sequence.visible_SS
    _, everything = model.read(
        to_device(sequence.token_ids_S[None], model.device),
        to_device(sequence.position_ids_S[None], model.device),
        None if visible_SS is None else to_device(visible_SS[None], model.device),
        to_device(sequence.query_rows_T[None], model.device),
    )
    return everything


def _queue_without(
    queued: QueuedPasses,
    model: CausalLM,
    reruns: Reruns,
    left_out_R: np.ndarray,
    everything: Prefix,
    substitute_ids_L: np.ndarray | None,
) -> None:
    """One forward pass, which tells R times T losses, one removal after another."""
    sequence = reruns.sequence
    windows = [reruns.window(row) for row in left_out_R]
    starts_R = np.cumsum([0, *map(len, windows[:-1])])
    rows_N, removal_N = np.concatenate(windows), np.repeat(np.arange(len(windows)), list(map(len, windows)))
    token_ids_N = sequence.token_ids_S[rows_N]
    if substitute_ids_L is not None:
        token_ids_N[rows_N == left_out_R[removal_N]] = substitute_ids_L[left_out_R]
    queries_RT = np.stack([np.searchsorted(window, sequence.query_rows_T) for window in windows])
    visible_NK = _visible(reruns, rows_N, removal_N, left_out_R)
    position_ids_1N = sequence.position_ids_S[rows_N][None]
    query_rows_1N = (starts_R[:, None] + queries_RT).reshape(1, -1)
    target_ids_1N = np.tile(sequence.target_ids_T, len(windows))[None]
    hidden_1ND = model.hidden_states(
        to_device(token_ids_N[None], model.device),
        to_device(position_ids_1N, model.device),
        to_device(visible_NK[None], model.device),
        to_device(query_rows_1N, model.device),
        everything,
    )
    losses_1N = losses_of_hidden_states(model, hidden_1ND, to_device(target_ids_1N, model.device))
    queued.add(position_ids_1N, query_rows_1N, losses_1N)


def _visible(reruns: Reruns, rows_N: np.ndarray, removal_N: np.ndarray, left_out_R: np.ndarray) -> np.ndarray:
    """Whom the rows of the windows see: [N, S + N], the rows as they were and those run again."""
    visible_SS = reruns.sequence.visible_SS
    if visible_SS is None:
        visible_SS = np.tri(len(reruns.sequence.token_ids_S), dtype=bool)
    is_anew_RS = np.zeros((len(left_out_R), len(visible_SS)), dtype=bool)
    is_anew_RS[removal_N, rows_N] = True
    is_anew_RS[np.arange(len(left_out_R)), left_out_R] = True
    same_window_NN = removal_N[:, None] == removal_N
    among_NN = visible_SS[np.ix_(rows_N, rows_N)] & same_window_NN
    if not reruns.is_substituted:
        # A window may hold the removed row: far context of one target, before the query of another. Only it
        # sees itself; it must see something.
        among_NN &= (rows_N != left_out_R[removal_N]) | np.eye(len(rows_N), dtype=bool)
    return np.concatenate([visible_SS[rows_N] & ~is_anew_RS[removal_N], among_NN], axis=1)
