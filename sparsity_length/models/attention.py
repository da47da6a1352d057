"""Attention of a batch of rows to a prefix that all of them see, and to the rows of their own sequence.

The two are computed apart and merged by their log-sum-exps (as in cascade attention): all rows of the batch
look at one prefix together, which is never copied and needs no mask. torch's own function keeps the
log-sum-exps to itself, so its kernels are called here: one on the CPU; on CUDA flash attention in half
precision without a mask, else the memory-efficient kernel.

Shapes: B batch, S query rows, P prefix rows, K = S or P + S rows to look at, H query heads, G key-value
heads, X = H / G, E head width.
"""

import math
from dataclasses import replace

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from sparsity_length.models.interface import KeysAndValues, Running, joined, visibility_with_prefix

_SCORES_PER_BLOCK = 1 << 26
"""Where scores are made one by one: 256 MiB. All of 12,288 tokens and 9 heads are 5 GiB, several times."""


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

    Heads are of a kind that `_goes_apart` knows a kernel for. `visible` is bool, which row sees which, or
    numbers added to the scores, [B or 1, H or 1, S, K]; if it is None, row s sees the rows up to s with
    `is_causal`, else all. Scores are scaled by one over the square root of E, or by `scale`.
    """
    if visible is not None and visible.dtype == torch.bool:
        visible = torch.where(visible, 0.0, -math.inf).to(query_BHSE.dtype)
    if query_BHSE.device.type != "cpu":
        return _on_cuda(query_BHSE, key_BHKE, value_BHKE, visible, is_causal, scale)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query_BHSE, key_BHKE, value_BHKE, is_causal=is_causal, attn_mask=visible, scale=scale
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
    # Flash attention needs a GPU of compute capability 8.0 or later, and heads no wider than 256.
    has_flash = is_half and torch.cuda.get_device_capability(query_BHSE.device) >= (8, 0)
    if added is None and has_flash and query_BHSE.shape[-1] <= 256:
        # No dropout; of what it returns, attention and log-sum-exp come first.
        return torch.ops.aten._scaled_dot_product_flash_attention(*qkv, 0.0, is_causal, scale=scale)[:2]
    if added is not None:
        num_keys = key_BHKE.shape[2]
        # The kernel wants rows of a mask to begin a multiple of 16 values apart.
        added = pad(added, (0, -num_keys % 16))[..., :num_keys]
        # And batch and heads spelled out; expanding copies nothing.
        added = added.expand(*query_BHSE.shape[:3], num_keys)
    # True asks for the log-sum-exps, otherwise made for a backward pass only; 0.0 is dropout.
    attended_BHSE, sum_BHN, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        *qkv, added, True, 0.0, is_causal, scale=scale
    )
    return attended_BHSE, sum_BHN[..., : query_BHSE.shape[2]]  # the kernel fills up to a multiple of 32


def alibi_slopes(num_heads: int, largest: float = 8.0) -> torch.Tensor:
    """ALiBi's slope of each head (Press et al. 2021, arXiv 2108.12409): float32 [H], 2^(-8h / H), h from 1.

    Of four heads 1/4, 1/16, 1/64, 1/256. For numbers of heads that are no power of two, which the abstract
    leaves open, this is OLMo's way, whose alibi_bias_max is `largest`; BLOOM and MPT have others.
    """
    return 2.0 ** (-largest * torch.arange(1, num_heads + 1) / num_heads)


def _with_distances(
    query_BHSE: torch.Tensor,
    key_BGKE: torch.Tensor,
    value_BGKE: torch.Tensor,
    slopes_H: torch.Tensor,
    position_ids_BN: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values eight numbers wider, whose scores hold ALiBi: -slope x (query's ID - key's).

    Softmax does not see what a whole row has in common, so -slope x (the last of all N IDs - the key's) will
    do, and that is a part of the product: a key carries its ID as if RoPE had rotated it, however it is kept,
    moved or shared. ID 300 is written as 256 and 44, which bfloat16 holds exactly; IDs stand first, so that
    large ones cancel before what is small is added. Values get zeros, as kernels want one width.
    """
    parts_BN2 = torch.stack((position_ids_BN // 256 * 256, position_ids_BN % 256), dim=-1)
    last_B112 = parts_BN2.sum(-1).amax(-1)[:, None, None, None]
    last_B112 = torch.cat((last_B112 // 256 * 256, last_B112 % 256), dim=-1)
    of_keys_B1K2 = parts_BN2[:, None, -key_BGKE.shape[2] :]
    slopes_H11 = (slopes_H.to(query_BHSE.device) / scale)[:, None, None]
    # The product is slope x (256 + 44 - 512 - 3), of a key at ID 300 where the last is at 515.
    queries = slopes_H11 * torch.cat((torch.ones_like(last_B112), -last_B112), dim=-1)
    keys = torch.cat((of_keys_B1K2, torch.ones_like(of_keys_B1K2)), dim=-1)
    wide = []
    for rows, numbers in ((query_BHSE, queries), (key_BGKE, keys)):
        numbers = numbers.to(rows).expand(*rows.shape[:3], 4)
        # CUDA's kernels read heads in pieces of 16 bytes: eight numbers in half precision.
        wide.append(torch.cat((pad(numbers, (0, 4)), rows), dim=-1))
    return wide[0], wide[1], pad(value_BGKE, (0, 8))


def attend(
    running: Running,
    layer: int,
    query_BHSE: torch.Tensor,
    key_BGSE: torch.Tensor,
    value_BGSE: torch.Tensor,
    visible: torch.Tensor | None,
    scale: float | None = None,
    *,
    softcap: float | None = None,
    sink_H: torch.Tensor | None = None,
) -> torch.Tensor:
    """What each row gathers from the rows it sees: [B, H, S, E]; there may be fewer queries than keys.

    Call order:
        _with_distances     writes ALiBi into queries and keys; all else goes on without slopes
        unless scores are watched, changed or capped, or a head has a sink:
            _attend_apart   if `_goes_apart`: a shared prefix and own rows apart, then merged
            scaled_dot_product_attention
                            else, of both, joined
        _attend_in_blocks   else, of blocks of rows: scores of both, joined, running.change, _weights,
                            running.watch

    Args:
        visible: as `running.visible_B1SK`, which may be narrowed in some layers.
        softcap: bounds the scores, smoothly.
        sink_H: a further score of each head, whose attention goes nowhere.
    """
    if running.slopes_H is not None:
        width = value_BGSE.shape[-1]
        scale = scale or width**-0.5
        ids_BK = running.position_ids_BK.to(key_BGSE.device)
        wide = _with_distances(query_BHSE, key_BGSE, value_BGSE, running.slopes_H, ids_BK, scale)
        plain = replace(running, slopes_H=None)
        return attend(plain, layer, *wide, visible, scale, softcap=softcap, sink_H=sink_H)[..., :width]
    own = key_BGSE, value_BGSE
    layers = running.prefix.keys_and_values
    past = layers[layer] if layers else None
    if running.read is not None:
        running.read.append(joined(past, own))
    # No fused kernel shows its weights, changes or caps scores, or knows a sink.
    is_fused = running.watch is None and running.change is None and softcap is None and sink_H is None
    if is_fused and past is not None and _goes_apart(past):
        return _attend_apart(query_BHSE, own, past, visible, scale)
    key_BHKE, value_BHKE = (_of_each_head(query_BHSE.shape[1], part) for part in joined(past, own))
    if is_fused:
        if past is not None:
            num_rows = key_BGSE.shape[2]
            visible = visibility_with_prefix(visible, num_rows, key_BHKE.shape[2], query_BHSE.device)
        return scaled_dot_product_attention(
            query_BHSE, key_BHKE, value_BHKE, attn_mask=visible, is_causal=visible is None, scale=scale
        )
    qkv = query_BHSE, key_BHKE, value_BHKE
    return _attend_in_blocks(
        running, layer, qkv, visible, scale or query_BHSE.shape[-1] ** -0.5, softcap, sink_H
    )


def _attend_in_blocks(
    running: Running,
    layer: int,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    visible: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    sink_H: torch.Tensor | None,
) -> torch.Tensor:
    """`attend`, score by score, for blocks of R rows."""
    query_BHSE, key_BHKE, value_BHKE = qkv
    batch_size, num_heads, num_rows, _ = query_BHSE.shape
    num_keys = key_BHKE.shape[2]
    is_causal = visible is None
    visible = visibility_with_prefix(visible, num_rows, num_keys, query_BHSE.device)
    num_at_once = num_rows
    if running.watch is None:  # which is shown a layer as a whole
        num_at_once = max(1, _SCORES_PER_BLOCK // (batch_size * num_heads * num_keys))
    parts = []
    for start in range(0, num_rows, num_at_once):
        rows = slice(start, min(start + num_at_once, num_rows))
        # Keys up to the block's last row.
        seen = slice(num_keys - num_rows + rows.stop if is_causal else num_keys)
        query_BHRE = query_BHSE[:, :, rows].float()
        key = key_BHKE[:, :, seen].float()
        visible_of_rows = visible[..., rows, seen]
        scores_BHRK = query_BHRE @ key.transpose(-1, -2) * scale
        if running.change is not None:
            scores_BHRK = running.change(layer, rows, scores_BHRK, visible_of_rows, query_BHRE * scale, key)
        weights_BHRK = _weights(scores_BHRK, visible_of_rows, softcap, sink_H)
        if running.watch is not None:
            running.watch(weights_BHRK)
        parts.append(weights_BHRK.to(value_BHKE.dtype) @ value_BHKE[:, :, seen])
    return torch.cat(parts, dim=2)


def _weights(
    scores_BHRK: torch.Tensor, visible: torch.Tensor, softcap: float | None, sink_H: torch.Tensor | None
) -> torch.Tensor:
    """What each of R rows attends to, [B, H, R, K]; see `attend`."""
    if softcap is not None:
        scores_BHRK = softcap * torch.tanh(scores_BHRK / softcap)
    if visible.dtype == torch.bool:
        scores_BHRK = scores_BHRK.masked_fill(~visible, -math.inf)
    else:
        scores_BHRK = scores_BHRK + visible
    weights_BHRK = scores_BHRK.softmax(-1)
    if sink_H is not None:
        log_sums_BHR1 = scores_BHRK.logsumexp(-1, keepdim=True)
        # With Z the sum of exp(score), each weight becomes exp(score) / (Z + exp(sink)) = softmax times
        # Z / (Z + exp(sink)), and that factor is sigmoid(ln Z - sink): rows sum to less than 1.
        weights_BHRK = weights_BHRK * torch.sigmoid(log_sums_BHR1 - sink_H.float()[:, None, None])
    return weights_BHRK


def _of_each_head(num_heads: int, shared_BGKE: torch.Tensor) -> torch.Tensor:
    """Keys or values of each query head, [B, H, K, E], if several share them."""
    # Query head h reads key head h // X, so copies of one head are adjacent: G = 2, X = 2 gives 0 0 1 1.
    num_sharing = num_heads // shared_BGKE.shape[1]
    return shared_BGKE[:, :, None].expand(-1, -1, num_sharing, -1, -1).flatten(1, 2)


def _goes_apart(past: KeysAndValues) -> bool:
    """Whether all rows look at one prefix, and a kernel for such heads tells its log-sum-exps."""
    past_key_1GPE, past_value_1GPE = past
    # Only without gradients: torch gives log-sum-exps no derivative, so the merge would lose a part of one.
    if len(past_key_1GPE) > 1 or torch.is_grad_enabled():
        return False
    width = past_key_1GPE.shape[-1]
    # CUDA's kernels read heads in pieces of 16 bytes.
    is_aligned = width * past_key_1GPE.itemsize % 16 == 0
    has_kernel = past_key_1GPE.is_cpu or (past_key_1GPE.is_cuda and is_aligned)
    return has_kernel and width == past_value_1GPE.shape[-1]


def _attend_apart(
    query_BHSE: torch.Tensor,
    own: KeysAndValues,
    past: KeysAndValues,
    visible: torch.Tensor | None,
    scale: float | None,
) -> torch.Tensor:
    batch_size, num_heads, num_rows, head_width = query_BHSE.shape
    num_past = past[0].shape[2]
    visible_past = None
    if visible is not None and visible.shape[-1] > own[0].shape[2]:
        visible = visibility_with_prefix(visible, num_rows, num_past + own[0].shape[2], query_BHSE.device)
        visible_past = visible[..., :num_past]
        visible = visible[..., num_past:]
    # The causal mask is among own rows alone.
    key_BHSE, value_BHSE = (_of_each_head(num_heads, part) for part in own)
    from_own_BHSE, own_sum_BHS = attention_and_log_sum_exp(
        query_BHSE, key_BHSE, value_BHSE, visible, is_causal=visible is None, scale=scale
    )
    if visible_past is not None:
        # One mask serves all heads only if each has keys of its own: to copy these is the cheaper.
        past_key, past_value = past
        past = _of_each_head(num_heads, past_key), _of_each_head(num_heads, past_value)
        visible_past = visible_past.expand(batch_size, 1, num_rows, -1).reshape(1, 1, -1, num_past)
    # All sequences look at the prefix as if their rows were rows of one, and so do the X heads that share its
    # keys, which are adjacent: N = X B S, or B S behind a mask.
    seeing_all_1GNE = query_BHSE.transpose(0, 1).reshape(1, past[0].shape[1], -1, head_width)
    from_past_1GNE, past_sum_1GN = attention_and_log_sum_exp(
        seeing_all_1GNE, *past, visible_past, is_causal=False, scale=scale
    )
    if visible_past is not None and visible_past.dtype == torch.bool:
        # Of a row that sees nothing of the prefix, kernels tell different things.
        sees_none_1GN = ~visible_past.any(-1)
        past_sum_1GN = past_sum_1GN.masked_fill(sees_none_1GN, -math.inf)
        from_past_1GNE = from_past_1GNE.masked_fill(sees_none_1GN[..., None], 0)
    from_past_BHSE = from_past_1GNE.reshape(num_heads, batch_size, num_rows, head_width).transpose(0, 1)
    past_sum_BHS = past_sum_1GN.reshape(num_heads, batch_size, num_rows).transpose(0, 1)
    # Z_past / (Z_past + Z_own), from the logarithms, which neither overflow nor underflow.
    past_share_BHS = torch.sigmoid(past_sum_BHS - own_sum_BHS)
    return torch.lerp(from_own_BHSE, from_past_BHSE, past_share_BHS[..., None].to(from_own_BHSE.dtype))
