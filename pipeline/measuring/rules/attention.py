"""Where the row that predicts a target looks; none of these sees the target."""

from typing import TYPE_CHECKING

import numpy as np

from pipeline.measuring.rules import rule

if TYPE_CHECKING:
    from pipeline.measuring.far_context import FarContext


@rule(sees="attention", reads_everything=True)
def attention(far: "FarContext") -> np.ndarray:
    """Attention to the token, mean over layers and heads."""
    return far.attention_TF


@rule(sees="attention", reads_everything=True)
def attention_no_sink(far: "FarContext") -> np.ndarray:
    """The same, but the first token of the chunk comes last.

    Heads with nothing to look for look at the first token that they see ("attention sink"; Xiao et al. 2023,
    arXiv 2309.17453). A beginning-of-text token is a sink, too, and never a distant token.
    """
    scores_TF = far.attention_TF.copy()
    scores_TF[:, 0] = -1
    return scores_TF


@rule(sees="attention", reads_everything=True)
def attention_rollout(far: "FarContext") -> np.ndarray:
    """Attention through all layers, each with its residual stream (Abnar and Zuidema 2020)."""
    return far.attention_rollout_TF
