"""Which distant tokens predictions depend on: screened coarse to fine, then left out exactly, then tried.

Both contexts are read once, the text's own and a swapped one, whose distant tokens are another document's.
What a span does is then estimated by running only the near rows once more, behind the own keys and values,
those of the span replaced by the swapped context's (activation patching), or hidden if nothing replaces
it. A span costs as many rows as there are near ones, however far away it is. Nothing is copied: estimates
look at one prefix, which holds the own rows and behind them the swapped ones, and a mask says which of the
two each of them sees. What the span told the tokens between itself and the near ones is left out of an
estimate. So the estimates make a short list, and its effects are exact.

Call order:
    leave_one_out            the effects of every distant token, for rules: of all exact, or of a short list
        screened             groups of about 32 tokens; those that matter in parts, and so on down to units
            NearRows         what patching a span does: near rows only
    Search                   the sources of one prediction, for a page
        passages             groups of units
            _foremost        those that the others miss, or that alone restore most of a swapped context
            _fewest          without those that the others can do without
        narrowed
            _shortened       without what stands at their ends and is not needed
        tried                swapped one by one, and put back into other swapped contexts, which have not
                             chosen them; passages by estimates

In models all of whose layers slide, near rows see nothing beyond a window. There every number is exact.

Shapes: S rows of a sequence, T targets, Q predicted tokens, V spans or variants, F distant tokens, B batch or
swaps, C criteria.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from sparsity_length.measuring.contexts import (
    Batching,
    FullPass,
    Measured,
    PackedSequence,
    Pass,
    Rows,
    hidden_states,
    measured_passes,
    read_prefix,
    text_rows,
)
from sparsity_length.models.interface import CausalLM, Predictions, Prefix

COARSE_TOKENS = 32
"""Tokens of a group that is screened first."""
NUM_GROUPS = 16
"""Groups of a short text, which are smaller."""
BRANCHES = 4
"""Parts that a group is split into."""
NUM_CANDIDATES = 6
"""Groups that may hold sources; more if more sources are asked for."""
KEPT_BY_FEWER = 0.99
"""Fraction of what groups restore that must be left when some of them are given up."""
KEPT_BY_SHORTER = 0.95
"""Fraction of what the rest restores that must be left when it is shortened."""

LONGEST_RUN = 64
"""Rows by which the targets may lie apart whose near rows are run together."""

Effects = Callable[[np.ndarray], np.ndarray]
"""Spans, int64 [V, 2] -> what leaving each out does by C criteria to T targets, nats: [C, V, T]."""


def leave_out(
    model: CausalLM,
    sequence: PackedSequence,
    batching: Batching,
    full: FullPass,
    spans_V2: np.ndarray,
    *,
    queries_Q: np.ndarray | None = None,
    reference: Predictions | None = None,
    replacement_ids_L: np.ndarray | None = None,
) -> Measured:
    """loss(t | all but a span) and its divergence, exactly, of predictions of a sequence: [V, Q] each.

    Only rows behind the beginning of a span change; those before it are the full pass's. Numbers of targets
    for which a span is not distant are of no use.

    Args:
        full: the pass that leaves nothing out.
        spans_V2: starts and ends, ascending.
        queries_Q: which predictions are asked for; None: all.
        reference: what the sequence's predictions are compared with; None: those of the full pass.
        replacement_ids_L: the tokens that stand in for those left out, by position, int64; None: nothing
            does.
    """
    if queries_Q is None:
        queries_Q = np.arange(len(sequence.query_rows_T))
    if not len(spans_V2):
        return Measured(*np.empty((2, 0, len(queries_Q)), dtype=np.float32))
    # A mask is about the last rows, so it is run to the last one.
    is_cut = sequence.visible_WS is None
    stop = int(sequence.query_rows_T[queries_Q].max()) + 1 if is_cut else len(sequence.token_ids_S)
    starts_V = spans_V2[:, 0]
    missing_V = (spans_V2[:, 1] - starts_V) * (replacement_ids_L is None)
    batches = []
    # The sequences of a batch are of one length, so as many rows are missing in each.
    for num_missing in np.unique(missing_V):
        (of_width_N,) = np.nonzero(missing_V == num_missing)
        batches += [of_width_N[n] for n in batching.by_start(starts_V[of_width_N], stop - int(num_missing))]

    def passes() -> Iterator[Pass]:
        """One batch after another, so that only one is sent to the device at a time."""
        for batch_B in batches:
            rows = _rows_without(sequence, spans_V2[batch_B], stop, queries_Q, replacement_ids_L)
            start = int(starts_V[batch_B[0]])
            before = full.prefix.first(start) if start else None
            yield Pass(rows, sequence.target_ids_T[None, queries_Q], queries_Q[None], before)

    measured = measured_passes(model, reference or full.predictions, passes())
    values_2VQ = np.concatenate(measured, axis=1)
    # The inverse permutation: back from the order of the batches to that of the spans.
    return Measured(*values_2VQ[:, np.argsort(np.concatenate(batches))])


def _rows_without(
    sequence: PackedSequence,
    spans_B2: np.ndarray,
    stop: int,
    queries_Q: np.ndarray,
    replacement_ids_L: np.ndarray | None,
) -> Rows:
    """The rows from the first span on, with nothing or replacements in place of one of the spans each.

    If a removed row is a target's own query row, the entry is another row's; a query row is never distant
    context, so such entries are of no use.
    """
    starts_B1 = spans_B2[:, :1]
    ends_B1 = spans_B2[:, 1:]
    start = int(starts_B1[0, 0])
    num_missing = int(ends_B1[0, 0] - start) if replacement_ids_L is None else 0
    rows_BS = np.arange(start, stop - num_missing)[None]
    if replacement_ids_L is None:
        # From row 5 on without row 6: rows 5, 6, 7, … become 5, 7, 8, …
        rows_BS = rows_BS + num_missing * (rows_BS >= starts_B1)
        tokens_BS = sequence.token_ids_S[rows_BS]
    else:
        is_replaced_BS = (rows_BS >= starts_B1) & (rows_BS < ends_B1)
        # A packed null may have more rows than a chunk has tokens; clipped ones are never replaced.
        replacements_1S = replacement_ids_L.take(rows_BS, mode="clip")
        tokens_BS = np.where(is_replaced_BS, replacements_1S, sequence.token_ids_S[rows_BS])
    queries_1Q = sequence.query_rows_T[None, queries_Q]
    # Which distant row is gone makes no difference to who sees whom among the rows that stay, and all of them
    # see all before `start`, save for targets whose distant context the removed row is not in, and those
    # entries are of no use: one mask for all removals, and no mask for the prefix.
    return Rows(
        tokens_BS,
        # IDs are taken along with the tokens: what stays does not move into the gap.
        sequence.position_ids_S[rows_BS],
        None if sequence.visible_WS is None else sequence.visible_WS[None, :, start + num_missing :],
        # Negative only for targets that precede the batch.
        (queries_1Q - num_missing * (queries_1Q > starts_B1) - start).clip(min=0),
    )


def _visible(sequence: PackedSequence) -> np.ndarray:
    """Which row of a sequence sees which: bool [S, S]."""
    visible_SS = np.tri(len(sequence.token_ids_S), dtype=bool)
    if sequence.visible_WS is not None:
        visible_SS[-len(sequence.visible_WS) :] = sequence.visible_WS
    return visible_SS


@dataclass(frozen=True, eq=False)
class NearRows:
    """The near rows of some predictions, behind distant rows of which any may be another context's."""

    model: CausalLM
    batching: Batching
    sequence: PackedSequence
    full: FullPass
    queries_Q: np.ndarray
    """The predictions, int64."""
    own: Prefix
    """The own distant rows."""
    other: Prefix | None
    """Distant rows of a swapped context; None: distant rows are hidden, and nothing is in their place."""

    @cached_property
    def start(self) -> int:
        """The first near row: rows before it are distant, for each of the predictions."""
        return int(self.sequence.num_far_tokens_T[self.queries_Q].min())

    @cached_property
    def stop(self) -> int:
        """Behind the last row."""
        return int(self.sequence.query_rows_T[self.queries_Q].max()) + 1

    @cached_property
    def prefix(self) -> Prefix:
        """The own distant rows, and behind them the other context's."""
        own = self.own.first(self.start)
        return own if self.other is None else own.beside(self.other.first(self.start))

    @cached_property
    def _visible_SK(self) -> np.ndarray:
        """Which near row sees which row of the own context."""
        return _visible(self.sequence)[self.start : self.stop, : self.stop]

    def measured(self, is_own_VF: np.ndarray) -> Measured:
        """Losses, and divergences from the full pass, if these distant rows are the own ones: [V, Q] each.

        The others are those of the swapped context at the same positions, or hidden.
        """
        sequence = self.sequence
        near_S = slice(self.start, self.stop)
        targets_1Q = sequence.target_ids_T[None, self.queries_Q]
        distant_SF, near_SS = np.split(self._visible_SK, [self.start], axis=1)

        def passes() -> Iterator[Pass]:
            for batch in self.batching.of_many(len(is_own_VF), self.stop - self.start):
                is_own_B1F = is_own_VF[batch, None]
                seen = [distant_SF & is_own_B1F]
                if self.other is not None:
                    seen.append(distant_SF & ~is_own_B1F)
                num = len(is_own_B1F)
                seen.append(np.broadcast_to(near_SS, (num, *near_SS.shape)))
                rows = Rows(
                    np.tile(sequence.token_ids_S[near_S], (num, 1)),
                    sequence.position_ids_S[None, near_S],
                    np.concatenate(seen, axis=2),
                    sequence.query_rows_T[None, self.queries_Q] - self.start,
                )
                yield Pass(rows, targets_1Q, self.queries_Q[None], self.prefix)

        if not len(is_own_VF):
            return Measured(*np.empty((2, 0, len(self.queries_Q)), dtype=np.float32))
        measured = measured_passes(self.model, self.full.predictions, passes())
        return Measured(*np.concatenate(measured, axis=1))

    def without(self, spans_V2: np.ndarray) -> Measured:
        """The same if each span alone is not the own one."""
        return self.measured(~is_within(spans_V2, self.start))


def screened(effects: Effects, edges_E: np.ndarray, num_units: int) -> tuple[np.ndarray, np.ndarray]:
    """Estimate what leaving out distant tokens does, in groups, and in units if a group matters.

    Groups among the `num_units` spans that are the most urgent by the last criterion are split, again and
    again, until these are units.

    Args:
        effects: estimates them.
        edges_E: where units begin, and where the last one ends, ascending.

    Returns:
        The spans, int64 [V, 2], ascending, which cover all from the first edge to the last; and what each
        does, [C, V, T].
    """
    spans_V2 = _groups(edges_E)
    effects_CVT = effects(spans_V2)
    while True:
        urgent_N = most_urgent(effects_CVT[-1], spans_V2[:, 0], num_units)
        num_units_V = np.diff(np.searchsorted(edges_E, spans_V2), axis=1)[:, 0]
        split_N = urgent_N[num_units_V[urgent_N] > 1]
        if not len(split_N):
            return spans_V2, effects_CVT
        parts_V2 = np.concatenate([_parts(edges_E, *span) for span in spans_V2[split_N]])
        spans_V2 = np.concatenate([np.delete(spans_V2, split_N, axis=0), parts_V2])
        effects_CVT = np.concatenate([np.delete(effects_CVT, split_N, axis=1), effects(parts_V2)], axis=1)
        order_V = np.argsort(spans_V2[:, 0])
        spans_V2 = spans_V2[order_V]
        effects_CVT = effects_CVT[:, order_V]


def most_urgent(effects_VT: np.ndarray, starts_V: np.ndarray, number: int) -> np.ndarray:
    """Which spans come first: every target's largest, then every target's second largest, and so on."""
    orders_TV = [by_size(np.abs(effects_V), starts_V) for effects_V in effects_VT.T]
    return np.array(list(dict.fromkeys(np.transpose(orders_TV).ravel().tolist()))[:number])


def by_size(sizes_V: np.ndarray, starts_V: np.ndarray) -> np.ndarray:
    """The order of spans, the largest first, of equals the nearer: the same on all processors."""
    # Sums differ in their last bits between processors, and what is split must not.
    return np.lexsort((-starts_V, -np.round(sizes_V, 5)))


def _groups(
    edges_E: np.ndarray,
    ends: Sequence[int] | np.ndarray = (),
    breaks: Sequence[int] | np.ndarray = (),
    size: int = COARSE_TOKENS,
) -> np.ndarray:
    """Spans [V, 2] of some `size` tokens, whole sentences if short; a longer unit is one.

    None goes across `breaks`.
    """
    starts = [int(edges_E[0])]
    # A group ends at `edge` if the next unit, up to `following`, would overfill it.
    for edge, following in pairwise(edges_E[1:].tolist()):
        ends_well = edge in ends and edge - starts[-1] >= size // 2
        if ends_well or edge in breaks or following - starts[-1] > size:
            starts.append(edge)
    return np.array([*pairwise([*starts, int(edges_E[-1])])])


def _parts(edges_E: np.ndarray, start: int, end: int) -> np.ndarray:
    """The spans that one is split into, [V, 2]: parts of about as many units each."""
    starts_U = edges_E[slice(*np.searchsorted(edges_E, (start, end)))]
    starts = [int(part[0]) for part in np.array_split(starts_U, min(BRANCHES, len(starts_U)))]
    return np.array([*pairwise([*starts, end])])


Remaining = Callable[[Sequence[np.ndarray]], np.ndarray]
"""Sets of spans, int64 [N, 2] each -> the effect that remains if these alone are put back, nats: [V]."""


def _without_each(spans_N2: np.ndarray) -> list[np.ndarray]:
    return [np.delete(spans_N2, number, axis=0) for number in range(len(spans_N2))]


def _foremost(remaining: Remaining, spans_V2: np.ndarray, num: int) -> np.ndarray:
    """The spans that the others can do without the least, or that alone restore most; so many, ascending.

    Of evidence that is given twice no copy is missed, and of two tokens needed together neither helps alone.
    Only the last spans are candidates, if without the others `KEPT_BY_FEWER` of the effect is left.
    """
    size = num
    last = []
    while size < len(spans_V2):
        last.append(spans_V2[-size:])
        size *= 2
    nothing, everything, *of_last = remaining([spans_V2[:0], spans_V2, *last])
    enough = nothing - KEPT_BY_FEWER * (nothing - everything)
    for of_these, these_N2 in zip(of_last, last, strict=True):
        if of_these <= enough:
            spans_V2 = these_N2
            everything = of_these
            break
    if len(spans_V2) <= num:
        return spans_V2
    missed_V = remaining(_without_each(spans_V2)) - everything
    restored_V = nothing - remaining([*spans_V2[:, None]])
    return spans_V2[np.sort(by_size(np.maximum(missed_V, restored_V), spans_V2[:, 0])[:num])]


def _fewest(remaining: Remaining, spans_N2: np.ndarray, most: int) -> np.ndarray:
    """Drop spans while the rest restore the fraction `KEPT_BY_FEWER`, and until at most `most` are left."""
    nothing, everything = remaining([spans_N2[:0], spans_N2])
    enough = nothing - KEPT_BY_FEWER * (nothing - everything)
    while len(spans_N2) > 1:
        without_each = _without_each(spans_N2)
        remaining_N = remaining(without_each)
        # Of equals the farther one goes.
        least = int(np.argmin(remaining_N))
        if len(spans_N2) <= most and remaining_N[least] > enough:
            break
        spans_N2 = without_each[least]
    return spans_N2


def _shortened(remaining: Remaining, spans_K2: np.ndarray, edges_E: np.ndarray) -> np.ndarray:
    """Cut units off both ends of each span while the fraction `KEPT_BY_SHORTER` of the effect is left.

    A span of which one unit is left goes, too, if the others restore that fraction without it.
    """
    nothing, everything = remaining([spans_K2[:0], spans_K2])
    place = 0
    num_turns = 2 * len(spans_K2)
    for turn in range(num_turns):
        # Each end may take an equal part of what may be lost, and what those before it left over.
        enough = everything + (1 - KEPT_BY_SHORTER) * (turn + 1) / num_turns * (nothing - everything)
        is_end = turn % 2
        for num_units in (16, 8, 4, 2, 1):
            start, end = spans_K2[place]
            inner_U = edges_E[(edges_E > start) & (edges_E < end)]
            if len(inner_U) >= num_units:
                shorter_K2 = spans_K2.copy()
                shorter_K2[place, is_end] = inner_U[-num_units if is_end else num_units - 1]
                if remaining([shorter_K2])[0] <= enough:
                    spans_K2 = shorter_K2
        if is_end:
            others_K2 = np.delete(spans_K2, place, axis=0)
            start, end = spans_K2[place]
            is_one_unit = not ((edges_E > start) & (edges_E < end)).any()
            if len(others_K2) and is_one_unit and remaining([others_K2])[0] <= enough:
                spans_K2 = others_K2
            else:
                place += 1
    return spans_K2


def leave_one_out(
    model: CausalLM,
    sequence: PackedSequence,
    batching: Batching,
    full: FullPass,
    swaps: np.ndarray | Sequence[None],
    num_exact: int | None,
) -> np.ndarray:
    """What leaving out each distant token does to each target, exactly, or as far as a screen finds it.

    Args:
        swaps: other documents' tokens by position that stand in for what is left out, or None for nothing,
            one after another; effects are means over them.
        num_exact: how many tokens are left out exactly for each run of neighboring targets, those with the
            largest estimated divergences, and beside them those between the first and the last target's short
            context; all tokens are, if None.

    Returns:
        Rises of the loss and divergences, nats, [2, 2, T, F]: of the tokens left out exactly, NaN of all
        others; and the same with estimates for these, to rank by. A group that was not split has an equal
        share for each token.

        Exact effects and estimates are ranked together by value: both are nats of the same effect, and a
        token that proved useless, or that the prediction is better without, must not come before all others
        only because it was left out exactly. Behind the short list's best, ranks thus rest on estimates.
    """
    num_far_T = sequence.num_far_tokens_T
    num_far = int(num_far_T[-1])

    def exact(rows_R: np.ndarray) -> np.ndarray:
        spans_R2 = single_tokens(rows_R)
        of_each = [
            leave_out(model, sequence, batching, full, spans_R2, replacement_ids_L=swap_L) for swap_L in swaps
        ]
        effects_2RT = np.mean(of_each, axis=0)
        # Losses (index 0) become rises; divergences are from the full pass already.
        effects_2RT[0] -= full.losses_T
        return effects_2RT

    effects_2TF = np.full((2, len(num_far_T), num_far), np.nan, dtype=np.float32)
    if num_exact is None or num_exact >= num_far or not model.sees_all:
        rows_R = np.arange(num_far)
        effects_2TF[:, :, rows_R] = np.swapaxes(exact(rows_R), 1, 2)
        effects_2TF = far_context_only(effects_2TF, num_far_T)
        return np.stack([effects_2TF, effects_2TF])
    others = [None if swap_L is None else read_prefix(model, swap_L[:num_far]) for swap_L in swaps]
    estimates_2TF = effects_2TF.copy()
    is_exact_F = np.zeros(num_far, dtype=bool)
    for queries_Q in _runs(sequence):
        near = [NearRows(model, batching, sequence, full, queries_Q, full.prefix, other) for other in others]

        def patched(spans_V2: np.ndarray, near: Sequence[NearRows] = near) -> np.ndarray:
            effects_2VQ = np.mean([of_swap.without(spans_V2) for of_swap in near], axis=0)
            effects_2VQ[0] -= full.losses_T[near[0].queries_Q]
            return effects_2VQ

        start = near[0].start
        spans_V2, effects_2VQ = screened(patched, np.arange(start + 1), num_exact)
        widths_V = np.diff(spans_V2, axis=1)[:, 0]
        of_tokens_2FQ = np.repeat(effects_2VQ / widths_V[:, None], widths_V, axis=1)
        estimates_2TF[:, queries_Q, :start] = np.swapaxes(of_tokens_2FQ, 1, 2)
        is_exact_F[most_urgent(of_tokens_2FQ[1], np.arange(start), num_exact)] = True
        # Distant tokens among the near rows of a run are near to where it ends, and soon left out.
        is_exact_F[start : num_far_T[queries_Q].max()] = True
    (rows_R,) = np.nonzero(is_exact_F)
    effects_2TF[:, :, rows_R] = np.swapaxes(exact(rows_R), 1, 2)
    effects_2TF = far_context_only(effects_2TF, num_far_T)
    scores_2TF = np.where(np.isnan(effects_2TF), estimates_2TF, effects_2TF)
    return np.stack([effects_2TF, far_context_only(scores_2TF, num_far_T)])


def _runs(sequence: PackedSequence) -> list[np.ndarray]:
    """Predictions whose near rows are run together: neighbors, if that is no more rows than apart."""
    places_T = np.arange(len(sequence.query_rows_T))
    if sequence.visible_WS is not None:  # a packed null: windows one behind another
        return [places_T]
    num_far_T = sequence.num_far_tokens_T
    num_near = int(sequence.query_rows_T[0]) + 1 - int(num_far_T[0])
    runs: list[list[int]] = [[0]]
    for place in places_T[1:].tolist():
        is_near = num_far_T[place] - num_far_T[runs[-1][-1]] <= num_near
        if is_near and num_far_T[place] - num_far_T[runs[-1][0]] < LONGEST_RUN:
            runs[-1].append(place)
        else:
            runs.append([place])
    return [np.array(run) for run in runs]


def single_tokens(rows_R: np.ndarray) -> np.ndarray:
    """Each of these rows as a span: [R, 2]."""
    return np.column_stack([rows_R, rows_R + 1])


def far_context_only(values_TF: np.ndarray, num_far_tokens_T: np.ndarray) -> np.ndarray:
    """The values, NaN in place of those of positions beyond a target's own distant context."""
    return np.where(np.arange(values_TF.shape[-1]) < num_far_tokens_T[:, None], values_TF, np.float32(np.nan))


class Found(NamedTuple):
    """The sources of one target, the one whose swap does most first, and what they do; nats."""

    spans_K2: np.ndarray
    """Starts and ends: int64."""
    effects_K: np.ndarray
    """What swapping each alone does, exactly: float32."""
    losses_KQ: np.ndarray
    """Losses of the predicted tokens with each alone swapped, exactly: float32."""
    remaining_K: np.ndarray
    """Estimates of the effect that remains with the first of them, with the first two, and so on: means over
    the trial's swapped contexts."""
    short_loss: float
    """loss(t | short context alone), summed over the predicted tokens."""
    without: list[Predictions]
    """What the model predicts in each swapped context of the trial."""
    with_sources: list[Predictions]
    """What the model predicts there with the sources put back."""


@dataclass(eq=False)
class Search:
    """The sources of predictions in one text; those of one do not depend on which others are searched."""

    model: CausalLM
    batching: Batching
    sequence: PackedSequence
    full: FullPass
    """The pass with nothing swapped."""
    search_swap_S: np.ndarray
    """Another document's tokens by position: they replace what is left out."""
    trial_swaps_BS: np.ndarray
    """Other documents' tokens by position, among which sources are evaluated."""
    unit_starts: np.ndarray
    """Where units begin, ascending; tokens before the first are never left out."""
    sentence_starts: np.ndarray
    """Preferred ends of the first groups."""
    k: int
    """Sources of a target."""
    is_label_S: np.ndarray
    """Control tokens of a chat, which are never sources: bool."""
    weights_Q: np.ndarray | None = None
    """Weights of the predicted tokens' losses in the effect on one target; None: each token is a target, and
    effects are divergences."""
    is_exact: bool = False
    """Every unit is swapped for every target, which share the passes, and sources are those of the largest
    effects, as the rule leave_one_out_divergence ranks them."""

    @cached_property
    def prefixes(self) -> list[Prefix]:
        """The distant rows of the search's swapped context, and of those of the trial."""
        swaps_BS = [self.search_swap_S, *self.trial_swaps_BS]
        num_far = int(self.sequence.num_far_tokens_T.max())
        return [read_prefix(self.model, swap_S[:num_far]) for swap_S in swaps_BS]

    def queries_of(self, target: int) -> np.ndarray:
        """The predicted tokens of a target."""
        if self.weights_Q is None:
            return np.array([target])
        return np.arange(len(self.sequence.query_rows_T))

    def effects(self, losses: np.ndarray, divergences: np.ndarray) -> np.ndarray:
        """What contexts do to a target, from what they do to its predicted tokens, [V, Q]: [V]."""
        if self.weights_Q is None:
            return divergences[:, 0]
        # Weights are 1 for what came and -1 for another continuation, if there is one: the rise of one loss
        # minus that of the other is the fall of log p(what came) - log p(other).
        return np.asarray((losses - self.full.losses_T) @ self.weights_Q)

    def exact(self, spans_V2: np.ndarray, queries_Q: np.ndarray) -> Measured:
        """What swapping each span alone does to predicted tokens: [V, Q] each."""
        return leave_out(
            self.model,
            self.sequence,
            self.batching,
            self.full,
            spans_V2,
            queries_Q=queries_Q,
            replacement_ids_L=self.search_swap_S,
        )

    def tried(self, target: int, spans_K2: np.ndarray, *, is_exact: bool = True) -> Found:
        """What sources do: exactly, or estimated without what they tell the tokens between them."""
        queries_Q = self.queries_of(target)
        # Where near rows see nothing beyond a window, there are no estimates.
        is_exact = is_exact or not self.model.sees_all
        num_far = int(self.sequence.num_far_tokens_T[target])
        hidden = self._near(queries_Q, self.full.prefix, None).measured(np.zeros((1, num_far), dtype=bool))
        if is_exact:
            alone = self.exact(spans_K2, queries_Q)
        else:
            alone = self._near(queries_Q, self.full.prefix, self.prefixes[0]).without(spans_K2)
        order_K = by_size(np.abs(self.effects(*alone)), spans_K2[:, 0])
        spans_K2 = spans_K2[order_K]

        def of_trials(num: int, *, is_exact: bool) -> list[Predictions]:
            """What is predicted in the trial's contexts with so many sources put back."""
            swaps = range(1, len(self.prefixes))
            return [self._with(spans_K2[:num], swap, queries_Q, is_exact=is_exact) for swap in swaps]

        without, *of_first = (of_trials(num, is_exact=False) for num in range(len(spans_K2) + 1))
        return Found(
            spans_K2,
            self.effects(*alone)[order_K],
            alone.losses[order_K],
            np.array([self.effect_of(predictions, queries_Q) for predictions in of_first]),
            float(hidden.losses.sum()),
            without,
            of_trials(len(spans_K2), is_exact=True) if is_exact else [without, *of_first][-1],
        )

    def _edges(self, target: int) -> np.ndarray:
        """Where the units of a target's distant context begin, and where the last one ends."""
        num_far = int(self.sequence.num_far_tokens_T[target])
        return np.append(self.unit_starts[self.unit_starts < num_far], num_far)

    def _may_be_sources(self, spans_V2: np.ndarray) -> np.ndarray:
        """Which spans hold more than control tokens: bool [V]."""
        num_others = np.append(0, np.cumsum(~self.is_label_S))
        return num_others[spans_V2[:, 1]] > num_others[spans_V2[:, 0]]

    @cached_property
    def _every_unit(self) -> tuple[np.ndarray, Measured]:
        """All units that are distant tokens of a target, and what swapping each alone does to all queries."""
        num_far = int(self.sequence.num_far_tokens_T.max())
        starts_U = self.unit_starts[self.unit_starts < num_far]
        spans_V2 = np.column_stack([starts_U, np.append(starts_U[1:], num_far)])
        return spans_V2, self.exact(spans_V2, np.arange(len(self.sequence.query_rows_T)))

    def largest(self, target: int) -> np.ndarray:
        """The k units whose swap does most to a target; its near tokens may cut the last."""
        spans_V2, measured = self._every_unit
        queries_Q = self.queries_of(target)
        edges_E = self._edges(target)
        own_V2 = np.column_stack([edges_E[:-1], edges_E[1:]])
        of_units_V = self.effects(*(values_VQ[: len(own_V2), queries_Q] for values_VQ in measured))
        if spans_V2[len(own_V2) - 1, 1] != own_V2[-1, 1]:
            of_units_V[-1:] = self.effects(*self.exact(own_V2[-1:], queries_Q))
        ordered_V2 = own_V2[by_size(np.abs(of_units_V), own_V2[:, 0])]
        return ordered_V2[self._may_be_sources(ordered_V2)][: self.k]

    def _near(self, queries_Q: np.ndarray, own: Prefix, other: Prefix | None) -> NearRows:
        return NearRows(self.model, self.batching, self.sequence, self.full, queries_Q, own, other)

    @cached_property
    def _groups_V2(self) -> np.ndarray:
        """Groups of units, of all rows, so that none depends on which predictions are explained."""
        num_rows = len(self.sequence.token_ids_S)
        # A source does not go on behind what a chat's template wrote.
        breaks = np.flatnonzero(np.diff(self.is_label_S)) + 1
        size = min(COARSE_TOKENS, num_rows // NUM_GROUPS)
        return _groups(np.union1d(self.unit_starts, num_rows), self.sentence_starts, breaks, size)

    @cached_property
    def _groups_alone(self) -> Prefix:
        """The distant rows, those of each group as if it alone were put into the search's swapped context.

        What the text's other groups told these rows is not in them. A group is read behind the swapped rows
        before it, all groups in one pass.
        """
        places_F = np.arange(int(self.sequence.num_far_tokens_T.max()))
        starts_G = np.append(0, self._groups_V2[:, 0])
        starts_F1 = starts_G[np.searchsorted(starts_G, places_F, side="right") - 1, None]
        is_own_FF = (places_F >= starts_F1) & (places_F <= places_F[:, None])
        visible_1FK = np.hstack([places_F < starts_F1, is_own_FF])[None]
        rows = text_rows(self.sequence.token_ids_S[places_F])._replace(visible_BSK=visible_1FK)
        _, both = self.model.read(*rows.on_device(self.model.device), self.prefixes[0])
        return both.rows(len(places_F) + places_F)

    def passages(self, target: int) -> np.ndarray:
        """At most k groups of units, which together restore most in the search's swapped context: [N, 2].

        Ascending; some may follow on each other. Which they are is estimated as if each was there alone.
        """
        queries_Q = self.queries_of(target)
        near = self._near(queries_Q, self._groups_alone, self.prefixes[0])

        def remaining(sets: Sequence[np.ndarray]) -> np.ndarray:
            """An estimate by near rows alone."""
            is_own_VF = np.array([is_within(spans_N2, near.start).any(axis=0) for spans_N2 in sets])
            effects_V = self.effects(*near.measured(is_own_VF.reshape(-1, near.start)))
            return np.round(np.abs(effects_V), 5)

        of_groups = remaining if self.model.sees_all else partial(self._remaining, queries_Q)
        groups_V2 = self._groups_V2[self._groups_V2[:, 0] < near.start].clip(max=near.start)
        groups_V2 = groups_V2[self._may_be_sources(groups_V2)]
        return _fewest(of_groups, _foremost(of_groups, groups_V2, max(NUM_CANDIDATES, self.k)), self.k)

    def narrowed(self, target: int, spans_N2: np.ndarray) -> np.ndarray:
        """What is needed of passages: [K, 2], ascending."""
        remaining = partial(self._remaining, self.queries_of(target))
        return joined(_shortened(remaining, spans_N2, self._edges(target)))

    def _remaining(self, queries_Q: np.ndarray, sets: Sequence[np.ndarray]) -> np.ndarray:
        """An estimate of the effect that remains in the search's swapped context; spans are read anew."""
        predicted = (self._with(spans_N2, 0, queries_Q, is_exact=False) for spans_N2 in sets)
        return np.round(np.abs([self.effect_of([one], queries_Q) for one in predicted]), 5)

    def _with(self, spans_K2: np.ndarray, swap: int, queries_Q: np.ndarray, *, is_exact: bool) -> Predictions:
        """What is predicted with spans put back into a swapped context: 0, the search's, or the trial's.

        Exactly, or without what spans tell the swapped tokens behind them: then they and near rows are read.
        """
        num_far = int(self.sequence.num_far_tokens_T[queries_Q].min())
        query_rows_Q = self.sequence.query_rows_T[queries_Q]
        stop = int(query_rows_Q.max()) + 1
        is_own_S = np.append(is_within(spans_K2, num_far).any(axis=0), np.ones(stop - num_far, dtype=bool))
        # Near rows may see nothing beyond a window, so that without those between them nothing would be told.
        is_all = is_exact or not self.model.sees_all
        is_read_S = np.logical_or.accumulate(is_own_S) if is_all else is_own_S
        (places_R,) = np.nonzero(is_read_S)
        swap_S = [self.search_swap_S, *self.trial_swaps_BS][swap]
        tokens_S = np.where(is_own_S, self.sequence.token_ids_S[:stop], swap_S[:stop])
        visible_RS = _visible(self.sequence)[places_R, :stop]
        visible_RK = np.hstack([visible_RS[:, :num_far] & ~is_read_S[:num_far], visible_RS[:, places_R]])
        rows = Rows(
            tokens_S[None, places_R],
            self.sequence.position_ids_S[None, places_R],
            visible_RK[None],
            np.searchsorted(places_R, query_rows_Q)[None],
        )
        hidden_1QD = hidden_states(self.model, rows, self.prefixes[swap].first(num_far))
        return Predictions.of(self.model.logits(hidden_1QD[0]))

    def effect_of(self, predictions: Sequence[Predictions], queries_Q: np.ndarray) -> float:
        """What contexts do to a target, from what is predicted there: the mean over them."""
        index_Q = torch.as_tensor(queries_Q, device=self.model.device)
        divergences_BQ = [
            self.full.predictions.divergences(of.log_probs_TV, index_Q).cpu().numpy() for of in predictions
        ]
        losses_BQ = np.stack([of.losses(self.sequence.target_ids_T[queries_Q]) for of in predictions])
        return float(self.effects(losses_BQ, np.stack(divergences_BQ)).mean())


def joined(spans_K2: np.ndarray) -> np.ndarray:
    """Ascending spans, those that follow on each other as one: [K, 2]."""
    starts_K, ends_K = spans_K2.T
    return np.column_stack([np.setdiff1d(starts_K, ends_K), np.setdiff1d(ends_K, starts_K)])


def is_within(spans_V2: np.ndarray, num_far: int) -> np.ndarray:
    """Which of so many rows each span holds: bool [V, F]."""
    places_F = np.arange(num_far)
    return (places_F >= spans_V2[:, :1]) & (places_F < spans_V2[:, 1:])
