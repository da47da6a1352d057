"""One far context of a chunk, and everything a selection rule may ask about it, measured when first asked.

Several rules share what they need alike: the leave-one-out passes are run once, or not at all where no rule
asks for them.

Shapes: L chunk, T targets, F far-context positions (of the last target), N contexts, K positions of a set,
C context (K + s tokens).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from pipeline.errors import InputError
from pipeline.influence.batching import Batching
from pipeline.influence.context_lengths import ContextLengths
from pipeline.influence.context_loss import context_losses, long_context_losses
from pipeline.influence.leave_one_out import LeftOut, PackedSequence, far_context_only, leave_each_out
from pipeline.influence.leave_one_out_search import search_influences
from pipeline.models.causal_lm import CausalLM
from pipeline.models.inspectable_lm import InspectableLM


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
    model: CausalLM
    lengths: ContextLengths
    batching: Batching
    with_divergence: bool = False
    """Whether the leave-one-out passes measure the divergence too."""
    substitute_ids_L: np.ndarray | None = None
    """Stand-ins for left-out tokens (intervention `substitute`); None: they are removed."""
    search_budget: float | None = None
    """What a search for the largest influences may take, as a share of what all of them take."""
    _known_losses: dict[bytes, np.float32] = field(default_factory=dict, init=False, repr=False)
    """`_set_keys` -> the loss of a set that is likely to be asked for again."""

    @property
    def num_far_tokens_T(self) -> np.ndarray:
        """Position p is far context of target t where p < num_far_tokens_T[t]."""
        return self.lengths.num_far_tokens_T

    @cached_property
    def _left_out(self) -> LeftOut:
        parts = [
            leave_each_out(
                self.model,
                sequence,
                self.batching,
                with_divergence=self.with_divergence,
                substitute_ids_L=self.substitute_ids_L,
            )
            for sequence in self.sequences
        ]
        divergences = [part.divergence_TF for part in parts if part.divergence_TF is not None]
        return LeftOut(
            np.concatenate([part.full_losses_T for part in parts]),
            self._all_targets([part.influence_TF for part in parts]),
            self._all_targets(divergences) if divergences else None,
        )

    @property
    def long_losses_T(self) -> np.ndarray:
        """loss(t | long), nats: of the leave-one-out passes, which begin with it, where they were run."""
        if "_left_out" in self.__dict__ or len(self.sequences) > 1:
            return self._left_out.full_losses_T
        return long_context_losses(self.model, self.token_ids_L, self.lengths.targets_T)

    @property
    def influence_TF(self) -> np.ndarray:
        """loss(t | long without i) - loss(t | long), nats."""
        return self._left_out.influence_TF

    @cached_property
    def searched_influence_TF(self) -> np.ndarray:
        """`influence_TF` of the tokens that a search within `search_budget` left out, NaN for the others."""
        assert self.search_budget is not None, "no budget for a search was given"
        parts = [
            search_influences(self.model, sequence, self.batching, self.search_budget, self.substitute_ids_L)
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

    @property
    def divergence_TF(self) -> np.ndarray:
        """KL(p(.|long) || p(.|long without i)), nats; needs `with_divergence`."""
        divergence_TF = self._left_out.divergence_TF
        assert divergence_TF is not None, "the passes were run without measuring the divergence"
        return divergence_TF

    @cached_property
    def attention_TF(self) -> np.ndarray:
        """Attention of the row that predicts t to token i, mean over layers and heads."""
        model = self._inspectable("attention")
        return self._inspected(
            lambda tokens, positions, visible, queries, targets: model.attention_mass(
                tokens, positions, visible, queries
            )
        )

    @cached_property
    def gate_gradient_TF(self) -> np.ndarray:
        """Derivative of loss(t | long) by the gate of token i, nats; negative = removal should hurt."""
        return self._inspected(self._inspectable("gradient").gate_gradients)

    @cached_property
    def first_addition_losses_TF(self) -> np.ndarray:
        """loss(t | short and {i}), nats."""
        return self.addition_losses(np.empty((self.lengths.targets_per_chunk, 0), dtype=np.int64))

    def addition_losses(self, chosen_TK: np.ndarray) -> np.ndarray:
        """loss(t | short, the chosen positions and {i}), nats: float32 [T, F], NaN for the chosen too."""
        is_candidate_TF = np.arange(self.num_far_tokens_T[-1]) < self.num_far_tokens_T[:, None]
        np.put_along_axis(is_candidate_TF, chosen_TK, False, axis=1)
        target_index_N, added_N = np.nonzero(is_candidate_TF)
        sets_NK = np.sort(np.concatenate([chosen_TK[target_index_N], added_N[:, None]], axis=1), axis=1)
        losses_N = self._losses_of_sets(target_index_N, sets_NK)
        losses_TF = np.full(is_candidate_TF.shape, np.nan, dtype=np.float32)
        losses_TF[is_candidate_TF] = losses_N
        # Of all these sets those that a rule will select: single tokens, and of larger sets the best.
        is_best_N = losses_N == np.nanmin(losses_TF, axis=1)[target_index_N]
        is_kept_N = is_best_N | (sets_NK.shape[1] == 1)
        keys = _set_keys(target_index_N[is_kept_N], sets_NK[is_kept_N])
        self._known_losses.update(zip(keys, losses_N[is_kept_N], strict=True))
        return losses_TF

    def losses_with(self, target_index_N: np.ndarray, positions_NK: np.ndarray) -> np.ndarray:
        """loss(t | short and the given far positions), nothing else visible: float32 [N], nats.

        A set is computed once, however often it is asked for: rules often select the same.

        Args:
            target_index_N: which target each set is for, from 0.
            positions_NK: far positions of that target, in any order, none twice.
        """
        sets_NK = np.sort(positions_NK, axis=1)
        keys = _set_keys(target_index_N, sets_NK)
        row_of_unknown = {key: row for row, key in enumerate(keys) if key not in self._known_losses}
        if row_of_unknown:
            rows = list(row_of_unknown.values())
            losses = self._losses_of_sets(target_index_N[rows], sets_NK[rows])
            self._known_losses.update(zip(row_of_unknown, losses, strict=True))
        return np.array([self._known_losses[key] for key in keys], dtype=np.float32)

    def _losses_of_sets(self, target_index_N: np.ndarray, sets_NK: np.ndarray) -> np.ndarray:
        """`losses_with` of sets in ascending order, each computed."""
        targets_N1 = self.lengths.targets_T[target_index_N, None]
        short_NC = targets_N1 + np.arange(-self.lengths.short_context_length, 0)
        return context_losses(
            self.model,
            np.concatenate([self.token_ids_L[sets_NK], self.chunk_L[short_NC]], axis=1),
            np.concatenate([sets_NK, short_NC], axis=1),
            self.chunk_L[targets_N1[:, 0]],
            self.batching,
        )

    def _inspectable(self, rule: str) -> InspectableLM:
        if not isinstance(self.model, InspectableLM):
            raise InputError(
                f"rule '{rule}' looks inside the model, which {type(self.model).__name__} does not offer;"
                " leave it out of --rules"
            )
        return self.model

    def _inspected(self, inspect: Callable[..., torch.Tensor]) -> np.ndarray:
        """What `inspect` tells of the far rows; it takes the arguments of `gate_gradients`."""
        parts = []
        for sequence in self.sequences:
            values_TS = inspect(
                self._on_device(sequence.token_ids_S)[None],
                self._on_device(sequence.position_ids_S)[None],
                None if sequence.visible_SS is None else self._on_device(sequence.visible_SS)[None],
                self._on_device(sequence.query_rows_T),
                self._on_device(sequence.target_ids_T),
            )
            num_far_T = sequence.num_far_tokens_T
            parts.append(far_context_only(values_TS[:, : num_far_T[-1]].cpu().numpy(), num_far_T))
        return self._all_targets(parts)

    def _on_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, device=self.model.device)

    def _all_targets(self, parts: list[np.ndarray]) -> np.ndarray:
        """[T, F] of all targets, from sequences that hold a few each."""
        num_far = parts[-1].shape[1]  # the last target's far context is the longest
        return np.concatenate(
            [np.pad(part, ((0, 0), (0, num_far - part.shape[1])), constant_values=np.nan) for part in parts]
        )


def _set_keys(target_index_N: np.ndarray, sets_NK: np.ndarray) -> list[bytes]:
    """A key for each target and set of positions in ascending order; its length tells how many they are."""
    return [row.tobytes() for row in np.column_stack([target_index_N, sets_NK]).astype(np.int64)]
