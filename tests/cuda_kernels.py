"""CUDA's two attention kernels written out on the CPU, as strict about what they are given as the real ones.

So the code that calls them runs, and its numbers are right, where no GPU is. Shapes: B batch, S query rows,
K rows to look at, H heads, E head width.
"""

import inspect
import math
from collections import Counter
from typing import Any

import pytest
import torch

from sparsity_length.models import attention as log_sum_exp_attention

NAMES = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention")


def write_out_cuda_kernels(patch: pytest.MonkeyPatch) -> Counter[str]:
    """Have attention on the CPU call CUDA's kernels, written out; returns how often each was called."""
    calls: Counter[str] = Counter()
    for name in NAMES:
        patch.setattr(torch.ops.aten, name, _WrittenOut(name, calls))
    patch.setattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", _as_on_cuda)
    patch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    return calls


def _as_on_cuda(
    *qkv: torch.Tensor, is_causal: bool, attn_mask: torch.Tensor | None, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    return log_sum_exp_attention._on_cuda(*qkv, attn_mask, is_causal, scale)


class _WrittenOut:
    """Takes the arguments of the real kernel's own schema, and returns as many results."""

    def __init__(self, name: str, calls: Counter[str]) -> None:
        self._name = name
        self._calls = calls
        schema = getattr(torch.ops.aten, name).default._schema
        self._num_results = len(schema.returns)
        self._signature = inspect.Signature(
            [
                inspect.Parameter(
                    argument.name,
                    inspect.Parameter.KEYWORD_ONLY
                    if argument.kwarg_only
                    else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    default=argument.default_value if argument.has_default_value() else inspect._empty,
                )
                for argument in schema.arguments
            ]
        )

    def __call__(self, *arguments: Any, **keywords: Any) -> tuple[torch.Tensor | None, ...]:
        self._calls[self._name] += 1
        bound = self._signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        given = bound.arguments
        assert given["dropout_p"] == 0
        qkv = [given[name] for name in ("query", "key", "value")]
        for tensor in qkv:
            assert tensor.stride(-1) == 1 and tensor.shape[-1] * tensor.itemsize % 16 == 0
            assert tensor.shape[:2] == qkv[0].shape[:2] and tensor.dtype == qkv[0].dtype
        if self._name == NAMES[0]:
            assert qkv[0].dtype in (torch.bfloat16, torch.float16)
        else:
            assert given["compute_log_sumexp"]
            _check_mask(given["attn_bias"], *qkv[:2])
        results = _attention(*qkv, given.get("attn_bias"), given["is_causal"], given["scale"])
        if self._name == NAMES[1]:
            results = results[0], torch.nn.functional.pad(results[1], (0, -results[1].shape[-1] % 32))
        return *results, *[None] * (self._num_results - 2)


def _check_mask(added: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> None:
    """Check what the efficient kernel demands: its dtype, every head, rows at multiples of 8 values."""
    if added is not None:
        assert added.dtype == query.dtype
        assert added.shape == (*query.shape[:3], key.shape[2])
        assert added.stride(-1) == 1 and all(stride % 8 == 0 for stride in added.stride()[:3])


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    added: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and log-sum-exps, [B, S, H, E] in memory as CUDA's have it."""
    assert not (is_causal and added is not None)
    scores = (query.double() @ key.double().transpose(-1, -2)) * (scale or 1 / math.sqrt(query.shape[-1]))
    if added is not None:
        scores = scores + added.double()
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    attended = (scores.softmax(-1) @ value.double()).to(query.dtype)
    return attended.transpose(1, 2).contiguous().transpose(1, 2), scores.logsumexp(-1).float()
