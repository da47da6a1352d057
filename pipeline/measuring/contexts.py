"""What many passes tell, left on the device until all of them are queued.

A host that reads the losses of each pass, or looks whether they are finite, lets a GPU idle while it prepares
the next one. So a loop adds its passes here, and all are read, and looked at, after its end.

Shapes: B sequences of a batch, S rows, T targets.

How many sequences a forward pass holds: as many as pay and fit the memory, half where they did not.

A loss does not depend on the batch it was computed in, save for its last bits: matrix products of other
shapes add up in another order. In float32 losses agree to 2e-5 nats (a test). Sizes follow from the model,
the lengths and the kind of device, its whole memory included, not from what memory happens to be free: so a
result is the same to the byte whoever measures which part of it, as long as the memory suffices; where it
does not, that is said.

How far contexts are measured: by which model, at which lengths, at what cost; no number of it yet.

Shapes: H heads of all layers.

loss(t | C) and divergence(t | C): one token under a chosen context, each token at its own position ID.

Coordinates here count from the start of the chunk, and are the position IDs too.

Shapes: L chunk (long_context_length), T targets, C context, N contexts, B contexts of a batch.

The influence of every far-context token, by leaving each out once for all targets together.

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

The short context that LongPPL's code approximates: a block of targets shares one window.

Exact windows (`context_loss.measured_windows`) cost one a target. LongPPL (Fang et al. 2024, arXiv
2410.23771) shares one among a block of targets. What its code does is done again here, so that both can be
compared:

- Blocks are counted from the start of the chunk, which stands for LongPPL's text: block j holds the targets
  [j·w + s, (j + 1)·w + s), w = `windowed_stride`. Its window begins at j·w and ends with the block, or with
  the chunk: the last block may be shorter.
- So a target sees s to s + w - 1 tokens, by its place in its block; only the first sees exactly s. With
  LongPPL's own s = 4,096 and w = 1,024 that is up to a quarter more.
- Position IDs restart at 0 in every window, where everything else in this project keeps them. RoPE does not
  see the difference; models with learned positions do.
- The first s tokens of a chunk have no window. They are never targets here either.

At w = 1 every target has a window of its own, and only the position IDs differ from `measured_windows`.

Shapes: L chunk (long_context_length), T targets, N windows, W tokens of a window, Q targets of a block.

A foreign far context: another document's tokens before the short context, at the same positions.

What is lost by it is the *specific gain*: the part of the long context's gain that is this document's own.

Shapes: L chunk, T targets.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import torch

from pipeline.cli import InputError, is_out_of_memory, logger
from pipeline.measuring.flags import ContextLengths
from pipeline.models.devices import GIBIBYTE, free_bytes, total_bytes
from pipeline.models.interface import (
    CausalLM,
    NotFiniteLossError,
    Predictions,
    Prefix,
    losses_and_divergences,
    losses_of_hidden_states,
    refuse_not_finite,
    target_losses,
    to_device,
    unchecked_losses_and_divergences,
)

_KINDS = ("loss", "divergence")


@dataclass
class QueuedPasses:
    """Losses, and divergences where they are asked for, of passes in their order."""

    _passes: list[tuple[np.ndarray, np.ndarray, tuple[torch.Tensor, ...]]] = field(default_factory=list)

    def add(self, position_ids_BS: np.ndarray, query_rows_BT: np.ndarray, *values_BT: torch.Tensor) -> None:
        """One pass: its losses and, if any, its divergences, which may still be computed.

        Args:
            position_ids_BS, query_rows_BT: as `CausalLM.hidden_states` took them.
        """
        self._passes.append((position_ids_BS, query_rows_BT, values_BT))

    def read(self) -> list[list[np.ndarray]]:
        """Of each kind, float32 [B, T] a pass, nats. Waits for the device.

        Raises:
            NotFiniteLossError: one is not a finite number; the first of them is named.
        """
        of_passes = []
        for position_ids_BS, query_rows_BT, values_BT in self._passes:
            on_host = [values.cpu() for values in values_BT]
            where = torch.as_tensor(position_ids_BS), torch.as_tensor(query_rows_BT)
            for kind, values in zip(_KINDS, on_host, strict=False):
                refuse_not_finite(values, *where, kind)
            of_passes.append([values.numpy() for values in on_host])
        return [list(values) for values in zip(*of_passes, strict=True)]


# Measured on a CPU (tests/benchmarks/leave_one_out.py): batches that leave its caches are slower. On a GPU
# (not measured yet, tests/benchmarks/gpu.py): enough that telling it what to do takes less than doing it.
_TOKENS_PER_BATCH, _TOKENS_PER_BATCH_ON_ACCELERATORS = 2048, 32768
_BUDGET_BYTES = 1 * GIBIBYTE
_BUDGET_SHARE_OF_ACCELERATORS = 0.25
"""Of the memory that the device has; weights, prefixes and logits are beside it."""
_SHARE_OF_FREE_MEMORY = 0.5


@dataclass
class Batching:
    """The size of the batches of one model."""

    tokens_per_batch: int
    """Rows that a forward pass may hold, the prefix apart; a single sequence may be longer."""
    memory_budget_bytes: float = float("inf")
    """What a pass may take beyond weights and prefix, by the model's own estimate."""

    @classmethod
    def for_model(
        cls, model: CausalLM, tokens_per_batch: int | None = None, memory_budget_bytes: float | None = None
    ) -> "Batching":
        """Batches of the given sizes; None: what is fastest on the kind of device, within a fixed budget.

        Half of what is free, where that is less than the fixed budget: then it is said that last bits may
        differ.
        """
        is_cpu = model.device.type == "cpu"
        if memory_budget_bytes is None:
            whole = 0 if is_cpu else total_bytes(model.device)
            memory_budget_bytes = _BUDGET_BYTES if is_cpu else _BUDGET_SHARE_OF_ACCELERATORS * whole
            available_bytes = _SHARE_OF_FREE_MEMORY * free_bytes(model.device)
            if available_bytes < memory_budget_bytes:
                logger.warning(
                    "little memory is free: batches are kept within %.2f GiB and not %.3g, which may move the"
                    " last bits of losses",
                    available_bytes / GIBIBYTE, memory_budget_bytes / GIBIBYTE,
                )  # fmt: skip
                memory_budget_bytes = available_bytes
        return cls(
            tokens_per_batch or (_TOKENS_PER_BATCH if is_cpu else _TOKENS_PER_BATCH_ON_ACCELERATORS),
            memory_budget_bytes,
        )

    def num_sequences(self, model: CausalLM, num_rows: int, num_prefix_rows: int = 0) -> int:
        """Sequences of `num_rows` rows that one pass holds, at least one."""
        num_sequences = self.tokens_per_batch // num_rows
        if self.memory_budget_bytes < float("inf"):
            sequence_bytes = model.sequence_bytes(num_rows, num_prefix_rows)
            num_sequences = min(num_sequences, int(self.memory_budget_bytes // sequence_bytes))
        return max(1, num_sequences)

    @contextmanager
    def halved_where_memory_runs_out(self, num_sequences: int, num_rows: int) -> Iterator[None]:
        """Where the pass inside runs out of memory, go on after it with batches half as large.

        Args:
            num_sequences, num_rows: the size of the pass inside.

        Raises:
            InputError: not even one sequence fits.
        """
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if num_sequences == 1:
                raise InputError(
                    f"a single sequence of {num_rows} tokens does not fit the memory; choose a shorter"
                    " --long-context-length, --dtype bfloat16, or a device with more memory"
                ) from error
            self.tokens_per_batch = num_sequences // 2 * num_rows
            logger.warning(
                "out of memory with %d sequences of %d tokens in a batch; going on with half as many",
                num_sequences, num_rows,
            )  # fmt: skip


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """A weight for each head, layer after layer; only their proportions matter."""

    losses_H: np.ndarray
    """Fitted to influences: float64."""
    divergences_H: np.ndarray
    """Fitted to the divergences of leaving one out: float64."""


@dataclass(frozen=True)
class Measurement:
    """How far contexts are measured: by which model, at which lengths, at what cost."""

    model: CausalLM
    lengths: ContextLengths
    batching: Batching
    num_subsets: int = 64
    """Random subsets of the far context that rules `banzhaf*` and `surrogate*` learn from."""
    kept_fraction: float = 0.5
    """How likely a token is to be in a subset of rules `surrogate*`."""
    num_sampled_answers: int = 8
    """Tokens drawn from the prediction that rule `gradient_divergence` averages over."""
    head_weights: HeadWeights | None = None
    """Of rules `learned_attention*`; None where none of them is asked for."""
    num_integration_steps: int = 20
    """Places on the way from no embedding that rule `integrated_gradients` takes a gradient at."""
    seed: tuple[int, ...] = (0,)
    """Of random subsets and sampled answers."""
    where: str = "the chunk"
    """What messages call the chunk."""


class Measured(NamedTuple):
    """What contexts do to targets, float32 arrays of one shape, nats."""

    losses: np.ndarray
    """loss(t | C) = -ln p(x_t | C)."""
    divergences: np.ndarray
    """divergence(t | C) = KL(p(. | long) || p(. | C)): it never sees x_t; 0 at C = long."""


_ROWS_READ_TOGETHER = 512
"""Of tokens that do not see each other, whose attention is computed all the same."""
Criterion = Literal["losses", "divergences"]
"""What is to become small: a field of `Measured`."""


def measured_contexts(
    model: CausalLM,
    token_ids_NC: np.ndarray,
    position_ids_NC: np.ndarray,
    target_ids_N: np.ndarray,
    batching: Batching,
    reference: Predictions,
    reference_index_N: np.ndarray,
    query_rows_N: np.ndarray | None = None,
    prefix: Prefix | None = None,
    prefix_rows_N: np.ndarray | None = None,
) -> Measured:
    """N contexts of C tokens each, nothing else visible anywhere in the network: [N] each.

    A context is a sequence of its own, so leaving tokens out is exact; their IDs keep them in place. The
    last token of each context stands right before the target, and its row predicts the target.

    Args:
        token_ids_NC, position_ids_NC: the contexts' tokens and their position IDs, ascending.
        target_ids_N: the tokens to be predicted.
        reference: predictions that theirs are compared with, under their targets' long contexts.
        reference_index_N: which of these each context belongs to.
        query_rows_N: the row that predicts each target, where that is not the last: what stands behind it is
            not seen, and only fills up.
        prefix: rows already read that all contexts begin with; None: there are none.
        prefix_rows_N: the one row of the prefix that each context begins with; None: all of them.
    """
    num_contexts, context_length = token_ids_NC.shape
    if query_rows_N is None:
        query_rows_N = np.full(num_contexts, context_length - 1)
    contexts = _Contexts(token_ids_NC, position_ids_NC, target_ids_N, query_rows_N, reference_index_N)
    num_before = 0 if prefix is None else prefix.num_rows if prefix_rows_N is None else 1
    queued, start = QueuedPasses(), 0
    while start < num_contexts:
        rest = slice(start, start + batching.num_sequences(model, context_length, num_before))
        batch = _Contexts(*(field[rest] for field in contexts))
        prefix_B = prefix
        if prefix is not None and prefix_rows_N is not None:
            prefix_B = prefix.one_row_each(torch.as_tensor(prefix_rows_N[rest]))
        with batching.halved_where_memory_runs_out(len(batch.target_ids_N), context_length):
            values_B1 = batch.measured(model, reference, prefix_B)
            queued.add(batch.position_ids_NC, batch.query_rows_N[:, None], *values_B1)
            start += len(batch.target_ids_N)
    return Measured(*(np.concatenate(values)[:, 0] for values in queued.read()))


class _Contexts(NamedTuple):
    token_ids_NC: np.ndarray
    position_ids_NC: np.ndarray
    target_ids_N: np.ndarray
    query_rows_N: np.ndarray
    reference_index_N: np.ndarray

    def measured(
        self, model: CausalLM, reference: Predictions, prefix: Prefix | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses and divergences [N, 1], in one pass, which a GPU may still be computing."""
        tokens, positions, targets, queries = (to_device(field, model.device) for field in self[:4])
        inputs = model, tokens, positions, None, queries[:, None], targets[:, None]
        index_N1 = torch.as_tensor(self.reference_index_N)[:, None]
        return unchecked_losses_and_divergences(*inputs, reference, index_N1, prefix)


def measured_windows(
    model: CausalLM,
    chunk_L: np.ndarray,
    targets_T: np.ndarray,
    context_length: int,
    batching: Batching,
    reference: Predictions,
) -> Measured:
    """Under exactly the `context_length` tokens before each target, one window a target: [T] each.

    Windows are never shared between targets: a token at the window's edge would otherwise carry what it
    saw before the edge into the prediction.

    Args:
        reference: what target t's prediction is compared with, at place t.
    """
    positions_TC = targets_T[:, None] + np.arange(-context_length, 0)
    return measured_contexts(
        model, chunk_L[positions_TC], positions_TC, chunk_L[targets_T], batching,
        reference, np.arange(len(targets_T)),
    )  # fmt: skip


def read_alone(model: CausalLM, token_ids_F: np.ndarray) -> Prefix:
    """Each token at its position, with nothing before it in sight: row i of the prefix is the token at i.

    Such a token sees itself only, so its keys and values depend on nothing but itself and its position ID:
    they are computed once, and serve every context that it comes first in.
    """
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


def windowed_losses(
    model: CausalLM,
    chunk_L: np.ndarray,
    targets_T: np.ndarray,
    short_context_length: int,
    windowed_stride: int,
    batching: Batching,
) -> np.ndarray:
    """loss(t | the tokens of t's shared window before t), position IDs from 0 in each window: float32 [T].

    Args:
        targets_T: ascending, none below `short_context_length`.
        short_context_length: s, `trunc_len` of LongPPL's code.
        windowed_stride: w, `sliding_window` of LongPPL's code.
    """
    starts_T = (targets_T - short_context_length) // windowed_stride * windowed_stride
    starts_N, first_N, num_targets_N = np.unique(starts_T, return_index=True, return_counts=True)
    place_Q = np.arange(num_targets_N.max())
    # Blocks and windows are filled up to one shape: by their last target, and by rows after it, which no
    # earlier row of a causal model sees.
    targets_NQ = targets_T[first_N[:, None] + np.minimum(place_Q, num_targets_N[:, None] - 1)]
    window_length = (targets_T - starts_T).max()
    losses, start = [], 0
    while start < len(starts_N):
        batch = slice(start, start + batching.num_sequences(model, window_length))
        block = starts_N[batch], targets_NQ[batch]
        with batching.halved_where_memory_runs_out(len(block[0]), window_length):
            losses.append(_losses_in_windows(model, chunk_L, *block, window_length))
            start += len(block[0])
    return np.concatenate(losses)[place_Q < num_targets_N[:, None]]


def _losses_in_windows(
    model: CausalLM, chunk_L: np.ndarray, starts_N: np.ndarray, targets_NQ: np.ndarray, window_length: int
) -> np.ndarray:
    """One forward pass over windows of `window_length` tokens from their starts: float32 [N, Q]."""
    positions_NW = np.minimum(starts_N[:, None] + np.arange(window_length), len(chunk_L) - 1)
    try:
        losses_NQ = target_losses(
            model,
            torch.as_tensor(chunk_L[positions_NW], device=model.device),
            torch.arange(window_length, device=model.device)[None],
            None,
            torch.as_tensor(targets_NQ - starts_N[:, None] - 1, device=model.device),
            torch.as_tensor(chunk_L[targets_NQ], device=model.device),
        )
    except NotFiniteLossError as error:
        start = int(starts_N[error.sequence_index])
        raise NotFiniteLossError(start + error.target_position, error.loss, what=error.what) from error
    return losses_NQ.cpu().numpy()


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
