"""Fused attention that also tells each row's log-sum-exp, which torch's own function keeps to itself.

With it, attention to two sets of keys can be computed apart and merged. The kernels are those that
scaled_dot_product_attention takes itself: one on the CPU, two on CUDA. Flash attention computes in half
precision and knows no mask; the memory-efficient kernel does the rest.

Shapes: B batch, S query rows, K rows to look at, H heads, E head width.
"""

import math
from functools import lru_cache

import torch

_ALIGNED_BYTES = 16
"""CUDA's kernels read heads in pieces of so many bytes."""
_ALIGNED_MASK = 16
"""And rows of a mask that stand a multiple of so many values apart."""
_WIDEST_FLASH_HEAD = 256


def tells_log_sum_exp(device: torch.device, dtype: torch.dtype, key_width: int, value_width: int) -> bool:
    """Whether there is such a kernel for heads of these widths."""
    is_aligned = device.type == "cpu" or key_width * dtype.itemsize % _ALIGNED_BYTES == 0
    return device.type in ("cpu", "cuda") and key_width == value_width and is_aligned


def attention_and_log_sum_exp(
    query_BHSE: torch.Tensor,
    key_BHKE: torch.Tensor,
    value_BHKE: torch.Tensor,
    visible: torch.Tensor | None,
    *,
    is_causal: bool,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention [B, H, S, E], and the logarithm of each row's sum of exp(score), float32 [B, H, S].

    Args:
        query_BHSE, key_BHKE, value_BHKE: of a kind that `tells_log_sum_exp` knows a kernel for.
        visible: bool, which row sees which, or numbers added to the scores, [B or 1, H or 1, S, K]; None:
            with `is_causal`, row s sees the rows up to s, else all.
        is_causal: only where `visible` is None.
        scale: of the scores; None: one over the square root of E.
    """
    compute = _on_cpu if query_BHSE.device.type == "cpu" else _on_cuda
    return compute(query_BHSE, key_BHKE, value_BHKE, visible=visible, is_causal=is_causal, scale=scale)


def _on_cpu(
    *qkv: torch.Tensor, visible: torch.Tensor | None, is_causal: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    added = None if visible is None else _added(visible, qkv[0].dtype)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *qkv, is_causal=is_causal, attn_mask=added, scale=scale
    )


def _on_cuda(
    *qkv: torch.Tensor, visible: torch.Tensor | None, is_causal: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    query_BHSE, key_BHKE, _ = qkv
    if visible is None and _can_flash(query_BHSE):
        return torch.ops.aten._scaled_dot_product_flash_attention(*qkv, 0.0, is_causal, scale=scale)[:2]
    added = None
    if visible is not None:
        added = _aligned(_added(visible, query_BHSE.dtype))
        added = added.expand(*query_BHSE.shape[:3], key_BHKE.shape[2])
    attended_BHSE, sum_BHN, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        *qkv, added, True, 0.0, is_causal, scale=scale
    )
    return attended_BHSE, sum_BHN[..., : query_BHSE.shape[2]]  # the kernel fills up to a multiple of 32


def _added(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to the scores: 0 where a row is seen, minus infinity where not."""
    if visible.dtype != torch.bool:
        return visible
    added = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return added.masked_fill_(~visible, -math.inf)


def _aligned(added: torch.Tensor) -> torch.Tensor:
    """The same numbers, with rows that begin where the kernel wants them to."""
    num_keys = added.shape[-1]
    return torch.nn.functional.pad(added, (0, -num_keys % _ALIGNED_MASK))[..., :num_keys]


def _can_flash(query_BHSE: torch.Tensor) -> bool:
    is_half = query_BHSE.dtype in (torch.bfloat16, torch.float16)
    return is_half and query_BHSE.shape[-1] <= _WIDEST_FLASH_HEAD and _has_flash(query_BHSE.device)


@lru_cache
def _has_flash(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)
