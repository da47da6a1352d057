"""Attention rollout: the attention of all layers multiplied, with each row's own share kept.

Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", arXiv 2005.00928. Of a layer, A is the
mean attention of its heads; half of what a row holds comes from itself, by the residual stream:

    rollout = Ā_n ··· Ā_2 Ā_1,   Ā = (A + 1) / 2

The score of a far token is its place in the row that predicts the target. A row of it sums to 1.

Shapes: S rows of a sequence, T query rows, F far-context positions, H heads.
"""

from typing import Any

import numpy as np
import torch

from pipeline.influence.far_context import FarContext
from pipeline.models.inspectable_lm import InspectableLM


def attention_rollout(context: FarContext) -> np.ndarray:
    """What the row that predicts each target holds of each far token: [T, F].

    Blind to the target. Cost: n / m, and in memory the mean attention of all rows in every layer.
    """
    return context.look_inside("attention_rollout", rollout)


def rollout(
    model: InspectableLM,
    token_ids_1S: torch.Tensor,
    position_ids_1S: torch.Tensor,
    visible_1SS: torch.Tensor | None,
    query_rows_T: torch.Tensor,
    *_: Any,
) -> torch.Tensor:
    """The rows of the rollout that belong to the query rows: float32 [T, S]."""
    of_layers: list[torch.Tensor] = []
    model.watch_attention(
        token_ids_1S, position_ids_1S, visible_1SS, None, lambda all_HSS: of_layers.append(all_HSS.mean(0))
    )
    held_TS = torch.nn.functional.one_hot(query_rows_T, token_ids_1S.shape[1]).float()
    for mean_SS in reversed(of_layers):  # from the last layer down: T rows, not S
        held_TS = (held_TS @ mean_SS + held_TS) / 2
    return held_TS
