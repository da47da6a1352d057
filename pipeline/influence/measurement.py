"""How far contexts are measured: by which model, at which lengths, at what cost; no number of it yet.

Shapes: H heads of all layers.
"""

from dataclasses import dataclass

import numpy as np

from pipeline.influence.batching import Batching
from pipeline.influence.context_lengths import ContextLengths
from pipeline.models.causal_lm import CausalLM


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """A weight for each head, layer after layer; only their proportions matter."""

    losses_H: np.ndarray
    """Fitted to influences: float64."""
    divergences_H: np.ndarray
    """Fitted to the divergences of leaving one out: float64."""


@dataclass(frozen=True)
class Measurement:
    """How far contexts are measured: by which model, at which lengths, at what cost."""

    model: CausalLM
    lengths: ContextLengths
    batching: Batching
    search_budget: float | None = None
    """What a search for the largest influences may take, as a share of what all of them take."""
    num_subsets: int = 64
    """Random subsets of the far context that rules `banzhaf*` and `surrogate*` learn from."""
    kept_fraction: float = 0.5
    """How likely a token is to be in a subset of rules `surrogate*`."""
    num_sampled_answers: int = 8
    """Tokens drawn from the prediction that rule `gradient_divergence` averages over."""
    head_weights: HeadWeights | None = None
    """Of rules `learned_attention*`; None where none of them is asked for."""
    num_integration_steps: int = 20
    """Places on the way from no embedding that rule `integrated_gradients` takes a gradient at."""
    num_candidates: int | None = None
    """Tokens that a step of `add_one_in*` and `greedy*` tries, those that a screen puts first; None: all."""
    seed: tuple[int, ...] = (0,)
    """Of random subsets and sampled answers."""
    where: str = "the chunk"
    """What messages call the chunk."""
