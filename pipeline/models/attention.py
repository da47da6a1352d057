"""Attention of a batch of rows to a prefix that all of them see, and to the rows of their own sequence.

The two are computed apart and merged by their log-sum-exps (as in cascade attention): all rows of the batch
look at one prefix together, which is never copied and needs no mask. torch's own function keeps the
log-sum-exps to itself, so its kernels are called here: one on the CPU; on CUDA flash attention in half
precision without a mask, else the memory-efficient kernel.

Shapes: B batch, S query rows, P prefix rows, K = S or P + S rows to look at, H query heads, G key-value
heads, X = H / G, E head width.
"""

import math

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from pipeline.models.interface import KeysAndValues, Watch

_ALIGNED_BYTES = 16
"""CUDA's kernels read heads in pieces of so many bytes."""
_ALIGNED_MASK = 16
"""And rows of a mask that stand a multiple of so many values apart."""
_WIDEST_FLASH_HEAD = 256
_OLDEST_WITH_FLASH = (8, 0)
"""Compute capability of GPUs."""


def tells_log_sum_exp(device: torch.device, dtype: torch.dtype, key_width: int, value_width: int) -> bool:
    """Whether there is a kernel that does, for heads of these widths."""
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

    Heads are of a kind that `tells_log_sum_exp` knows a kernel for. `visible` is bool, which row sees which,
    or numbers added to the scores, [B or 1, H or 1, S, K]; where it is None, row s sees the rows up to s with
    `is_causal`, else all. Scores are scaled by one over the square root of E, or by `scale`.
    """
    added = visible
    if visible is not None and visible.dtype == torch.bool:
        added = torch.zeros(visible.shape, dtype=query_BHSE.dtype, device=visible.device)
        added.masked_fill_(~visible, -math.inf)
    if query_BHSE.device.type != "cpu":
        return _on_cuda(query_BHSE, key_BHKE, value_BHKE, added, is_causal, scale)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query_BHSE, key_BHKE, value_BHKE, is_causal=is_causal, attn_mask=added, scale=scale
    )


def _on_cuda(
    query_BHSE: torch.Tensor,
    key_BHKE: torch.Tensor,
    value_BHKE: torch.Tensor,
    added: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    qkv = query_BHSE, key_BHKE, value_BHKE
    is_half = query_BHSE.dtype in (torch.bfloat16, torch.float16)
    has_flash = is_half and torch.cuda.get_device_capability(query_BHSE.device) >= _OLDEST_WITH_FLASH
    if added is None and has_flash and query_BHSE.shape[-1] <= _WIDEST_FLASH_HEAD:
        # No dropout; of what it returns, attention and log-sum-exp come first.
        return torch.ops.aten._scaled_dot_product_flash_attention(*qkv, 0.0, is_causal, scale=scale)[:2]
    if added is not None:
        num_keys = key_BHKE.shape[2]  # rows of the mask are to begin where the kernel wants them to
        added = pad(added, (0, -num_keys % _ALIGNED_MASK))[..., :num_keys]
        # The kernel wants batch and heads spelled out; expanding copies nothing.
        added = added.expand(*query_BHSE.shape[:3], num_keys)
    # True asks for the log-sum-exps, otherwise made for a backward pass only; 0.0 is dropout.
    attended_BHSE, sum_BHN, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        *qkv, added, True, 0.0, is_causal, scale=scale
    )
    return attended_BHSE, sum_BHN[..., : query_BHSE.shape[2]]  # the kernel fills up to a multiple of 32


def attend(
    query_BHSE: torch.Tensor,
    key_BGSE: torch.Tensor,
    value_BGSE: torch.Tensor,
    past: KeysAndValues | None,
    visible: torch.Tensor | None,
    scale: float | None = None,
    *,
    softcap: float | None = None,
    sink_H: torch.Tensor | None = None,
    watch: Watch | None = None,
) -> torch.Tensor:
    """What each row gathers from the rows it sees: [B, H, S, E]; there may be fewer queries than keys.

    Args:
        past: keys and values of the prefix, two [1, G, P, E], or of each sequence's own, [B, G, P, E].
        visible: as in `CausalLM.hidden_states`, [B or 1, 1, S, K]; or numbers added to the scores.
        softcap: bounds the scores, smoothly.
        sink_H: a further score of each head, whose attention goes nowhere.
        watch: is shown the heads.
    """
    # No fused kernel shows its weights, caps scores or knows a sink.
    if watch is not None or softcap is not None or sink_H is not None:
        key_BHKE, value_BHKE, visible = _laid_out(query_BHSE, key_BGSE, value_BGSE, past, visible)
        scaled_BHSE, weights_BHSK = _written_out(query_BHSE, key_BHKE, visible, scale, softcap, sink_H)
        if watch is not None:
            watch(scaled_BHSE, key_BHKE.float(), weights_BHSK)
        return weights_BHSK.to(value_BHKE.dtype) @ value_BHKE
    sees_all_past = visible is None or visible.shape[-1] == key_BGSE.shape[2]
    # Only without gradients: torch gives log-sum-exps no derivative, so the merge would lose a part of one.
    if past is not None and len(past[0]) == 1 and sees_all_past and not torch.is_grad_enabled():
        widths = past[0].shape[-1], past[1].shape[-1]
        if tells_log_sum_exp(query_BHSE.device, query_BHSE.dtype, *widths):
            return _attend_apart(query_BHSE, (key_BGSE, value_BGSE), past, visible, scale)
    key_BHKE, value_BHKE, visible = _laid_out(query_BHSE, key_BGSE, value_BGSE, past, visible)
    return scaled_dot_product_attention(
        query_BHSE, key_BHKE, value_BHKE, attn_mask=visible, is_causal=visible is None, scale=scale
    )


def _laid_out(
    query_BHSE: torch.Tensor,
    key_BGSE: torch.Tensor,
    value_BGSE: torch.Tensor,
    past: KeysAndValues | None,
    visible: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Keys and values of all rows, of the prefix too, for each query head, and visibility of them all.

    Arguments are those of `attend`. None stays None without a prefix.
    """
    if past is not None:
        batch_size, _, num_rows, _ = key_BGSE.shape
        num_past = past[0].shape[2]
        if visible is None:
            shape = query_BHSE.shape[2], num_past + num_rows
            # Two rows behind a prefix of two see 1 1 1 0 and 1 1 1 1.
            visible = torch.ones(shape, dtype=torch.bool, device=query_BHSE.device).tril(num_past)
        elif visible.shape[-1] == num_rows:  # all of the prefix is seen
            visible = pad(visible, (num_past, 0), value=visible.dtype == torch.bool)
        past_key, past_value = (part.expand(batch_size, -1, -1, -1) for part in past)
        key_BGSE = torch.cat((past_key, key_BGSE), dim=2)
        value_BGSE = torch.cat((past_value, value_BGSE), dim=2)
    return *_of_each_head(query_BHSE.shape[1], key_BGSE, value_BGSE), visible


def _written_out(
    query_BHSE: torch.Tensor,
    key_BHKE: torch.Tensor,
    visible: torch.Tensor | None,
    scale: float | None,
    softcap: float | None,
    sink_H: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries, such that scores are query times key over the square root of E, and the rows' attention.

    Two float32, [B, H, S, E] and [B, H, S, K], with keys and visibility as `_laid_out` returns them.
    """
    query_BHSE = query_BHSE.float()
    if scale is not None:
        # A family's own scale goes into the queries: whoever watches divides by the square root of E.
        query_BHSE = query_BHSE * (scale * math.sqrt(query_BHSE.shape[-1]))
    scores_BHSK = query_BHSE @ key_BHKE.float().transpose(-1, -2) / math.sqrt(query_BHSE.shape[-1])
    if softcap:
        scores_BHSK = softcap * torch.tanh(scores_BHSK / softcap)
    if visible is None:
        visible = torch.ones(scores_BHSK.shape[-2:], dtype=torch.bool, device=query_BHSE.device).tril()
    if visible.dtype == torch.bool:
        scores_BHSK = scores_BHSK.masked_fill(~visible, -math.inf)
    else:
        scores_BHSK = scores_BHSK + visible
    weights_BHSK = scores_BHSK.softmax(-1)
    if sink_H is not None:
        log_sums_BHS1 = scores_BHSK.logsumexp(-1, keepdim=True)
        # With Z the sum of exp(score), each weight becomes exp(score) / (Z + exp(sink)) = softmax times
        # Z / (Z + exp(sink)), and that factor is sigmoid(ln Z - sink): rows sum to less than 1.
        weights_BHSK = weights_BHSK * torch.sigmoid(log_sums_BHS1 - sink_H.float()[:, None, None])
    return query_BHSE, weights_BHSK


def _of_each_head(num_heads: int, key_BGKE: torch.Tensor, value_BGKE: torch.Tensor) -> KeysAndValues:
    """Keys and values of each query head, where several share them: two [B, H, K, E]."""
    shape = (-1, -1, num_heads // key_BGKE.shape[1], -1, -1)
    # Query head h reads key head h // X, so copies of one head are adjacent: G = 2, X = 2 gives 0 0 1 1.
    key_BGXKE = key_BGKE[:, :, None].expand(shape)
    value_BGXKE = value_BGKE[:, :, None].expand(shape)
    return key_BGXKE.flatten(1, 2), value_BGXKE.flatten(1, 2)


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
    # The causal mask is among own rows alone: every row sees all of the prefix.
    from_own_BHSE, own_sum_BHS = attention_and_log_sum_exp(
        query_BHSE, *_of_each_head(num_heads, *own), visible, is_causal=visible is None, scale=scale
    )
    # All sequences look at the prefix as if their rows were rows of one, and so do heads that share its keys.
    query_GXBSE = query_BHSE.unflatten(1, (num_groups, num_sharing)).permute(1, 2, 0, 3, 4)
    seeing_all_1GNE = query_GXBSE.reshape(1, num_groups, -1, head_width)
    from_past_1GNE, past_sum_1GN = attention_and_log_sum_exp(
        seeing_all_1GNE, *past, None, is_causal=False, scale=scale
    )
    # N = X B S rows come back in the order in which they were laid out.
    of_rows = (num_sharing, batch_size, num_rows)
    from_past_GXBSE = from_past_1GNE[0].unflatten(1, of_rows)
    from_past_BHSE = from_past_GXBSE.permute(2, 0, 1, 3, 4).flatten(1, 2)
    past_sum_BHS = past_sum_1GN[0].unflatten(1, of_rows).permute(2, 0, 1, 3).flatten(1, 2)
    # Z_past / (Z_past + Z_own), from the logarithms, which neither overflow nor underflow.
    past_share_BHS = torch.sigmoid(past_sum_BHS - own_sum_BHS)
    return torch.lerp(from_own_BHSE, from_past_BHSE, past_share_BHS[..., None].to(from_own_BHSE.dtype))
