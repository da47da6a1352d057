"""Sufficiency: what a token gives beside the short context."""

from typing import TYPE_CHECKING

import numpy as np

from pipeline.measuring.rules import MASK, ranked, ranking_rule, rule

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


@ranking_rule(sees="answer", ablations=(MASK,), builds_up=True)
def greedy(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """What a token gives beside those already chosen: of redundant evidence it takes one copy and goes on.

    It fits what it looks at best of all, with or without a dependency.
    """
    return _best_additions(context, max_k, "losses")


@ranking_rule(sees="prediction", ablations=(MASK,), builds_up=True)
def greedy_divergence(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """The same by the divergence."""
    return _best_additions(context, max_k, "divergences")


def _best_additions(context: "FarContext", max_k: int, criterion: str) -> np.ndarray:
    """The best addition to those already chosen, again and again."""
    chosen_TK = ranked(-getattr(context.first_additions, criterion), 1)
    while chosen_TK.shape[1] < max_k:
        added_TF = getattr(context.measured_additions(chosen_TK), criterion)
        chosen_TK = np.concatenate([chosen_TK, ranked(-added_TF, 1)], axis=1)
    return chosen_TK
