"""Which units of one text a model's predictions depend on: searched coarse to fine, then tried.

losses   of every token with its full context, with its short context alone, and in a swapped context, whose
         distant tokens are another document's. Neighboring targets share a window of near tokens.
search   the effect of a group of units is what its target loses when the group is swapped for another
         document's tokens: KL(full || swapped), or a fall of the difference of two continuations'
         log-probabilities. Groups of about 32 tokens are swapped first. Those among a target's top k are
         split in four, and so on down to units, whose effects are exact. Passes are shared: one serves every
         target behind the group.
trial    the top k units of a target are put back into swapped contexts, each another document's.

Shapes: L tokens, S rows of a sequence, Q predicted tokens, T targets, V variants, B swaps, P parts of a span,
N windows of W targets each.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from sparsity_length.cli import progress
from sparsity_length.measuring.contexts import (
    Batching,
    Measured,
    PackedSequence,
    Pass,
    Rows,
    full_pass,
    measured_contexts,
    measured_passes,
    text_rows,
)
from sparsity_length.models.interface import CausalLM, Predictions, Prefix, to_device

COARSE_TOKENS = 32
_BRANCHES = 4
"""Tokens of the groups that are swapped first, and the parts that a group is split into."""
URGENCIES = (0.5, 0.1)
"""A span is split if its effect is this fraction of its target's largest; first the larger one."""
Span = tuple[int, int]
"""Tokens [start, end) of the text."""


class Variant(NamedTuple):
    """A sequence with other tokens in places."""

    token_ids_S: np.ndarray
    start: int
    """The prefix holds what is before."""
    stop: int
    """The rows [start, stop) run."""
    queries: np.ndarray
    """Which of the predicted tokens are asked for."""


class Passes:
    """Forward passes of one model, their tokens counted, and kept within a budget of seconds."""

    def __init__(self, model: CausalLM, batching: Batching, budget: float | None = None) -> None:
        self.model = model
        self.batching = batching
        self.num_tokens = 0
        """Forward tokens until now."""
        self.bar = progress(None, "explain", "token")
        """Shows them."""
        self._budget = float("inf") if budget is None else budget
        self._started = time.monotonic()

    def count(self, num_tokens: int) -> None:
        """Count forward tokens that are run."""
        self.num_tokens += num_tokens
        self.bar.update(num_tokens)

    @property
    def elapsed(self) -> float:
        """Seconds since the first pass."""
        return time.monotonic() - self._started

    def seconds(self, num_tokens: float) -> float:
        """How long so many forward tokens take, at the speed of those until now."""
        # A quarter more, for rows that run in vain, as passes of several lengths are batched.
        return 1.25 * num_tokens * self.elapsed / max(1, self.num_tokens)

    def fits(self, num_tokens: float) -> bool:
        """Whether so many more forward tokens fit into the budget."""
        return self.elapsed + self.seconds(num_tokens) <= self._budget

    def read(self, token_ids_S: np.ndarray, num_queries: int = 1) -> tuple[torch.Tensor, Prefix]:
        """Hidden states of a text's last rows, [num_queries, D]; and all rows, as later ones see them."""
        self.count(len(token_ids_S))
        rows = text_rows(token_ids_S, num_queries)
        hidden_1TD, prefix = self.model.read(*rows.on_device(self.model.device))
        return hidden_1TD[0], prefix

    def measured(
        self, sequence: PackedSequence, variants: Sequence[Variant], prefix: Prefix, reference: Predictions
    ) -> Measured:
        """Losses and divergences of variants of a sequence: [V, Q] each, of use where they are asked for."""
        values_2VQ = np.full((2, len(variants), len(sequence.query_rows_T)), np.nan, dtype=np.float32)
        # By end first, so that no difference of ends below is negative.
        rest = sorted(range(len(variants)), key=lambda v: (variants[v].stop, variants[v].start))
        while rest:
            first = variants[rest[0]]
            num_rows = first.stop - first.start
            # Rows that run in vain, as variants begin and end elsewhere, are kept to a quarter.
            near = [
                v
                for v in rest
                if abs(variants[v].start - first.start) + variants[v].stop - first.stop <= num_rows // 4
            ]
            batch = near[: self.batching.num_sequences(num_rows)]
            rest = [v for v in rest if v not in batch]
            start = min(variants[v].start for v in batch)
            stop = max(variants[v].stop for v in batch)
            # A pass has one list of queries; a variant also gets values that it did not ask for.
            queries_Q = np.unique(np.concatenate([variants[v].queries for v in batch]))
            queries_1Q = (sequence.query_rows_T[None, queries_Q] - start).clip(0, stop - start - 1)
            rows = Rows(
                np.stack([variants[v].token_ids_S[start:stop] for v in batch]),
                sequence.position_ids_S[None, start:stop],
                # All of the prefix is seen. A mask means one target, so every pass runs to the last row.
                None if sequence.visible_WS is None else sequence.visible_WS[None, :, start:],
                np.tile(queries_1Q, (len(batch), 1)),
            )
            self.count(rows.token_ids_BS.size)
            before = prefix.first(start) if start else None
            one = Pass(rows, sequence.target_ids_T[None, queries_Q], queries_Q[None], before)
            (found,) = measured_passes(self.model, reference, [one])
            values_2VQ[:, np.array(batch)[:, None], queries_Q] = found
        return Measured(*values_2VQ)


def near_starts(length: int, first: int, short: int, shared: int) -> np.ndarray:
    """Starts of the near tokens of the targets [first, length): int64 [T], ascending.

    So many neighbors share a window: the first of them sees `short` near tokens, each other one more. Of ten
    targets, four to a window, the windows' first targets are 0 0 0 0 4 4 6 6 6 6: the last window holds as
    many as the others, for one shape serves all passes.
    """
    places_T = np.arange(length - first)
    last = max(0, len(places_T) - shared)
    return np.where(places_T < last, places_T // shared * shared, last) + first - short


def all_losses(
    passes: Passes,
    hidden_TD: torch.Tensor,
    token_ids_L: np.ndarray,
    swap_L: np.ndarray,
    near_T: np.ndarray,
    short: int,
) -> pd.DataFrame:
    """Losses of the last T tokens, nats, in a few passes; `explain` lists the columns.

    `hidden_TD` are those that predict them with the full context.
    """
    model = passes.model
    first = len(token_ids_L) - len(near_T)
    starts_N, num_each_N = np.unique(near_T, return_counts=True)
    num_targets = int(num_each_N.max())
    num_rows = short + num_targets - 1
    # Enough for the last window; the mask hides the surplus from the others.
    _, other = passes.read(swap_L[: max(1, int(near_T[-1]))])
    found = np.zeros((5, len(near_T)), dtype=np.float32)
    # At most 128 MiB of logits in float32; a reference holds two such tensors, log-probabilities and
    # probabilities.
    targets_at_once = min(256, (1 << 25) // model.vocabulary_size)
    windows_at_once = max(1, targets_at_once // num_targets)
    for start in range(0, len(starts_N), windows_at_once):
        starts_N1 = starts_N[start : start + windows_at_once, None]
        places_NS = starts_N1 + np.arange(num_rows)
        # Row short - 1 is the first that sees `short` near tokens, itself among them.
        queries_NW = np.tile(np.arange(short - 1, num_rows), (len(starts_N1), 1))
        targets_NW = starts_N1 + 1 + queries_NW
        reference = Predictions.of(model.logits(hidden_TD[targets_NW.ravel() - first]))
        ids_Q1 = to_device(token_ids_L[targets_NW.reshape(-1, 1)], model.device)
        full_Q = -reference.log_probs_TV.gather(-1, ids_Q1)[:, 0].cpu().numpy()
        rows = Rows(token_ids_L[places_NS], places_NS, None, queries_NW)
        alone = Pass(rows, token_ids_L[targets_NW], np.arange(targets_NW.size).reshape(targets_NW.shape))
        # Of the other document a window sees the tokens at positions before its own; none sees those behind.
        prefix = other.first(max(1, int(starts_N1[-1, 0])))
        sees_other_NSF = np.broadcast_to(
            np.arange(prefix.num_rows) < starts_N1[:, None], (*places_NS.shape, prefix.num_rows)
        )
        sees_own_NSS = np.broadcast_to(np.tri(num_rows, dtype=bool), (*places_NS.shape, num_rows))
        visible_NSK = np.concatenate([sees_other_NSF, sees_own_NSS], axis=2)
        swapped = alone._replace(rows=rows._replace(visible_BSK=visible_NSK), prefix=prefix)
        passes.count(2 * places_NS.size)
        measured = [
            values_NW
            for contexts in (alone, swapped)
            for values_NW in measured_contexts(model, passes.batching, reference, contexts)
        ]
        # The last window may overlap the one before it; for targets in both the later values stay.
        found[:, targets_NW - first] = full_Q.reshape(targets_NW.shape), *measured
    names = ["full_loss", "short_loss", "short_divergence", "swapped_loss", "swapped_divergence"]
    return pd.DataFrame(found.T, columns=names)


def likely_tokens(places_T: np.ndarray, num_swaps: int) -> float:
    """About how many forward tokens the search and the trial of targets at these places take."""
    longest = float(places_T.max())
    # A group ends where each target's near tokens begin; its passes are half as long as they can be.
    num_groups = longest / COARSE_TOKENS + len(places_T)
    # A target takes about six passes beyond those of the coarse groups.
    return (num_groups * longest + float(places_T.sum()) * (6 + num_swaps)) / 2


def is_distinguishable(total_B: np.ndarray, remaining_B: np.ndarray) -> bool:
    """Whether sources recover more than other documents' tokens in their places, which is nothing.

    A one-sided paired t test over four swapped contexts, at 5 %, of the total effect in each and of what
    remains of it with the sources.
    """
    # Paired: total and remainder are of the same swapped context, whose own variation cancels.
    recovered_B = total_B - remaining_B
    # 2.353: the 95 % quantile of Student's distribution with three degrees of freedom.
    return bool(recovered_B.mean() > 2.353 * recovered_B.std(ddof=1) / len(recovered_B) ** 0.5)


@dataclass(eq=False)
class Search:
    """The sources of some targets of a text."""

    passes: Passes
    sequence: PackedSequence
    """Its distant tokens are the targets' distant ones, and a query stands for each predicted token."""
    swaps_BS: np.ndarray
    """Other documents' tokens; those of the first replace what is left out, and sources are tried in the
    others."""
    unit_starts: np.ndarray
    """The first that may be a source comes first; tokens before it are never left out."""
    sentence_starts: np.ndarray
    """Preferred ends of coarse groups."""
    k: int
    weights_Q: np.ndarray | None = None
    """Weights of the predicted tokens' losses in the effect on one target; None: each token is a target, and
    effects are divergences."""
    coarse_tokens: int = COARSE_TOKENS
    """0 swaps every unit, as exact leave-one-out does."""

    def __post_init__(self) -> None:
        queries_Q = np.arange(len(self.sequence.query_rows_T))
        self._queries_T = [queries_Q] if self.weights_Q is not None else [*queries_Q[:, None]]
        # With weights all predicted tokens belong to one target and share its distant context.
        self._near_T = self.sequence.num_far_tokens_T[: len(self._queries_T)]
        self._stop_T = np.array([self.sequence.query_rows_T[of].max() + 1 for of in self._queries_T])
        self.effects_T: list[dict[Span, float]] = [{} for _ in self._queries_T]
        """For each target the finest spans of its distant tokens, and what swapping each alone does, nats."""
        self.passes.count(len(self.sequence.token_ids_S))
        self.full = full_pass(self.passes.model, self.sequence)
        """Nothing swapped."""
        # The distant tokens of a target end between two units.
        edges = np.unique([*self.unit_starts, *self._near_T])
        self._edges = edges[(edges >= self.unit_starts[0]) & (edges <= self._near_T.max())]

    @property
    def num_exact_tokens(self) -> int:
        """Forward tokens of exact leave-one-out, which swaps every unit."""
        return int((self._stop_T.max() - self._edges[:-1]).sum())

    def parts(self, span: Span) -> list[Span]:
        """The spans that one is split into; none of a unit."""
        edges = self._edges[slice(*np.searchsorted(self._edges, span))]
        if len(edges) < 2:
            return []
        starts = [int(part[0]) for part in np.array_split(edges, min(_BRANCHES, len(edges)))]
        return [*pairwise([*starts, span[1]])]

    def _groups(self) -> list[Span]:
        """Spans of some `coarse_tokens` tokens, whole sentences if these are short; a longer unit is one."""
        starts = [int(self._edges[0])]
        # A group ends at `edge` if the next unit, up to `following`, would overfill it; and where the
        # distant context of a target ends, so that each group is distant for a target or not at all.
        for edge, following in pairwise(self._edges[1:].tolist()):
            ends_sentence = edge in self.sentence_starts and edge - starts[-1] >= self.coarse_tokens // 2
            if ends_sentence or edge in self._near_T or following - starts[-1] > self.coarse_tokens:
                starts.append(edge)
        return [*pairwise([*starts, int(self._edges[-1])])]

    def _swap(self, targets_of: dict[Span, list[int]]) -> None:
        """Measure what swapping each span does to some targets."""
        variants = []
        for (start, end), targets in targets_of.items():
            tokens_S = self.sequence.token_ids_S.copy()
            tokens_S[start:end] = self.swaps_BS[0, start:end]
            queries = np.concatenate([self._queries_T[target] for target in targets])
            variants.append(Variant(tokens_S, start, int(self._stop_T[targets].max()), queries))
        effects_VT = self._effects(variants, self.full.prefix).tolist()
        for (span, targets), effects_T in zip(targets_of.items(), effects_VT, strict=True):
            for target in targets:
                self.effects_T[target][span] = effects_T[target]

    def _effects(self, variants: Sequence[Variant], prefix: Prefix) -> np.ndarray:
        """Effects on targets: [V, T], of use where they are asked for."""
        found = self.passes.measured(self.sequence, variants, prefix, self.full.predictions)
        if self.weights_Q is None:
            return found.divergences
        # Weights are 1 for what came and -1 for the other: the rise of one loss less that of the other is
        # the fall of log p(what came) - log p(other).
        return (found.losses - self.full.losses_T) @ self.weights_Q[:, None]

    def _by_urgency(self, target: int) -> list[tuple[Span, float]]:
        """The finest spans that have an effect on a target, largest first, as fractions of the largest."""
        # Absolute values: in a contrast a unit may favor the other continuation.
        sizes = {span: abs(effect) for span, effect in self.effects_T[target].items() if effect}
        largest = max(sizes.values(), default=1.0)
        ordered = sorted(sizes, key=lambda span: -sizes[span])
        return [(span, sizes[span] / largest) for span in ordered]

    def run(self) -> None:
        """Search until the top k of each target are units; the most urgent spans are split first.

        It ends earlier if the budget is spent, or 12 % of the exact search's forward tokens, or 40,000.
        """
        most = self.passes.num_tokens + max(0.12 * self.num_exact_tokens, 40_000)
        self._swap({group: np.flatnonzero(self._near_T >= group[1]).tolist() for group in self._groups()})
        # Large effects of all targets come first, in case the budget ends the search.
        for least in URGENCIES:
            while split := self._to_split(least, most):
                for span, targets in split.items():
                    for target in targets:
                        del self.effects_T[target][span]
                self._swap({part: targets for span, targets in split.items() for part in self.parts(span)})

    def _to_split(self, least: float, most: float) -> dict[Span, list[int]]:
        """The spans that are no units and urgent for targets, as far as forward tokens and budget suffice."""
        urgent: dict[Span, dict[int, float]] = {}
        for target in range(len(self.effects_T)):
            for span, urgency in self._by_urgency(target)[: self.k]:
                if urgency >= least and self.parts(span):
                    urgent.setdefault(span, {})[target] = urgency
        split: dict[Span, list[int]] = {}
        tokens = 0
        # Reserved for `tried`: in each swap its distant rows once, and per target stop - near rows for
        # the baseline and at most stop with the sources.
        of_trial = (len(self.swaps_BS) - 1) * int(
            (2 * self._stop_T - self._near_T).sum() + self._near_T.max()
        )
        for span in sorted(urgent, key=lambda span: -max(urgent[span].values())):
            stop = int(self._stop_T[[*urgent[span]]].max())
            tokens += sum(stop - start for start, _ in self.parts(span))
            if self.passes.num_tokens + tokens > most or not self.passes.fits(tokens + of_trial):
                break
            # The same passes serve every target that they reach.
            split[span] = [
                target
                for target, effects in enumerate(self.effects_T)
                if span in effects and self._stop_T[target] <= stop
            ]
        return split

    def sources(self, target: int) -> list[Span]:
        """The top k spans of a target; of those that were not split, the urgent ones."""
        # A group is still among them only if the search ended before it was split.
        kept = [
            span
            for span, urgency in self._by_urgency(target)
            if urgency >= URGENCIES[-1] or not self.parts(span)
        ]
        return kept[: self.k]

    def tried(self) -> np.ndarray:
        """Total effects, and what remains with the sources, in each swapped context: [T, 2, B]."""
        effects = []
        targets = np.arange(len(self._queries_T))
        for swap_S in self.swaps_BS[1:]:
            _, prefix = self.passes.read(swap_S[: int(self._near_T.max())])
            variants = []
            for target, queries in enumerate(self._queries_T):
                near = int(self._near_T[target])
                for sources in ([], self.sources(target)):
                    tokens_S = self.sequence.token_ids_S.copy()
                    # All distant tokens, an attention sink too: the swapped text brings its own first token.
                    tokens_S[:near] = swap_S[:near]
                    for start, end in sources:
                        tokens_S[start:end] = self.sequence.token_ids_S[start:end]
                    # Before its first source it is the swapped text, which the prefix holds.
                    first = min([near, *(start for start, _ in sources)])
                    variants.append(Variant(tokens_S, first, int(self._stop_T[target]), queries))
            effects_VT = self._effects(variants, prefix)
            # Variants 2t and 2t + 1 are of target t; of their effects on all targets only that on t counts.
            effects.append(effects_VT.reshape(len(targets), 2, -1)[targets, :, targets])
        return np.stack(effects, axis=-1)
