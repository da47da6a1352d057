"""Attention weights, which fused attention never shows, computed beside it from its queries and keys.

Shapes: S rows of one sequence, T query rows, H heads, G key-value heads, E head width.
"""

import math
from collections.abc import Callable

import torch


class WatchedAttention:
    """Called by every layer with its rotated queries and keys; notes the weights of some query rows."""

    def __init__(
        self,
        visible_1SS: torch.Tensor,
        query_rows_T: torch.Tensor | None,
        note: Callable[[torch.Tensor], None],
    ) -> None:
        """Watch one sequence.

        Args:
            visible_1SS: which row sees which.
            query_rows_T: whose weights are wanted; None: those of all rows.
            note: takes those of each layer, float32 [H, T, S].
        """
        self._rows = slice(None) if query_rows_T is None else query_rows_T
        self._is_hidden_TS = ~visible_1SS[0, self._rows]
        self._note = note

    def __call__(self, query_1HSE: torch.Tensor, key_1GSE: torch.Tensor) -> None:
        """Note one layer: softmax of query times key over the square root of E, over the keys seen."""
        query_HTE, key_GSE = query_1HSE[0, :, self._rows].float(), key_1GSE[0].float()
        # Query heads that stand together share a key head.
        query_GXTE = query_HTE.unflatten(0, (len(key_GSE), -1))
        scores_GXTS = query_GXTE @ key_GSE[:, None].transpose(-1, -2) / math.sqrt(key_GSE.shape[-1])
        weights_GXTS = scores_GXTS.masked_fill(self._is_hidden_TS, -math.inf).softmax(-1)
        self._note(weights_GXTS.flatten(0, 1))
