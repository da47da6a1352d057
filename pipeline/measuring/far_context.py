"""About loss(t | long without i) for every far token i, by running few rows again.

The rows run again for a removal are its window: the rows right after the removed one, and those up to each
query row. Every other row keeps the keys and values it had with token i in sight, so what i told a target
through such rows alone is missed: where the window is the whole sequence, nothing is, and the loss is exact.
With windows of the query rows only, the estimate is the direct effect of path patching.

The windows of many removals are rows of one sequence, each looking at its own window and at one prefix that
holds all rows as they were.

Shapes: S rows of the packed sequence, T targets, F far-context rows, R removals of a batch, N rows of their
windows.

The tokens of largest influence for a share of the cost of every influence: estimate all, remove a few.

Removing token i changes every row after it, and leave_one_out runs them all again. Most of what i tells a
target passes through few of them: the row that predicts the target looks at i, or at a row near by that
looked at i, or at a row right after i. An estimate runs only those again and leaves all others as if they
still saw i (`estimated_losses.py`): tens of rows instead of half the sequence. The estimates are used for
their order alone. The tokens that come first for some target are then removed exactly, in the ordinary
passes, until the budget is spent: what is returned is exact, and what was not removed is not guessed at.

Shapes: S rows of the packed sequence, T targets, F far-context rows, R removed rows.

What a token does on average over random contexts: its Banzhaf value, by sampling.

The Banzhaf value of far token i is the mean, over all subsets of the other far tokens, of what adding i
changes (Banzhaf 1965; for data: Wang and Jia 2023, "Data Banzhaf"). It is estimated here from N subsets,
each token in or out by the toss of a coin, shared by all targets of a chunk and by all tokens: the mean over
the subsets without i less the mean over those with it ("maximum sample reuse"). A choice by it cannot be
fitted to a single context. Subsets come in pairs, one and the rest, so that every token is in half of them.
Of subsets of one size the mean would not be the value: with i in it, one holds fewer of the others.

Every target sees the tokens of a subset that lie in its own far context, and its own short context: the
packed sequence of the null, the rows outside the subset left out, or another document's tokens in them.

Shapes: L chunk, T targets, F far-context positions (of the last target), N subsets, V vocabulary, S rows.

One far context of a chunk, and everything a selection rule may ask about it, measured when first asked.

Several rules share what they need alike: the leave-one-out passes are run once, or not at all where no rule
asks for them. Every pass tells losses and divergences both. A divergence is from the prediction under the
chunk's own long context, but for `divergence_TF`.

Shapes: L chunk, T targets, F far-context positions (of the last target), N contexts, K positions of a set,
C context (K + s tokens).

The intervention `background`: what is not there is another document's, and S_k is put among its tokens.

The theory's own picture: all that is outside of S* is drawn from a background. What any far context gives is
there from the start, so that only what this document's tokens add is measured:

    loss(t | B)             every far token a foreign document's, the short context t's own: the baseline
    loss(t | B with i)      one far token restored; one pass a token for all targets, as in leave-one-out
    loss(t | B with S_k)    the sparse context; the rows before its first token are B's alone, and read once

Of a null the restored tokens are those of a third document. Several foreign documents can be averaged over.

Shapes: L chunk, T targets, F far-context positions (of the last target), N contexts, K positions of a set,
B backgrounds.

From far contexts to selections to sparse contexts, for a chunk's own far context and for its null.

Shapes: L chunk, T targets, K largest k, J studied values of k, N rules times targets, B backgrounds.

Rationale size: how few far tokens make the model predict what it predicts from the whole long context.

Vafa, Deng, Blei and Rush 2021, "Rationales for Sequential Predictions", arXiv 2109.06387. Greedy
rationalization adds the best token, again and again, until the most likely next token is that of the full
context; what it has added is the rationale. Theirs starts from the token before the target, ours from the
short context: a rationale of 0 tokens means that it suffices. The order is that of the rules `greedy*`.

Shapes: T targets, K tokens in the order of a rule, C context, N contexts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Optional, TypeVar

import numpy as np
import torch

from pipeline.cli import InputError
from pipeline.measuring.contexts import (
    Batching,
    Everything,
    LeftOut,
    Measured,
    Measurement,
    PackedSequence,
    QueuedPasses,
    far_context_only,
    leave_each_out,
    measured_contexts,
    measured_in_foreign_context,
    measured_windows,
    null_contexts,
    own_context,
    read_alone,
    read_everything,
)
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.rules import find_rule
from pipeline.models.interface import (
    CausalLM,
    InspectableLM,
    NotInspectableError,
    Predictions,
    Prefix,
    attention_mass,
    losses_and_divergences,
    losses_of_hidden_states,
    to_device,
)
from pipeline.results.schemas import OTHER_DOCUMENT, OWN

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


ESTIMATES_SHARE = 0.25
"""What of the budget goes into the estimates, wider windows for a larger one; the rest into removals."""


def search_influences(
    model: CausalLM,
    sequence: PackedSequence,
    batching: Batching,
    budget: float,
    substitute_ids_L: np.ndarray | None = None,
) -> np.ndarray:
    """The influence of the tokens that the search removes, NaN for all others: float32 [T, F], nats.

    Args:
        budget: token-forwards to spend, as a share of those of leave_one_out; not less than `least_budget`.
            Batching adds an eighth at most to either.
        substitute_ids_L: as in `leave_each_out`.
    """
    is_substituted = substitute_ids_L is not None
    reruns = reruns_within(sequence, budget, is_substituted)
    losses_TF = estimated_losses(model, reruns, batching, substitute_ids_L)
    costs_F = removal_costs(sequence, is_substituted)
    left = budget * exhaustive_cost(sequence, is_substituted) - _cost_before_removals(reruns)
    rows_R = rows_to_remove(losses_TF, costs_F, left)
    return leave_each_out(
        model, sequence, batching, substitute_ids_L=substitute_ids_L, removed_rows_R=rows_R
    ).influence_TF


def reruns_within(sequence: PackedSequence, budget: float, is_substituted: bool = False) -> Reruns:
    """The widest windows whose estimates take `ESTIMATES_SHARE` of the budget at most, or no windows."""
    affordable = ESTIMATES_SHARE * budget * exhaustive_cost(sequence, is_substituted)
    reruns = Reruns(sequence, 0, is_substituted)
    while True:
        wider = Reruns(sequence, reruns.num_before_query + 1, is_substituted)
        if wider.cost == reruns.cost or wider.cost > affordable:
            return reruns
        reruns = wider


def rows_to_remove(scores_TF: np.ndarray, costs_F: np.ndarray, token_forwards: float) -> np.ndarray:
    """The far rows that are removed exactly, as many as `token_forwards` pay for, ascending: int64 [R].

    Targets take turns, since one pass serves them all: the row of each one's largest score first, then of
    its second largest, and so on.

    Args:
        scores_TF: NaN beyond a target's own far context.
        costs_F: token-forwards of leaving out each row.
    """
    order_TF = np.argsort(-np.nan_to_num(scores_TF, nan=-np.inf), axis=1, kind="stable")
    ranks_TF = np.where(np.isnan(scores_TF), scores_TF.shape[1], np.argsort(order_TF, axis=1))
    order_F = np.argsort(ranks_TF.min(0), kind="stable")
    return np.sort(order_F[costs_F[order_F].cumsum() <= token_forwards])


def removal_costs(sequence: PackedSequence, is_substituted: bool = False) -> np.ndarray:
    """Token-forwards of leaving out each far row exactly, the rows after it: int64 [F]."""
    num_rows, num_far = len(sequence.token_ids_S), int(sequence.num_far_tokens_T[-1])
    return num_rows - 1 + is_substituted - np.arange(num_far)


def exhaustive_cost(sequence: PackedSequence, is_substituted: bool = False) -> int:
    """Token-forwards of leave_one_out: of leaving out every far row, and of reading the sequence before."""
    costs_F = removal_costs(sequence, is_substituted)
    return len(sequence.token_ids_S) + int(costs_F.sum())


def _cost_before_removals(reruns: Reruns) -> int:
    """Token-forwards of the estimates, and of reading the sequence for the removals."""
    return reruns.cost + len(reruns.sequence.token_ids_S)


def least_budget(lengths: ContextLengths, max_k: int, is_substituted: bool = False) -> float:
    """The smallest budget at which every target has `max_k` influences measured, whatever the tokens.

    `max_k` removals in the first target's far context serve all targets; the rows beyond it do not.
    """
    nothing_L = np.zeros(lengths.long_context_length, dtype=np.int64)
    shares = []
    for sequence in (own_context(nothing_L, lengths), *null_contexts(nothing_L, nothing_L, lengths)):
        costs_F = removal_costs(sequence, is_substituted)
        removals = costs_F[:max_k].sum() + costs_F[sequence.num_far_tokens_T[0] :].sum()
        needed = _cost_before_removals(Reruns(sequence, 0, is_substituted)) + removals
        shares.append(needed / exhaustive_cost(sequence, is_substituted))
    return max(shares)


def refuse_small_budget(
    budget: float, lengths: ContextLengths, max_k: int, is_substituted: bool = False
) -> None:
    """Do nothing where the budget pays for `max_k` influences of every target.

    Raises:
        InputError: it does not; says what would.
    """
    least = least_budget(lengths, max_k, is_substituted)
    if budget < least:
        raise InputError(
            f"--search-budget {budget:g} does not pay for rule leave_one_out_search: at these lengths its"
            f" estimates and {max_k} removals take up to {least:.2f} of what leave_one_out takes; choose a"
            " larger budget, a longer long context, fewer targets a chunk or a smaller k"
        )


class SubsetEffects(NamedTuple):
    """How much each far token lowers on average, float32 [T, F], nats; NaN beyond a target's far context."""

    losses: np.ndarray
    """Mean loss without the token less mean loss with it; positive = it helps."""
    divergences: np.ndarray
    """The same of the divergence."""

    @classmethod
    def over_subsets(
        cls, measured_NT: Measured, kept_NF: np.ndarray, num_far_tokens_T: np.ndarray
    ) -> "SubsetEffects":
        """The average effects of all far tokens over the subsets."""
        return cls(
            *(
                far_context_only(mean_differences(values_NT, kept_NF), num_far_tokens_T)
                for values_NT in measured_NT
            )
        )


def measured_in_subsets(
    model: CausalLM,
    far_token_ids_L: np.ndarray,
    chunk_L: np.ndarray,
    lengths: ContextLengths,
    batching: Batching,
    reference: Predictions,
    kept_NF: np.ndarray,
    background_L: np.ndarray | None = None,
) -> Measured:
    """Losses and divergences of every target under every subset: float32 [N, T], nats, one pass a subset.

    Args:
        far_token_ids_L: where the far tokens come from.
        chunk_L: where short contexts and targets come from.
        reference: what target t's predictions are compared with, at place t.
        kept_NF: bool; whether each far position is in each subset.
        background_L: tokens that stand where the subset has none; None: nothing stands there.
    """
    measured, first = [], 0
    for sequence in null_contexts(chunk_L, far_token_ids_L, lengths):
        targets = slice(first, first + len(sequence.target_ids_T))
        measured.append(_measured(model, sequence, batching, reference.at(targets), kept_NF, background_L))
        first = targets.stop
    return Measured(*(np.concatenate(parts, axis=1) for parts in zip(*measured, strict=True)))


def random_subsets(num_far: int, num_subsets: int, seed: tuple[int, ...]) -> np.ndarray:
    """Pairs of a random subset of the far positions and its complement, whether each is in: bool [N, F]."""
    generator = np.random.default_rng([*seed, 3])
    first_PF = generator.integers(2, size=(num_subsets // 2, num_far), dtype=np.int8).astype(bool)
    return np.stack([first_PF, ~first_PF], axis=1).reshape(num_subsets, num_far)


def mean_differences(values_NT: np.ndarray, kept_NF: np.ndarray) -> np.ndarray:
    """Mean over the subsets without each token less the mean over those with it: float32 [T, F]."""
    with_NF = kept_NF / kept_NF.sum(0)
    without_NF = ~kept_NF / (~kept_NF).sum(0)
    return (values_NT.T.astype(np.float64) @ (without_NF - with_NF)).astype(np.float32)


def _measured(
    model: CausalLM,
    sequence: PackedSequence,
    batching: Batching,
    reference: Predictions,
    kept_NF: np.ndarray,
    background_L: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Losses and divergences of the sequence's targets under every subset: float32 [N, T] each."""
    num_far = int(sequence.num_far_tokens_T[-1])
    results: list[list[np.ndarray]] = [[], []]
    start = 0
    while start < len(kept_NF):
        num_rows = len(sequence.token_ids_S)
        size = max(1, batching.num_sequences(model, num_rows))
        kept_BF = kept_NF[start : start + size, :num_far]
        with batching.halved_where_memory_runs_out(len(kept_BF), num_rows):
            for values, result in zip(
                _one_pass(model, sequence, reference, kept_BF, background_L), results, strict=True
            ):
                result.append(values)
            start += len(kept_BF)
    losses, divergences = (np.concatenate(parts) for parts in results)
    return losses, divergences


def _one_pass(
    model: CausalLM,
    sequence: PackedSequence,
    reference: Predictions,
    kept_BF: np.ndarray,
    background_L: np.ndarray | None,
) -> list[np.ndarray]:
    """[B, T] each."""
    num_rows, num_far = len(sequence.token_ids_S), kept_BF.shape[1]
    token_ids_BS = np.tile(sequence.token_ids_S, (len(kept_BF), 1))
    assert sequence.visible_SS is not None
    visible_BSS = np.broadcast_to(sequence.visible_SS, (len(kept_BF), num_rows, num_rows))
    if background_L is None:
        is_there_BS = np.concatenate([kept_BF, np.ones((len(kept_BF), num_rows - num_far), bool)], axis=1)
        # A row outside the subset sees itself, for it must see something, and no other row sees it.
        visible_BSS = visible_BSS & (is_there_BS[:, None, :] | np.eye(num_rows, dtype=bool))
    else:
        token_ids_BS[:, :num_far] = np.where(kept_BF, token_ids_BS[:, :num_far], background_L[:num_far])
    num_subsets = len(kept_BF)

    def on_device(array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, device=model.device)

    both = losses_and_divergences(
        model,
        on_device(token_ids_BS),
        on_device(sequence.position_ids_S)[None],
        on_device(np.array(visible_BSS)),
        on_device(sequence.query_rows_T).expand(num_subsets, -1),
        on_device(sequence.target_ids_T).expand(num_subsets, -1),
        reference,
    )
    return [values_BT.cpu().numpy() for values_BT in both]


T = TypeVar("T")
Inspect = Callable[
    [InspectableLM, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor], torch.Tensor
]
"""Given a model, and token IDs, position IDs, visibility, query rows and targets as `gate_gradients` takes
them, a number for each target and row."""
_LOOKED_INTO = (
    "it runs on OLMo and on Hugging Face families whose attention the library can write out, such as Llama,"
    " Mistral, Qwen, Gemma, OLMo 2, GPT-NeoX and GPT-2"
)


@dataclass(frozen=True, eq=False)
class FarContext:
    """The tokens before the short contexts of a chunk's targets: the chunk's own, or another document's.

    Measurements are float32 [T, F], NaN beyond a target's own far context.
    """

    name: str
    """OWN, or OTHER_DOCUMENT for the null."""
    token_ids_L: np.ndarray
    """Where the far tokens come from."""
    chunk_L: np.ndarray
    """Where the short contexts and the targets come from."""
    sequences: tuple[PackedSequence, ...]
    """All targets after their long contexts, a few targets each."""
    measurement: Measurement
    substitute_ids_L: np.ndarray | None = None
    """Stand-ins for left-out tokens (intervention `substitute`); None: they are removed."""
    own: Optional["FarContext"] = None
    """The chunk's own far context, of a null; None: this is it."""
    _known: dict[bytes, tuple[np.float32, np.float32]] = field(default_factory=dict, init=False, repr=False)
    """`_set_keys` -> loss and divergence of a set that is likely to be asked for again."""
    _told: dict[Callable[..., Any], Any] = field(default_factory=dict, init=False, repr=False)

    def once(self, measure: Callable[["FarContext"], T]) -> T:
        """What `measure` tells of this far context, measured when it is first asked for, and then kept.

        So rules of a file of their own share what they need alike.
        """
        if measure not in self._told:
            self._told[measure] = measure(self)
        return self._told[measure]

    @property
    def fills(self) -> Sequence[np.ndarray | None]:
        """What stands where far tokens are taken away, chunks of tokens that means are taken over; None:
        nothing does.
        """
        return (None,)

    @property
    def model(self) -> CausalLM:
        """The model that is measured."""
        return self.measurement.model

    @property
    def lengths(self) -> ContextLengths:
        """Which tokens are predicted, and what they see."""
        return self.measurement.lengths

    @property
    def num_far_tokens_T(self) -> np.ndarray:
        """Position p is far context of target t where p < num_far_tokens_T[t]."""
        return self.lengths.num_far_tokens_T

    @cached_property
    def _everything(self) -> list[Everything]:
        return [read_everything(self.model, sequence) for sequence in self.sequences]

    @property
    def long_losses_T(self) -> np.ndarray:
        """loss(t | this far context and short), nats."""
        return np.concatenate([part.losses_T for part in self._everything])

    @cached_property
    def predictions(self) -> Predictions:
        """What the model predicts from this far context and the short ones."""
        return Predictions.together([part.predictions for part in self._everything])

    @property
    def reference(self) -> Predictions:
        """What the model predicts from the chunk's own long context."""
        return (self.own or self).predictions

    @cached_property
    def _left_out(self) -> LeftOut:
        parts = [
            leave_each_out(
                self.model,
                sequence,
                self.measurement.batching,
                everything=everything,
                substitute_ids_L=self.substitute_ids_L,
            )
            for sequence, everything in zip(self.sequences, self._everything, strict=True)
        ]
        return LeftOut(
            self._all_targets([part.influence_TF for part in parts]),
            self._all_targets([part.divergence_TF for part in parts]),
        )

    @property
    def influence_TF(self) -> np.ndarray:
        """loss(t | long without i) - loss(t | long), nats."""
        return self._left_out.influence_TF

    @property
    def divergence_TF(self) -> np.ndarray:
        """KL(p(.|long) || p(.|long without i)), nats; of a null, long is with its own far context."""
        return self._left_out.divergence_TF

    @cached_property
    def searched_influence_TF(self) -> np.ndarray:
        """`influence_TF` of the tokens that a search within the budget left out, NaN for the others."""
        budget = self.measurement.search_budget
        assert budget is not None, "no budget for a search was given"
        parts = [
            search_influences(self.model, sequence, self.measurement.batching, budget, self.substitute_ids_L)
            for sequence in self.sequences
        ]
        return self._all_targets(parts)

    @property
    def every_influence_TF(self) -> np.ndarray | None:
        """`influence_TF` where something has asked for the leave-one-out passes, else None."""
        return self.influence_TF if "_left_out" in self.__dict__ else None

    @property
    def measured_influence_TF(self) -> np.ndarray | None:
        """Every influence, else those a search has measured, NaN for the others, else None."""
        if self.every_influence_TF is None and "searched_influence_TF" in self.__dict__:
            return self.searched_influence_TF
        return self.every_influence_TF

    @cached_property
    def attention_TF(self) -> np.ndarray:
        """Attention of the row that predicts t to token i, mean over layers and heads."""
        return self.look_inside("attention", lambda model, *inputs: attention_mass(model, *inputs[:4]))

    @cached_property
    def gate_gradient_TF(self) -> np.ndarray:
        """Derivative of loss(t | long) by the gate of token i, nats; negative = removal should hurt."""
        return self.look_inside("gradient", _gate_gradients)

    @cached_property
    def gate_information_TF(self) -> np.ndarray:
        """Fisher information of the gate of token i: the mean squared derivative of the loss of an answer
        that is drawn from the prediction, nats.

        Half of it is the divergence that closing the gate makes, to second order; the first order is 0.
        """
        squares = [
            self.look_inside("gradient_divergence", _gate_gradients, answers_T) ** 2
            for answers_T in sampled_answers(
                self.predictions, self.measurement.num_sampled_answers, self.measurement.seed
            )
        ]
        return np.mean(squares, axis=0, dtype=np.float32)

    @cached_property
    def subset_effects(self) -> SubsetEffects:
        """What each token does on average, over random subsets of the far context."""
        num_far_T = self.num_far_tokens_T
        kept_NF = random_subsets(int(num_far_T[-1]), self.measurement.num_subsets, self.measurement.seed)
        return SubsetEffects.over_subsets(self.in_subsets(kept_NF), kept_NF, num_far_T)

    def in_subsets(self, kept_NF: np.ndarray) -> Measured:
        """loss(t | short and the kept far tokens), and its divergence: [N, T] each, a row a subset.

        Args:
            kept_NF: bool; which far positions of the last target are kept, and so of those before it.
        """
        of_fills = [
            measured_in_subsets(
                self.model, self.token_ids_L, self.chunk_L, self.lengths, self.measurement.batching,
                self.reference, kept_NF, fill_L,
            )
            for fill_L in self.fills
        ]  # fmt: skip
        return Measured(*(np.mean(values, axis=0) for values in zip(*of_fills, strict=True)))

    @cached_property
    def short(self) -> Measured:
        """loss(t | short) and its divergence: [T] each."""
        return measured_windows(
            self.model, self.chunk_L, self.lengths.targets_T, self.lengths.short_context_length,
            self.measurement.batching, self.reference,
        )  # fmt: skip

    @property
    def background(self) -> Measured | None:
        """loss(t | short and a foreign far context) and its divergence, where there is such a thing."""
        return None

    @property
    def no_tokens(self) -> np.ndarray:
        """Nothing chosen: int64 [T, 0]."""
        return np.empty((self.lengths.targets_per_chunk, 0), dtype=np.int64)

    @cached_property
    def first_additions(self) -> Measured:
        """loss(t | short and {i}) and its divergence: [T, F] each."""
        return self.measured_additions(self.no_tokens)

    def measured_additions(self, chosen_TK: np.ndarray, is_tried_TF: np.ndarray | None = None) -> Measured:
        """loss(t | short, the chosen positions, i) and its divergence: [T, F] each, NaN of what is not tried.

        Args:
            is_tried_TF: which tokens are added, one at a time; None: all that are not chosen.
        """
        if is_tried_TF is None:
            is_tried_TF = self.is_candidate(chosen_TK)
        target_index_N, added_N = np.nonzero(is_tried_TF)
        sets_NK = np.sort(np.concatenate([chosen_TK[target_index_N], added_N[:, None]], axis=1), axis=1)
        measured = self.measure_sets(target_index_N, sets_NK, self.alone)
        of_all_TF = []
        # Of all these sets those that a rule will select: single tokens, and of larger sets the best.
        is_kept_N = np.full(len(sets_NK), sets_NK.shape[1] == 1)
        for values_N in measured:
            values_TF = np.full(is_tried_TF.shape, np.nan, dtype=np.float32)
            values_TF[is_tried_TF] = values_N
            of_all_TF.append(values_TF)
            is_kept_N |= values_N == np.nanmin(values_TF, axis=1)[target_index_N]
        keys = _set_keys(target_index_N[is_kept_N], sets_NK[is_kept_N])
        kept = [values_N[is_kept_N] for values_N in measured]
        self._known.update(zip(keys, zip(*kept, strict=True), strict=True))
        return Measured(*of_all_TF)

    def is_candidate(self, chosen_TK: np.ndarray) -> np.ndarray:
        """Whether each position is far context of the target and not chosen: bool [T, F]."""
        num_far_T = self.num_far_tokens_T
        is_candidate_TF = np.arange(num_far_T[-1]) < num_far_T[:, None]
        np.put_along_axis(is_candidate_TF, chosen_TK, False, axis=1)
        return is_candidate_TF

    @cached_property
    def alone(self) -> Prefix:
        """Each far token as it is wherever it comes first: row i of the prefix is the token at i."""
        return read_alone(self.model, self.token_ids_L[: self.num_far_tokens_T[-1]])

    def measured_with(self, target_index_N: np.ndarray, positions_NK: np.ndarray) -> Measured:
        """loss(t | short and the given far positions), nothing else visible, and its divergence: [N] each.

        A set is measured once, however often it is asked for: rules often select the same.

        Args:
            target_index_N: which target each set is for, from 0.
            positions_NK: far positions of that target, in any order, none twice.
        """
        sets_NK = np.sort(positions_NK, axis=1)
        keys = _set_keys(target_index_N, sets_NK)
        row_of_unknown = {key: row for row, key in enumerate(keys) if key not in self._known}
        if row_of_unknown:
            rows = list(row_of_unknown.values())
            measured = self.measure_sets(target_index_N[rows], sets_NK[rows])
            self._known.update(zip(row_of_unknown, zip(*measured, strict=True), strict=True))
        values_2N = np.array([self._known[key] for key in keys], dtype=np.float32).T
        return Measured(*values_2N)

    def measure_sets(
        self, target_index_N: np.ndarray, sets_NK: np.ndarray, alone: Prefix | None = None
    ) -> Measured:
        """`measured_with` of sets in ascending order, each computed.

        Args:
            alone: where the first token of each set is looked up; None: it is read anew.
        """
        targets_N1 = self.lengths.targets_T[target_index_N, None]
        short_NC = targets_N1 + np.arange(-self.lengths.short_context_length, 0)
        rest_NK = sets_NK if alone is None else sets_NK[:, 1:]
        return measured_contexts(
            self.model,
            np.concatenate([self.token_ids_L[rest_NK], self.chunk_L[short_NC]], axis=1),
            np.concatenate([rest_NK, short_NC], axis=1),
            self.chunk_L[targets_N1[:, 0]],
            self.measurement.batching,
            self.reference,
            target_index_N,
            prefix=alone,
            prefix_rows_N=None if alone is None else sets_NK[:, 0],
        )

    def look_inside(self, rule: str, inspect: Inspect, answers_T: np.ndarray | None = None) -> np.ndarray:
        """What `inspect` tells of the far tokens of each target, from reading the long context: [T, F].

        Args:
            rule: whose messages these are.
            inspect: tells it of all rows of a sequence, [T, S].
            answers_T: tokens to be predicted in place of the targets.

        Raises:
            InputError: the model cannot be looked into so.
        """
        model = self.model
        if not isinstance(model, InspectableLM):
            raise InputError(
                f"rule '{rule}' looks inside the model, which {type(model).__name__} does not offer;"
                " leave it out of --rules"
            )
        parts, num_before = [], 0
        for sequence in self.sequences:
            num_targets = len(sequence.target_ids_T)
            of_sequence = slice(num_before, num_before + num_targets)
            inputs = (
                self._on_device(sequence.token_ids_S)[None],
                self._on_device(sequence.position_ids_S)[None],
                None if sequence.visible_SS is None else self._on_device(sequence.visible_SS)[None],
                self._on_device(sequence.query_rows_T),
                self._on_device(sequence.target_ids_T if answers_T is None else answers_T[of_sequence]),
            )
            try:
                values_TS = inspect(model, *inputs)
            except NotInspectableError as error:
                raise InputError(f"{error}; leave rule '{rule}' out of --rules: {_LOOKED_INTO}") from error
            num_far_T = sequence.num_far_tokens_T
            parts.append(far_context_only(values_TS[:, : num_far_T[-1]].cpu().numpy(), num_far_T))
            num_before += num_targets
        return self._all_targets(parts)

    def _on_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, device=self.model.device)

    def _all_targets(self, parts: list[np.ndarray]) -> np.ndarray:
        """[T, F] of all targets, from sequences that hold a few each."""
        num_far = parts[-1].shape[1]  # the last target's far context is the longest
        return np.concatenate(
            [np.pad(part, ((0, 0), (0, num_far - part.shape[1])), constant_values=np.nan) for part in parts]
        )


def _gate_gradients(model: InspectableLM, *inputs: Any) -> torch.Tensor:
    return model.gate_gradients(*inputs)


def sampled_answers(predictions: Predictions, num_answers: int, seed: tuple[int, ...]) -> list[np.ndarray]:
    """Tokens drawn from each of T predictions, spread over it evenly: `num_answers` arrays int64 [T]."""
    cumulated_TV = predictions.probs_TV.double().cumsum(-1).cpu().numpy()
    places_T = np.random.default_rng([*seed, 2]).random(len(cumulated_TV))
    return [
        np.array(
            [
                np.searchsorted(row_V, (place + answer) / num_answers * row_V[-1], side="right")
                for row_V, place in zip(cumulated_TV, places_T, strict=True)
            ]
        ).clip(max=cumulated_TV.shape[1] - 1)
        for answer in range(num_answers)
    ]


def _set_keys(target_index_N: np.ndarray, sets_NK: np.ndarray) -> list[bytes]:
    """A key for each target and set of positions in ascending order; its length tells how many they are."""
    return [row.tobytes() for row in np.column_stack([target_index_N, sets_NK]).astype(np.int64)]


@dataclass(frozen=True, eq=False, kw_only=True)
class FarContextInBackground(FarContext):
    """A far context whose tokens stand among those of other documents, which replace what is left out."""

    background_ids_BL: np.ndarray
    """Chunks of other documents, whose tokens fill all that is left out: int64."""

    @property
    def fills(self) -> Sequence[np.ndarray | None]:
        """Other documents' tokens."""
        return tuple(self.background_ids_BL)

    @cached_property
    def _left_out(self) -> LeftOut:
        parts = [
            leave_each_out(
                self.model, sequence, self.measurement.batching,
                everything=everything, substitute_ids_L=background_L,
            )
            for background_L in self.background_ids_BL
            for sequence, everything in zip(self.sequences, self._everything, strict=True)
        ]  # fmt: skip
        return LeftOut(
            self._mean_over_backgrounds([part.influence_TF for part in parts]),
            self._mean_over_backgrounds([part.divergence_TF for part in parts]),
        )

    @cached_property
    def background(self) -> Measured:
        """loss(t | B) and its divergence: [T] each."""
        of_backgrounds = [
            measured_in_foreign_context(self.model, self.chunk_L, background_L, self.lengths, self.reference)
            for background_L in self.background_ids_BL
        ]
        return Measured(*(np.mean(values, axis=0) for values in zip(*of_backgrounds, strict=True)))

    @cached_property
    def first_additions(self) -> Measured:
        """loss(t | B with i) and its divergence: [T, F] each."""
        losses, divergences = [], []
        for background_L in self.background_ids_BL:
            first = 0
            for sequence in null_contexts(self.chunk_L, background_L, self.lengths):
                targets = slice(first, first + len(sequence.target_ids_T))
                everything = read_everything(self.model, sequence)
                restored = leave_each_out(
                    self.model, sequence, self.measurement.batching, everything=everything,
                    reference=self.reference.at(targets), substitute_ids_L=self.token_ids_L,
                )  # fmt: skip
                losses.append(everything.losses_T[:, None] + restored.influence_TF)
                divergences.append(restored.divergence_TF)
                first = targets.stop
        return Measured(self._mean_over_backgrounds(losses), self._mean_over_backgrounds(divergences))

    def measure_sets(
        self, target_index_N: np.ndarray, sets_NK: np.ndarray, alone: Prefix | None = None
    ) -> Measured:
        """See `FarContext.measure_sets`; nothing is ever alone."""
        of_backgrounds = [
            self._restored(background_L, foreign, target_index_N, sets_NK)
            for background_L, foreign in zip(self.background_ids_BL, self._foreign_rows, strict=True)
        ]
        return Measured(*(np.mean(values, axis=0) for values in zip(*of_backgrounds, strict=True)))

    @cached_property
    def _foreign_rows(self) -> list[Prefix]:
        """Each background's far tokens, read once: all targets and sets share those before a first token."""
        far_1F = torch.arange(int(self.num_far_tokens_T[-1]), device=self.model.device)[None]
        return [
            self.model.read(self._on_device(background_L)[far_1F], far_1F, None, far_1F[:, -1:])[1]
            for background_L in self.background_ids_BL
        ]

    def _restored(
        self, background_L: np.ndarray, foreign: Prefix, target_index_N: np.ndarray, sets_NK: np.ndarray
    ) -> Measured:
        """loss(t | B with the sets) and its divergence in one background: [N] each.

        Only rows from the first restored token on depend on the set. Sets that begin near each other run
        together, within a quarter of the rows, so that an eighth or so of them are run in vain.
        """
        first_N, num_rows = sets_NK[:, 0], self.lengths.long_context_length - 1
        batching = self.measurement.batching
        measured = Measured(*(np.empty(len(sets_NK), dtype=np.float32) for _ in Measured._fields))
        rest_N = np.argsort(first_N, kind="stable")
        while len(rest_N):
            start = int(first_N[rest_N[0]])
            num_near = int((first_N[rest_N] <= start + (num_rows - start) // 4).sum())
            batch_B = rest_N[: min(batching.num_sequences(self.model, num_rows - start, start), num_near)]
            index_B, sets_BK = target_index_N[batch_B], sets_NK[batch_B]
            targets_B = self.lengths.targets_T[index_B]
            positions_C = np.arange(start, targets_B.max())
            is_far_BC = positions_C < self.num_far_tokens_T[index_B, None]
            tokens_BC = np.where(is_far_BC, background_L[positions_C], self.chunk_L[positions_C])
            np.put_along_axis(tokens_BC, sets_BK - start, self.token_ids_L[sets_BK], axis=1)
            of_batch = measured_contexts(
                self.model, tokens_BC, np.tile(positions_C, (len(batch_B), 1)), self.chunk_L[targets_B],
                batching, self.reference, index_B,
                query_rows_N=targets_B - 1 - start, prefix=foreign.first(start) if start else None,
            )  # fmt: skip
            for values_N, values_B in zip(measured, of_batch, strict=True):
                values_N[batch_B] = values_B
            rest_N = rest_N[len(batch_B) :]
        return measured

    def _mean_over_backgrounds(self, parts: list[np.ndarray]) -> np.ndarray:
        """[T, F], of parts for each background after another that hold a few targets each."""
        num_parts = len(parts) // len(self.background_ids_BL)
        of_each = [
            self._all_targets(parts[first : first + num_parts]) for first in range(0, len(parts), num_parts)
        ]
        return np.mean(of_each, axis=0)


def far_contexts(
    measurement: Measurement,
    chunk_L: np.ndarray,
    null_chunk_L: np.ndarray,
    *,
    substitute_ids_L: np.ndarray | None = None,
    background_ids_BL: np.ndarray | None = None,
) -> dict[str, FarContext]:
    """The chunk's own far context and its null: another document's tokens, same positions.

    Nothing is measured yet.

    Args:
        substitute_ids_L: what stands in for left-out tokens under the intervention `substitute`.
        background_ids_BL: what does under `background`, of documents that are neither of the two.
    """

    def context(name: str, token_ids_L: np.ndarray, own: FarContext | None) -> FarContext:
        lengths = measurement.lengths
        sequences = (
            (own_context(chunk_L, lengths),)
            if own is None
            else tuple(null_contexts(chunk_L, token_ids_L, lengths))
        )
        fields = name, token_ids_L, chunk_L, sequences, measurement, substitute_ids_L, own
        if background_ids_BL is None:
            return FarContext(*fields)
        return FarContextInBackground(*fields, background_ids_BL=background_ids_BL)

    own = context(OWN, chunk_L, None)
    return {OWN: own, OTHER_DOCUMENT: context(OTHER_DOCUMENT, null_chunk_L, own)}


def selected_positions(far_context: FarContext, rule: str, max_k: int, seed: Sequence[int]) -> np.ndarray:
    """The `max_k` tokens that `rule` ranks first, most influential first: int64 [T, K].

    The same seed draws the same positions in the own far context and in its null.
    """
    return find_rule(rule)(far_context, max_k, np.random.default_rng(seed))


def sparse_contexts(
    far_context: FarContext,
    positions_of_rule: Mapping[str, np.ndarray],
    numbers_of_rule: Mapping[str, Sequence[int]],
) -> dict[str, Measured]:
    """loss(t | short context and S_k), and its divergence, for every rule: rule -> [T, J] each.

    Args:
        far_context: which the positions are of; its model measures, whichever chose them.
        positions_of_rule: rule -> [T, K], most influential first.
        numbers_of_rule: rule -> J numbers of tokens added to the short context, at most K.
    """
    num_targets = far_context.lengths.targets_per_chunk
    of_rule_and_k: dict[tuple[str, int], Measured] = {}
    for k in sorted({k for numbers in numbers_of_rule.values() for k in numbers}):
        # All rules at once: they often choose the same.
        rules = [rule for rule in positions_of_rule if k in numbers_of_rule[rule]]
        measured = far_context.measured_with(
            np.tile(np.arange(num_targets), len(rules)),
            np.concatenate([positions_of_rule[rule][:, :k] for rule in rules]),
        )
        for place, rule in enumerate(rules):
            of_rule = slice(place * num_targets, (place + 1) * num_targets)
            of_rule_and_k[rule, k] = Measured(measured.losses[of_rule], measured.divergences[of_rule])
    return {
        rule: Measured(
            *(np.stack([of_rule_and_k[rule, k][field] for k in numbers], axis=1) for field in range(2))
        )
        for rule, numbers in numbers_of_rule.items()
    }


RATIONALE_RULES = ("greedy", "greedy_divergence")
"""Searches that add the best token to those already added."""


def rationale_sizes(context: FarContext, positions_TK: np.ndarray) -> list[int | None]:
    """The least number of a rule's first tokens with which the prediction is that of the long context.

    Args:
        context: the far context whose tokens these are.
        positions_TK: of each target, in the rule's order.

    Returns:
        For each target 0 to K, or None where K tokens do not reach it.
    """
    wanted_T = context.reference.log_probs_TV.argmax(-1).cpu().numpy()
    sizes: list[int | None] = [None] * len(positions_TK)
    rest_N = np.arange(len(positions_TK))
    for size in range(positions_TK.shape[1] + 1):
        found_N = _most_likely(context, rest_N, positions_TK[rest_N, :size])
        for target in rest_N[found_N == wanted_T[rest_N]]:
            sizes[target] = size
        rest_N = rest_N[found_N != wanted_T[rest_N]]
        if not len(rest_N):
            break
    return sizes


def _most_likely(context: FarContext, target_index_N: np.ndarray, sets_NK: np.ndarray) -> np.ndarray:
    """The most likely token of each target given the short context and a set of far tokens: int64 [N]."""
    model, lengths = context.model, context.lengths
    targets_N1 = lengths.targets_T[target_index_N, None]
    short_NC = targets_N1 + np.arange(-lengths.short_context_length, 0)
    far_NK = np.sort(sets_NK, axis=1)
    tokens_NC = np.concatenate([context.token_ids_L[far_NK], context.chunk_L[short_NC]], axis=1)
    positions_NC = np.concatenate([far_NK, short_NC], axis=1)
    batching, found, start = context.measurement.batching, [], 0
    while start < len(tokens_NC):
        num_rows = tokens_NC.shape[1]
        batch = slice(start, start + batching.num_sequences(model, num_rows))
        tokens_BC, positions_BC = (
            torch.as_tensor(array[batch], device=model.device) for array in (tokens_NC, positions_NC)
        )
        with batching.halved_where_memory_runs_out(len(tokens_BC), num_rows):
            last_11 = torch.full((1, 1), num_rows - 1, device=model.device)
            hidden_B1D = model.hidden_states(tokens_BC, positions_BC, None, last_11)
            found.append(model.logits(hidden_B1D[:, 0]).argmax(-1).cpu().numpy())
            start += len(tokens_BC)
    return np.concatenate(found)
