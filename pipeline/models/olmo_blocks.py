"""OLMo's blocks, run so that a prefix is shared by a batch and the last block works at query rows only.

The arithmetic is `olmo.model.OLMoSequentialBlock`'s, whose own cache cannot serve here: it holds a copy for
every sequence, unrotated, and rotates it anew by row number. Keys are kept rotated, as a token's ID never
changes. With no prefix, and at every row, the result equals stock OLMo's bit for bit (a test).

Shapes: B batch, S rows, P prefix rows, K = S or P + S, T query rows, D width, H heads,
G key-value heads, E head width.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from olmo.model import OLMoSequentialBlock

from pipeline.models.causal_lm import KeysAndValues
from pipeline.models.prefix_attention import attend
from pipeline.models.rope import RotaryTable


@dataclass(frozen=True)
class Rows:
    """Where the rows of a batch stand and whom they see; the same for every block."""

    table: RotaryTable
    sine_B1SE: torch.Tensor
    cosine_B1SE: torch.Tensor
    visible_B1SK: torch.Tensor | None
    """As in `CausalLM.hidden_states`; a float tensor is added to the scores."""
    watch: Callable[[torch.Tensor, torch.Tensor], None] | None = None
    """Called by every block with its rotated queries [B, H, S, E] and keys [B, G, S, E], to look at only."""
    attend: Callable[..., torch.Tensor] = attend
    """What gathers, with the arguments of `prefix_attention.attend`."""


def run_block(
    block: OLMoSequentialBlock,
    hidden_BSD: torch.Tensor,
    rows: Rows,
    past: KeysAndValues | None,
    query_rows_BT: torch.Tensor | None,
) -> tuple[torch.Tensor, KeysAndValues]:
    """The block's output, and the keys and values of the rows given.

    Args:
        past: keys and values of the prefix, [1, G, P, E], shared by the batch.
        query_rows_BT: the only rows whose output is wanted, which makes it [B, T, D]; None: all.
    """
    config = block.config
    normed_BSD = hidden_BSD if config.norm_after else block.attn_norm(hidden_BSD)
    qkv = block.att_proj(normed_BSD)
    if config.clip_qkv is not None:
        qkv = qkv.clamp(min=-config.clip_qkv, max=config.clip_qkv)
    query, key, value = qkv.split(block.fused_dims, dim=-1)
    sine, cosine, visible = rows.sine_B1SE, rows.cosine_B1SE, rows.visible_B1SK
    if query_rows_BT is not None:
        query, hidden_BSD = _take_rows(query, query_rows_BT), _take_rows(hidden_BSD, query_rows_BT)
        query_sine, query_cosine = _take_rows(sine, query_rows_BT), _take_rows(cosine, query_rows_BT)
        visible = _visible_from(visible, query_rows_BT, key.shape[1])
    else:
        query_sine, query_cosine = sine, cosine
    if block.q_norm is not None and block.k_norm is not None:
        query, key = block.q_norm(query).to(key.dtype), block.k_norm(key).to(key.dtype)
    query = rows.table.rotate(_heads(query, config.n_heads), query_sine, query_cosine)
    key = rows.table.rotate(_heads(key, config.effective_n_kv_heads), sine, cosine)
    value = _heads(value, config.effective_n_kv_heads)
    if rows.watch is not None:
        rows.watch(query, key)
    attended_BHSE = rows.attend(query, key, value, past, visible)
    attended_BSD = block.attn_out(attended_BHSE.transpose(1, 2).flatten(2))
    hidden_BSD = hidden_BSD + (block.attn_norm(attended_BSD) if config.norm_after else attended_BSD)
    return hidden_BSD + _feed_forward(block, hidden_BSD), (key, value)


def _feed_forward(block: OLMoSequentialBlock, hidden_BSD: torch.Tensor) -> torch.Tensor:
    normed = hidden_BSD if block.config.norm_after else block.ff_norm(hidden_BSD)
    output = block.ff_out(block.act(block.ff_proj(normed)))
    return block.ff_norm(output) if block.config.norm_after else output


def _heads(rows_BSD: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[B, S, D] -> [B, H, S, E]."""
    return rows_BSD.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def _take_rows(rows: torch.Tensor, query_rows_BT: torch.Tensor) -> torch.Tensor:
    """The query rows of [B, S, D] or [B, 1, S, E]; either batch may be 1, for all."""
    middle = rows.shape[1:-2]
    batch_size = max(rows.shape[0], query_rows_BT.shape[0])
    index = query_rows_BT.view(len(query_rows_BT), *(1 for _ in middle), -1, 1)
    index = index.expand(batch_size, *middle, -1, rows.shape[-1])
    return rows.expand(batch_size, *rows.shape[1:]).gather(-2, index)


def _visible_from(
    visible_B1SK: torch.Tensor | None, query_rows_BT: torch.Tensor, num_rows: int
) -> torch.Tensor:
    """Whom the query rows see, [B, 1, T, K]."""
    if visible_B1SK is None:
        rows_S = torch.arange(num_rows, device=query_rows_BT.device)
        return (rows_S <= query_rows_BT[..., None])[:, None]
    return _take_rows(visible_B1SK, query_rows_BT)
