"""Which tokens the rules select in an example of a synthetic task, and which truly decide its answers.

The task's generator knows the true dependency sets. What of a set lies in the short context needs no
selection, so finding is about the rest: the set's places in the far context.

Shapes: L tokens of an example, T targets, F far-context positions (of the last target), K largest k, R draws
of substitutes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np

from pipeline.influence.context_lengths import ContextLengths
from pipeline.influence.rules import BACKGROUND, CONTROLS, REMOVE, RULES, SUBSTITUTE, find_rule
from pipeline.results.names import OWN

if TYPE_CHECKING:
    import torch

    from pipeline.influence.batching import Batching
    from pipeline.influence.far_context import FarContext
    from pipeline.models.causal_lm import CausalLM
    from pipeline.synthetic.task_model import TaskModel

NOT_FINDING = ("leave_one_out_search", "learned_attention", "learned_attention_divergence")
"""A search for long contexts; and what is learned of training text, which an example has none of."""
FINDING_RULES = tuple(name for name in RULES if name not in NOT_FINDING)
DEFAULT_FINDING_RULES = (
    "attention_rollout", "leave_one_out", "leave_one_out_divergence", "add_one_in", "greedy", *CONTROLS,
)  # fmt: skip
"""The first finds most of the truth of these tasks (analysis/METHODS.md)."""
DEFAULT_INTERVENTIONS = (REMOVE, SUBSTITUTE)
NUM_EXAMPLES_OF_FINDING, NUM_SUBSTITUTES, LARGEST_K, SHORT_CONTEXT_LENGTH = 200, 8, 8, 2
"""Unless asked otherwise: test examples of each size and k, draws of a substitution, tokens that each rule
selects, tokens that are seen anyway."""
_EFFECTS = {"leave_one_out": "influence_TF", "leave_one_out_divergence": "divergence_TF"}
"""Rule -> what a far context tells of each far token left out."""
TOKENS, POSITION_IDS = "tokens", "position_ids"
"""Heads: what of the next place is predicted."""


@dataclass(frozen=True)
class Selection:
    """What one rule selected."""

    rule: str
    intervention: str | None
    """remove, substitute or background; None of rules that it does not matter to."""
    positions_TK: np.ndarray
    """int64; most influential first."""
    effects_TK: np.ndarray | None = None
    """float32, nats: what leaving out each does; None of rules that leave no single token out."""


@dataclass(frozen=True, eq=False)
class SearchedExample:
    """An example as the rules see it: one chunk, whose last tokens, the response, are the targets."""

    model: "CausalLM"
    token_ids_L: np.ndarray
    lengths: ContextLengths
    substitutes_RL: np.ndarray
    """int64; tokens that may stand in for those of the same places."""
    batching: "Batching"

    def select(
        self, rules: Sequence[str], interventions: Sequence[str], max_k: int, generator: np.random.Generator
    ) -> tuple[list[Selection], np.ndarray]:
        """The first `max_k` tokens of every rule, and loss(t | long) of every target: float32 [T], nats.

        Under `substitute` influence and divergence are means over the R draws: where a place has few values,
        one draw is often the token that stands there, and says nothing. Under `background` the rest of the
        far context is a draw, and measurements are means over all R.

        Args:
            rules: of `FINDING_RULES`.
            interventions: what leaving a token out means; each is taken in turn, by the rules that know it.
            max_k: K, at most the first target's far context.
            generator: of rules that draw.
        """
        contexts = {intervention: self._context(intervention) for intervention in interventions}
        own = self._context(REMOVE)
        found = []
        for rule in map(find_rule, rules):
            if not rule.knows_interventions:
                found.append(Selection(rule.name, None, rule(own, max_k, generator)))
                continue
            for intervention in interventions:
                if intervention in rule.interventions:
                    context = contexts[intervention]
                    positions_TK = rule(context, max_k, generator)
                    of_far_tokens = _EFFECTS.get(rule.name)
                    effects_TK = (
                        np.take_along_axis(getattr(context, of_far_tokens), positions_TK, axis=1)
                        if of_far_tokens
                        else None
                    )
                    found.append(Selection(rule.name, intervention, positions_TK, effects_TK))
        return found, own.long_losses_T

    def _context(self, intervention: str) -> "FarContext":
        # Imported late: the names of the rules are wanted for a --help at once.
        from pipeline.influence.background import FarContextInBackground
        from pipeline.influence.far_context import FarContext
        from pipeline.influence.leave_one_out import own_context
        from pipeline.influence.measurement import Measurement

        tokens_L = self.token_ids_L
        sequences = (own_context(tokens_L, self.lengths),)
        fields = OWN, tokens_L, tokens_L, sequences, Measurement(self.model, self.lengths, self.batching)
        if intervention == REMOVE:
            return FarContext(*fields)
        if intervention == BACKGROUND:
            return FarContextInBackground(*fields, background_ids_BL=self.substitutes_RL)
        draws = [FarContext(*fields, substitute_ids_L=row_L) for row_L in self.substitutes_RL]
        return cast("FarContext", _MeanOfDraws(draws))


def searched_example(
    head: str,
    model: "TaskModel",
    vocabulary_size: int,
    token_ids_L: np.ndarray,
    position_ids_L: "torch.Tensor",
    substitutes_RL: np.ndarray,
    lengths: ContextLengths,
    batching: "Batching",
) -> SearchedExample:
    """An example as a task model sees it.

    Args:
        head: TOKENS or POSITION_IDS: what is predicted.
        model: with position IDs to predict, where that is what it is asked for.
        vocabulary_size: of the task.
        token_ids_L: int64; the example.
        position_ids_L: int64; the true ones.
        substitutes_RL: int64; tokens that may stand in for those of the same places.
        lengths: the response are the targets.
        batching: of the passes.
    """
    from pipeline.synthetic.position_id_lm import PositionIdLM  # late, for a --help at once
    from pipeline.synthetic.task_lm import TaskCausalLM

    if head == TOKENS:
        lm = TaskCausalLM(model, vocabulary_size, position_ids_L)
        return SearchedExample(lm, token_ids_L, lengths, substitutes_RL, batching)
    num_prompt_tokens = int(lengths.targets_T[0])
    of_ids = PositionIdLM(model, vocabulary_size, position_ids_L, token_ids_L, num_prompt_tokens)
    return SearchedExample(of_ids, of_ids.codes_L, lengths, of_ids.codes_of(substitutes_RL), batching)


class _MeanOfDraws:
    """What the rules that leave a token out ask for, as a mean over several draws of substitutes."""

    def __init__(self, draws: Sequence["FarContext"]) -> None:
        self._draws = draws

    @cached_property
    def influence_TF(self) -> np.ndarray:
        """Mean influence: float32 [T, F], nats."""
        return np.mean([draw.influence_TF for draw in self._draws], axis=0)

    @cached_property
    def divergence_TF(self) -> np.ndarray:
        """Mean divergence: float32 [T, F], nats."""
        return np.mean([draw.divergence_TF for draw in self._draws], axis=0)


def far_dependencies(dependencies: Sequence[Sequence[int]], lengths: ContextLengths) -> list[set[int]]:
    """Of each target's true dependency set the places in its far context."""
    return [
        {place for place in places if place < num_far}
        for places, num_far in zip(dependencies, lengths.num_far_tokens_T.tolist(), strict=True)
    ]
