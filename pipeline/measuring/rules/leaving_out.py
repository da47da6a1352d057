"""Necessity: what leaving a token out of the long context costs."""

from typing import TYPE_CHECKING

import numpy as np

from pipeline.measuring.rules import rule

if TYPE_CHECKING:
    from pipeline.measuring.far_context import FarContext


@rule(sees="answer")
def leave_one_out(far: "FarContext") -> np.ndarray:
    """By how much the loss of the target rises."""
    return far.necessity.influence_TF


@rule(sees="prediction")
def leave_one_out_divergence(far: "FarContext") -> np.ndarray:
    """By how far the prediction moves."""
    return far.necessity.divergence_TF
