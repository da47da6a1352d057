"""loss(t | C): what a model predicts if it sees chosen tokens only, each at its own position ID.

Coordinates count from the start of the chunk, and are the position IDs too. What is left out of a context is
no row of its sequence, which equals masking every attention edge into it (a test).

Numbers of passes stay on the device until all are queued (`measured_passes`): no loop waits for a GPU.

The shape of a pass moves losses in their last bits, in float32 by 2e-5 nats at most (a test), and nearly
equal scores of distant tokens then change places: ranks beyond the first ones would be another machine's.
Rounding the scores first would only move the places where that happens. So batches follow from the lengths
and the kind of device, never from memory. A batch that does not fit in GPU memory is split in two, never so
small that its rows' bits would change (`_FEWEST_ROWS`); all are projected on the vocabulary together.
So a result is the same to the byte whoever measures which part of it, with whatever memory.

Shapes: L chunk (long_context_length), B sequences of a pass, S rows, K rows that are looked at, T targets,
N contexts or windows, C tokens of a context, F distant-context tokens, H heads of all layers, W tokens of a
shared window, Q targets of one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from sparsity_length.measuring.settings import ContextLengths
from sparsity_length.models.interface import (
    CausalLM,
    Predictions,
    Prefix,
    losses_and_divergences,
    refuse_not_finite,
    to_device,
)

# Measured on a CPU (tests/benchmarks/leave_one_out.py): batches that leave its caches are slower. On a GPU
# (not measured yet): enough that telling it what to do takes less than doing it.
_TOKENS_PER_BATCH = 2048
_TOKENS_PER_BATCH_ON_ACCELERATORS = 32768
_FEWEST_ROWS = 256
"""A product of as many rows or more gives each row the same bits; for fewer, libraries have kernels by their
number (measured with MKL, on AVX-512 and AVX2, one and two threads)."""


@dataclass(frozen=True)
class Batching:
    """The batches of one model."""

    tokens_per_batch: int
    """Rows that a batch may hold, the prefix apart; a single sequence may be longer."""

    @classmethod
    def for_model(cls, model: CausalLM) -> "Batching":
        """Batches of the size that is fastest on the kind of device."""
        return cls(_TOKENS_PER_BATCH if model.device.type == "cpu" else _TOKENS_PER_BATCH_ON_ACCELERATORS)

    def num_sequences(self, num_rows: int) -> int:
        """Sequences of `num_rows` rows that a batch holds, at least one; whatever memory there is."""
        return max(1, self.tokens_per_batch // num_rows)

    def by_start(self, starts_N: np.ndarray, stop: int) -> list[np.ndarray]:
        """The batches of sequences that run from some row each up to one row, as places in `starts_N`.

        A batch runs from its first start on. Starts within a quarter of its rows keep those run in vain to an
        eighth.
        """
        batches = []
        # Stable, so that equal starts fall into the same batches on every machine.
        rest_N = np.argsort(starts_N, kind="stable")
        while len(rest_N):
            num_rows = stop - int(starts_N[rest_N[0]])
            # If the first sequence has 300 rows to run, those that start at most 75 rows later join it.
            num_near = int(np.searchsorted(starts_N[rest_N], stop - num_rows + num_rows // 4, "right"))
            size = min(self.num_sequences(num_rows), num_near)
            batches.append(rest_N[:size])
            rest_N = rest_N[size:]
        return batches

    def of_many(self, num_sequences: int, num_rows: int) -> list[slice]:
        """The batches of so many sequences."""
        size = self.num_sequences(num_rows)
        return [slice(start, start + size) for start in range(0, num_sequences, size)]


class Rows(NamedTuple):
    """What a forward pass runs, its prefix apart; as `CausalLM.hidden_states` takes it."""

    token_ids_BS: np.ndarray
    position_ids_BS: np.ndarray
    """[B, S] or [1, S]."""
    visible_BSK: np.ndarray | None
    """[B, S, K] or [1, S, K], or of the last rows only."""
    query_rows_BT: np.ndarray

    def of_sequences(self, which: slice) -> "Rows":
        """The rows of some sequences of the batch; what is the same for all stays."""
        # A first axis of 1 is shared by all sequences and broadcasts.
        return Rows._make(part if part is None or len(part) == 1 else part[which] for part in self)

    def on_device(
        self, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """The same as tensors."""
        return (
            to_device(self.token_ids_BS, device),
            to_device(self.position_ids_BS, device),
            None if self.visible_BSK is None else to_device(self.visible_BSK, device),
            to_device(self.query_rows_BT, device),
        )


def hidden_states(model: CausalLM, rows: Rows, prefix: Prefix | None = None) -> torch.Tensor:
    """States of the query rows, [B, T, D]; the batch is split in two if it does not fit in memory."""
    # Halves of the batch, never of the queries: a sequence runs whole.
    half = len(rows.token_ids_BS) // 2
    try:
        return model.hidden_states(*rows.on_device(model.device), prefix)
    except torch.OutOfMemoryError:
        if half * rows.query_rows_BT.shape[1] < _FEWEST_ROWS:
            raise
    # Not within the handler: the error holds what was allocated.
    halves = (rows.of_sequences(part) for part in (slice(half), slice(half, None)))
    return torch.cat([hidden_states(model, part, prefix) for part in halves])


class Measured(NamedTuple):
    """What contexts do to targets: float32 arrays of one shape, nats."""

    losses: np.ndarray
    """loss(t | C) = -ln p(x_t | C)."""
    divergences: np.ndarray
    """divergence(t | C) = KL(p(. | long) || p(. | C)): it never sees x_t; 0 at C = long."""

    @property
    def over_swaps(self) -> "Measured":
        """The mean over the last axis."""
        return Measured(self.losses.mean(-1), self.divergences.mean(-1))


class Pass(NamedTuple):
    """The passes of a batch: its rows, what they predict, and what they are read behind."""

    rows: Rows
    target_ids_BT: np.ndarray
    """[B, T], or [1, T] for all sequences; so is the index."""
    reference_index_BT: np.ndarray
    """Which prediction of the reference each target's is compared with."""
    prefix: Prefix | None = None


def measured_passes(model: CausalLM, reference: Predictions, passes: Iterable[Pass]) -> list[Measured]:
    """Losses of each pass, and divergences from `reference`: [B, T] each.

    Numbers are read, and checked, after the last pass is queued. NotFiniteLossError names the first that is
    not a finite number.
    """
    queued = []
    for rows, target_ids, reference_index, prefix in passes:
        hidden_BTD = hidden_states(model, rows, prefix)
        targets_BT = to_device(target_ids, model.device).expand(hidden_BTD.shape[:2])
        index_BT = torch.as_tensor(reference_index)
        queued.append((rows, losses_and_divergences(model, hidden_BTD, targets_BT, reference, index_BT)))
    measured = []
    for rows, values in queued:
        where = torch.as_tensor(rows.position_ids_BS), torch.as_tensor(rows.query_rows_BT)
        # This copy is what waits for the device, and by now every pass is queued.
        losses_BT, divergences_BT = (values_BT.cpu() for values_BT in values)
        refuse_not_finite(losses_BT, *where)
        refuse_not_finite(divergences_BT, *where, "divergence")
        measured.append(Measured(losses_BT.numpy(), divergences_BT.numpy()))
    return measured


def measured_contexts(
    model: CausalLM, batching: Batching, reference: Predictions, contexts: Pass
) -> Measured:
    """Losses and divergences of T targets in each of N contexts of as many rows: [N, T] each.

    A context is a sequence of its own, which nothing but a prefix is visible beside, anywhere in the network:
    leaving tokens out is exact, and their IDs, ascending, keep them in place. The arrays hold all N.
    """
    rows, target_ids_NT, reference_index_NT, prefix = contexts
    # A generator: only one batch at a time is sliced and sent to the device.
    passes = (
        Pass(rows.of_sequences(batch), target_ids_NT[batch], reference_index_NT[batch], prefix)
        for batch in batching.of_many(*rows.token_ids_BS.shape)
    )
    return Measured(*np.concatenate(measured_passes(model, reference, passes), axis=1))


def measured_windows(
    model: CausalLM,
    chunk_L: np.ndarray,
    targets_N: np.ndarray,
    context_length: int,
    batching: Batching,
    reference: Predictions,
    *,
    index_N: np.ndarray | None = None,
    far: tuple[np.ndarray, np.ndarray] | None = None,
) -> Measured:
    """Losses under exactly the `context_length` tokens before each target, one window per target: [N] each.

    Windows are never shared between targets: a token at the window's edge would otherwise carry what it saw
    before the edge into the prediction.

    Args:
        index_N: which prediction of the reference each target's is compared with; None: number n.
        far: a text [L], and the positions [N, K], ascending, of its tokens that each target sees, too.
    """
    # Target 100 with a context of 4 reads positions 96 to 99, and row 3 predicts it.
    positions_NC = targets_N[:, None] + np.arange(-context_length, 0)
    tokens_NC = chunk_L[positions_NC]
    if far is not None:
        far_ids_L, far_NK = far
        tokens_NC = np.hstack([far_ids_L[far_NK], tokens_NC])
        positions_NC = np.hstack([far_NK, positions_NC])
    if index_N is None:
        index_N = np.arange(len(targets_N))
    queries_N1 = np.full((len(targets_N), 1), tokens_NC.shape[1] - 1)
    rows = Rows(tokens_NC, positions_NC, None, queries_N1)
    contexts = Pass(rows, chunk_L[targets_N, None], index_N[:, None])
    return Measured(*np.reshape(measured_contexts(model, batching, reference, contexts), (2, -1)))


def text_rows(token_ids_S: np.ndarray, num_queries: int = 1) -> Rows:
    """A text as it is, the last rows asked for."""
    positions_1S = np.arange(len(token_ids_S))[None]
    return Rows(token_ids_S[None], positions_1S, None, positions_1S[:, -num_queries:])


def read_prefix(model: CausalLM, token_ids_S: np.ndarray, position_ids_S: np.ndarray | None = None) -> Prefix:
    """The first tokens of a text, as later rows see them; at the position IDs 0 to S - 1 by default."""
    ids_S = np.arange(len(token_ids_S)) if position_ids_S is None else position_ids_S
    rows = text_rows(token_ids_S)._replace(position_ids_BS=ids_S[None])
    # Only keys and values are wanted; the hidden state of the last row is dropped.
    return model.read(*rows.on_device(model.device))[1]


@dataclass(frozen=True)
class PackedSequence:
    """Rows of tokens in which some predict targets. Row r < F holds the distant token of position r."""

    token_ids_S: np.ndarray
    position_ids_S: np.ndarray
    visible_WS: np.ndarray | None
    """Which rows the last W see; those before, and all if it is None, see the rows up to themselves."""
    query_rows_T: np.ndarray
    """The row that predicts each target: the one holding the token right before it."""
    target_ids_T: np.ndarray
    num_far_tokens_T: np.ndarray
    """Rows [0, this) are the target's distant context."""
    targets: slice
    """Which of the chunk's targets these are."""

    @property
    def rows(self) -> Rows:
        """All of them, for one pass."""
        visible_1WS = None if self.visible_WS is None else self.visible_WS[None]
        return Rows(self.token_ids_S[None], self.position_ids_S[None], visible_1WS, self.query_rows_T[None])


def own_context(chunk_L: np.ndarray, lengths: ContextLengths) -> PackedSequence:
    """The chunk itself: every target sees all that is before it."""
    targets_T = lengths.targets_T
    return PackedSequence(
        # The last token is a target and never an input.
        chunk_L[:-1],
        np.arange(len(chunk_L) - 1),
        None,
        # Row t - 1 predicts token t: the chunk is read from its start, so rows are positions.
        targets_T - 1,
        chunk_L[targets_T],
        lengths.num_far_tokens_T,
        slice(0, len(targets_T)),
    )


def null_contexts(
    chunk_L: np.ndarray, other_chunk_L: np.ndarray, lengths: ContextLengths
) -> Iterator[PackedSequence]:
    """The same targets with the same short contexts, the distant context taken from another document.

    What target t sees depends on t: other-document tokens before t - s, own tokens from there on. So a
    sequence holds the other document once, which never sees our tokens and so serves all targets, and then a
    window of s own tokens per target. Only the windows' rows need a mask. A sequence has a few targets, which
    take about as many rows as the other document does.
    """
    short = lengths.short_context_length
    num_targets = lengths.num_targets
    # 16 targets with 64 own tokens each are 1,024 rows: one group beside 959 of the other document.
    num_groups = max(1, round(num_targets * short / int(lengths.num_far_tokens_T[-1])))
    for index_T in np.array_split(np.arange(num_targets), min(num_groups, num_targets)):
        targets_T = lengths.targets_T[index_T]
        num_far_T = targets_T - short
        # The last target of the group sees the most; the mask hides the surplus from the others.
        num_far = int(num_far_T[-1])
        windows_TC = num_far_T[:, None] + np.arange(short)
        windows_W = windows_TC.ravel()
        # A window's rows see those of the other document that stand before it, and its own up to themselves.
        sees_other_TF = np.arange(num_far) < num_far_T[:, None]
        sees_other_WF = np.repeat(sees_other_TF, short, axis=0)
        # Block-diagonal, a causal triangle for each window: no window sees another.
        sees_own_WW = np.kron(np.eye(len(targets_T), dtype=bool), np.tri(short, dtype=bool))
        # The last row of each window holds the token right before its target.
        ends_T = num_far + short * np.arange(1, len(targets_T) + 1)
        yield PackedSequence(
            np.concatenate([other_chunk_L[:num_far], chunk_L[windows_W]]),
            # IDs repeat where windows overlap in the chunk: every token keeps its own position.
            np.concatenate([np.arange(num_far), windows_W]),
            np.hstack([sees_other_WF, sees_own_WW]),
            ends_T - 1,
            chunk_L[targets_T],
            num_far_T,
            slice(int(index_T[0]), int(index_T[-1]) + 1),
        )


@dataclass(frozen=True, eq=False)
class FullPass:
    """What reading a sequence tells, nothing left out."""

    losses_T: np.ndarray
    """loss(t | all that the target sees): float32, nats."""
    predictions: Predictions
    """One for each target."""
    prefix: Prefix
    """All rows."""


def full_pass(model: CausalLM, sequence: PackedSequence) -> FullPass:
    """Read the sequence as it is, in one pass; NotFiniteLossError if a loss is no finite number."""
    inputs = sequence.rows.on_device(model.device)
    hidden_1TD, prefix = model.read(*inputs)
    # No divergences: this pass is itself what others are compared with.
    predictions = Predictions.of(model.logits(hidden_1TD[0]))
    losses_T = predictions.losses(sequence.target_ids_T)
    refuse_not_finite(torch.as_tensor(losses_T)[None], inputs[1], inputs[3])
    return FullPass(losses_T, predictions, prefix)
