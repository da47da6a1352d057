"""Which units of one text a model's predictions depend on: searched coarse to fine, then tried.

losses   of every token with its full context, with its short context alone, and in a swapped context, whose
         distant tokens are another document's. Neighboring targets share a window of near tokens.
search   the effect of a group of units is what its target loses when the group is swapped for another
         document's tokens: KL(full || swapped), or a fall of the difference of two continuations'
         log-probabilities. Groups of about 32 tokens are swapped first. Those that may hold one of a target's
         top k units are split in four, and so on down to units, whose effects are exact. Passes are shared:
         one serves every target behind the group.
trial    the top k units of a target are put back into swapped contexts, each another document's.

Every pass counts its forward tokens, so that a budget can be kept.

Shapes: L tokens, S rows of a sequence, Q predicted tokens, T targets, V variants, B swaps, K sources,
N windows of W targets each.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pipeline.measuring.contexts import (
    Batching,
    FullPass,
    Measured,
    PackedSequence,
    PassQueue,
    Rows,
    full_pass,
    read_prefix,
)
from pipeline.models.interface import CausalLM, Predictions, Prefix, losses_of_hidden_states, to_device
from pipeline.text.tokenizer import TokenizedText

UNITS = ("token", "word", "sentence", "paragraph")
_IDEOGRAPH = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD = re.compile(rf"[{_IDEOGRAPH}]|[^\W{_IDEOGRAPH}]+(?:['’][^\W{_IDEOGRAPH}]+)*|[^\w\s]+")
_BREAKS = {
    "sentence": re.compile(r"[.!?…]+[\"'”’)\]]*\s+|[。！？]|\n+\s*"),
    "paragraph": re.compile(r"\n\s*\n\s*"),
}
COARSE_TOKENS = 32
_BRANCHES = 4
"""Tokens of the groups that are swapped first, and the parts that a group is split into."""
URGENCIES = (0.5, 0.1)
"""A span is split if its effect is this fraction of its target's largest; first the larger one."""
_SHARE = 0.12
_FEW_TOKENS = 40_000
"""The search takes at most this fraction of the exact one's forward tokens, or so few."""
REFINING = 6
"""About how many passes a target takes beyond those of the coarse groups."""
_TARGETS_AT_ONCE = 256
_LOGITS_AT_ONCE = 1 << 25

Span = tuple[int, int]
"""Tokens [start, end) of the text."""


def unit_starts(text: TokenizedText, unit: str) -> np.ndarray:
    """Where the units of a text begin, as places of its tokens, ascending, 0 first."""
    if unit == "token":
        return np.arange(len(text.token_ids_N))
    written = text.text
    if unit == "word":
        begins = [match.start() for match in _WORD.finditer(written)]
    else:
        begins = [match.end() for match in _BREAKS[unit].finditer(written)]
        if unit == "paragraph" and not begins:  # no blank line: a line is a paragraph
            begins = [match.end() for match in re.finditer("\n+", written)]
    # A token belongs to the unit of its first character that is no blank.
    first_N = []
    for start, end in text.characters_N2.tolist():
        piece = written[start:end]
        first_N.append(start + (len(piece) - len(piece.lstrip()) if piece.strip() else 0))
    unit_N = np.searchsorted(begins, first_N, side="right")
    return np.flatnonzero(np.diff(unit_N, prepend=-1))


class Losses(NamedTuple):
    """Of targets, nats: float32 [T] each."""

    full: np.ndarray
    short: np.ndarray
    swapped: np.ndarray
    """Losses with the full context, the near tokens alone, and near tokens behind another document's."""
    short_divergence: np.ndarray
    swapped_divergence: np.ndarray
    """KL(full || …); of the swapped context it is the total effect of the distant tokens."""


class Variant(NamedTuple):
    """A sequence with other tokens in places."""

    token_ids_S: np.ndarray
    start: int
    """What is before is what the prefix holds."""
    stop: int
    """The rows [start, stop) run."""
    queries: np.ndarray
    """Which of the predicted tokens are asked for."""


@dataclass(eq=False)
class Passes:
    """Forward passes of one model, their tokens counted."""

    model: CausalLM
    batching: Batching
    num_tokens: int = 0
    """Forward tokens until now."""

    def full(self, sequence: PackedSequence) -> FullPass:
        """See `contexts.full_pass`."""
        self.num_tokens += len(sequence.token_ids_S)
        return full_pass(self.model, sequence)

    def prefix(self, token_ids_S: np.ndarray) -> Prefix:
        """See `contexts.read_prefix`."""
        self.num_tokens += len(token_ids_S)
        return read_prefix(self.model, token_ids_S)

    def measured(
        self, sequence: PackedSequence, variants: Sequence[Variant], prefix: Prefix, reference: Predictions
    ) -> Measured:
        """Losses and divergences of variants of a sequence: [V, Q] each, NaN where not asked for."""
        values_2VQ = np.full((2, len(variants), len(sequence.query_rows_T)), np.nan, dtype=np.float32)
        queue = PassQueue(self.model, self.batching, reference)
        batches = []
        rest = sorted(range(len(variants)), key=lambda v: (variants[v].stop, variants[v].start))
        while rest:
            first = variants[rest[0]]
            # Rows that run in vain, as variants begin and end elsewhere, are kept to a quarter.
            most = (first.stop - first.start) // 4
            size = self.batching.num_sequences(first.stop - first.start)
            batch = [v for v in rest if abs(variants[v].start - first.start) <= most][:size]
            batch = [v for v in batch if variants[v].stop - first.stop <= most]
            rest = [v for v in rest if v not in set(batch)]
            chosen = [variants[v] for v in batch]
            start, stop = min(one.start for one in chosen), max(one.stop for one in chosen)
            queries_Q = np.unique(np.concatenate([one.queries for one in chosen]))
            visible_WS = sequence.visible_WS
            rows = Rows(
                np.stack([one.token_ids_S[start:stop] for one in chosen]),
                sequence.position_ids_S[None, start:stop],
                None if visible_WS is None else visible_WS[None, :, start:],
                (sequence.query_rows_T[None, queries_Q] - start).clip(0, stop - start - 1)
                + np.zeros((len(chosen), 1), dtype=np.int64),
            )
            self.num_tokens += rows.token_ids_BS.size
            targets_Q = sequence.target_ids_T[queries_Q]
            queue.run(rows, targets_Q, queries_Q, prefix.first(start) if start else None)
            batches.append((batch, queries_Q))
        for values_VQ, parts in zip(values_2VQ, queue.read(), strict=True):
            for (batch, queries_Q), part_BQ in zip(batches, parts, strict=True):
                for v, part_Q in zip(batch, part_BQ, strict=True):
                    is_asked_Q = np.isin(queries_Q, variants[v].queries)
                    values_VQ[v, queries_Q[is_asked_Q]] = part_Q[is_asked_Q]
        return Measured(*values_2VQ)

    def windows(
        self, token_ids_L: np.ndarray, first_N: np.ndarray, num_targets: int, short: int,
        prefix: Prefix | None, reference: Predictions,
    ) -> Measured:  # fmt: skip
        """Losses and divergences of neighboring targets behind a window of near tokens: [N, W] each.

        Of a prefix, another document's, a window sees the tokens at positions before its own.
        """
        num_rows = short + num_targets - 1
        places_NS = first_N[:, None] - short + np.arange(num_rows)
        visible_NSK = None
        if prefix is not None:
            sees_other_NK = np.arange(prefix.num_rows) < places_NS[:, :1]
            sees_own_SS = np.tri(num_rows, dtype=bool)
            visible_NSK = np.concatenate([
                np.repeat(sees_other_NK[:, None], num_rows, axis=1),
                np.broadcast_to(sees_own_SS, (len(first_N), num_rows, num_rows)),
            ], axis=2)  # fmt: skip
        queries_NW = np.tile(np.arange(short - 1, num_rows), (len(first_N), 1))
        rows = Rows(token_ids_L[places_NS], places_NS, visible_NSK, queries_NW)
        targets_NW = first_N[:, None] + np.arange(num_targets)
        self.num_tokens += places_NS.size
        queue = PassQueue(self.model, self.batching, reference)
        queue.run(rows, token_ids_L[targets_NW], np.arange(targets_NW.size).reshape(targets_NW.shape), prefix)
        return Measured(*(values for (values,) in queue.read()))


def near_starts(first: int, length: int, short: int, shared: int) -> np.ndarray:
    """Of each target from `first` to `length`, where its near tokens begin: [T].

    So many neighbors share a window: the first of them sees `short` near tokens, the last one more for each.
    """
    places_T = np.arange(length - first)
    return np.minimum(places_T // shared * shared, max(0, length - first - shared)) + first - short


def all_losses(
    passes: Passes, token_ids_L: np.ndarray, swap_L: np.ndarray, near_T: np.ndarray, short: int
) -> Losses:
    """Of the last T tokens, in a few passes."""
    model = passes.model
    length = len(token_ids_L)
    first = len(token_ids_L) - len(near_T)
    starts_N, num_each_N = np.unique(near_T, return_counts=True)
    num_targets = int(num_each_N.max())
    rows = Rows(
        token_ids_L[None, :-1], np.arange(length - 1)[None], None, np.arange(first - 1, length - 1)[None]
    )
    passes.num_tokens += length - 1
    hidden_TD = model.hidden_states(*rows.on_device(model.device))[0]
    prefix = passes.prefix(swap_L[: max(1, int(near_T[-1]))])
    found = np.zeros((5, len(near_T)), dtype=np.float32)
    at_once = min(_TARGETS_AT_ONCE, _LOGITS_AT_ONCE // model.vocabulary_size)
    first_N = starts_N + short
    for firsts_N in np.array_split(
        first_N, max(1, -(-len(first_N) * num_targets // max(at_once, num_targets)))
    ):
        places_NW = firsts_N[:, None] + np.arange(num_targets) - first
        hidden_1QD = hidden_TD[None, places_NW.ravel()]
        reference = Predictions.of(model.logits(hidden_1QD[0]))
        ids_1Q = to_device(token_ids_L[None, first + places_NW.ravel()], model.device)
        full_NW = losses_of_hidden_states(model, hidden_1QD, ids_1Q).cpu().numpy().reshape(places_NW.shape)
        short_of = passes.windows(token_ids_L, firsts_N, num_targets, short, None, reference)
        swapped = passes.windows(token_ids_L, firsts_N, num_targets, short, prefix, reference)
        found[:, places_NW] = (
            full_NW,
            short_of.losses,
            swapped.losses,
            short_of.divergences,
            swapped.divergences,
        )
    return Losses(*found)


def forward_tokens(stop_of: dict[Span, int]) -> int:
    """Of passes that swap a span each and run to a row."""
    return sum(stop - start for (start, _), stop in stop_of.items())


class Trial(NamedTuple):
    """What remains of a target's total effect in swapped contexts: [B] each."""

    total_B: np.ndarray
    remaining_B: np.ndarray
    """Before and after the target's sources are put back."""

    @property
    def recovered_nats(self) -> float:
        """Mean over the contexts."""
        return float((self.total_B - self.remaining_B).mean())

    @property
    def recovered(self) -> float:
        """The recovered fraction of the total effect, from means over the contexts."""
        total = float(self.total_B.mean())
        return self.recovered_nats / total if total else 0.0

    @property
    def is_distinguishable(self) -> bool:
        """Whether the sources recover more than other documents' tokens in their places, which is nothing.

        A one-sided paired t test over the contexts, at 5 % for four of them.
        """
        recovered_B = self.total_B - self.remaining_B
        error = recovered_B.std(ddof=1) / len(recovered_B) ** 0.5
        return bool(recovered_B.mean() > _T_OF_5_PERCENT * error)


_T_OF_5_PERCENT = 2.353
"""Of Student's distribution with three degrees of freedom."""


@dataclass(eq=False)
class Search:
    """The sources of some targets of a text."""

    passes: Passes
    sequence: PackedSequence
    """Its distant tokens are the targets' distant ones, and a query stands for each predicted token."""
    swaps_BS: np.ndarray
    """Other documents' tokens; those of the first stand where tokens are left out."""
    boundaries: np.ndarray
    """Where units begin, the first that may be a source first; tokens before it are never left out."""
    sentence_starts: np.ndarray
    """Where coarse groups rather end."""
    k: int
    weights_TQ: np.ndarray | None = None
    """Of the predicted tokens' losses in the effect; None: targets are tokens, and effects divergences."""
    is_exact: bool = False
    """Whether every unit is swapped, as exact leave-one-out does."""
    effects: dict[Span, np.ndarray] = field(default_factory=dict, init=False)
    """Of each span that was swapped: [T], NaN of targets that it is not before."""
    loss_effects: dict[Span, np.ndarray] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        num_queries = len(self.sequence.query_rows_T)
        self.of_target = [np.array([query]) for query in range(num_queries)]
        if self.weights_TQ is not None:
            self.of_target = [np.arange(num_queries)]
        self.near_T = np.array([self.sequence.num_far_tokens_T[queries[0]] for queries in self.of_target])
        self.stop_T = np.array([self.sequence.query_rows_T[queries].max() + 1 for queries in self.of_target])
        # The distant tokens of a target end between two units.
        edges = [*self.boundaries, *self.near_T, int(self.near_T.max())]
        self.edges = np.unique([edge for edge in edges if self.boundaries[0] <= edge <= self.near_T.max()])

    @cached_property
    def full(self) -> FullPass:
        """Nothing swapped."""
        return self.passes.full(self.sequence)

    def is_unit(self, span: Span) -> bool:
        """Whether the span is not split any further."""
        return not self.parts(span)

    def parts(self, span: Span) -> list[Span]:
        """The spans that one is split into; none of a unit."""
        start, end = span
        inner = self.edges[np.searchsorted(self.edges, start, "right") : np.searchsorted(self.edges, end)]
        if not len(inner):
            return []
        if len(inner) >= _BRANCHES:
            wanted = start + (end - start) * np.arange(1, _BRANCHES) / _BRANCHES
            inner = inner[np.unique(np.searchsorted(inner, wanted).clip(max=len(inner) - 1))]
        places = [start, *inner.tolist(), end]
        return [*zip(places, places[1:], strict=False)]

    @cached_property
    def groups(self) -> list[Span]:
        """Spans of some `COARSE_TOKENS` tokens, whole sentences if these are short; a longer unit is one."""
        if self.is_exact:
            units = self.edges.tolist()
            return [*zip(units, units[1:], strict=False)]
        places = [int(self.edges[0])]
        is_start = set(self.sentence_starts.tolist())
        for edge, following in zip(self.edges[1:].tolist(), [*self.edges[2:].tolist(), 1 << 62], strict=True):
            ends_sentence = edge in is_start and edge - places[-1] >= COARSE_TOKENS // 2
            if ends_sentence or following - places[-1] > COARSE_TOKENS:
                places.append(edge)
        return [*zip(places, places[1:], strict=False)]

    def swap(self, stop_of: dict[Span, int]) -> None:
        """Measure what swapping each span does to the targets that end by its row `stop`."""
        variants = []
        spans = list(stop_of)
        for start, end in spans:
            tokens_S = self.sequence.token_ids_S.copy()
            tokens_S[start:end] = self.swaps_BS[0, start:end]
            reached = (self.near_T >= end) & (self.stop_T <= stop_of[start, end])
            queries = [of for of, is_reached in zip(self.of_target, reached, strict=True) if is_reached]
            variants.append(Variant(tokens_S, start, stop_of[start, end], np.concatenate(queries)))
        found = self.passes.measured(self.sequence, variants, self.full.prefix, self.full.predictions)
        losses_VT, effects_VT = self._of_targets(found)
        for span, losses_T, effects_T in zip(spans, losses_VT, effects_VT, strict=True):
            for kept, values_T in ((self.loss_effects, losses_T), (self.effects, effects_T)):
                kept[span] = np.where(np.isnan(values_T), kept.get(span, values_T), values_T)

    def _of_targets(self, found: Measured) -> tuple[np.ndarray, np.ndarray]:
        """Changes of the loss, and effects: [V, T] each."""
        changes_VQ = found.losses - self.full.losses_T
        if self.weights_TQ is None:
            return changes_VQ, found.divergences
        is_first_Q = self.weights_TQ[0] > 0
        return changes_VQ[:, is_first_Q].sum(1, keepdims=True), changes_VQ @ self.weights_TQ.T

    def found(self, target: int, spans: Iterable[Span] | None = None) -> list[Span]:
        """The finest spans of a target's distant tokens whose effects are known, or that are next."""
        finest: list[Span] = []
        for span in self.groups if spans is None else spans:
            if span[0] >= self.near_T[target]:
                continue
            parts = self.parts(span)
            is_split = any(
                part in self.effects and not np.isnan(self.effects[part][target]) for part in parts
            )
            finest += self.found(target, parts) if is_split or span[1] > self.near_T[target] else [span]
        return finest

    def effect(self, target: int, span: Span) -> float:
        """NaN where it is not known."""
        return float(self.effects[span][target]) if span in self.effects else np.nan

    def ranked(self, target: int) -> list[Span]:
        """The finest spans of a target, the largest effect first."""
        spans = [span for span in self.found(target) if not np.isnan(self.effect(target, span))]
        return sorted(spans, key=lambda span: -abs(self.effect(target, span)))

    @cached_property
    def beginning(self) -> dict[Span, int]:
        """Coarse groups, and beside each target finer ones up to its near tokens; to which row they run."""
        stop_of = {span: int(self.stop_T.max()) for span in self.groups if span[1] <= self.near_T.max()}
        for target, own_stop in enumerate(self.stop_T.tolist()):
            for span in self.found(target):
                if span not in self.groups:
                    stop_of[span] = max(stop_of.get(span, 0), own_stop)
        return stop_of

    def next_round(self) -> list[tuple[float, dict[Span, int]]]:
        """For each span that is to be split its urgency, and its parts with the row that they run to."""
        wanted: dict[Span, tuple[float, int]] = {}
        for target, stop in enumerate(self.stop_T.tolist()):
            ranked = self.ranked(target)
            units = [abs(self.effect(target, span)) for span in ranked if self.is_unit(span)]
            least = units[self.k - 1] if len(units) >= self.k else 0.0
            largest = abs(self.effect(target, ranked[0])) if ranked else 0.0
            for span in ranked[: self.k]:
                effect = abs(self.effect(target, span))
                if not self.is_unit(span) and effect > least:
                    urgency, until = wanted.get(span, (0.0, 0))
                    wanted[span] = max(urgency, effect / largest), max(until, stop)
        rounds = [
            (urgency, dict.fromkeys(self.parts(span), until)) for span, (urgency, until) in wanted.items()
        ]
        return sorted(rounds, key=lambda one: -one[0])

    @property
    def exact_tokens(self) -> int:
        """Forward tokens of exact leave-one-out, of every unit."""
        return int((self.stop_T.max() - self.edges[:-1]).sum())

    def run(self, fits: Callable[[float], bool] = lambda _: True) -> None:
        """Search until the top k of each target are units; the most urgent spans are split first.

        It ends earlier if no more forward tokens `fits`, or it has taken its share of those of the exact one.
        """
        every = range(len(self.stop_T))
        most = max(_SHARE * self.exact_tokens, _FEW_TOKENS)
        before = self.passes.num_tokens
        self.swap(self.beginning)
        for least in URGENCIES:
            while True:
                stop_of: dict[Span, int] = {}
                for urgency, parts in self.next_round():
                    further = {span: max(stop, stop_of.get(span, 0)) for span, stop in parts.items()}
                    tokens = forward_tokens(stop_of | further)
                    is_within = self.passes.num_tokens - before + tokens <= most
                    if urgency >= least and is_within and fits(tokens + self.trial_tokens(every)):
                        stop_of |= further
                if not stop_of:
                    break
                self.swap(stop_of)

    def sources(self, target: int) -> list[Span]:
        """The top k spans of a target that have an effect; of those that were not split, the urgent ones."""
        ranked = [span for span in self.ranked(target) if abs(self.effect(target, span)) > 0]
        least = URGENCIES[-1] * abs(self.effect(target, ranked[0])) if ranked else 0.0
        kept = [span for span in ranked if self.is_unit(span) or abs(self.effect(target, span)) >= least]
        return kept[: self.k]

    @property
    def likely_tokens(self) -> int:
        """Forward tokens of all that is to come, sources being half as far away as they can be."""
        halves = int(self.stop_T.sum()) // 2
        trial = len(self.swaps_BS) * (halves + int(self.near_T.max()))
        return len(self.sequence.token_ids_S) + forward_tokens(self.beginning) + trial + REFINING * halves

    def trial_tokens(self, targets: Sequence[int]) -> int:
        """Forward tokens of the trial of the present sources of some targets."""
        rows = 0
        for target in targets:
            first = min((span[0] for span in self.sources(target)), default=self.near_T[target])
            rows += int(2 * self.stop_T[target] - first - self.near_T[target])
        return len(self.swaps_BS) * (rows + int(self.near_T.max()))

    def tried(self, targets: Sequence[int]) -> list[Trial]:
        """The sources of some targets in every swapped context."""
        effects = []
        for swap_S in self.swaps_BS:
            prefix = self.passes.prefix(swap_S[: int(self.near_T.max())])
            variants = []
            for target in targets:
                queries = self.of_target[target]
                near, stop = int(self.near_T[target]), int(self.stop_T[target])
                swapped_S = self.sequence.token_ids_S.copy()
                swapped_S[:near] = swap_S[:near]
                with_sources_S = swapped_S.copy()
                sources = self.sources(target)
                for start, end in sources:
                    with_sources_S[start:end] = self.sequence.token_ids_S[start:end]
                first = min((span[0] for span in sources), default=near)
                variants += [
                    Variant(swapped_S, near, stop, queries), Variant(with_sources_S, first, stop, queries),
                ]  # fmt: skip
            found = self.passes.measured(self.sequence, variants, prefix, self.full.predictions)
            effects_VT = self._of_targets(found)[1]
            effects.append([row_T[targets[v // 2]] for v, row_T in enumerate(effects_VT)])
        effects_T2B = np.array(effects).T.reshape(len(targets), 2, -1)
        return [Trial(*effects_2B) for effects_2B in effects_T2B]
