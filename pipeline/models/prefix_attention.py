"""Attention of a batch of rows to a prefix that all of them see, and to the rows of their own sequence.

The two are computed apart and merged by their log-sum-exps (as in cascade attention): all rows of the batch
look at one prefix together, which is never copied for each sequence and needs no mask.

Shapes: B batch, S rows, P prefix rows, K = S or P + S, H query heads, G key-value heads, X = H / G,
E head width.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention

from pipeline.models.causal_lm import KeysAndValues
from pipeline.models.log_sum_exp_attention import attention_and_log_sum_exp, tells_log_sum_exp


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
