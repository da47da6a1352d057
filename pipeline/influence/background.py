"""The intervention `background`: what is not there is another document's, and S_k is put among its tokens.

The theory's own picture: all that is outside of S* is drawn from a background. What any far context gives is
there from the start, so that only what this document's tokens add is measured:

    loss(t | B)             every far token a foreign document's, the short context t's own: the baseline
    loss(t | B with i)      one far token restored; one pass a token for all targets, as in leave-one-out
    loss(t | B with S_k)    the sparse context

Of a null the restored tokens are those of a third document. Several foreign documents can be averaged over.

Shapes: L chunk, T targets, F far-context positions (of the last target), N contexts, K positions of a set,
B backgrounds.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipeline.influence.context_loss import Measured, measured_contexts
from pipeline.influence.far_context import FarContext
from pipeline.influence.foreign_context import measured_in_foreign_context
from pipeline.influence.leave_one_out import LeftOut, leave_each_out, null_contexts, read_everything
from pipeline.influence.random_subsets import SubsetEffects


@dataclass(frozen=True, eq=False, kw_only=True)
class FarContextInBackground(FarContext):
    """A far context whose tokens stand among those of other documents, which replace what is left out."""

    background_ids_BL: np.ndarray
    """Chunks of other documents, whose tokens fill all that is left out: int64."""

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

    @cached_property
    def subset_effects(self) -> SubsetEffects:
        """What each token does on average, over random subsets of the far context among B's tokens."""
        effects = [self._subset_effects(background_L) for background_L in self.background_ids_BL]
        return SubsetEffects(*(np.mean(values, axis=0) for values in zip(*effects, strict=True)))

    def _measure_sets(self, target_index_N: np.ndarray, sets_NK: np.ndarray) -> Measured:
        targets_N = self.lengths.targets_T[target_index_N]
        num_rows = self.lengths.long_context_length - 1
        positions_NC = np.tile(np.arange(num_rows), (len(targets_N), 1))
        is_far_NC = positions_NC < self.num_far_tokens_T[target_index_N, None]
        of_backgrounds = []
        for background_L in self.background_ids_BL:
            tokens_NC = np.where(is_far_NC, background_L[:num_rows], self.chunk_L[:num_rows])
            np.put_along_axis(tokens_NC, sets_NK, self.token_ids_L[sets_NK], axis=1)
            measured = measured_contexts(
                self.model, tokens_NC, positions_NC, self.chunk_L[targets_N], self.measurement.batching,
                self.reference, target_index_N, query_rows_N=targets_N - 1,
            )  # fmt: skip
            of_backgrounds.append(measured)
        return Measured(*(np.mean(values, axis=0) for values in zip(*of_backgrounds, strict=True)))

    def _mean_over_backgrounds(self, parts: list[np.ndarray]) -> np.ndarray:
        """[T, F], of parts for each background after another that hold a few targets each."""
        num_parts = len(parts) // len(self.background_ids_BL)
        of_each = [
            self._all_targets(parts[first : first + num_parts]) for first in range(0, len(parts), num_parts)
        ]
        return np.mean(of_each, axis=0)
