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

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
import torch

from pipeline.cli import progress
from pipeline.measuring.contexts import (
    Batching,
    PackedSequence,
    Pass,
    Rows,
    full_pass,
    measured_contexts,
    measured_passes,
    text_rows,
)
from pipeline.models.interface import CausalLM, Predictions, Prefix, losses_of_hidden_states, to_device
from pipeline.text.tokenizer import TokenizedText

_IDEOGRAPH = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_BEGINS = {
    "word": re.compile(rf"()(?:[{_IDEOGRAPH}]|[^\W{_IDEOGRAPH}]+(?:['’][^\W{_IDEOGRAPH}]+)*|[^\w\s]+)"),
    "sentence": re.compile(r"(?:[.!?…]+[\"'”’)\]]*\s+|[。！？]|\n+\s*)()"),
    "paragraph": re.compile(r"\n\s*\n\s*()"),
    "line": re.compile(r"\n+()"),
}
"""Group 1 stands where a unit begins."""
COARSE_TOKENS = 32
_BRANCHES = 4
"""Tokens of the groups that are swapped first, and the parts that a group is split into."""
LOSSES = ["full_loss", "short_loss", "short_divergence", "swapped_loss", "swapped_divergence"]
URGENCIES = (0.5, 0.1)
"""A span is split if its effect is this fraction of its target's largest; first the larger one."""
Span = tuple[int, int]
"""Tokens [start, end) of the text."""
Variant = tuple[np.ndarray, int, Sequence[int]]
"""Tokens in place of a sequence's, the first row that has others, and the targets that are asked for."""


def unit_starts(text: TokenizedText, unit: str) -> np.ndarray:
    """Starts of the units of a text, as places of its tokens, ascending, 0 first."""
    if unit == "token":
        return np.arange(len(text.token_ids_N))
    if unit == "paragraph" and not _BEGINS[unit].search(text.text):
        unit = "line"
    begins = [match.start(1) for match in _BEGINS[unit].finditer(text.text)]
    # A token belongs to the unit of its first character that is no blank.
    pieces = [(end, text.text[start:end]) for start, end in text.characters_N2.tolist()]
    # A token of blanks alone counts by its first one.
    first_N = [end - len(piece.lstrip() or piece) for end, piece in pieces]
    # A unit starts where the number of units begun rises; prepend=-1 makes token 0 a start.
    return np.flatnonzero(np.diff(np.searchsorted(begins, first_N, side="right"), prepend=-1))


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

    def seconds(self, num_tokens: float) -> float:
        """How long so many forward tokens take, at the speed of those until now."""
        return num_tokens * (time.monotonic() - self._started) / max(1, self.num_tokens)

    def fits(self, num_tokens: float) -> bool:
        """Whether so many more forward tokens fit into the budget."""
        # A quarter more, for rows that run in vain, as passes of several lengths are batched.
        return time.monotonic() - self._started + 1.25 * self.seconds(num_tokens) <= self._budget

    def read(self, token_ids_S: np.ndarray, num_queries: int = 1) -> tuple[torch.Tensor, Prefix]:
        """Hidden states of a text's last rows, [num_queries, D]; and all rows, as later ones see them."""
        self.count(len(token_ids_S))
        rows = text_rows(token_ids_S, num_queries)
        hidden_1TD, prefix = self.model.read(*rows.on_device(self.model.device))
        return hidden_1TD[0], prefix


def all_losses(
    passes: Passes,
    token_ids_L: np.ndarray,
    swap_L: np.ndarray,
    near_T: np.ndarray,
    short: int,
    shared: int,
) -> pd.DataFrame:
    """Losses of the last T tokens, nats, in a few passes; `explain` lists the columns.

    Args:
        near_T: where their near tokens begin, the same for those that share a window.
        shared: how many neighbors do: the first of them sees `short` near tokens, each other one more.
    """
    model = passes.model
    length = len(token_ids_L)
    num_rows = short + shared - 1
    found = np.zeros((5, length), dtype=np.float32)
    hidden_TD, _ = passes.read(token_ids_L[:-1], len(near_T))
    ids_1T = to_device(token_ids_L[None, -len(near_T) :], model.device)
    found[0, -len(near_T) :] = losses_of_hidden_states(model, hidden_TD[None], ids_1T)[0].cpu().numpy()
    _, prefix = passes.read(swap_L[: int(near_T[-1])])
    all_starts = np.unique(near_T)[:, None]
    # At most 128 MiB of logits in float32; a reference holds two such tensors, log-probabilities and
    # probabilities.
    targets_at_once = min(256, (1 << 25) // model.vocabulary_size)
    num_parts = min(len(all_starts), 1 + len(near_T) // targets_at_once)
    for starts_N1 in np.array_split(all_starts, num_parts):
        # One shape serves all windows: the last one may have too few tokens, and its last row stands again.
        places_NS = np.minimum(starts_N1 + np.arange(num_rows), length - 2)
        # Row short - 1 is the first that sees `short` near tokens, itself among them.
        targets_NW = places_NS[:, short - 1 :] + 1
        reference = Predictions.of(model.logits(hidden_TD[targets_NW.ravel() - length]))
        rows = Rows(token_ids_L[places_NS], places_NS, None, targets_NW - 1 - starts_N1)
        alone = Pass(rows, token_ids_L[targets_NW], np.arange(targets_NW.size).reshape(targets_NW.shape))
        # Of the other document a window sees the tokens at positions before its own.
        sees_other_N1F = np.arange(prefix.num_rows) < starts_N1[:, None]
        sees_own_NSS = np.tile(np.tri(num_rows, dtype=bool), (len(starts_N1), 1, 1))
        visible_NSK = np.concatenate([np.repeat(sees_other_N1F, num_rows, axis=1), sees_own_NSS], axis=2)
        swapped = alone._replace(rows=rows._replace(visible_BSK=visible_NSK), prefix=prefix)
        passes.count(2 * places_NS.size)
        found[1:, targets_NW] = [
            values_NW
            for contexts in (alone, swapped)
            for values_NW in measured_contexts(model, passes.batching, reference, contexts)
        ]
    return pd.DataFrame(found[:, -len(near_T) :].T, columns=LOSSES)


def likely_tokens(places_T: np.ndarray, num_swaps: int) -> float:
    """About how many forward tokens the search and the trial of targets at these places take."""
    # A group ends where each target's near tokens begin; its passes are half as long as they can be.
    num_groups = places_T.max() / COARSE_TOKENS + len(places_T)
    # A target takes about six passes beyond those of the coarse groups.
    return float(num_groups * places_T.max() + places_T.sum() * (6 + num_swaps)) / 2


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
    swaps_BL: np.ndarray
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
        last_T = np.array([self.sequence.query_rows_T[of].max() for of in self._queries_T])
        # Neighbors share a stop, and so batches, for which some rows run in vain.
        self._stop_T = np.minimum(8 * (last_T // 8 + 1), len(self.sequence.token_ids_S))
        self.effects_T: list[dict[Span, float]] = [{} for _ in self._queries_T]
        """For each target the finest spans of its distant tokens, and what swapping each alone does, nats."""
        self.passes.count(len(self.sequence.token_ids_S))
        self.full = full_pass(self.passes.model, self.sequence)
        """Nothing swapped."""
        # The distant tokens of a target end between two units.
        self._edges = np.unique([*self.unit_starts[self.unit_starts < self._near_T.max()], *self._near_T])
        self.num_exact_tokens = int((self._stop_T.max() - self._edges[:-1]).sum())
        """Forward tokens of exact leave-one-out, which swaps every unit."""

    def parts(self, span: Span) -> list[Span]:
        """The spans that one is split into; a unit is the only part of itself."""
        edges = self._edges[slice(*np.searchsorted(self._edges, span))]
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

    def _swap(self, targets_of: dict[Span, Sequence[int]]) -> None:
        """Measure what swapping each span does to some targets."""
        variants: list[Variant] = []
        for (start, end), targets in targets_of.items():
            tokens_S = self.sequence.token_ids_S.copy()
            tokens_S[start:end] = self.swaps_BL[0, start:end]
            variants.append((tokens_S, start, targets))
        for span, effects in zip(targets_of, self._effects(variants, self.full.prefix), strict=True):
            for target, effect in zip(targets_of[span], effects.tolist(), strict=True):
                self.effects_T[target][span] = effect

    def _effects(self, variants: Sequence[Variant], prefix: Prefix) -> list[np.ndarray]:
        """What each variant does to its targets, nats; `prefix` is what it has before its first row."""
        effects_VT = np.zeros((len(variants), len(self._queries_T)), dtype=np.float32)
        starts_V = np.array([start for _, start, _ in variants])
        stops_V = np.array([self._stop_T[targets].max() for *_, targets in variants])
        for stop in np.unique(stops_V):
            (same_stop,) = np.nonzero(stops_V == stop)
            for places in self.passes.batching.by_start(starts_V[same_stop], stop):
                batch = same_stop[places]
                start = int(starts_V[batch[0]])
                # A pass has one list of queries; a variant also gets values that it did not ask for.
                targets = np.unique(np.concatenate([variants[v][2] for v in batch]))
                queries_Q = np.concatenate([self._queries_T[target] for target in targets])
                rows = Rows(
                    np.stack([variants[v][0][start:stop] for v in batch]),
                    self.sequence.position_ids_S[None, start:stop],
                    # All of the prefix is seen. A mask means one target, so every pass runs to the last row.
                    None if self.sequence.visible_WS is None else self.sequence.visible_WS[None, :, start:],
                    np.tile(self.sequence.query_rows_T[queries_Q] - start, (len(batch), 1)),
                )
                self.passes.count(rows.token_ids_BS.size)
                one = Pass(
                    rows,
                    self.sequence.target_ids_T[None, queries_Q],
                    queries_Q[None],
                    prefix.first(start) if start else None,
                )
                (found,) = measured_passes(self.passes.model, self.full.predictions, [one])
                effects = found.divergences
                if self.weights_Q is not None:
                    # Weights are 1 for what came and -1 for the other: the rise of one loss less that of the
                    # other is the fall of log p(what came) - log p(other).
                    effects = (found.losses - self.full.losses_T) @ self.weights_Q[:, None]
                effects_VT[batch[:, None], targets] = effects
        return [effects_T[targets] for effects_T, (*_, targets) in zip(effects_VT, variants, strict=True)]

    def _urgencies(self, target: int) -> dict[Span, float]:
        """The finest spans that have an effect on a target, largest first, as fractions of the largest."""
        # Absolute values: in a contrast a unit may favor the other continuation.
        sizes = {span: abs(effect) for span, effect in self.effects_T[target].items() if effect}
        largest = max(sizes.values(), default=1.0)
        return {span: sizes[span] / largest for span in sorted(sizes, key=lambda span: -sizes[span])}

    def run(self) -> None:
        """Search until the top k of each target are units; the most urgent spans are split first.

        It ends earlier if the budget is spent, or 12 % of the exact search's forward tokens, or 40,000.
        """
        most = self.passes.num_tokens + max(0.12 * self.num_exact_tokens, 40_000)
        self._swap({group: np.flatnonzero(self._near_T >= group[1]).tolist() for group in self._groups()})
        # Large effects of all targets come first, in case the budget ends the search.
        for least in URGENCIES:
            while parts := self._split(least, most):
                self._swap(parts)

    def _split(self, least: float, most: float) -> dict[Span, Sequence[int]]:
        """Parts of the spans that are urgent for targets, as far as forward tokens and budget suffice."""
        urgent: dict[Span, dict[int, float]] = {}
        for target in range(len(self.effects_T)):
            for span, urgency in [*self._urgencies(target).items()][: self.k]:
                if urgency >= least and len(self.parts(span)) > 1:
                    urgent.setdefault(span, {})[target] = urgency
        found: dict[Span, Sequence[int]] = {}
        tokens = 0
        # Reserved for `tried`: in each swap its distant rows once, and per target stop - near rows for
        # the baseline and at most stop with the sources.
        of_trial = (len(self.swaps_BL) - 1) * int(
            (2 * self._stop_T - self._near_T).sum() + self._near_T.max()
        )
        for span in sorted(urgent, key=lambda span: -max(urgent[span].values())):
            stop = self._stop_T[[*urgent[span]]].max()
            parts = self.parts(span)
            tokens += sum(int(stop) - start for start, _ in parts)
            if self.passes.num_tokens + tokens > most or not self.passes.fits(tokens + of_trial):
                break
            # The same passes serve every target that they reach.
            reached = [
                target
                for target in np.flatnonzero(self._stop_T <= stop).tolist()
                if span in self.effects_T[target]
            ]
            for target in reached:
                del self.effects_T[target][span]
            found.update(dict.fromkeys(parts, reached))
        return found

    def sources(self, target: int) -> list[Span]:
        """The top k spans of a target; of those that were not split, the urgent ones."""
        urgencies = self._urgencies(target)
        # A group is still among them only if the search ended before it was split.
        return [span for span in urgencies if urgencies[span] >= URGENCIES[-1] or len(self.parts(span)) == 1][
            : self.k
        ]

    def tried(self) -> np.ndarray:
        """Total effects, and what remains with the sources, in each swapped context: [T, 2, B]."""
        effects = []
        for swap_S in self.swaps_BL[1:]:
            _, prefix = self.passes.read(swap_S[: int(self._near_T.max())])
            # Targets of one window have the same distant tokens: one pass tells their total effects.
            variants = [
                self._restored(swap_S, near, [], np.flatnonzero(self._near_T == near).tolist())
                for near in np.unique(self._near_T)
            ]
            variants += [
                self._restored(swap_S, near, self.sources(target), [target])
                for target, near in enumerate(self._near_T)
            ]
            effects.append(np.concatenate(self._effects(variants, prefix)).reshape(2, -1).T)
        return np.stack(effects, axis=-1)

    def _restored(
        self, swap_S: np.ndarray, near: int, sources: Sequence[Span], targets: Sequence[int]
    ) -> Variant:
        """A swapped context with sources put back."""
        # All distant tokens, an attention sink too: the swapped text brings its own first token.
        tokens_S = np.concatenate([swap_S[:near], self.sequence.token_ids_S[near:]])
        for start, end in sources:
            tokens_S[start:end] = self.sequence.token_ids_S[start:end]
        # Before its first source it is the swapped text, which the prefix holds.
        return tokens_S, int(min([near, *(start for start, _ in sources)])), targets
