"""RoPE at given position IDs, in place of OLMo's own arange.

Stock OLMo rotates the token in row n of its input by position n. Here row n is rotated by whatever
position ID it is given, which is what lets a token keep its place when others are left out (design.md 1),
and what PoSE training needs. With IDs 0, 1, 2, … the logits equal stock OLMo's bit for bit (a test).

Shapes: B batch, S sequence, H heads, E head width.
"""

import torch
from olmo.config import ModelConfig
from olmo.model import OLMo
from torch import nn


class PositionIDRotaryEmbedding(nn.Module):
    """A drop-in for `olmo.model.RotaryEmbedding`, shared by all blocks of one model.

    The IDs are set once a forward pass, and stay set until the next: activation checkpointing runs
    the blocks again during the backward pass and must find the same IDs.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self._config = config
        self._sine_PE: torch.Tensor | None = None  # table of all positions so far
        self._cosine_PE: torch.Tensor | None = None
        self._sine_B1SE: torch.Tensor | None = None  # the table's rows at the current IDs
        self._cosine_B1SE: torch.Tensor | None = None

    def set_position_ids(self, position_ids_BS: torch.Tensor) -> None:
        """Set the position IDs of the next forward pass: int64 [B, S], or [1, S] for all sequences, >= 0."""
        self._extend_table(int(position_ids_BS.max()) + 1, position_ids_BS.device)
        assert self._sine_PE is not None and self._cosine_PE is not None
        self._sine_B1SE = self._sine_PE[position_ids_BS][:, None]
        self._cosine_B1SE = self._cosine_PE[position_ids_BS][:, None]

    def _extend_table(self, num_positions: int, device: torch.device) -> None:
        """Sines and cosines of every position below `num_positions`, by the formula of OLMo's own table."""
        if (
            self._sine_PE is not None
            and len(self._sine_PE) >= num_positions
            and self._sine_PE.device == device
        ):
            return
        num_positions = max(num_positions, self._config.max_sequence_length)
        head_width = self._config.d_model // self._config.n_heads
        exponents = torch.arange(0, head_width, 2, device=device, dtype=torch.float) / head_width
        positions_P = torch.arange(num_positions, device=device, dtype=torch.float)
        angles = torch.einsum("i,j->ij", positions_P, 1.0 / (self._config.rope_theta**exponents))
        angles_PE = torch.cat((angles, angles), dim=-1)
        self._sine_PE, self._cosine_PE = angles_PE.sin(), angles_PE.cos()

    def forward(self, query_BHSE: torch.Tensor, key_BHSE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate queries and keys by the position IDs set last; both have one row a token."""
        assert self._sine_B1SE is not None and self._cosine_B1SE is not None, "position IDs were not set"
        full_precision = self._config.rope_full_precision
        with torch.autocast(query_BHSE.device.type, enabled=False):
            query, key = (query_BHSE.float(), key_BHSE.float()) if full_precision else (query_BHSE, key_BHSE)
            sine, cosine = self._sine_B1SE.type_as(query), self._cosine_B1SE.type_as(query)
            query, key = query * cosine + _rotate_half(query) * sine, key * cosine + _rotate_half(key) * sine
        return query.type_as(query_BHSE), key.type_as(key_BHSE)


def _rotate_half(heads_BHSE: torch.Tensor) -> torch.Tensor:
    first, second = heads_BHSE.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def use_position_ids(model: OLMo) -> PositionIDRotaryEmbedding:
    """Make `model` read its position IDs from the returned module instead of counting rows.

    The parameters and their names are untouched, so checkpoints stay OLMo's.

    Raises:
        ValueError: the model has no RoPE.
    """
    if not model.config.rope:
        raise ValueError("position IDs can be chosen in models with RoPE only; this one has model.rope=false")
    rotary = PositionIDRotaryEmbedding(model.config)
    for block in blocks_of(model):
        block.rotary_emb = rotary
    return rotary


def blocks_of(model: OLMo) -> list[nn.Module]:
    """The transformer blocks in order, whether or not OLMo holds them in groups."""
    if "block_groups" in model.transformer:
        return [block for group in model.transformer.block_groups for block in group]
    return list(model.transformer.blocks)
