"""One distant context of a chunk, and everything a selection rule may ask about it, measured when first
asked.

Leaving out is done once for all targets together: one pass over a sequence without row r gives
loss(t | long without r) for every target at once, so a chunk costs one pass per removed token, not one
per (target, token) pair. Rows before r are as they were, so they are read once and shared.

Under the ablation `swap` what is not there is another document's, and S_k is put among its tokens.
That is the theory's own picture: all outside of S* is drawn from a swap. What any distant context gives is
there from the start, so that only what this document's tokens add is measured:

    loss(t | B)             every distant token another document's, the short context t's own: the baseline
    loss(t | B with i)      one distant token restored; one pass per token for all targets
    loss(t | B with S_k)    the sparse context; the rows before its first token are B's alone, and read once

A choice is made in the search's swaps and tried in others. Of a null the restored tokens are those of a
document that is none of these. A divergence is from the prediction under the chunk's own long context, but
for `influence`.

Shapes: L chunk, T targets, F distant-context positions (of the last target), R removed rows, S rows, N
contexts or subsets, K positions of a set or largest k, C context, J studied values of k, B swaps or sequences
of a pass, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Optional

import numpy as np
import torch

from sparsity_length.measuring.contexts import (
    Batching,
    FullPass,
    Measured,
    PackedSequence,
    Pass,
    Rows,
    full_pass,
    measured_passes,
    measured_windows,
    null_contexts,
    own_context,
    read_prefix,
)
from sparsity_length.measuring.search import far_context_only, leave_one_out, leave_out, single_tokens
from sparsity_length.measuring.settings import ContextLengths
from sparsity_length.models.interface import (
    CausalLM,
    Predictions,
    ReadText,
    to_device,
    visibility_of_all,
)
from sparsity_length.results.schemas import OTHER_DOCUMENT, OWN

Swaps = np.ndarray | Sequence[None]
"""What replaces what is left out, one after another: chunks of other documents [B, L] under the ablation
`swap`; under `mask` (None,), which is nothing."""


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
    """For a null, the chunk's own distant context; None: this is the own one."""
    search_swaps_BL: Swaps = (None,)
    """What a search puts in place of left-out tokens; influences are means over these."""
    trial_swaps_BL: Swaps = (None,)
    """Swapped contexts that evaluate a selection. A token selected in a swapped context may only undo what
    its stand-in does there, so these are of other documents."""
    screen: int | None = None
    """Tokens that are left out exactly, found by estimates; None: each token is."""
    seed: Sequence[int] | np.random.Generator = (0,)
    """Seed of rules that draw, or a generator to draw from as it is."""

    def generator(self, *stream: int) -> np.random.Generator:
        """The generator of a stream of the seed, the same each time."""
        if isinstance(self.seed, np.random.Generator):
            return self.seed
        return np.random.default_rng([*self.seed, *stream])

    @property
    def num_far_tokens_T(self) -> np.ndarray:
        """Position p is distant context of target t where p < num_far_tokens_T[t]."""
        return self.lengths.num_far_tokens_T

    @cached_property
    def sequences(self) -> list[tuple[PackedSequence, FullPass]]:
        """All targets after their long contexts, a few targets each, and what reading these tells."""
        if self.own is None:
            sequences = [own_context(self.chunk_L, self.lengths)]
        else:
            sequences = [*null_contexts(self.chunk_L, self.token_ids_L, self.lengths)]
        return [(sequence, full_pass(self.model, sequence)) for sequence in sequences]

    @property
    def long_losses_T(self) -> np.ndarray:
        """loss(t | this distant context and short), nats."""
        return np.concatenate([full.losses_T for _, full in self.sequences])

    @cached_property
    def predictions(self) -> Predictions:
        """What the model predicts from this distant context and the short ones."""
        return Predictions.together([full.predictions for _, full in self.sequences])

    @property
    def reference(self) -> Predictions:
        """What the model predicts from the chunk's own long context."""
        return (self.own or self).predictions

    @cached_property
    def _effects(self) -> np.ndarray:
        swaps = self.search_swaps_BL
        parts = [
            leave_one_out(self.model, sequence, self.batching, full, swaps, self.screen)
            for sequence, full in self.sequences
        ]
        return self._of_all_targets(parts)

    @property
    def influence(self) -> Measured:
        """What leaving out token i alone does; NaN of tokens that a screen only estimates: [T, F] each.

        loss(t | long without i) - loss(t | long), and KL(p(.|long) || p(.|long without i)), nats; of a null,
        long is with its own distant context.
        """
        return Measured(*self._effects[0])

    @property
    def necessity(self) -> Measured:
        """Scores to rank by: the same, and estimates of the others, all by value, as `leave_one_out` says."""
        return Measured(*self._effects[1])

    @property
    def _nothing_T0(self) -> np.ndarray:
        """No distant token for each target."""
        return np.empty((self.lengths.num_targets, 0), dtype=np.int64)

    @cached_property
    def short(self) -> Measured:
        """loss(t | short) and its divergence: [T] each."""
        return self._beside_short(np.arange(self.lengths.num_targets), self._nothing_T0)

    @cached_property
    def baselines(self) -> Measured:
        """What chosen tokens are added to: each trial's swapped context, or the short one alone: [T, B].

        What is lost by a swapped context is the *document-specific gain*: the part of the long context's gain
        that is this document's.
        """
        return self.measured_with(np.arange(self.lengths.num_targets), self._nothing_T0)

    @cached_property
    def first_additions(self) -> Measured:
        """loss(t | short and {i}), or in the search's swapped contexts, and its divergence: [T, F] each."""
        of_each = [
            self.measured_additions(self._nothing_T0) if swap_L is None else self._restored_alone(swap_L)
            for swap_L in self.search_swaps_BL
        ]
        return Measured(*np.mean(of_each, axis=0))

    def _restored_alone(self, swap_L: np.ndarray) -> np.ndarray:
        """loss(t | B with i) and its divergence in one swapped context, one pass per token: [2, T, F]."""
        parts = []
        for sequence in null_contexts(self.chunk_L, swap_L, self.lengths):
            full = full_pass(self.model, sequence)
            # A sequence counts its targets from 0, the reference those of the whole chunk.
            reference = self.reference.at(sequence.targets)
            restored = leave_out(
                self.model,
                sequence,
                self.batching,
                full,
                single_tokens(np.arange(sequence.num_far_tokens_T[-1])),
                reference=reference,
                replacement_ids_L=self.token_ids_L,
            )
            parts.append(far_context_only(np.swapaxes(restored, 1, 2), sequence.num_far_tokens_T))
        return self._of_all_targets(parts)

    def measured_additions(self, chosen_TK: np.ndarray) -> Measured:
        """loss(t | short, the chosen positions, i) and its divergence: [T, F] each, NaN of the chosen.

        All else is removed: of searches that build up a context.
        """
        is_tried_TF = np.arange(self.num_far_tokens_T[-1]) < self.num_far_tokens_T[:, None]
        # What is chosen already is no candidate.
        np.put_along_axis(is_tried_TF, chosen_TK, False, axis=1)
        target_index_N, added_N = np.nonzero(is_tried_TF)
        sets_NK = np.column_stack([chosen_TK[target_index_N], added_N])
        added_2TF = np.full((2, *is_tried_TF.shape), np.nan, dtype=np.float32)
        added_2TF[:, is_tried_TF] = self._measured_sets(target_index_N, sets_NK, (None,)).over_swaps
        return Measured(*added_2TF)

    def measured_with(self, target_index_N: np.ndarray, positions_NK: np.ndarray) -> Measured:
        """loss(t | short and the given far positions), nothing else visible, and its divergence: [N, B] each.

        Under the ablation `swap` all else is a trial swap's. Positions of a set are in any order, none twice.
        """
        return self._measured_sets(target_index_N, positions_NK, self.trial_swaps_BL)

    def _measured_sets(
        self, target_index_N: np.ndarray, positions_NK: np.ndarray, swaps_BL: Swaps
    ) -> Measured:
        """`measured_with` in these swaps."""
        # Rows see the rows up to themselves, so positions must rise. A set that is given several times, as
        # rules often select the same, is measured once.
        sets_NK = np.column_stack([target_index_N, np.sort(positions_NK, axis=1)])
        distinct_MK, places_N = np.unique(sets_NK, axis=0, return_inverse=True)
        index_M = distinct_MK[:, 0]
        sets_MK = distinct_MK[:, 1:]
        of_each = [
            self._beside_short(index_M, sets_MK)
            if swap_L is None
            else self._restored(swap_L, index_M, sets_MK)
            for swap_L in swaps_BL
        ]
        return Measured(*np.stack(of_each, axis=-1)[:, places_N.ravel()])

    def _beside_short(self, target_index_N: np.ndarray, sets_NK: np.ndarray) -> Measured:
        """loss(t | short and the sets) and its divergence: [N] each."""
        return measured_windows(
            self.model,
            self.chunk_L,
            self.lengths.targets_T[target_index_N],
            self.lengths.short_context_length,
            self.batching,
            self.reference,
            index_N=target_index_N,
            far=(self.token_ids_L, sets_NK),
        )

    def _restored(self, swap_L: np.ndarray, target_index_N: np.ndarray, sets_NK: np.ndarray) -> Measured:
        """loss(t | B with the sets) and its divergence in one swapped context: [N] each.

        Only rows from the first restored token on depend on the set: those before are read once.
        """
        swapped = read_prefix(self.model, swap_L[: self.num_far_tokens_T[-1]])
        # Of an empty set the short context is the first to differ.
        starts_N = np.column_stack([sets_NK, self.num_far_tokens_T[target_index_N]])[:, 0]
        batches = self.batching.by_start(starts_N, self.lengths.long_context_length - 1)

        def restorations() -> Iterator[Pass]:
            for batch_B in batches:
                sets_BK = sets_NK[batch_B]
                # `by_start` sorts, so the first set begins earliest, and the shared prefix ends there.
                start = int(starts_N[batch_B[0]])
                index_B1 = target_index_N[batch_B, None]
                targets_B1 = self.lengths.targets_T[index_B1]
                # To the last target of the batch: rows behind an earlier target run in vain.
                positions_1C = np.arange(start, targets_B1.max())[None]
                is_far_BC = positions_1C < self.num_far_tokens_T[index_B1]
                # Near tokens are always the chunk's own; what is far differs by target within a batch.
                tokens_BC = np.where(is_far_BC, swap_L[positions_1C], self.chunk_L[positions_1C])
                np.put_along_axis(tokens_BC, sets_BK - start, self.token_ids_L[sets_BK], axis=1)
                rows = Rows(tokens_BC, positions_1C, None, targets_B1 - 1 - start)
                yield Pass(rows, self.chunk_L[targets_B1], index_B1, swapped.first(start) if start else None)

        restored_2N1 = np.concatenate(measured_passes(self.model, self.reference, restorations()), axis=1)
        # The inverse permutation: back from the order of the batches to that of the sets.
        return Measured(*restored_2N1[:, np.argsort(np.concatenate(batches)), 0])

    def look_inside(
        self, inspect: Callable[[CausalLM, ReadText], torch.Tensor], answers_T: np.ndarray | None = None
    ) -> np.ndarray:
        """Values of `inspect` for each target's distant tokens, read in the long context: [..., T, F].

        Given a model and what it reads, `inspect` has a number for each target and row, [T, S], or several,
        [..., T, S]. With `answers_T` (int64 [T]) these tokens are predicted instead of the targets.
        """
        parts = []
        for sequence, _ in self.sequences:
            tokens_1S, positions_1S, visible_1SS, queries_1T = sequence.rows.on_device(self.model.device)
            if visible_1SS is not None:
                # Rules look at all rows, and the packed mask is of the last ones only.
                visible_1SS = visibility_of_all(visible_1SS, tokens_1S.shape[1])
            ids_T = sequence.target_ids_T if answers_T is None else answers_T[sequence.targets]
            targets_T = to_device(ids_T, self.model.device)
            values_TS = inspect(
                self.model, ReadText(tokens_1S, positions_1S, visible_1SS, queries_1T[0], targets_T)
            )
            num_far_T = sequence.num_far_tokens_T
            parts.append(far_context_only(values_TS[..., : num_far_T[-1]].cpu().numpy(), num_far_T))
        return self._of_all_targets(parts)

    def _of_all_targets(self, parts: Sequence[Measured | np.ndarray]) -> np.ndarray:
        """[..., T, F] of all targets, from the values of sequences that hold a few targets each."""
        padded = []
        for part_TF in map(np.asarray, parts):
            # Each part is as wide as the distant context of its own last target.
            missing = *part_TF.shape[:-1], self.num_far_tokens_T[-1] - part_TF.shape[-1]
            padded.append(np.concatenate([part_TF, np.full(missing, np.nan, np.float32)], axis=-1))
        return np.concatenate(padded, axis=-2)


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
    distant_context: FarContext, choices: Mapping[str, tuple[np.ndarray, Sequence[int]]]
) -> dict[str, Measured]:
    """loss(t | short context and S_k), and its divergence, for every rule: rule -> [T, J, B] each.

    `choices` are of each rule the positions [T, K], most influential first, whichever model chose them, and
    the J numbers of them that are added to the short context, ascending, at most K.
    """
    num_targets = distant_context.lengths.num_targets
    found: dict[str, list[np.ndarray]] = {rule: [] for rule in choices}
    """Rule -> losses and divergences [2, T, B] with each of its numbers."""
    # One k at a time: the sets of a batch are of one size.
    for k in sorted({k for _, numbers in choices.values() for k in numbers}):
        # All rules at once: they often choose the same.
        of_rule = {rule: positions[:, :k] for rule, (positions, numbers) in choices.items() if k in numbers}
        index_N = np.tile(np.arange(num_targets), len(of_rule))
        measured = distant_context.measured_with(index_N, np.concatenate([*of_rule.values()]))
        # The N sets are of one rule after another.
        of_rules = np.split(np.stack(measured), len(of_rule), axis=1)
        for rule, values_2TB in zip(of_rule, of_rules, strict=True):
            found[rule].append(values_2TB)
    return {rule: Measured(*np.stack(of_numbers, axis=2)) for rule, of_numbers in found.items()}
