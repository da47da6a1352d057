"""A prefix shown to a Hugging Face model: beside the rows of a pass, or copied in front of each sequence's.

A family's attention is written for keys and values of each sequence's own. Where the library lets attention
be replaced, ours looks at the shared prefix itself (`prefix_attention.py`), and the model's code is shown the
pass's own rows only. Elsewhere the prefix is copied in front of them.

Shapes: B batch, S rows, H heads, E head width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import transformers
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from pipeline.models.causal_lm import KeysAndValues, Prefix
from pipeline.models.prefix_attention import attend

SHARED_PREFIX = "sdpa_with_shared_prefix"
"""What our attention is called among the library's."""


class PassCache(transformers.DynamicCache):
    """The cache of one forward pass: shows every sequence the same prefix, and keeps the new rows apart.

    The library's own caches grow by what they are shown; a prefix shared by many passes must not.
    """

    def __init__(
        self,
        prefix: Prefix | None,
        visible_BSS: torch.Tensor | None = None,
        goes_apart: bool = False,
    ) -> None:
        """Of a pass whose rows see a prefix.

        Args:
            visible_BSS: which row of the pass sees which; None: those up to itself.
            goes_apart: the prefix is left to our attention, which looks at it without a copy for every
                sequence, and the model's own code never sees it; all rows see all of it.
        """
        super().__init__()
        self._prefix, self.goes_apart = prefix, goes_apart
        self.visible_B1SS = None if visible_BSS is None else visible_BSS[:, None]
        self._read: dict[int, KeysAndValues] = {}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Rows before those of this pass, as far as the model's own code should know."""
        return 0 if self._prefix is None or self.goes_apart else self._prefix.num_rows

    def past(self, layer_idx: int) -> KeysAndValues:
        """The prefix's keys and values in a layer."""
        assert self._prefix is not None
        return self._prefix.keys_and_values[layer_idx]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> KeysAndValues:
        """What the rows of this pass look at in a layer: the prefix's keys and values and their own."""
        self._read[layer_idx] = (key_states, value_states)
        if self._prefix is None or self.goes_apart:
            return key_states, value_states
        key, value = (part.expand(len(key_states), -1, -1, -1) for part in self.past(layer_idx))
        return torch.cat((key, key_states), dim=2), torch.cat((value, value_states), dim=2)

    @contextmanager
    def shown_to_attention(self) -> Iterator[None]:
        """Run the model inside: our attention finds the prefix here, which the library does not hand it."""
        before = _RUNNING.set(self)
        try:
            yield
        finally:
            _RUNNING.reset(before)

    def read_rows(self) -> Prefix:
        """What the pass has read, as a prefix for others."""
        return Prefix(tuple(self._read[layer] for layer in range(len(self._read))))


_RUNNING: ContextVar[PassCache | None] = ContextVar("the pass that our attention runs in", default=None)


def _attend_with_shared_prefix(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **further: Any,
) -> tuple[torch.Tensor, None]:
    """The library's `sdpa`, save in passes that leave the prefix to us. What is returned is [B, S, H, E]."""
    running = _RUNNING.get()
    if running is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **further)
    if asked := {name for name in ("softcap", "position_bias", "s_aux") if further.get(name) is not None}:
        raise NotImplementedError(f"attention with {', '.join(sorted(asked))}")
    visible = running.visible_B1SS
    visible = None if visible is None else visible.to(query.device)
    layer_idx: Any = module.layer_idx
    attended = attend(query, key, value, running.past(layer_idx), visible, scaling)
    return attended.transpose(1, 2).contiguous(), None


transformers.AttentionInterface.register(SHARED_PREFIX, _attend_with_shared_prefix)
transformers.AttentionMaskInterface.register(SHARED_PREFIX, sdpa_mask)
