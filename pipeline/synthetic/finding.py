"""Which tokens the rules select in an example of a synthetic task, and which truly decide its answers.

The task's generator knows the true dependency sets. What of a set lies in the short context needs no
selection, so finding is about the rest: the set's places in the far context.

Shapes: L tokens of an example, T targets, F far-context positions (of the last target), K largest k, R draws
of substitutes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.influence.context_lengths import ContextLengths
from pipeline.influence.rules import find_rule, ranked

if TYPE_CHECKING:
    from pipeline.influence.batching import Batching
    from pipeline.influence.far_context import FarContext
    from pipeline.models.causal_lm import CausalLM

RULES_BY_LEAVING_OUT = ("leave_one_out", "divergence")
"""Rules that the intervention matters to."""
INTERVENTIONS = ("remove", "substitute")
"""What leaving a token out may mean."""
FINDING_RULES = (*RULES_BY_LEAVING_OUT, "add_one_in", "greedy", "random", "nearest")
NUM_EXAMPLES_OF_FINDING, NUM_SUBSTITUTES, LARGEST_K, SHORT_CONTEXT_LENGTH = 200, 8, 8, 2
"""Unless asked otherwise: test examples of each size and k, draws of a substitution, tokens that each rule
selects, tokens that are seen anyway."""


@dataclass(frozen=True)
class Selection:
    """What one rule selected."""

    rule: str
    intervention: str | None
    """remove or substitute; None of rules that leave nothing out."""
    positions_TK: np.ndarray
    """int64; most influential first."""


@dataclass(frozen=True, eq=False)
class SearchedExample:
    """An example as the rules see it: one chunk, whose last tokens, the response, are the targets."""

    model: "CausalLM"
    token_ids_L: np.ndarray
    lengths: ContextLengths
    substitutes_RL: np.ndarray
    """int64; tokens that may stand in for those of the same places."""
    batching: "Batching"

    def _far_context(self, with_divergence: bool, substitute_ids_L: np.ndarray | None = None) -> "FarContext":
        # Imported late: the names of the rules are wanted for a --help at once.
        from pipeline.influence.far_context import FarContext
        from pipeline.influence.leave_one_out import own_context
        from pipeline.influence.selection import OWN

        tokens_L = self.token_ids_L
        sequences = (own_context(tokens_L, self.lengths),)
        return FarContext(
            OWN, tokens_L, tokens_L, sequences, self.model, self.lengths, self.batching,
            with_divergence, substitute_ids_L,
        )  # fmt: skip

    def select(
        self, rules: Sequence[str], interventions: Sequence[str], max_k: int, generator: np.random.Generator
    ) -> tuple[list[Selection], np.ndarray]:
        """The first `max_k` tokens of every rule, and loss(t | long) of every target: float32 [T], nats.

        Under `substitute` influence and divergence are means over the R draws: where a place has few values,
        one draw is often the token that stands there, and says nothing.

        Args:
            rules: of `FINDING_RULES`.
            interventions: what leaving a token out means, of remove and substitute; each is taken in turn.
            max_k: K, at most the first target's far context.
            generator: of rules that draw.
        """
        with_divergence = "divergence" in rules
        own = self._far_context(with_divergence)
        found = [
            Selection(rule, None, find_rule(rule)(own, max_k, generator))
            for rule in rules
            if rule not in RULES_BY_LEAVING_OUT
        ]
        contexts_of = {
            "remove": lambda: [own],
            "substitute": lambda: [
                self._far_context(with_divergence, row_L) for row_L in self.substitutes_RL
            ],
        }
        leaving_out = [rule for rule in RULES_BY_LEAVING_OUT if rule in rules]
        for intervention in interventions if leaving_out else ():
            contexts = contexts_of[intervention]()
            for rule in leaving_out:
                mean_TF = np.mean([_score(rule, context) for context in contexts], axis=0)
                found.append(Selection(rule, intervention, ranked(mean_TF, max_k)))
        return found, own.long_losses_T


def _score(rule: str, context: "FarContext") -> np.ndarray:
    return context.influence_TF if rule == "leave_one_out" else context.divergence_TF


def far_dependencies(dependencies: Sequence[Sequence[int]], lengths: ContextLengths) -> list[set[int]]:
    """Of each target's true dependency set the places in its far context."""
    return [
        {place for place in places if place < num_far}
        for places, num_far in zip(dependencies, lengths.num_far_tokens_T.tolist(), strict=True)
    ]
