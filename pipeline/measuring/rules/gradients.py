"""First-order estimates of leaving out, by a gate on every attention edge into a token."""

from typing import TYPE_CHECKING

import numpy as np

from pipeline.measuring.rules import rule

if TYPE_CHECKING:
    from pipeline.measuring.far_context import FarContext


@rule(sees="answer", reads_everything=True)
def gradient(far: "FarContext") -> np.ndarray:
    """The derivative of the loss by a gate that multiplies exp(score) of the edges into the token.

    It saturates: where a token has nearly all attention and the model is sure, the derivative vanishes though
    removal costs most.
    """
    return -far.gate_gradient_TF


@rule(sees="prediction", reads_everything=True)
def gradient_divergence(far: "FarContext") -> np.ndarray:
    """The second derivative of the divergence by that gate, times two.

    The divergence is least, 0, where nothing is left out, so its first derivative vanishes; half the mean
    square of the loss's derivative, over answers drawn from the prediction, is the second.
    """
    return far.gate_information_TF
