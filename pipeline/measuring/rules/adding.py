"""Sufficiency: what a token gives beside the short context."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipeline.measuring.rules import REMOVE, ranked, ranking_rule, rule

if TYPE_CHECKING:
    from pipeline.measuring.far_context import FarContext


@rule(sees="answer", builds_up=True)
def add_one_in(far: "FarContext") -> np.ndarray:
    """What the token alone gives, by the loss: takes every copy of one piece of evidence."""
    return -far.first_additions.losses


@rule(sees="prediction", builds_up=True)
def add_one_in_divergence(far: "FarContext") -> np.ndarray:
    """The same by the divergence."""
    return -far.first_additions.divergences


@ranking_rule(sees="answer", interventions=(REMOVE,), builds_up=True)
def greedy(contexts: "Sequence[FarContext]", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """What a token gives beside those already chosen: of redundant evidence it takes one copy and goes on.

    It fits what it looks at best of all, with or without a dependency.
    """
    return _best_additions(contexts, max_k, "losses")


@ranking_rule(sees="prediction", interventions=(REMOVE,), builds_up=True)
def greedy_divergence(
    contexts: "Sequence[FarContext]", max_k: int, generator: np.random.Generator
) -> np.ndarray:
    """The same by the divergence."""
    return _best_additions(contexts, max_k, "divergences")


def _best_additions(contexts: "Sequence[FarContext]", max_k: int, criterion: str) -> np.ndarray:
    """The best addition to those already chosen, again and again."""

    def best(added: list[np.ndarray]) -> np.ndarray:
        return ranked(-np.mean(added, axis=0), 1)

    chosen_TK = best([getattr(context.first_additions, criterion) for context in contexts])
    while chosen_TK.shape[1] < max_k:
        added = [getattr(context.measured_additions(chosen_TK), criterion) for context in contexts]
        chosen_TK = np.concatenate([chosen_TK, best(added)], axis=1)
    return chosen_TK
