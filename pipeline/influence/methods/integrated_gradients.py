"""Integrated gradients: input times the mean gradient on the way from no embedding to the token's own.

Sundararajan, Taly and Yan 2017, "Axiomatic Attribution for Deep Networks", arXiv 1703.01365; by captum
(Kokhlikyan et al. 2020, arXiv 2009.07896), the extra `attribution`. All embeddings of the long context grow
from 0, along a straight line, at the places of a Gauss-Legendre quadrature, captum's own choice. So the
scores of all tokens, those of the short context included, add up to ln p(x_t | long) less what ln p is
where every embedding is 0.

Shapes: T targets, F far-context positions, S rows of a sequence, D width.
"""

import numpy as np
import torch
from captum.attr import IntegratedGradients

from pipeline.influence.far_context import FarContext
from pipeline.influence.methods.input_x_gradient import LogProbs, attributed_to_embeddings


def integrated_gradients(context: FarContext) -> np.ndarray:
    """What the embedding of each far token does to ln p of the target, on the way from 0: [T, F], nats.

    It looks at the target. Cost: G n for G places on the way, and as many backward passes through n tokens.
    """
    num_steps, batching = context.measurement.num_integration_steps, context.measurement.batching

    def attribute(log_probs: LogProbs, embedded_1SD: torch.Tensor, target_index: int) -> torch.Tensor:
        # A pass that is kept for its derivative takes several times the memory of one that is not.
        num_rows = embedded_1SD.shape[1]
        num_sequences = max(1, batching.num_sequences(context.model, num_rows) // 4)
        return IntegratedGradients(log_probs).attribute(
            embedded_1SD, target=target_index, n_steps=num_steps, internal_batch_size=num_sequences
        )

    return attributed_to_embeddings(context, "integrated_gradients", attribute)
