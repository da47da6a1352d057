"""One far context of a chunk, and everything a selection rule may ask about it, measured when first asked.

Several rules share what they need alike: the leave-one-out passes are run once, or not at all where no rule
asks for them. Every pass tells losses and divergences both. A divergence is from the prediction under the
chunk's own long context, but for `divergence_TF`.

Shapes: L chunk, T targets, F far-context positions (of the last target), N contexts, K positions of a set,
C context (K + s tokens).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Optional, TypeVar

import numpy as np
import torch

from pipeline.errors import InputError
from pipeline.influence.context_lengths import ContextLengths
from pipeline.influence.context_loss import Measured, measured_contexts, measured_windows, read_alone
from pipeline.influence.leave_one_out import (
    Everything,
    LeftOut,
    PackedSequence,
    far_context_only,
    leave_each_out,
    read_everything,
)
from pipeline.influence.leave_one_out_search import search_influences
from pipeline.influence.measurement import Measurement
from pipeline.influence.random_subsets import SubsetEffects, measured_in_subsets, random_subsets
from pipeline.models.causal_lm import CausalLM, Prefix
from pipeline.models.divergence import Predictions
from pipeline.models.inspectable_lm import InspectableLM, NotInspectableError, attention_mass

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
