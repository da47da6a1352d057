"""What is added to attention scores, as every Hugging Face family takes it: who sees whom, and how much.

Shapes: B batch, S rows, P rows of a prefix, K = S or P + S.

Fused attention that also tells each row's log-sum-exp, which torch's own function keeps to itself.

With it, attention to two sets of keys can be computed apart and merged. The kernels are those that
scaled_dot_product_attention takes itself: one on the CPU, two on CUDA. Flash attention computes in half
precision and knows no mask; the memory-efficient kernel does the rest.

Shapes: B batch, S query rows, K rows to look at, H heads, E head width.

Attention of a batch of rows to a prefix that all of them see, and to the rows of their own sequence.

The two are computed apart and merged by their log-sum-exps (as in cascade attention): all rows of the batch
look at one prefix together, which is never copied for each sequence and needs no mask.

Shapes: B batch, S rows, P prefix rows, K = S or P + S, H query heads, G key-value heads, X = H / G,
E head width.

Attention weights, which fused attention never shows, computed beside it from its queries and keys.

Shapes: S rows of one sequence, T query rows, H heads, G key-value heads, E head width.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch.nn.functional import scaled_dot_product_attention

from pipeline.models.interface import KeysAndValues


def added_to_scores(visible_BSK: torch.Tensor, num_past: int, dtype: torch.dtype) -> torch.Tensor:
    """The mask as every family takes it: 0 where visible, else the least number; [B, 1, S, P + S]."""
    mask_BSK = torch.zeros(visible_BSK.shape, dtype=dtype, device=visible_BSK.device)
    mask_BSK.masked_fill_(~visible_BSK, torch.finfo(dtype).min)
    num_unmentioned = num_past + visible_BSK.shape[1] - visible_BSK.shape[2]
    return torch.nn.functional.pad(mask_BSK, (num_unmentioned, 0))[:, None]


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


def attend(
    query_BHSE: torch.Tensor,
    key_BGSE: torch.Tensor,
    value_BGSE: torch.Tensor,
    past: KeysAndValues | None,
    visible: torch.Tensor | None,
    scale: float | None = None,
) -> torch.Tensor:
    """What each row gathers from the rows it sees: [B, H, S, E].

    Args:
        query_BHSE, key_BGSE, value_BGSE: of the rows given, rotated; there may be fewer queries than keys.
        past: keys and values of the prefix, two [1, G, P, E], or of each sequence's own, [B, G, P, E]; None:
            there is none.
        visible: as in `CausalLM.hidden_states`, [B or 1, 1, S, K]; or numbers added to the scores.
        scale: of the scores; None: one over the square root of E.
    """
    if past is None:
        return _attend(query_BHSE, key_BGSE, value_BGSE, visible, scale)
    sees_all_past = visible is None or visible.shape[-1] == key_BGSE.shape[2]
    if sees_all_past and _goes_apart(query_BHSE, past):
        return _attend_apart(query_BHSE, (key_BGSE, value_BGSE), past, visible, scale)
    batch_size, num_past = len(key_BGSE), past[0].shape[2]
    past_key, past_value = (part.expand(batch_size, -1, -1, -1) for part in past)
    return _attend(
        query_BHSE,
        torch.cat((past_key, key_BGSE), dim=2),
        torch.cat((past_value, value_BGSE), dim=2),
        _with_past_visible(visible, num_past, query_BHSE) if sees_all_past else visible,
        scale,
    )


def _goes_apart(query_BHSE: torch.Tensor, past: KeysAndValues) -> bool:
    """Whether one prefix is shared, a kernel tells log-sum-exps, and none of it is to be derived."""
    widths = past[0].shape[-1], past[1].shape[-1]
    has_kernel = tells_log_sum_exp(query_BHSE.device, query_BHSE.dtype, *widths)
    return len(past[0]) == 1 and has_kernel and not torch.is_grad_enabled()


def _attend(
    query_BHSE: torch.Tensor,
    key_BGKE: torch.Tensor,
    value_BGKE: torch.Tensor,
    visible: torch.Tensor | None,
    scale: float | None,
) -> torch.Tensor:
    num_sharing = query_BHSE.shape[1] // key_BGKE.shape[1]
    if num_sharing > 1:
        key_BGKE = key_BGKE.repeat_interleave(num_sharing, dim=1)
        value_BGKE = value_BGKE.repeat_interleave(num_sharing, dim=1)
    return scaled_dot_product_attention(
        query_BHSE, key_BGKE, value_BGKE, attn_mask=visible, is_causal=visible is None, scale=scale
    )


def _with_past_visible(visible: torch.Tensor | None, num_past: int, query_BHSE: torch.Tensor) -> torch.Tensor:
    """The mask over prefix and rows, all of the prefix seen."""
    if visible is None:
        num_rows = query_BHSE.shape[2]
        everything = torch.ones(num_rows, num_past + num_rows, dtype=torch.bool, device=query_BHSE.device)
        return everything.tril(num_past)
    seen = torch.ones if visible.dtype == torch.bool else torch.zeros
    of_past = seen(*visible.shape[:-1], num_past, dtype=visible.dtype, device=visible.device)
    return torch.cat((of_past, visible), dim=-1)


def _attend_apart(
    query_BHSE: torch.Tensor,
    own: KeysAndValues,
    past: KeysAndValues,
    visible: torch.Tensor | None,
    scale: float | None,
) -> torch.Tensor:
    batch_size, num_heads, num_rows, head_width = query_BHSE.shape
    num_groups = past[0].shape[1]
    num_sharing = num_heads // num_groups
    if num_sharing > 1:
        own = own[0].repeat_interleave(num_sharing, dim=1), own[1].repeat_interleave(num_sharing, dim=1)
    from_own_BHSE, own_sum_BHS = attention_and_log_sum_exp(
        query_BHSE, *own, visible, is_causal=visible is None, scale=scale
    )
    # All sequences look at the prefix as if their rows were rows of one, and so do heads that share its keys.
    query_GXBSE = query_BHSE.unflatten(1, (num_groups, num_sharing)).permute(1, 2, 0, 3, 4)
    seeing_all_1GNE = query_GXBSE.reshape(1, num_groups, -1, head_width)
    from_past_1GNE, past_sum_1GN = attention_and_log_sum_exp(
        seeing_all_1GNE, *past, None, is_causal=False, scale=scale
    )
    of_rows = (num_sharing, batch_size, num_rows)
    from_past_GXBSE = from_past_1GNE[0].unflatten(1, of_rows)
    from_past_BHSE = from_past_GXBSE.permute(2, 0, 1, 3, 4).flatten(1, 2)
    past_sum_BHS = past_sum_1GN[0].unflatten(1, of_rows).permute(2, 0, 1, 3).flatten(1, 2)
    past_share_BHS = torch.sigmoid(past_sum_BHS - own_sum_BHS)
    return torch.lerp(from_own_BHSE, from_past_BHSE, past_share_BHS[..., None].to(from_own_BHSE.dtype))


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
