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

What letting one more token in would do, to first order: gates on candidates that are all closed.

The gate g of candidate i mixes, in every layer and head, what a row gathers without i and what it gathers
with i:

    (1 - g) o + g (o + a (v_i - o)),    a = exp(score_i) / (exp(score_i) + sum of exp(score) of rows seen)

Closed, it leaves the model as it is without i; open, every row sees i. The derivative of a loss by the closed
gate is a <dloss/do, v_i - o>, summed over layers, heads and rows. So one pass without any candidate, one
backward pass to every o, and the candidates' keys and values tell it of all of them. (A gate that multiplies
exp(score_i), open or closed, has the same ends. Its derivative where it is closed has exp(score_i) over the
sum without it for a, which is far too much of a candidate that would draw most of the attention.)

Shapes: B batch, S rows, P candidates, V vocabulary, H heads, G key-value heads, X = H / G, E head width.

Attention weights, which fused attention never shows, computed beside it from its queries and keys.

Shapes: S rows of one sequence, T query rows, H heads, G key-value heads, E head width.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch.nn.functional import scaled_dot_product_attention

from pipeline.models.interface import KeysAndValues, Prefix, causal_visibility

NEARLY_CLOSED = -32.0
"""Added to the scores of candidates: e to this is nothing beside 1, yet no 0 in float32 and bfloat16."""


def added_to_scores(visible_BSK: torch.Tensor, num_past: int, dtype: torch.dtype) -> torch.Tensor:
    """The mask as every family takes it: 0 where visible, else the least number; [B, 1, S, P + S]."""
    mask_BSK = torch.zeros(visible_BSK.shape, dtype=dtype, device=visible_BSK.device)
    mask_BSK.masked_fill_(~visible_BSK, torch.finfo(dtype).min)
    num_unmentioned = num_past + visible_BSK.shape[1] - visible_BSK.shape[2]
    return torch.nn.functional.pad(mask_BSK, (num_unmentioned, 0))[:, None]


def candidates_nearly_closed(visible_BSP: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to scores so that candidates, a prefix, hardly count among S rows: [B, 1, S, P + S]."""
    least = torch.finfo(dtype).min
    of_candidates_BSP = torch.where(visible_BSP, NEARLY_CLOSED, least).to(dtype)
    own_1SS = causal_visibility(visible_BSP.shape[1], visible_BSP.device)
    of_own_BSS = torch.where(own_1SS, 0.0, least).to(dtype).expand(len(visible_BSP), -1, -1)
    return torch.cat((of_candidates_BSP, of_own_BSS), dim=-1)[:, None]


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


@runtime_checkable
class ScreenedLM(Protocol):
    """What a `CausalLM` may offer beyond predictions: derivatives by the closed gates of candidates."""

    def candidate_gradients(
        self,
        token_ids_BS: torch.Tensor,
        position_ids_BS: torch.Tensor,
        answers: torch.Tensor,
        candidates: Prefix,
        visible_BSP: torch.Tensor,
    ) -> torch.Tensor:
        """Derivative of each sequence's loss by each candidate's gate, all being 0: float32 [B, P], nats.

        One forward and one backward pass through the B sequences, in which no candidate is a row.

        Args:
            token_ids_BS, position_ids_BS: int64 [B, S]; each row sees the rows up to itself.
            answers: what the last row predicts, int64 [B]; or float32 [B, V], how likely each token is: then
                the loss is the mean over them.
            candidates: rows of one sequence, already read.
            visible_BSP: bool; which row would see which candidate.

        Raises:
            NotInspectableError: the kind of model has no such derivative.
        """


class _Layer(NamedTuple):
    query_BHSE: torch.Tensor
    key_BGSE: torch.Tensor
    gathered_BHSE: torch.Tensor
    nothing_BHSE: torch.Tensor
    """Zeros that were added to what was gathered, whose gradient is its."""


class CandidateGates:
    """Attention among the rows of a pass, which notes what the derivatives by the gates need."""

    def __init__(self, candidates: Prefix, visible_BSP: torch.Tensor) -> None:
        """Gates on candidates.

        Args:
            candidates: their keys and values, of one sequence.
            visible_BSP: bool; which row would see which of them.
        """
        self._candidates, self._visible_BSP = candidates, visible_BSP
        self._layers: list[_Layer] = []

    def attend(
        self,
        query_BHSE: torch.Tensor,
        key_BGSE: torch.Tensor,
        value_BGSE: torch.Tensor,
        past: KeysAndValues | None,
        visible: torch.Tensor | None,
    ) -> torch.Tensor:
        """As `prefix_attention.attend` of rows that each see the rows up to themselves."""
        assert past is None and visible is None, "gates are for contexts that are sequences of their own"
        gathered_BHSE = attend(query_BHSE, key_BGSE, value_BGSE, None, None)
        nothing_BHSE = torch.zeros_like(gathered_BHSE, requires_grad=True)
        self._layers.append(
            _Layer(query_BHSE.detach(), key_BGSE.detach(), gathered_BHSE.detach(), nothing_BHSE)
        )
        return gathered_BHSE + nothing_BHSE

    def derivatives(self, losses_B: torch.Tensor) -> torch.Tensor:
        """Of each sequence's loss by each candidate's gate, at 0: float32 [B, P]."""
        gradients = torch.autograd.grad(losses_B.sum(), [layer.nothing_BHSE for layer in self._layers])
        with torch.no_grad():
            of_layers = [
                self._of_layer(layer, gradient_BHSE, past)
                for layer, gradient_BHSE, past in zip(
                    self._layers, gradients, self._candidates.keys_and_values, strict=True
                )
            ]
        return torch.stack(of_layers).sum(0)

    def _of_layer(self, layer: _Layer, gradient_BHSE: torch.Tensor, past: KeysAndValues) -> torch.Tensor:
        key_1GPE, value_1GPE = past
        num_groups, width = key_1GPE.shape[1], key_1GPE.shape[-1]
        query, gathered, gradient = (
            tensor.unflatten(1, (num_groups, -1)).float()
            for tensor in (layer.query_BHSE, layer.gathered_BHSE, gradient_BHSE)
        )
        query = query / math.sqrt(width)
        scores_BGXSS = query @ layer.key_BGSE[:, :, None].float().transpose(-1, -2)
        is_later_SS = torch.ones_like(scores_BGXSS[0, 0, 0], dtype=torch.bool).triu(1)
        sums_BGXS = scores_BGXSS.masked_fill(is_later_SS, -math.inf).logsumexp(-1)
        scores_BGXSP = query @ key_1GPE[:, :, None].float().transpose(-1, -2)
        shares_BGXSP = (scores_BGXSP - sums_BGXS[..., None]).sigmoid()
        worths_BGXSP = gradient @ value_1GPE[:, :, None].float().transpose(-1, -2)
        worths_BGXSP -= (gradient * gathered).sum(-1, keepdim=True)
        of_rows_BSP = (shares_BGXSP * worths_BGXSP).sum((1, 2))
        return of_rows_BSP.masked_fill(~self._visible_BSP, 0).sum(1)


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
