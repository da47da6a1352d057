"""One distant context of a chunk, and everything a selection rule may ask about it, measured when first
asked.

Leaving out is done once for all targets together: one pass over a sequence without row r gives
loss(t | long without r) for every target at once, so a chunk costs one pass a removed token, not one a
(target, token) pair. Rows before r are as they were, so they are read once and shared.

Under the ablation `swap` what is not there is another document's, and S_k is put among its tokens.
That is the theory's own picture: all outside of S* is drawn from a swap. What any distant context gives is
there from the start, so that only what this document's tokens add is measured:

    loss(t | B)             every distant token another document's, the short context t's own: the baseline
    loss(t | B with i)      one distant token restored; one pass a token for all targets
    loss(t | B with S_k)    the sparse context; the rows before its first token are B's alone, and read once

Of a null the restored tokens are those of a third document. A divergence is from the prediction under the
chunk's own long context, but for `divergence_TF`.

Shapes: L chunk, T targets, F distant-context positions (of the last target), R removed rows, S rows, N
contexts or subsets, K positions of a set or largest k, C context, J studied values of k, B swaps or sequences
of a pass, V vocabulary.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Optional

import numpy as np
import torch

from pipeline.measuring.contexts import (
    Batching,
    FullPass,
    Measured,
    PackedSequence,
    Pass,
    Rows,
    full_pass,
    measured_contexts,
    measured_in_swapped_context,
    measured_passes,
    measured_windows,
    null_contexts,
    own_context,
    read_prefix,
)
from pipeline.measuring.flags import NUM_SAMPLED_ANSWERS, ContextLengths
from pipeline.models.interface import (
    CausalLM,
    Predictions,
    Prefix,
    ReadText,
    to_device,
    visibility_of_all,
)
from pipeline.results.schemas import OTHER_DOCUMENT, OWN

Inspect = Callable[[CausalLM, ReadText], torch.Tensor]
"""Given a model and what it reads, a number for each target and row: [T, S], or several: [..., T, S]."""


def leave_each_out(
    model: CausalLM,
    sequence: PackedSequence,
    batching: Batching,
    *,
    full: FullPass | None = None,
    reference: Predictions | None = None,
    replacement_ids_L: np.ndarray | None = None,
    removed_rows_R: np.ndarray | None = None,
    width: int = 1,
) -> Measured:
    """loss(t | all but i) and its divergence, of every distant token i: [T, F] each.

    F is the distant context of the last target; NaN beyond a target's own.

    Args:
        full: the pass that leaves nothing out, where it has been run already.
        reference: what the sequence's predictions are compared with; None: those of the full pass.
        replacement_ids_L: the token that stands in for that of position i where i is left out, int64; None:
            nothing does.
        removed_rows_R: the distant-context rows to leave out, ascending, the results of all others being NaN;
            None: all.
        width: how many tokens are left out together, from each of these rows on; all distant context of every
            target, if more than one.
    """
    full = full or full_pass(model, sequence)
    num_far_T = sequence.num_far_tokens_T
    index_1T = np.arange(len(num_far_T))[None]
    if removed_rows_R is None:
        removed_rows_R = np.arange(num_far_T[-1])
    num_missing = width if replacement_ids_L is None else 0
    # Without row r only the rows behind r change; those before it come from the prefix.
    places = batching.by_start(removed_rows_R, len(sequence.token_ids_S) - num_missing)
    batches = [removed_rows_R[places_R] for places_R in places]
    # Of earlier targets no row of the batch is distant context: their numbers would be blanked anyway.
    firsts = [int(np.searchsorted(num_far_T, removed_R[0], side="right")) for removed_R in batches]

    def removals() -> Iterator[Pass]:
        for removed_R, first in zip(batches, firsts, strict=True):
            rows = _rows_without(sequence, removed_R, width, replacement_ids_L)
            # The vocabulary projection is spared for targets whose numbers would be blanked.
            rows = rows._replace(query_rows_BT=rows.query_rows_BT[:, first:])
            prefix = full.prefix.first(int(removed_R[0])) if removed_R[0] else None
            yield Pass(rows, sequence.target_ids_T[None, first:], index_1T[:, first:], prefix)

    measured = measured_passes(model, reference or full.predictions, removals())
    values_2TF = np.full((2, len(num_far_T), num_far_T[-1]), np.nan, dtype=np.float32)
    for removed_R, first, values_2RT in zip(batches, firsts, measured, strict=True):
        # [2, R, T] -> [2, T, R]: with its only index array last, NumPy keeps the axes in order.
        values_2TF[:, first:, removed_R] = np.swapaxes(values_2RT, 1, 2)
    return Measured(*far_context_only(values_2TF, num_far_T))


def block_widths(num_far: int, num_blocks: int) -> list[int]:
    """Tokens of the blocks of each round of a screen, until single tokens: [1] if `num_blocks` suffice.

    Else the widest, so that `num_blocks` or fewer cover the distant context, are quartered, and pairs halved:
    of 2,000 tokens, and 64 blocks a round, 32, 8, 2 and 1.
    """
    widths = [1]
    while widths[0] * num_blocks < num_far:
        widths.insert(0, widths[0] * (2 if widths[0] == 1 else 4))
    return widths


def leave_blocks_out(
    model: CausalLM,
    sequence: PackedSequence,
    batching: Batching,
    full: FullPass,
    stand_ins: Sequence[np.ndarray | None],
    num_blocks: int | None,
) -> tuple[Measured, Measured]:
    """Leave out blocks of distant tokens, split those that matter, and so on down to single tokens.

    A round leaves out about `num_blocks` blocks, by `block_widths`. A block matters by the rank of its
    divergence among those of the round, at the target where it ranks first: the targets share the rounds.
    Tokens beside the whole blocks of a round come to the next; all if `num_blocks` are as many are left out
    alone. So are those that are not far from every target, unless each target's distant context is whole
    blocks.

    Args:
        num_blocks: None: as many as there are distant tokens, so that each is left out alone.
        stand_ins: what replaces what is left out, as `replacement_ids_L`; effects are means over them.

    Returns:
        by how much leaving out single tokens raises the loss, and its divergence, NaN of those that no round
        came down to; and the same with the estimate for these: of the last block that held the token, an
        equal share.
    """
    num_far_T = sequence.num_far_tokens_T
    covered = int(num_far_T[-1])
    num_blocks = num_blocks or covered
    widths = block_widths(covered, num_blocks)
    if (num_far_T % widths[0]).any():  # a block would be distant context of a target in part
        covered = int(num_far_T[0])
        widths = block_widths(covered, num_blocks)

    def without(rows_R: np.ndarray, width: int) -> np.ndarray:
        how: dict[str, Any] = {"full": full, "removed_rows_R": rows_R, "width": width}
        effects_B2TF = np.array(
            [leave_each_out(model, sequence, batching, replacement_ids_L=ids_L, **how) for ids_L in stand_ins]
        )
        # Losses (index 0) become rises; divergences are from the full pass already.
        effects_B2TF[:, 0] -= full.losses_T[:, None]
        effects_2TF: np.ndarray = effects_B2TF.mean(axis=0)
        return effects_2TF

    starts_R = np.arange(0, covered - covered % widths[0], widths[0])
    estimates_2TF = np.full((2, len(num_far_T), num_far_T[-1]), np.nan, dtype=np.float32)
    for width, narrower in pairwise(widths):
        effects_2TR = without(starts_R, width)[..., starts_R]
        tokens_R = (starts_R[:, None] + np.arange(width)).ravel()
        # Later, finer rounds overwrite these, so the last block that held a token counts.
        estimates_2TF[..., tokens_R] = np.repeat(effects_2TR / width, width, axis=-1)
        # One screen serves both rules. It ranks by divergence (index 1), so it never sees the target token.
        order_TR = np.argsort(-effects_2TR[1], axis=1, kind="stable")
        # Every target's first, then every target's second, and so on.
        _, first_R = np.unique(order_TR.T, return_index=True)
        # A block splits into width // narrower parts, so the next round is about as large as this one.
        num_split = max(1, num_blocks * narrower // width)
        kept_R = starts_R[np.argsort(first_R)[:num_split]]
        split_R = np.sort((kept_R[:, None] + np.arange(0, width, narrower)).ravel())
        # Of 100 tokens, blocks of 32 and of 8 cover 96; the pairs at 96 and 98 join the round of pairs.
        beside_R = np.arange(covered - covered % width, covered - covered % narrower, narrower)
        starts_R = np.concatenate([split_R, beside_R])
    # Tokens from `covered` on are distant for some targets only, and never were in a block.
    single_2TF = without(np.concatenate([starts_R, np.arange(covered, num_far_T[-1])]), 1)
    scores_2TF = np.where(np.isnan(single_2TF), estimates_2TF, single_2TF)
    return Measured(*single_2TF), Measured(*far_context_only(scores_2TF, num_far_T))


def _rows_without(
    sequence: PackedSequence, removed_R: np.ndarray, width: int, replacement_ids_L: np.ndarray | None
) -> Rows:
    """The rows from the first removed one on, with nothing or replacements in place of a block of `width`.

    Where the removed row is a target's own query row, the entry is another row's; a query row is never far
    context, so such entries are blanked.
    """
    start = removed_R[0]
    removed_R1 = removed_R[:, None]
    num_missing = width if replacement_ids_L is None else 0
    rows_RS = np.arange(start, len(sequence.token_ids_S) - num_missing)[None]
    if replacement_ids_L is None:
        # From row 5 on without row 6: rows 5, 6, 7, … become 5, 7, 8, …
        rows_RS = rows_RS + width * (rows_RS >= removed_R1)
        tokens_RS = sequence.token_ids_S[rows_RS]
    else:
        is_replaced_RS = (rows_RS >= removed_R1) & (rows_RS < removed_R1 + width)
        # A packed null may have more rows than a chunk has tokens; clipped ones are never replaced.
        replacements_1S = replacement_ids_L.take(rows_RS, mode="clip")
        tokens_RS = np.where(is_replaced_RS, replacements_1S, sequence.token_ids_S[rows_RS])
    queries_1T = sequence.query_rows_T[None]
    # Which far row is gone makes no difference to who sees whom among the rows that stay, and all of them see
    # all before `start`, save for targets whose distant context the removed row is not in, and those entries
    # are blanked: one mask for all removals, and no mask for the prefix.
    return Rows(
        tokens_RS,
        # IDs are taken along with the tokens: what stays does not move into the gap.
        sequence.position_ids_S[rows_RS],
        None if sequence.visible_WS is None else sequence.visible_WS[None, :, start + num_missing :],
        # Negative only for targets that precede the batch, which the caller leaves out.
        (queries_1T - num_missing * (queries_1T > removed_R1) - start).clip(min=0),
    )


def far_context_only(values_TF: np.ndarray, num_far_tokens_T: np.ndarray) -> np.ndarray:
    """The values, NaN in place of those of positions beyond a target's own distant context."""
    return np.where(np.arange(values_TF.shape[-1]) < num_far_tokens_T[:, None], values_TF, np.float32(np.nan))


@dataclass(frozen=True, eq=False)
class FarContext:
    """The tokens before the short contexts of a chunk's targets: the chunk's own, or another document's.

    Measurements are float32 [T, F], NaN beyond a target's own distant context.
    """

    model: CausalLM
    lengths: ContextLengths
    batching: Batching
    chunk_L: np.ndarray
    """Holds the short contexts and the targets."""
    token_ids_L: np.ndarray
    """Holds the distant tokens."""
    own: Optional["FarContext"] = None
    """The chunk's own distant context, of a null; None: this is it, and its tokens are the chunk's."""
    swap_ids_BL: np.ndarray | None = None
    """Chunks of other documents, which replace what is left out under the ablation `swap`; else None."""
    screen: int | None = None
    """Blocks that a round of `leave_blocks_out` leaves out; None: each token is left out."""
    seed: Sequence[int] = (0,)
    """Draws sampled answers."""

    @property
    def num_far_tokens_T(self) -> np.ndarray:
        """Position p is distant context of target t where p < num_far_tokens_T[t]."""
        return self.lengths.num_far_tokens_T

    @cached_property
    def sequences(self) -> list[PackedSequence]:
        """All targets after their long contexts, a few targets each."""
        if self.own is None:
            return [own_context(self.chunk_L, self.lengths)]
        return list(null_contexts(self.chunk_L, self.token_ids_L, self.lengths))

    @cached_property
    def _full_passes(self) -> list[FullPass]:
        return [full_pass(self.model, sequence) for sequence in self.sequences]

    @property
    def long_losses_T(self) -> np.ndarray:
        """loss(t | this distant context and short), nats."""
        return np.concatenate([part.losses_T for part in self._full_passes])

    @cached_property
    def predictions(self) -> Predictions:
        """What the model predicts from this distant context and the short ones."""
        return Predictions.together([part.predictions for part in self._full_passes])

    @property
    def reference(self) -> Predictions:
        """What the model predicts from the chunk's own long context."""
        return (self.own or self).predictions

    @cached_property
    def _leave_one_out(self) -> tuple[Measured, Measured]:
        """Effects of single tokens, and what they are ranked by; under a screen the two differ."""
        stand_ins = [None] if self.swap_ids_BL is None else [*self.swap_ids_BL]
        parts = [
            leave_blocks_out(self.model, sequence, self.batching, full, stand_ins, self.screen)
            for sequence, full in zip(self.sequences, self._full_passes, strict=True)
        ]
        single, ranked_by = (Measured(*self._of_all_targets(of)) for of in zip(*parts, strict=True))
        return single, ranked_by

    @property
    def influence_TF(self) -> np.ndarray:
        """loss(t | long without i) - loss(t | long), nats; NaN of tokens that a screen left out in blocks."""
        return self._leave_one_out[0].losses

    @property
    def divergence_TF(self) -> np.ndarray:
        """KL(p(.|long) || p(.|long without i)), nats; of a null, long is with its own distant context."""
        return self._leave_one_out[0].divergences

    @property
    def necessity(self) -> Measured:
        """Both, and estimates where the screen has not come down to the single token: [T, F] each."""
        return self._leave_one_out[1]

    @cached_property
    def attention_TF(self) -> np.ndarray:
        """Attention of the row that predicts t to token i, mean over layers and heads."""

        def mean_attention(model: CausalLM, read: ReadText) -> torch.Tensor:
            layers = model.watch_heads(*read[:4], lambda queries, keys, layer_HTS: layer_HTS.mean(0))
            return torch.stack(layers).mean(0)

        return self.look_inside(mean_attention)

    @cached_property
    def attention_rollout_TF(self) -> np.ndarray:
        """What the row that predicts each target holds of each distant token, through all layers.

        Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", arXiv 2005.00928. Of a layer, A
        is the mean attention of its heads; half of what a row holds comes from itself, by the residual
        stream:

            rollout = Ā_n ··· Ā_2 Ā_1,   Ā = (A + 1) / 2

        A row of it sums to 1. Target-agnostic. In memory: the mean attention of all rows in every layer.
        """

        def rollout(model: CausalLM, read: ReadText) -> torch.Tensor:
            of_layers = model.watch_heads(*read[:3], None, lambda queries, keys, all_HSS: all_HSS.mean(0))
            held_TS = torch.nn.functional.one_hot(read.query_rows_T, read.token_ids_1S.shape[1]).float()
            for mean_SS in reversed(of_layers):  # from the last layer down: T rows, not S
                # Behind a BOS rows sum to less than 1: what goes to it is cut off, and could not come back,
                # since a BOS sees no row of the text.
                held_TS = (held_TS @ mean_SS + held_TS) / 2
            return held_TS

        return self.look_inside(rollout)

    @cached_property
    def gate_gradient_TF(self) -> np.ndarray:
        """Derivative of loss(t | long) by the gate of token i, nats; negative = removal should hurt."""
        return self.look_inside(lambda model, read: model.gate_gradients(*read))

    @cached_property
    def gate_information_TF(self) -> np.ndarray:
        """Fisher information of the gate of token i: the mean squared derivative of the loss of an answer
        that is drawn from the prediction, nats.

        Half of it is the divergence that closing the gate makes, to second order; the first order is 0.
        """
        # The exact mean over answers would take V backward passes a target.
        squares = [
            self.look_inside(lambda model, read: model.gate_gradients(*read), answers_T) ** 2
            for answers_T in sampled_answers(self.predictions, NUM_SAMPLED_ANSWERS, self.seed)
        ]
        mean_TF: np.ndarray = np.stack(squares).mean(axis=0, dtype=np.float32)
        return mean_TF

    @cached_property
    def short(self) -> Measured:
        """loss(t | short) and its divergence: [T] each."""
        short = self.lengths.short_context_length
        return measured_windows(
            self.model, self.chunk_L, self.lengths.targets_T, short, self.batching, self.reference
        )

    @cached_property
    def baselines(self) -> Measured:
        """What distant tokens are added to: each swapped context, or the short one alone: [T, B]."""
        if self.swap_ids_BL is None:
            return Measured.of_each([self.short])
        return Measured.of_each(
            [
                measured_in_swapped_context(self.model, self.chunk_L, swap_L, self.lengths, self.reference)
                for swap_L in self.swap_ids_BL
            ]
        )

    @cached_property
    def first_additions(self) -> Measured:
        """loss(t | short and {i}), or in swapped contexts with i, and its divergence: [T, F] each."""
        if self.swap_ids_BL is None:
            return self.measured_additions(np.empty((self.lengths.num_targets, 0), dtype=np.int64))
        of_swaps = []
        for swap_L in self.swap_ids_BL:
            restored = [
                leave_each_out(
                    self.model,
                    sequence,
                    self.batching,
                    # A sequence counts its targets from 0, the reference those of the whole chunk.
                    reference=self.reference.at(sequence.targets),
                    replacement_ids_L=self.token_ids_L,
                )
                for sequence in null_contexts(self.chunk_L, swap_L, self.lengths)
            ]
            of_swaps.append(self._of_all_targets(restored))
        return Measured(*np.mean(of_swaps, axis=0))

    def measured_additions(self, chosen_TK: np.ndarray) -> Measured:
        """loss(t | short, the chosen positions, i) and its divergence: [T, F] each, NaN of the chosen."""
        num_far_T = self.num_far_tokens_T
        is_tried_TF = np.arange(num_far_T[-1]) < num_far_T[:, None]
        # What is chosen already is no candidate.
        np.put_along_axis(is_tried_TF, chosen_TK, False, axis=1)
        target_index_N, added_N = np.nonzero(is_tried_TF)
        sets_NK = np.concatenate([chosen_TK[target_index_N], added_N[:, None]], axis=1)
        added_2TF = np.full((2, *is_tried_TF.shape), np.nan, dtype=np.float32)
        added_2TF[:, is_tried_TF] = self.measured_with(target_index_N, sets_NK).over_swaps
        return Measured(*added_2TF)

    def measured_with(self, target_index_N: np.ndarray, positions_NK: np.ndarray) -> Measured:
        """loss(t | short and the given far positions), nothing else visible, and its divergence: [N, B] each.

        A set that is given several times, as rules often select the same, is measured once. Its positions are
        in any order, none twice. B is 1, but for the ablation swap.
        """
        # Rows see the rows up to themselves, so positions must rise; and any order of a set gives one key.
        sets_NK = np.sort(positions_NK, axis=1)
        place_of: dict[bytes, int] = {}
        keys = (row.tobytes() for row in np.column_stack([target_index_N, sets_NK]))
        places_N = [place_of.setdefault(key, len(place_of)) for key in keys]
        # Places are numbered in order of appearance, so `first` lists the distinct sets by their number.
        _, first = np.unique(places_N, return_index=True)
        index_N, sets_NK = target_index_N[first], sets_NK[first]
        if self.swap_ids_BL is None:
            of_each = [self._beside_short(index_N, sets_NK)]
        else:
            of_each = [
                self._restored(swap_L, swapped, index_N, sets_NK)
                for swap_L, swapped in zip(self.swap_ids_BL, self._swapped_rows, strict=True)
            ]
        return Measured(*(values_NB[places_N] for values_NB in Measured.of_each(of_each)))

    def _beside_short(self, target_index_N: np.ndarray, sets_NK: np.ndarray) -> Measured:
        """loss(t | short and the sets) and its divergence: [N] each."""
        targets_N1 = self.lengths.targets_T[target_index_N, None]
        short_NC = targets_N1 + np.arange(-self.lengths.short_context_length, 0)
        tokens_NC = np.concatenate([self.token_ids_L[sets_NK], self.chunk_L[short_NC]], axis=1)
        queries_N1 = np.full_like(targets_N1, tokens_NC.shape[1] - 1)
        rows = Rows(tokens_NC, np.concatenate([sets_NK, short_NC], axis=1), None, queries_N1)
        contexts = Pass(rows, self.chunk_L[targets_N1], target_index_N[:, None])
        return measured_contexts(self.model, self.batching, self.reference, contexts).flat

    @cached_property
    def _swapped_rows(self) -> list[Prefix]:
        """Each swap's distant tokens, read once: all targets and sets share those before a first token."""
        assert self.swap_ids_BL is not None
        num_far = int(self.num_far_tokens_T[-1])
        return [read_prefix(self.model, swap_L[:num_far]) for swap_L in self.swap_ids_BL]

    def _restored(
        self, swap_L: np.ndarray, swapped: Prefix, target_index_N: np.ndarray, sets_NK: np.ndarray
    ) -> Measured:
        """loss(t | B with the sets) and its divergence in one swapped context: [N] each.

        Only rows from the first restored token on depend on the set.
        """

        def restoration(batch_B: np.ndarray) -> Pass:
            sets_BK = sets_NK[batch_B]
            # `by_start` sorts, so the first set of a batch begins earliest, and the shared prefix ends there.
            start = int(sets_BK[0, 0])
            index_B1 = target_index_N[batch_B, None]
            targets_B1 = self.lengths.targets_T[index_B1]
            # To the last target of the batch: rows behind an earlier target run in vain, but change nothing.
            positions_1C = np.arange(start, targets_B1.max())[None]
            is_far_BC = positions_1C < self.num_far_tokens_T[index_B1]
            # Near tokens are always the chunk's own; what is far differs by target within a batch.
            tokens_BC = np.where(is_far_BC, swap_L[positions_1C], self.chunk_L[positions_1C])
            np.put_along_axis(tokens_BC, sets_BK - start, self.token_ids_L[sets_BK], axis=1)
            rows = Rows(tokens_BC, positions_1C, None, targets_B1 - 1 - start)
            prefix = swapped.first(start) if start else None
            return Pass(rows, self.chunk_L[targets_B1], index_B1, prefix)

        batches = self.batching.by_start(sets_NK[:, 0], self.lengths.long_context_length - 1, "right")
        passes = measured_passes(self.model, self.reference, map(restoration, batches))
        # The inverse permutation: back from the order of the batches to that of the sets.
        place_N = np.argsort(np.concatenate(batches))
        return Measured(*np.array(Measured.joined(passes).flat)[:, place_N])

    def look_inside(self, inspect: Inspect, answers_T: np.ndarray | None = None) -> np.ndarray:
        """Values of `inspect` for each target's distant tokens, read in the long context: [..., T, F].

        With `answers_T` (int64 [T]) these tokens are predicted instead of the targets.
        """
        model = self.model
        parts = []
        for sequence in self.sequences:
            tokens_1S, positions_1S, visible_1SS, queries_1T = sequence.rows.on_device(model.device)
            if visible_1SS is not None:
                # Rules look at all rows, and the packed mask is of the last ones only.
                visible_1SS = visibility_of_all(visible_1SS, tokens_1S.shape[1])
            ids_T = sequence.target_ids_T if answers_T is None else answers_T[sequence.targets]
            target_ids_T = to_device(ids_T, model.device)
            read = ReadText(tokens_1S, positions_1S, visible_1SS, queries_1T[0], target_ids_T)
            values_TS = inspect(model, read)
            num_far_T = sequence.num_far_tokens_T
            parts.append(far_context_only(values_TS[..., : num_far_T[-1]].cpu().numpy(), num_far_T))
        return self._of_all_targets(parts)

    def _of_all_targets(self, parts: Iterable[Sequence[np.ndarray] | np.ndarray]) -> np.ndarray:
        """[..., T, F] of all targets, from the values of sequences that hold a few targets each."""
        num_far = self.num_far_tokens_T[-1]
        padded = []
        for part in map(np.asarray, parts):
            widths = [(0, 0)] * (part.ndim - 1) + [(0, num_far - part.shape[-1])]
            # Each part is as wide as the distant context of its own last target.
            padded.append(np.pad(part, widths, constant_values=np.nan))
        return np.concatenate(padded, axis=-2)


def sampled_answers(predictions: Predictions, num_answers: int, seed: Sequence[int]) -> list[np.ndarray]:
    """Tokens drawn from each of T predictions, spread over it evenly: `num_answers` arrays int64 [T]."""
    # In float32 a running sum near 1 swallows rare tokens.
    cumulated_TV = predictions.probs_TV.double().cumsum(-1).cpu().numpy()
    # The 2 keeps this stream apart from that of rules, which draw from `seed` itself.
    places_T = np.random.default_rng([*seed, 2]).random(len(cumulated_TV))
    return [
        np.array(
            [
                # Systematic sampling: one draw, then equal steps through the distribution, which has less
                # variance than independent draws. Rounded probabilities sum to row_V[-1], not quite to 1.
                np.searchsorted(row_V, (place + answer) / num_answers * row_V[-1], side="right")
                for row_V, place in zip(cumulated_TV, places_T, strict=True)
            ]
        ).clip(max=cumulated_TV.shape[1] - 1)
        for answer in range(num_answers)
    ]


def far_contexts(
    model: CausalLM,
    lengths: ContextLengths,
    batching: Batching,
    chunk_L: np.ndarray,
    null_chunk_L: np.ndarray,
    **options: Any,
) -> dict[str, FarContext]:
    """The chunk's own distant context and its null, another document's tokens; nothing is measured yet.

    `options` are fields of `FarContext`; swaps are of documents that are neither of the two.
    """
    own = FarContext(model, lengths, batching, chunk_L, chunk_L, **options)
    null = FarContext(model, lengths, batching, chunk_L, null_chunk_L, own, **options)
    return {OWN: own, OTHER_DOCUMENT: null}


def sparse_contexts(
    distant_context: FarContext,
    positions_of_rule: Mapping[str, np.ndarray],
    numbers_of_rule: Mapping[str, Sequence[int]],
) -> dict[str, Measured]:
    """loss(t | short context and S_k), and its divergence, for every rule: rule -> [T, J, B] each.

    Args:
        positions_of_rule: rule -> [T, K], most influential first, whichever model chose them.
        numbers_of_rule: rule -> J numbers of tokens added to the short context, at most K.
    """
    num_targets = distant_context.lengths.num_targets
    of_rule_and_k: dict[tuple[str, int], np.ndarray] = {}
    # One k at a time: the sets of a batch are of one size.
    for k in sorted({k for numbers in numbers_of_rule.values() for k in numbers}):
        # All rules at once: they often choose the same.
        rules = [rule for rule in positions_of_rule if k in numbers_of_rule[rule]]
        measured = distant_context.measured_with(
            np.tile(np.arange(num_targets), len(rules)),
            np.concatenate([positions_of_rule[rule][:, :k] for rule in rules]),
        )
        of_rules = np.reshape(measured, (2, len(rules), num_targets, -1)).swapaxes(0, 1)
        of_rule_and_k |= {(rule, k): values_2TB for rule, values_2TB in zip(rules, of_rules, strict=True)}
    return {
        rule: Measured(*np.stack([of_rule_and_k[rule, k] for k in numbers], axis=-2))
        for rule, numbers in numbers_of_rule.items()
    }
