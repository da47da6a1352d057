"""Schemes of attention that the paper is compared with: NoPE, ALiBi, DAPE V2, the k largest scores.

Position IDs are contiguous in all of them. A scheme tells a pass of the trunk (`Running`) what becomes of its
scores; all but the last rotate nothing.

Shapes: B batch, S query rows, K rows to look at, H heads.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from sparsity_length.models.attention import alibi_slopes
from sparsity_length.models.interface import Running

Scheme = Callable[[Running, torch.Tensor], Running]
"""(a pass, position IDs of its query rows [B or 1, S]) -> the pass with the scheme's scores."""


def nope(running: Running, position_ids_BS: torch.Tensor) -> Running:
    """No positions: the causal mask alone tells the order (Kazemnejad et al. 2023, arXiv 2305.19466)."""
    return running


def alibi(slopes_H: torch.Tensor, running: Running, position_ids_BS: torch.Tensor) -> Running:
    """A score falls with the distance of its position IDs (Press et al. 2021, arXiv 2108.12409)."""
    return replace(running, slopes_H=slopes_H)


class Dape(nn.Module):
    """DAPE V2 (Zheng et al. 2024, arXiv 2410.04798): scores as a feature map, whose channels are the heads.

    With scores a and a bias b, here ALiBi's or none, softmax is given a + b + f(a, b). From the abstract: f
    is a convolution over neighboring scores of all heads. From the authors' configurations: 1 x 3 scores, 32
    channels, a leaky ReLU. Our choice: the three are a key and the two before it, so that nothing follows
    from what is hidden; invisible scores are 0; a second, 1 x 1, convolution leads back to the heads.
    """

    def __init__(self, num_heads: int, num_layers: int, *, has_alibi: bool) -> None:
        super().__init__()
        self._slopes_H = alibi_slopes(num_heads) if has_alibi else None
        num_channels = num_heads * (2 if has_alibi else 1)
        self.of_layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(num_channels, 32, (1, 3)), nn.LeakyReLU(), nn.Conv2d(32, num_heads, 1))
            for _ in range(num_layers)
        )

    def forward(self, running: Running, position_ids_BS: torch.Tensor) -> Running:
        """The change for `attend`, with the bias by position IDs."""
        bias_BHSK = None
        if self._slopes_H is not None:
            distances_BSK = position_ids_BS[..., None] - running.position_ids_BK[:, None]
            bias_BHSK = -self._slopes_H.to(position_ids_BS.device)[:, None, None] * distances_BSK[:, None]
        return replace(running, change=partial(self._change, bias_BHSK))

    def _change(
        self,
        bias_BHSK: torch.Tensor | None,
        layer: int,
        rows: slice,
        scores_BHRK: torch.Tensor,
        visible: torch.Tensor,
        *_: torch.Tensor,
    ) -> torch.Tensor:
        maps = [scores_BHRK]
        if bias_BHSK is not None:
            maps.append(bias_BHSK[:, :, rows, : scores_BHRK.shape[-1]].expand_as(scores_BHRK))
        seen_BCRK = torch.cat(maps, dim=1).masked_fill(~visible, 0.0)
        return sum(maps) + self.of_layers[layer](pad(seen_BCRK, (2, 0)))


def largest(num_keys: int, running: Running, position_ids_BS: torch.Tensor) -> Running:
    """Each row attends to the k keys with the largest scores, in training and testing: sparse attention.

    In the way of SPARSEK (Lou et al. 2024, arXiv 2406.16747), which selects a constant number of key-value
    pairs for each query. Theirs are chosen by a scoring network through a differentiable top-k; here the
    scores themselves choose, in each head, and gradients reach the chosen only. Equal scores all count.
    """
    return replace(running, change=partial(_keep_largest, num_keys))


def _keep_largest(
    num_keys: int, layer: int, rows: slice, scores_BHRK: torch.Tensor, visible: torch.Tensor, *_: torch.Tensor
) -> torch.Tensor:
    seen_BHRK = scores_BHRK.masked_fill(~visible, -math.inf)
    least_BHR1 = seen_BHRK.topk(min(num_keys, seen_BHRK.shape[-1])).values[..., -1:]
    return scores_BHRK.masked_fill(seen_BHRK < least_BHR1, -math.inf)


def scheme_of(positions: str, model: Any) -> Scheme:
    """The scheme of a model's positions; `model` is its `TaskModelConfig`."""
    if positions == "alibi":
        return partial(alibi, alibi_slopes(model.num_heads))
    if positions.startswith("dape"):
        return Dape(model.num_heads, model.num_layers, has_alibi=positions == "dape_alibi")
    return partial(largest, model.num_keys) if positions == "sparse" else nope
