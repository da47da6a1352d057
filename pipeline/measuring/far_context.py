"""What a token does on average over random contexts: its Banzhaf value, by sampling.

The Banzhaf value of far token i is the mean, over all subsets of the other far tokens, of what adding i
changes (Banzhaf 1965; for data: Wang and Jia 2023, "Data Banzhaf"). It is estimated here from N subsets,
each token in or out by the toss of a coin, shared by all targets of a chunk and by all tokens: the mean over
the subsets without i less the mean over those with it ("maximum sample reuse"). A choice by it cannot be
fitted to a single context. Subsets come in pairs, one and the rest, so that every token is in half of them.
Of subsets of one size the mean would not be the value: with i in it, one holds fewer of the others.

Every target sees the tokens of a subset that lie in its own far context, and its own short context: the
packed sequence of the null, the rows outside the subset left out, or another document's tokens in them.

Shapes: L chunk, T targets, F far-context positions (of the last target), N subsets, V vocabulary, S rows.

One far context of a chunk, and everything a selection rule may ask about it, measured when first asked.

Several rules share what they need alike: the leave-one-out passes are run once, or not at all where no rule
asks for them. Every pass tells losses and divergences both. A divergence is from the prediction under the
chunk's own long context, but for `divergence_TF`.

Shapes: L chunk, T targets, F far-context positions (of the last target), N contexts, K positions of a set,
C context (K + s tokens).

The intervention `background`: what is not there is another document's, and S_k is put among its tokens.

The theory's own picture: all that is outside of S* is drawn from a background. What any far context gives is
there from the start, so that only what this document's tokens add is measured:

    loss(t | B)             every far token a foreign document's, the short context t's own: the baseline
    loss(t | B with i)      one far token restored; one pass a token for all targets, as in leave-one-out
    loss(t | B with S_k)    the sparse context; the rows before its first token are B's alone, and read once

Of a null the restored tokens are those of a third document. Several foreign documents can be averaged over.

Shapes: L chunk, T targets, F far-context positions (of the last target), N contexts, K positions of a set,
B backgrounds.

From far contexts to selections to sparse contexts, for a chunk's own far context and for its null.

Shapes: L chunk, T targets, K largest k, J studied values of k, N rules times targets, B backgrounds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Optional, TypeVar

import numpy as np
import torch

from pipeline.cli import InputError
from pipeline.measuring.contexts import (
    Batching,
    Everything,
    LeftOut,
    Measured,
    Measurement,
    PackedSequence,
    far_context_only,
    leave_each_out,
    measured_contexts,
    measured_in_foreign_context,
    measured_windows,
    null_contexts,
    own_context,
    read_alone,
    read_everything,
)
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.rules import find_rule
from pipeline.models.interface import (
    CausalLM,
    InspectableLM,
    NotInspectableError,
    Predictions,
    Prefix,
    attention_mass,
    losses_and_divergences,
)
from pipeline.results.schemas import OTHER_DOCUMENT, OWN


class SubsetEffects(NamedTuple):
    """How much each far token lowers on average, float32 [T, F], nats; NaN beyond a target's far context."""

    losses: np.ndarray
    """Mean loss without the token less mean loss with it; positive = it helps."""
    divergences: np.ndarray
    """The same of the divergence."""

    @classmethod
    def over_subsets(
        cls, measured_NT: Measured, kept_NF: np.ndarray, num_far_tokens_T: np.ndarray
    ) -> "SubsetEffects":
        """The average effects of all far tokens over the subsets."""
        return cls(
            *(
                far_context_only(mean_differences(values_NT, kept_NF), num_far_tokens_T)
                for values_NT in measured_NT
            )
        )


def measured_in_subsets(
    model: CausalLM,
    far_token_ids_L: np.ndarray,
    chunk_L: np.ndarray,
    lengths: ContextLengths,
    batching: Batching,
    reference: Predictions,
    kept_NF: np.ndarray,
    background_L: np.ndarray | None = None,
) -> Measured:
    """Losses and divergences of every target under every subset: float32 [N, T], nats, one pass a subset.

    Args:
        far_token_ids_L: where the far tokens come from.
        chunk_L: where short contexts and targets come from.
        reference: what target t's predictions are compared with, at place t.
        kept_NF: bool; whether each far position is in each subset.
        background_L: tokens that stand where the subset has none; None: nothing stands there.
    """
    measured, first = [], 0
    for sequence in null_contexts(chunk_L, far_token_ids_L, lengths):
        targets = slice(first, first + len(sequence.target_ids_T))
        measured.append(_measured(model, sequence, batching, reference.at(targets), kept_NF, background_L))
        first = targets.stop
    return Measured(*(np.concatenate(parts, axis=1) for parts in zip(*measured, strict=True)))


def random_subsets(num_far: int, num_subsets: int, seed: tuple[int, ...]) -> np.ndarray:
    """Pairs of a random subset of the far positions and its complement, whether each is in: bool [N, F]."""
    generator = np.random.default_rng([*seed, 3])
    first_PF = generator.integers(2, size=(num_subsets // 2, num_far), dtype=np.int8).astype(bool)
    return np.stack([first_PF, ~first_PF], axis=1).reshape(num_subsets, num_far)


def mean_differences(values_NT: np.ndarray, kept_NF: np.ndarray) -> np.ndarray:
    """Mean over the subsets without each token less the mean over those with it: float32 [T, F]."""
    with_NF = kept_NF / kept_NF.sum(0)
    without_NF = ~kept_NF / (~kept_NF).sum(0)
    return (values_NT.T.astype(np.float64) @ (without_NF - with_NF)).astype(np.float32)


def _measured(
    model: CausalLM,
    sequence: PackedSequence,
    batching: Batching,
    reference: Predictions,
    kept_NF: np.ndarray,
    background_L: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Losses and divergences of the sequence's targets under every subset: float32 [N, T] each."""
    num_far = int(sequence.num_far_tokens_T[-1])
    results: list[list[np.ndarray]] = [[], []]
    start = 0
    while start < len(kept_NF):
        num_rows = len(sequence.token_ids_S)
        size = max(1, batching.num_sequences(model, num_rows))
        kept_BF = kept_NF[start : start + size, :num_far]
        with batching.halved_where_memory_runs_out(len(kept_BF), num_rows):
            for values, result in zip(
                _one_pass(model, sequence, reference, kept_BF, background_L), results, strict=True
            ):
                result.append(values)
            start += len(kept_BF)
    losses, divergences = (np.concatenate(parts) for parts in results)
    return losses, divergences


def _one_pass(
    model: CausalLM,
    sequence: PackedSequence,
    reference: Predictions,
    kept_BF: np.ndarray,
    background_L: np.ndarray | None,
) -> list[np.ndarray]:
    """[B, T] each."""
    num_rows, num_far = len(sequence.token_ids_S), kept_BF.shape[1]
    token_ids_BS = np.tile(sequence.token_ids_S, (len(kept_BF), 1))
    assert sequence.visible_SS is not None
    visible_BSS = np.broadcast_to(sequence.visible_SS, (len(kept_BF), num_rows, num_rows))
    if background_L is None:
        is_there_BS = np.concatenate([kept_BF, np.ones((len(kept_BF), num_rows - num_far), bool)], axis=1)
        # A row outside the subset sees itself, for it must see something, and no other row sees it.
        visible_BSS = visible_BSS & (is_there_BS[:, None, :] | np.eye(num_rows, dtype=bool))
    else:
        token_ids_BS[:, :num_far] = np.where(kept_BF, token_ids_BS[:, :num_far], background_L[:num_far])
    num_subsets = len(kept_BF)

    def on_device(array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, device=model.device)

    both = losses_and_divergences(
        model,
        on_device(token_ids_BS),
        on_device(sequence.position_ids_S)[None],
        on_device(np.array(visible_BSS)),
        on_device(sequence.query_rows_T).expand(num_subsets, -1),
        on_device(sequence.target_ids_T).expand(num_subsets, -1),
        reference,
    )
    return [values_BT.cpu().numpy() for values_BT in both]


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

    @property
    def every_influence_TF(self) -> np.ndarray | None:
        """`influence_TF` where something has asked for the leave-one-out passes, else None."""
        return self.influence_TF if "_left_out" in self.__dict__ else None

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

    def measured_additions(self, chosen_TK: np.ndarray) -> Measured:
        """loss(t | short, the chosen positions, i) and its divergence: [T, F] each, NaN of the chosen."""
        num_far_T = self.num_far_tokens_T
        is_tried_TF = np.arange(num_far_T[-1]) < num_far_T[:, None]
        np.put_along_axis(is_tried_TF, chosen_TK, False, axis=1)
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


def far_contexts(
    measurement: Measurement,
    chunk_L: np.ndarray,
    null_chunk_L: np.ndarray,
    *,
    substitute_ids_L: np.ndarray | None = None,
    background_ids_BL: np.ndarray | None = None,
) -> dict[str, FarContext]:
    """The chunk's own far context and its null: another document's tokens, same positions.

    Nothing is measured yet.

    Args:
        substitute_ids_L: what stands in for left-out tokens under the intervention `substitute`.
        background_ids_BL: what does under `background`, of documents that are neither of the two.
    """

    def context(name: str, token_ids_L: np.ndarray, own: FarContext | None) -> FarContext:
        lengths = measurement.lengths
        sequences = (
            (own_context(chunk_L, lengths),)
            if own is None
            else tuple(null_contexts(chunk_L, token_ids_L, lengths))
        )
        fields = name, token_ids_L, chunk_L, sequences, measurement, substitute_ids_L, own
        if background_ids_BL is None:
            return FarContext(*fields)
        return FarContextInBackground(*fields, background_ids_BL=background_ids_BL)

    own = context(OWN, chunk_L, None)
    return {OWN: own, OTHER_DOCUMENT: context(OTHER_DOCUMENT, null_chunk_L, own)}


def selected_positions(far_context: FarContext, rule: str, max_k: int, seed: Sequence[int]) -> np.ndarray:
    """The `max_k` tokens that `rule` ranks first, most influential first: int64 [T, K].

    The same seed draws the same positions in the own far context and in its null.
    """
    return find_rule(rule)(far_context, max_k, np.random.default_rng(seed))


def sparse_contexts(
    far_context: FarContext,
    positions_of_rule: Mapping[str, np.ndarray],
    numbers_of_rule: Mapping[str, Sequence[int]],
) -> dict[str, Measured]:
    """loss(t | short context and S_k), and its divergence, for every rule: rule -> [T, J] each.

    Args:
        far_context: which the positions are of; its model measures, whichever chose them.
        positions_of_rule: rule -> [T, K], most influential first.
        numbers_of_rule: rule -> J numbers of tokens added to the short context, at most K.
    """
    num_targets = far_context.lengths.targets_per_chunk
    of_rule_and_k: dict[tuple[str, int], Measured] = {}
    for k in sorted({k for numbers in numbers_of_rule.values() for k in numbers}):
        # All rules at once: they often choose the same.
        rules = [rule for rule in positions_of_rule if k in numbers_of_rule[rule]]
        measured = far_context.measured_with(
            np.tile(np.arange(num_targets), len(rules)),
            np.concatenate([positions_of_rule[rule][:, :k] for rule in rules]),
        )
        for place, rule in enumerate(rules):
            of_rule = slice(place * num_targets, (place + 1) * num_targets)
            of_rule_and_k[rule, k] = Measured(measured.losses[of_rule], measured.divergences[of_rule])
    return {
        rule: Measured(
            *(np.stack([of_rule_and_k[rule, k][field] for k in numbers], axis=1) for field in range(2))
        )
        for rule, numbers in numbers_of_rule.items()
    }
