"""Which tokens the rules select in an example of a synthetic task, and which truly decide its answers.

The task's generator knows the true dependency sets. What of a set lies in the short context needs no
selection, so finding is about the rest: the set's places in the far context.

Shapes: L tokens of an example, T targets, F far-context positions (of the last target), K largest k, B
backgrounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.rules import BACKGROUND, CONTROLS, REMOVE, RULES, find_rule
from pipeline.synthetic.tasks import ExampleBatch

if TYPE_CHECKING:
    import torch

    from pipeline.measuring.contexts import Batching
    from pipeline.measuring.far_context import FarContext
    from pipeline.models.interface import CausalLM
    from pipeline.synthetic.models import TaskModel


FINDING_RULES = tuple(RULES)
DEFAULT_FINDING_RULES = (
    "attention_rollout",
    "leave_one_out",
    "leave_one_out_divergence",
    "add_one_in",
    "greedy",
    *CONTROLS,
)
"""The first finds most of the truth of these tasks (analysis/README.md)."""
DEFAULT_INTERVENTIONS = (REMOVE, BACKGROUND)
NUM_EXAMPLES_OF_FINDING = 200
NUM_BACKGROUNDS = 8
LARGEST_K = 8
SHORT_CONTEXT_LENGTH = 2
"""Unless asked otherwise: test examples of each size and k, backgrounds, tokens that each rule
selects, tokens that are seen anyway."""
_EFFECTS = {"leave_one_out": "influence_TF", "leave_one_out_divergence": "divergence_TF"}
"""Rule -> what a far context tells of each far token left out."""
TOKENS = "tokens"
POSITION_IDS = "position_ids"
"""Heads: what of the next place is predicted."""


@dataclass(frozen=True)
class Selection:
    """What one rule selected."""

    rule: str
    intervention: str | None
    """remove or background; None of rules that it does not matter to."""
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
    backgrounds_BL: np.ndarray
    """int64; other examples, whose tokens stand in for those of the same places."""
    batching: "Batching"

    def select(
        self, rules: Sequence[str], interventions: Sequence[str], max_k: int, generator: np.random.Generator
    ) -> tuple[list[Selection], np.ndarray]:
        """The first `max_k` tokens of every rule, and loss(t | long) of every target: float32 [T], nats.

        Under `background` other examples' tokens stand in the place of what is left out, and measurements are
        means over all B of them: where a place has few values, one is often the token that stands there, and
        says nothing.

        The `interventions` are taken in turn, by the rules that know them; K is `max_k`, at most the first
        target's far context; rules that draw take `generator`.
        """
        contexts = {intervention: self._context(intervention) for intervention in interventions}
        own = self._context(REMOVE)
        found = []
        for rule in map(find_rule, rules):
            known = [name for name in interventions if name in rule.interventions]
            for intervention in known if rule.knows_interventions else [None]:
                context = own if intervention is None else contexts[intervention]
                positions_TK = rule.ranking(context, max_k, generator)
                effects_TK = None
                if rule.name in _EFFECTS:
                    effects_TF = getattr(context, _EFFECTS[rule.name])
                    effects_TK = np.take_along_axis(effects_TF, positions_TK, axis=1)
                found.append(Selection(rule.name, intervention, positions_TK, effects_TK))
        return found, own.long_losses_T

    def _context(self, intervention: str) -> "FarContext":
        # Imported late: the names of the rules are wanted for a --help at once.
        from pipeline.measuring.contexts import Measurement
        from pipeline.measuring.far_context import FarContext, FarContextInBackground

        measurement = Measurement(self.model, self.lengths, self.batching)
        fields = measurement, self.token_ids_L, self.token_ids_L
        if intervention == REMOVE:
            return FarContext(*fields)
        return FarContextInBackground(*fields, background_ids_BL=self.backgrounds_BL)


def searched_example(
    head: str,
    model: "TaskModel",
    vocabulary_size: int,
    token_ids_L: np.ndarray,
    position_ids_L: "torch.Tensor",
    backgrounds_BL: np.ndarray,
    lengths: ContextLengths,
    batching: "Batching",
) -> SearchedExample:
    """An example as a task model sees it; `head`, TOKENS or POSITION_IDS, says what is predicted."""
    from pipeline.synthetic.models import PositionIdLM, TaskCausalLM  # late, for a --help at once

    if head == TOKENS:
        lm = TaskCausalLM(model, vocabulary_size, position_ids_L)
        return SearchedExample(lm, token_ids_L, lengths, backgrounds_BL, batching)
    num_prompt_tokens = int(lengths.targets_T[0])
    of_ids = PositionIdLM(model, vocabulary_size, position_ids_L, token_ids_L, num_prompt_tokens)
    return SearchedExample(of_ids, of_ids.codes_L, lengths, of_ids.codes_of(backgrounds_BL), batching)


def far_dependencies(dependencies: Sequence[Sequence[int]], lengths: ContextLengths) -> list[set[int]]:
    """Of each target's true dependency set the places in its far context."""
    return [
        {place for place in places if place < num_far}
        for places, num_far in zip(dependencies, lengths.num_far_tokens_T.tolist(), strict=True)
    ]


def lengths_of(batch: ExampleBatch, short_context_length: int) -> ContextLengths:
    """An example as one chunk, whose last tokens, the response, are the targets."""
    num_tokens = batch.token_ids_BS.shape[1]
    return ContextLengths(short_context_length, num_tokens, num_tokens - batch.num_prompt_tokens)
