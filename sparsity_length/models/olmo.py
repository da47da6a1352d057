"""An ai2-olmo model behind the `CausalLM` interface.

Stock OLMo rotates the token in row n of its input by position n. Here row n is rotated by whatever position
ID it is given (RoPE), or has scores that fall with the distance of IDs (ALiBi), so that a token keeps its
place when others are left out. Without positions (NoPE) OLMo has no setting but ALiBi with slopes of 0:
alibi_bias_max: .inf. The blocks are run so that a
prefix is shared by a batch, of which OLMo's own cache would hold a copy for every sequence, and the last one
works at query rows only. With IDs 0, 1, 2, … and RoPE the logits equal stock OLMo's bit for bit (a test).

Shapes: B batch, S rows, P prefix rows or positions, K = S or P + S, T query rows, D width, H heads,
G key-value heads, E head width, V vocabulary.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import olmo.model
import torch
from olmo.config import BlockType, ModelConfig
from olmo.model import OLMo, OLMoSequentialBlock
from torch import nn

from sparsity_length.cli import InputError
from sparsity_length.models.attention import alibi_slopes, attend
from sparsity_length.models.checkpoints import (
    MODEL_FILES,
    errors_in_words,
    read_configuration,
    read_tensors,
    refuse_damaged,
)
from sparsity_length.models.interface import CausalLM, Running, causal_visibility, rows_of


class RotaryEmbedding(olmo.model.RotaryEmbedding):
    """OLMo's own, by the position IDs that were set last instead of by rows.

    The IDs stay set until the next pass: activation checkpointing runs the blocks again in the backward pass.
    """

    def __init__(self, config: ModelConfig) -> None:
        nn.Module.__init__(self)  # the library's would fill a table
        self.config = config

    def set_position_ids(self, position_ids_BS: torch.Tensor) -> None:
        """Set the IDs of the next forward pass, int64 [B, S] or [1, S]."""
        head_width = self.config.d_model // self.config.n_heads
        exponents = torch.arange(0, head_width, 2, device=position_ids_BS.device) / head_width
        angles = position_ids_BS[:, None, :, None].float() * (1.0 / (self.config.rope_theta**exponents))
        # Not buffers: a model converted to bfloat16 would round them, and checkpoints would hold them.
        sine = angles.sin()
        self._sine_B1SE = torch.cat((-sine, sine), dim=-1)
        self._cosine_B1SE = angles.cos().tile(2)

    def get_rotary_embedding(self, seq_len: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Sine and cosine of each position ID, for all heads: two float32 [B or 1, 1, S, E].

        The first half of the sines is negative, as the rotation takes it.
        """
        return self._sine_B1SE, self._cosine_B1SE

    def apply_rotary_pos_emb(
        self, pos_sin: torch.Tensor, pos_cos: torch.Tensor, t: torch.Tensor
    ) -> torch.Tensor:
        """Rotate as OLMo does, in fewer passes over memory: halves change places, the sine has the sign."""
        turned = t.roll(t.shape[-1] // 2, dims=-1).mul_(pos_sin)
        return (t * pos_cos).add_(turned)


def use_position_ids(model: OLMo) -> RotaryEmbedding:
    """Make `model` read its position IDs from the returned module instead of counting rows.

    The parameters and their names are untouched, so checkpoints stay OLMo's.
    """
    rotary = RotaryEmbedding(model.config)
    for block in blocks_of(model):
        block.rotary_emb = rotary
    return rotary


def blocks_of(model: OLMo) -> list[Any]:
    """The transformer blocks in order, whether or not OLMo holds them in groups."""
    if "block_groups" in model.transformer:
        return [block for group in model.transformer.block_groups for block in group]
    return list(model.transformer.blocks)


def refuse_unmeasurable(config: ModelConfig, name: str) -> None:
    """Raise an InputError for learned positions and other blocks."""
    if config.block_type != BlockType.sequential or not (config.rope or config.alibi):
        raise InputError(
            f"{name} cannot be measured: it needs model.rope or model.alibi true, without which positions are"
            " learned, and model.block_type sequential"
        )


def load_stock_olmo(checkpoint: Path) -> OLMo:
    """Load an unsharded OLMo checkpoint on the CPU.

    InputError if the folder is no OLMo checkpoint, is damaged, or has learned positions.
    """
    refuse_damaged(checkpoint, MODEL_FILES)
    read_configuration(checkpoint)
    path = checkpoint / "config.yaml"
    with errors_in_words(f"{path} is not an OLMo configuration"):
        config = ModelConfig.load(path, key="model", validate_paths=False)
    refuse_unmeasurable(config, str(checkpoint))
    # A checkpoint may say cuda, or meta, which has no numbers.
    config.init_device = "cpu"
    # Mapped: load_state_dict copies, and memory holds the weights once.
    weights = read_tensors(checkpoint / "model.pt", is_mapped=True)
    model = OLMo(config, init_params=False)
    with errors_in_words(f"{checkpoint / 'model.pt'} does not fit its config.yaml"):
        model.load_state_dict(model._make_state_dict_compatible(weights)[0])
    return model


def _run_block(
    block: OLMoSequentialBlock,
    layer: int,
    rotary: RotaryEmbedding,
    running: Running,
    hidden_BSD: torch.Tensor,
    query_rows_BT: torch.Tensor | None,
) -> torch.Tensor:
    """The block's output [B, S, D], of the query rows only [B, T, D]."""
    config = block.config
    # OLMo's own order, which the bit-for-bit test holds to: clip, split, norm of queries and keys, rotation.
    qkv = block.att_proj(hidden_BSD if config.norm_after else block.attn_norm(hidden_BSD))
    if config.clip_qkv is not None:
        qkv = qkv.clamp(min=-config.clip_qkv, max=config.clip_qkv)
    query, key, value = qkv.split(block.fused_dims, dim=-1)
    if block.q_norm is not None and block.k_norm is not None:
        query = block.q_norm(query).to(key.dtype)
        key = block.k_norm(key).to(key.dtype)
    key, value = (_heads(rows, config.effective_n_kv_heads) for rows in (key, value))
    query = _heads(query, config.n_heads)
    if config.rope:
        query, key = rotary(query, key)
    visible = running.visible_B1SK
    if query_rows_BT is not None:
        # Keys and values stay of all rows; queries, and the residual stream they return to, are of those
        # wanted. With fewer queries than keys a kernel's own causal mask would start at the wrong row.
        if visible is None:
            visible = causal_visibility(hidden_BSD.shape[1], hidden_BSD.device)[None]
        query, hidden_BSD, visible = (rows_of(part, query_rows_BT) for part in (query, hidden_BSD, visible))
    attended_BHSE = attend(running, layer, query, key, value, visible)
    attended_BSD = block.attn_out(attended_BHSE.transpose(1, 2).flatten(2))
    hidden_BSD = hidden_BSD + (block.attn_norm(attended_BSD) if config.norm_after else attended_BSD)
    normed_BSD = hidden_BSD if config.norm_after else block.ff_norm(hidden_BSD)
    output_BSD = block.ff_out(block.act(block.ff_proj(normed_BSD)))
    return hidden_BSD + (block.ff_norm(output_BSD) if config.norm_after else output_BSD)


def _heads(rows_BSD: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[B, S, D] -> [B, H, S, E]."""
    return rows_BSD.unflatten(-1, (num_heads, -1)).transpose(1, 2)


class OLMoCausalLM(CausalLM):
    """An OLMo to be measured, which is left as it is; InputError if it cannot be."""

    _model: OLMo

    def __init__(self, model: OLMo) -> None:
        refuse_unmeasurable(model.config, "this OLMo")
        super().__init__(model)
        self._rotary = RotaryEmbedding(model.config)

    @property
    def vocabulary_size(self) -> int:
        """Rows that only pad the embedding do not count."""
        return self._model.config.vocab_size

    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """See `CausalLM.embed`."""
        return self._model.transformer.wte(token_ids_1S)

    def _states(
        self,
        tokens: torch.Tensor,
        position_ids_BS: torch.Tensor,
        query_rows_BT: torch.Tensor | None,
        running: Running,
    ) -> torch.Tensor:
        """Run `OLMo.forward` up to the vocabulary projection, which at every row would cost most of all."""
        self._rotary.set_position_ids(position_ids_BS)
        config = self._model.config
        if config.alibi:
            running = replace(running, slopes_H=alibi_slopes(config.n_heads, config.alibi_bias_max))
        hidden = tokens if tokens.is_floating_point() else self.embed(tokens)
        if config.embedding_layer_norm:
            hidden = self._model.transformer.emb_norm(hidden)
        *blocks, last = blocks_of(self._model)
        for layer, block in enumerate(blocks):
            hidden = _run_block(block, layer, self._rotary, running, hidden, None)
        # Only the last block may leave rows out: the others' rows are looked at by the next.
        hidden = _run_block(last, len(blocks), self._rotary, running, hidden, query_rows_BT)
        return self._model.transformer.ln_f(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits by tied or own weights, scaled or not."""
        transformer = self._model.transformer
        config = self._model.config
        if config.weight_tying:
            logits = torch.nn.functional.linear(hidden, transformer.wte.weight)
        else:
            logits = transformer.ff_out(hidden)
        return logits * (1 / math.sqrt(config.d_model)) if config.scale_logits else logits
