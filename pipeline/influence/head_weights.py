"""One weight an attention head, fitted so that weighted attention tells what leaving tokens out does.

As AT2 does (Cohen-Wang, Chuang and Madry 2025, "Learning to Attribute with Attention", arXiv 2504.13752): the
attention of all heads from the row that predicts a target to a far token are the features, what leaving that
token out does is the outcome. Theirs is fitted to the effects of random subsets, ours to those of single
tokens, which the engine tells exactly. Features and outcomes are centred within a target, as what counts is
the order of a target's tokens. Their loss, a correlation, gives every example one weight; here a target
counts as much as its effects are large: of one token most effects are noise, and equal weights fitted that.
Ridge regression, by sums over targets: no example is kept.

Shapes: T targets, H heads of all layers, F far-context positions.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from pipeline.influence.far_context import FarContext
from pipeline.influence.measurement import HeadWeights
from pipeline.models.inspectable_lm import InspectableLM

RIDGE = 1e-3
"""What is added to the features' variances, as a share of their mean."""


def attention_of_heads(context: FarContext, rule: str) -> np.ndarray:
    """Attention of the row that predicts each target to each far token, by head: float32 [H, T, F].

    Of a chunk's own far context.
    """
    of_heads: list[np.ndarray] = []

    def watch(
        model: InspectableLM,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        *_: Any,
    ) -> torch.Tensor:
        def note(weights_HTS: torch.Tensor) -> None:
            of_heads.append(weights_HTS[..., : context.num_far_tokens_T[-1]].cpu().numpy())

        model.watch_attention(token_ids_1S, position_ids_1S, visible_1SS, query_rows_T, note)
        return torch.zeros(len(query_rows_T), token_ids_1S.shape[1])

    context.look_inside(rule, watch)
    return np.concatenate(of_heads)


def fitted_head_weights(contexts: Iterable[FarContext], rule: str) -> HeadWeights:
    """The weights of all targets of the own far contexts of several chunks.

    Args:
        contexts: each is read, every far token left out in turn, and forgotten.
        rule: whose messages these are.
    """
    products_HH: np.ndarray | float = 0.0
    outcomes_H2: np.ndarray | float = 0.0
    for context in contexts:
        heads_HTF = attention_of_heads(context, rule).astype(np.float64)
        effects = context.influence_TF, context.divergence_TF
        for target, num_far in enumerate(context.num_far_tokens_T):
            features_HF = heads_HTF[:, target, :num_far]
            features_HF = features_HF - features_HF.mean(1, keepdims=True)
            outcomes = [_centred(effect_TF[target, :num_far]) for effect_TF in effects]
            products_HH = products_HH + features_HF @ features_HF.T / num_far
            outcomes_H2 = outcomes_H2 + features_HF @ np.stack(outcomes, axis=1) / num_far
    assert isinstance(products_HH, np.ndarray), "no chunk to learn from"
    ridge = RIDGE * np.trace(products_HH) / len(products_HH)
    weights_H2 = np.linalg.solve(products_HH + ridge * np.eye(len(products_HH)), outcomes_H2)
    return HeadWeights(weights_H2[:, 0], weights_H2[:, 1])


def _centred(values_F: np.ndarray) -> np.ndarray:
    return values_F.astype(np.float64) - values_F.mean(dtype=np.float64)
