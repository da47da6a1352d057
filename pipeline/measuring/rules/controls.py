"""Controls: chance and distance. Every rule stands beside them."""

from typing import TYPE_CHECKING

import numpy as np

from pipeline.measuring.rules import ranked, ranking_rule, rule

if TYPE_CHECKING:
    from pipeline.measuring.far_context import FarContext


@ranking_rule(sees="nothing")
def random(context: "FarContext", max_k: int, generator: np.random.Generator) -> np.ndarray:
    """Any tokens; the same in the own distant context and in its null."""
    num_far_T = context.num_far_tokens_T
    draws_TF = generator.random((len(num_far_T), num_far_T[-1]))
    return ranked(np.where(np.arange(num_far_T[-1]) < num_far_T[:, None], draws_TF, np.nan), max_k)


@rule(sees="nothing")
def recency(far: "FarContext") -> np.ndarray:
    """The tokens right before the short context."""
    num_far_T = far.num_far_tokens_T
    return np.tile(np.arange(num_far_T[-1]), (len(num_far_T), 1))
