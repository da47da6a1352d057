"""Learned attention: the attention of each head, weighted by how well it tells what leaving tokens out does.

Cohen-Wang, Chuang and Madry 2025, "Learning to Attribute with Attention" (AT2), arXiv 2504.13752. The score
of far token i is the sum over heads of the head's weight times its attention from the row that predicts the
target to i. How the weights are fitted, and what differs from theirs: `influence/head_weights.py`.

Shapes: T targets, F far-context positions, S rows of a sequence, H heads of a layer.
"""

from typing import Any

import numpy as np
import torch

from pipeline.errors import InputError
from pipeline.influence.far_context import FarContext
from pipeline.models.inspectable_lm import InspectableLM


def learned_attention(context: FarContext) -> np.ndarray:
    """Attention weighted by heads whose weights are fitted to influences: [T, F].

    Blind to the target; its weights were fitted to other targets. Cost: n / m, once the weights are there.
    They cost the leave-one-out passes of the chunks that they are fitted to, once a model.
    """
    return _weighted(context, "losses_H")


def learned_attention_divergence(context: FarContext) -> np.ndarray:
    """The same, with weights fitted to how far leaving one out moves the prediction: [T, F].

    Blind to the target. Cost: as learned_attention.
    """
    return _weighted(context, "divergences_H")


def _weighted(context: FarContext, criterion: str) -> np.ndarray:
    head_weights = context.measurement.head_weights
    if head_weights is None:
        raise InputError(
            "rule 'learned_attention' has no weights of heads for this model; influential_tokens fits them"
            " to training tokens before it measures"
        )
    weights_H = torch.as_tensor(getattr(head_weights, criterion), device=context.model.device).float()

    def weigh(
        model: InspectableLM,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        *_: Any,
    ) -> torch.Tensor:
        of_layers: list[torch.Tensor] = []

        def note(attention_HTS: torch.Tensor) -> None:
            first = sum(len(layer) for layer in of_layers)
            weights = weights_H[first : first + len(attention_HTS)]
            of_layers.append(weights[:, None, None] * attention_HTS)

        model.watch_attention(token_ids_1S, position_ids_1S, visible_1SS, query_rows_T, note)
        return torch.cat(of_layers).sum(0)

    return context.look_inside("learned_attention", weigh)
