"""Input times gradient: what each token's embedding, along itself, does to the target's log-probability.

Shrikumar, Greenside, Shcherbina and Kundaje 2016, "Not Just a Black Box", arXiv 1605.01713; by captum
(Kokhlikyan et al. 2020, arXiv 2009.07896), the extra `attribution`. The score of token i is

    sum over d of e_i[d] · ∂ ln p(x_t | long) / ∂ e_i[d]

with e_i its embedding: to first order, what ln p loses where the embedding is shrunk to 0.

Shapes: S rows of a sequence, T query rows, F far-context positions, D width.
"""

from collections.abc import Callable

import numpy as np
import torch
from captum.attr import InputXGradient

from pipeline.influence.far_context import FarContext
from pipeline.models.inspectable_lm import InspectableLM

LogProbs = Callable[[torch.Tensor], torch.Tensor]
"""Embeddings [B, S, D] -> ln p of every target [B, T]."""
Attribute = Callable[[LogProbs, torch.Tensor, int], torch.Tensor]
"""Given those, the embeddings of one text, [1, S, D], and which target: what each of their numbers does."""


def input_x_gradient(context: FarContext) -> np.ndarray:
    """What the embedding of each far token does to ln p of the target, to first order: [T, F], nats.

    It looks at the target. Cost: n, as captum runs a pass a target, and a backward pass through n tokens.
    """

    def attribute(log_probs: LogProbs, embedded_1SD: torch.Tensor, target_index: int) -> torch.Tensor:
        return InputXGradient(log_probs).attribute(embedded_1SD, target=target_index)

    return attributed_to_embeddings(context, "input_x_gradient", attribute)


def attributed_to_embeddings(context: FarContext, rule: str, attribute: Attribute) -> np.ndarray:
    """The sum over each far token's embedding of what `attribute` tells of its numbers: [T, F]."""

    def of_sequence(
        model: InspectableLM,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        target_ids_T: torch.Tensor,
    ) -> torch.Tensor:
        def log_probs(embedded_BSD: torch.Tensor) -> torch.Tensor:
            return -model.losses_of_embeddings(
                embedded_BSD, position_ids_1S, visible_1SS, query_rows_T, target_ids_T
            )

        embedded_1SD = model.embed(token_ids_1S).detach().requires_grad_()
        of_targets = [attribute(log_probs, embedded_1SD, index) for index in range(len(target_ids_T))]
        return torch.cat(of_targets).detach().float().sum(-1)

    return context.look_inside(rule, of_sequence)
