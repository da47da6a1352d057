"""The intervention `background`: what is not there is another document's, and S_k is put among its tokens.

The theory's own picture: all that is outside of S* is drawn from a background. What any far context gives is
there from the start, so that only what this document's tokens add is measured:

    loss(t | B)             every far token a foreign document's, the short context t's own: the baseline
    loss(t | B with i)      one far token restored; one pass a token for all targets, as in leave-one-out
    loss(t | B with S_k)    the sparse context; the rows before its first token are B's alone, and read once

Of a null the restored tokens are those of a third document. Several foreign documents can be averaged over.

Shapes: L chunk, T targets, F far-context positions (of the last target), N contexts, K positions of a set,
B backgrounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from pipeline.influence.context_loss import Measured, measured_contexts
from pipeline.influence.far_context import FarContext
from pipeline.influence.foreign_context import measured_in_foreign_context
from pipeline.influence.leave_one_out import LeftOut, leave_each_out, null_contexts, read_everything
from pipeline.models.causal_lm import Prefix


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
