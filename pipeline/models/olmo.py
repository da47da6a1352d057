"""An ai2-olmo model behind the `CausalLM` interface.

Stock OLMo rotates the token in row n of its input by position n. Here row n is rotated by whatever position
ID it is given (RoPE), so that a token keeps its place when others are left out. The blocks are run so that a
prefix is shared by a batch, of which OLMo's own cache would hold a copy for every sequence, and the last one
works at query rows only. With IDs 0, 1, 2, … the logits equal stock OLMo's bit for bit (a test).

Shapes: B batch, S rows, P prefix rows or positions, K = S or P + S, T query rows, D width, H heads,
G key-value heads, E head width, V vocabulary.
"""

import math

import torch
from olmo.config import ModelConfig
from olmo.model import OLMo, OLMoSequentialBlock
from torch import nn

from pipeline.models.attention import attend
from pipeline.models.interface import (
    CausalLM,
    KeysAndValues,
    Prefix,
    Watch,
    rows_of,
)


class RotaryTable(nn.Module):
    """Sines and cosines of every position, by the formula of OLMo's own table; grows with the positions.

    Called, it is a drop-in for `olmo.model.RotaryEmbedding`, shared by all blocks of one model. The IDs stay
    set until the next pass: activation checkpointing runs the blocks again in the backward pass.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self._config = config
        # Not buffers: a model converted to bfloat16 would round them, and checkpoints would hold them.
        self._sine_PE = self._cosine_PE = torch.empty(0)
        self._sine_and_cosine: tuple[torch.Tensor, torch.Tensor] | None = None

    def at(
        self, position_ids_BS: torch.Tensor, num_positions: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sine and cosine of each position ID, for all heads: two float32 [B, 1, S, E].

        The first half of the sines is negative, as the rotation takes it. The IDs are below `num_positions`;
        where it is None it is looked up, for which a GPU must be waited for.
        """
        device = position_ids_BS.device
        num_positions = num_positions or int(position_ids_BS.max()) + 1
        if len(self._sine_PE) < num_positions or self._sine_PE.device != device:
            config = self._config
            # At least the model's own length, so that the table is mostly built once.
            num_rows = max(num_positions, config.max_sequence_length)
            head_width = config.d_model // config.n_heads
            exponents = torch.arange(0, head_width, 2, device=device, dtype=torch.float) / head_width
            positions_P = torch.arange(num_rows, device=device, dtype=torch.float)
            angles = torch.einsum("i,j->ij", positions_P, 1.0 / (config.rope_theta**exponents))
            self._sine_PE = torch.cat((-angles.sin(), angles.sin()), dim=-1)
            self._cosine_PE = torch.cat((angles, angles), dim=-1).cos()
        return self._sine_PE[position_ids_BS][:, None], self._cosine_PE[position_ids_BS][:, None]

    def rotate(
        self, heads_BHSE: torch.Tensor, sine_B1SE: torch.Tensor, cosine_B1SE: torch.Tensor
    ) -> torch.Tensor:
        """Rotate queries or keys, in float32 where the model says so; they come back in their own dtype."""
        rotated = heads_BHSE.float() if self._config.rope_full_precision else heads_BHSE
        # As OLMo does: autocast could round what full precision is for.
        with torch.autocast(heads_BHSE.device.type, enabled=False):
            # OLMo's own arithmetic in fewer passes over memory: its halves change places, and the sign of the
            # one is the sine's.
            turned = rotated.roll(rotated.shape[-1] // 2, dims=-1).mul_(sine_B1SE.type_as(rotated))
            rotated = (rotated * cosine_B1SE.type_as(rotated)).add_(turned)
        return rotated.type_as(heads_BHSE)

    def set_position_ids(self, position_ids_BS: torch.Tensor, num_positions: int | None = None) -> None:
        """Set the IDs of the next forward pass, int64 [B, S] or [1, S], as `at` takes them."""
        self._sine_and_cosine = self.at(position_ids_BS, num_positions)

    def forward(self, query_BHSE: torch.Tensor, key_BHSE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate queries and keys by the position IDs set last; both have one row a token."""
        assert self._sine_and_cosine is not None, "position IDs were not set"
        return self.rotate(query_BHSE, *self._sine_and_cosine), self.rotate(key_BHSE, *self._sine_and_cosine)


def use_position_ids(model: OLMo) -> RotaryTable:
    """Make `model` read its position IDs from the returned module instead of counting rows.

    The parameters and their names are untouched, so checkpoints stay OLMo's.
    """
    rotary = RotaryTable(model.config)
    for block in blocks_of(model):
        block.rotary_emb = rotary
    return rotary


def blocks_of(model: OLMo) -> list[nn.Module]:
    """The transformer blocks in order, whether or not OLMo holds them in groups."""
    if "block_groups" in model.transformer:
        return [block for group in model.transformer.block_groups for block in group]
    return list(model.transformer.blocks)


def _run_block(
    block: OLMoSequentialBlock,
    hidden_BSD: torch.Tensor,
    table: RotaryTable,
    sine_and_cosine: tuple[torch.Tensor, torch.Tensor],
    visible: torch.Tensor | None,
    query_rows_BT: torch.Tensor | None,
    past: KeysAndValues | None,
    watch: Watch | None,
) -> tuple[torch.Tensor, KeysAndValues]:
    """The block's output [B, S, D], of the query rows only [B, T, D], and the keys and values of all rows.

    Those of the prefix, `past`, are [1, G, P, E], shared by the batch; `visible` is [B or 1, 1, S, K].
    """
    config = block.config
    # OLMo's own order, which the bit-for-bit test holds to: clip, split, norm of queries and keys, rotation.
    normed_BSD = hidden_BSD if config.norm_after else block.attn_norm(hidden_BSD)
    qkv = block.att_proj(normed_BSD)
    if config.clip_qkv is not None:
        qkv = qkv.clamp(min=-config.clip_qkv, max=config.clip_qkv)
    query, key, value = qkv.split(block.fused_dims, dim=-1)
    # Keys and values stay of all rows; queries, and the residual stream they return to, are of those wanted.
    query = rows_of(query, query_rows_BT)
    hidden_BSD = rows_of(hidden_BSD, query_rows_BT)
    if visible is not None and query_rows_BT is not None:
        visible = rows_of(visible, query_rows_BT)
    elif query_rows_BT is not None:
        rows_S = torch.arange(key.shape[1], device=key.device)
        # With fewer queries than keys a kernel's own causal mask would start at the wrong row.
        visible = (rows_S <= query_rows_BT[..., None])[:, None]
    if block.q_norm is not None and block.k_norm is not None:
        query = block.q_norm(query).to(key.dtype)
        key = block.k_norm(key).to(key.dtype)
    of_queries = [rows_of(part, query_rows_BT) for part in sine_and_cosine]
    query = table.rotate(_heads(query, config.n_heads), *of_queries)
    key = table.rotate(_heads(key, config.effective_n_kv_heads), *sine_and_cosine)
    value = _heads(value, config.effective_n_kv_heads)
    attended_BHSE = attend(query, key, value, past, visible, watch=watch)
    attended_BSD = block.attn_out(attended_BHSE.transpose(1, 2).flatten(2))
    hidden_BSD = hidden_BSD + (block.attn_norm(attended_BSD) if config.norm_after else attended_BSD)
    normed_BSD = hidden_BSD if config.norm_after else block.ff_norm(hidden_BSD)
    output_BSD = block.ff_out(block.act(block.ff_proj(normed_BSD)))
    return hidden_BSD + (block.ff_norm(output_BSD) if config.norm_after else output_BSD), (key, value)


def _heads(rows_BSD: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[B, S, D] -> [B, H, S, E]."""
    return rows_BSD.unflatten(-1, (num_heads, -1)).transpose(1, 2)


class OLMoCausalLM(CausalLM):
    """An OLMo to be measured; its weights are left as they are. `num_positions`: see `RotaryTable.at`."""

    _model: OLMo

    def __init__(self, model: OLMo, num_positions: int | None = None) -> None:
        super().__init__(model)
        self._table = RotaryTable(model.config)
        self._num_positions = num_positions

    @property
    def vocabulary_size(self) -> int:
        """Rows that only pad the embedding do not count."""
        return self._model.config.vocab_size

    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """See `CausalLM.embed`."""
        return self._model.transformer.wte(token_ids_1S)

    def _run(
        self,
        tokens: torch.Tensor,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        query_rows_BT: torch.Tensor | None,
        prefix: Prefix | None = None,
        *,
        keeps_rows: bool = False,
        watch: Watch | None = None,
    ) -> tuple[torch.Tensor, Prefix | None]:
        """Run `OLMo.forward` up to the vocabulary projection, which at every row would cost most of all."""
        transformer = self._model.transformer
        blocks = blocks_of(self._model)
        sine_and_cosine = self._table.at(position_ids_BS, self._num_positions)
        visible_B1SK = None if visible_BSK is None else visible_BSK[:, None]
        hidden = tokens if tokens.is_floating_point() else self.embed(tokens)
        if self._model.config.embedding_layer_norm:
            hidden = transformer.emb_norm(hidden)
        read = []
        for layer, block in enumerate(blocks):
            # Only the last block may leave rows out: the others' rows are looked at by the next.
            wanted_rows = query_rows_BT if block is blocks[-1] else None
            # Its keys are rotated already.
            past = None if prefix is None else prefix.keys_and_values[layer]
            hidden, keys_and_values = _run_block(
                block, hidden, self._table, sine_and_cosine, visible_B1SK, wanted_rows, past, watch
            )
            if keeps_rows:
                read.append(keys_and_values)
        kept = Prefix(tuple(read), position_ids_BS[:, None, :, None]) if keeps_rows else None
        return transformer.ln_f(hidden), kept

    def _project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits by tied or own weights, scaled or not."""
        transformer = self._model.transformer
        config = self._model.config
        if config.weight_tying:
            logits = torch.nn.functional.linear(hidden, transformer.wte.weight)
        else:
            logits = transformer.ff_out(hidden)
        return logits * (1 / math.sqrt(config.d_model)) if config.scale_logits else logits
