"""RoPE at given position IDs, in place of OLMo's own arange.

Stock OLMo rotates the token in row n of its input by position n. Here row n is rotated by whatever
position ID it is given, which is what lets a token keep its place when others are left out,
and what PoSE training needs. With IDs 0, 1, 2, … the logits equal stock OLMo's bit for bit (a test).

Shapes: B batch, S sequence, H heads, E head width, P positions.
"""

import torch
from olmo.config import ModelConfig
from olmo.model import OLMo
from torch import nn


class RotaryTable:
    """Sines and cosines of every position, by the formula of OLMo's own table; grows with the positions."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._sine_PE = self._cosine_PE = torch.empty(0)

    def at(
        self, position_ids_BS: torch.Tensor, num_positions: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sine and cosine of each position ID, for all heads: two float32 [B, 1, S, E].

        The first half of the sines is negative, as the rotation takes it.

        Args:
            position_ids_BS: the IDs.
            num_positions: the IDs are below it. None: it is looked up, for which a GPU must be waited for.
        """
        num_positions, device = num_positions or int(position_ids_BS.max()) + 1, position_ids_BS.device
        if len(self._sine_PE) < num_positions or self._sine_PE.device != device:
            self._fill(max(num_positions, self._config.max_sequence_length), device)
        return self._sine_PE[position_ids_BS][:, None], self._cosine_PE[position_ids_BS][:, None]

    def _fill(self, num_positions: int, device: torch.device) -> None:
        head_width = self._config.d_model // self._config.n_heads
        exponents = torch.arange(0, head_width, 2, device=device, dtype=torch.float) / head_width
        positions_P = torch.arange(num_positions, device=device, dtype=torch.float)
        angles = torch.einsum("i,j->ij", positions_P, 1.0 / (self._config.rope_theta**exponents))
        angles_PE = torch.cat((angles, angles), dim=-1)
        self._sine_PE, self._cosine_PE = torch.cat((-angles.sin(), angles.sin()), dim=-1), angles_PE.cos()

    def rotate(
        self, heads_BHSE: torch.Tensor, sine_B1SE: torch.Tensor, cosine_B1SE: torch.Tensor
    ) -> torch.Tensor:
        """Rotate queries or keys, in float32 where the model says so; they come back in their own dtype."""
        rotated = heads_BHSE.float() if self._config.rope_full_precision else heads_BHSE
        with torch.autocast(heads_BHSE.device.type, enabled=False):
            # OLMo's own arithmetic in fewer passes over memory: its halves change places, and the sign of the
            # one is the sine's.
            turned = rotated.roll(rotated.shape[-1] // 2, dims=-1).mul_(sine_B1SE.type_as(rotated))
            rotated = (rotated * cosine_B1SE.type_as(rotated)).add_(turned)
        return rotated.type_as(heads_BHSE)


class PositionIDRotaryEmbedding(nn.Module):
    """A drop-in for `olmo.model.RotaryEmbedding`, shared by all blocks of one model.

    The IDs are set once a forward pass, and stay set until the next: activation checkpointing runs
    the blocks again during the backward pass and must find the same IDs.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self._table = RotaryTable(config)
        self._sine_and_cosine: tuple[torch.Tensor, torch.Tensor] | None = None

    def set_position_ids(self, position_ids_BS: torch.Tensor, num_positions: int | None = None) -> None:
        """Set the position IDs of the next forward pass: int64 [B, S], or [1, S] for all sequences, >= 0.

        They are below `num_positions`; None: see `RotaryTable.at`.
        """
        self._sine_and_cosine = self._table.at(position_ids_BS, num_positions)

    def forward(self, query_BHSE: torch.Tensor, key_BHSE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate queries and keys by the position IDs set last; both have one row a token."""
        assert self._sine_and_cosine is not None, "position IDs were not set"
        rotate, (sine, cosine) = self._table.rotate, self._sine_and_cosine
        return rotate(query_BHSE, sine, cosine), rotate(key_BHSE, sine, cosine)


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
