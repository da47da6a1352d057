"""Attention of short sequences in bfloat16 on a processor, as plain products.

torch's fused kernel is slow there, most of all backward: sequences of 64 tokens took 5 times as long as with
plain products, of 256 tokens 1.3 to 2 times (AMD EPYC, AVX512-BF16, one thread). In float32, and above 512
tokens, the fused kernel is the faster one. Scores are rounded to bfloat16, so that the error is some
three times the fused kernel's: half a percent of what is gathered. `tests/benchmarks/training.py` times the
whole step.

Shapes: B sequences, H heads, S tokens, E head width.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import cast

import torch
from olmo.model import OLMo

from pipeline.models.rope import blocks_of

_LONGEST = 512
"""Tokens of a sequence; beyond, its scores no longer fit the caches."""


def compose_short_attention(model: OLMo) -> None:
    """Let each block of `model` take the faster of the two where it attends in training."""
    for block in blocks_of(model):
        fused = cast("Callable[..., torch.Tensor]", block._scaled_dot_product_attention)
        block._scaled_dot_product_attention = cast("torch.nn.Module", partial(_attention, fused))


def _attention(
    fused: Callable[..., torch.Tensor],
    query_BHSE: torch.Tensor,
    key_BHSE: torch.Tensor,
    value_BHSE: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **of_documents: object,
) -> torch.Tensor:
    """What `fused`, the block's own, returns: [B, H, S, E]; scores are rounded to bfloat16 where composed."""
    is_composed = (
        query_BHSE.device.type == "cpu"
        and query_BHSE.dtype == torch.bfloat16
        and query_BHSE.shape == key_BHSE.shape
        and query_BHSE.shape[2] <= _LONGEST
        and is_causal
        and dropout_p == 0.0
    )
    if not is_composed:
        return fused(
            query_BHSE, key_BHSE, value_BHSE,
            attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, **of_documents,
        )  # fmt: skip
    scaled_NSE = (query_BHSE * query_BHSE.shape[-1] ** -0.5).flatten(0, 1)
    future_SS = _future(query_BHSE.shape[2])
    scores_NSS = torch.baddbmm(future_SS, scaled_NSE, key_BHSE.flatten(0, 1).transpose(1, 2))
    attended_NSE = torch.softmax(scores_NSS, dim=-1) @ value_BHSE.flatten(0, 1)
    return attended_NSE.view(query_BHSE.shape)


@lru_cache(maxsize=4)
def _future(num_tokens: int) -> torch.Tensor:
    """Added to the scores: minus infinity at the tokens to come."""
    return torch.full((num_tokens, num_tokens), float("-inf"), dtype=torch.bfloat16).triu(1)
