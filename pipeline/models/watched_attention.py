"""Attention weights, which fused attention never shows, computed beside it from its queries and keys.

Shapes: S rows of one sequence, T query rows, H heads, G key-value heads, E head width.
"""

import math

import torch


class WatchedAttention:
    """Called by every layer with its rotated queries and keys; keeps the weights of some query rows."""

    def __init__(self, visible_1SS: torch.Tensor, query_rows_T: torch.Tensor) -> None:
        self._is_hidden_TS = ~visible_1SS[0, query_rows_T]
        self._query_rows_T = query_rows_T
        self._of_layers: list[torch.Tensor] = []

    def __call__(self, query_1HSE: torch.Tensor, key_1GSE: torch.Tensor) -> None:
        """Note one layer: softmax of query times key over the square root of E, over the keys seen."""
        query_HTE, key_GSE = query_1HSE[0, :, self._query_rows_T].float(), key_1GSE[0].float()
        # Query heads that stand together share a key head.
        query_GXTE = query_HTE.unflatten(0, (len(key_GSE), -1))
        scores_GXTS = query_GXTE @ key_GSE[:, None].transpose(-1, -2) / math.sqrt(key_GSE.shape[-1])
        weights_GXTS = scores_GXTS.masked_fill(self._is_hidden_TS, -math.inf).softmax(-1)
        self._of_layers.append(weights_GXTS.mean((0, 1)))

    def mean_mass(self) -> torch.Tensor:
        """The mean over heads and layers: float32 [T, S]."""
        return torch.stack(self._of_layers).mean(0)
