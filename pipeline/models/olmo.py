"""RoPE at given position IDs, in place of OLMo's own arange.

Stock OLMo rotates the token in row n of its input by position n. Here row n is rotated by whatever
position ID it is given, which is what lets a token keep its place when others are left out,
and what PoSE training needs. With IDs 0, 1, 2, … the logits equal stock OLMo's bit for bit (a test).

Shapes: B batch, S sequence, H heads, E head width, P positions.

OLMo's blocks, run so that a prefix is shared by a batch and the last block works at query rows only.

The arithmetic is `olmo.model.OLMoSequentialBlock`'s, whose own cache cannot serve here: it holds a copy for
every sequence, unrotated, and rotates it anew by row number. Keys are kept rotated, as a token's ID never
changes. With no prefix, and at every row, the result equals stock OLMo's bit for bit (a test).

Shapes: B batch, S rows, P prefix rows, K = S or P + S, T query rows, D width, H heads,
G key-value heads, E head width.

ai2-olmo checkpoints behind the `CausalLM` interface.

Shapes: B batch, S rows, K rows to look at, T query rows, D width, V vocabulary, N any number of rows.
"""

import math
import pickle
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from olmo.config import BlockType, ModelConfig
from olmo.exceptions import OLMoConfigurationError
from olmo.model import OLMo, OLMoSequentialBlock
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from yaml import YAMLError

from pipeline.cli import InputError, is_out_of_memory
from pipeline.models.attention import WatchedAttention, attend, tells_log_sum_exp
from pipeline.models.checkpoint_files import (
    MODEL_FILES,
    holds_model,
    newest_with_model,
    refuse_damaged,
    unreadable,
)
from pipeline.models.devices import refuse_model_beyond_memory
from pipeline.models.interface import KeysAndValues, Prefix, causal_visibility


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


class OLMoCausalLM:
    """An OLMo whose tokens can be given any position IDs and any visibility; `CausalLM`, `InspectableLM`."""

    def __init__(self, model: OLMo, num_positions: int | None = None) -> None:
        """Take a model to be measured.

        Args:
            model: its weights are left as they are.
            num_positions: position IDs are below it. None: each pass looks for the largest, for which a GPU
                must be waited for.
        """
        self._model = model.eval().requires_grad_(False)  # it is measured, not trained
        self._table = RotaryTable(model.config)
        self._num_positions = num_positions

    @property
    def vocabulary_size(self) -> int:
        """Token IDs run from 0 to this, exclusive; rows that only pad the embedding do not count."""
        return self._model.config.vocab_size

    @property
    def num_parameters(self) -> int:
        """Embeddings included."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    @property
    def device(self) -> torch.device:
        """Where inputs must lie."""
        return self._model.device

    @torch.inference_mode()
    def read(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_1T: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Prefix]:
        """`hidden_states` of one sequence, and its keys and values."""
        hidden, keys_and_values = self._run_blocks(
            token_ids_1S, position_ids_1S, visible_1SS, query_rows_1T, None
        )
        return self._model.transformer.ln_f(hidden), Prefix(keys_and_values)

    @torch.inference_mode()
    def hidden_states(
        self,
        token_ids_BS: torch.Tensor,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        query_rows_BT: torch.Tensor | None,
        prefix: Prefix | None = None,
    ) -> torch.Tensor:
        """As `OLMo.forward` up to the vocabulary projection, which at every row would cost most of all."""
        hidden, _ = self._run_blocks(token_ids_BS, position_ids_BS, visible_BSK, query_rows_BT, prefix)
        return self._model.transformer.ln_f(hidden)

    def sequence_bytes(self, num_rows: int, num_prefix_rows: int) -> int:
        """Memory of a pass for each sequence of its batch, from above: what one block holds at once."""
        config, itemsize = self._model.config, self._model.transformer.wte.weight.element_size()
        width, hidden_width = config.d_model, config.mlp_hidden_size or config.mlp_ratio * config.d_model
        # The stream and its norm; queries, keys and values, rotated in float32, or the feed-forward layer.
        values_per_row = 3 * width + max(6 * width + 16 * width // itemsize, 2 * hidden_width)
        head_width, dtype = width // config.n_heads, self._model.transformer.wte.weight.dtype
        is_shared = tells_log_sum_exp(self.device, dtype, head_width, head_width)
        copied_values = 0 if is_shared else 2 * width * (num_prefix_rows + num_rows)
        return itemsize * (num_rows * values_per_row + copied_values)

    def _run_blocks(
        self,
        tokens: torch.Tensor,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        query_rows_BT: torch.Tensor | None,
        prefix: Prefix | None,
        watch: Callable[[torch.Tensor, torch.Tensor], None] | None = None,
        attend: Callable[..., torch.Tensor] = attend,
    ) -> tuple[torch.Tensor, tuple[KeysAndValues, ...]]:
        """`tokens`: token IDs [B, S], or their embeddings [B, S, D]."""
        transformer, blocks = self._model.transformer, blocks_of(self._model)
        rows = Rows(
            self._table,
            *self._table.at(position_ids_BS, self._num_positions),
            None if visible_BSK is None else visible_BSK[:, None],
            watch,
            attend,
        )
        hidden = tokens if tokens.is_floating_point() else transformer.wte(tokens)
        if self._model.config.embedding_layer_norm:
            hidden = transformer.emb_norm(hidden)
        pasts = [None] * len(blocks) if prefix is None else prefix.keys_and_values
        keys_and_values = []
        for block, past in zip(blocks, pasts, strict=True):
            # Only the last block may leave rows out: the others' rows are looked at by the next.
            wanted_rows = query_rows_BT if block is blocks[-1] else None
            hidden, of_block = run_block(block, hidden, rows, past, wanted_rows)
            keys_and_values.append(of_block)
        return hidden, tuple(keys_and_values)

    @torch.inference_mode()
    def watch_attention(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor | None,
        note: Callable[[torch.Tensor], None],
    ) -> None:
        """Call `note` with the attention of each query row (None: every row), layer by layer: [H, T, S]."""
        if visible_1SS is None:
            visible_1SS = causal_visibility(token_ids_1S.shape[1], token_ids_1S.device)
        watch = WatchedAttention(visible_1SS, query_rows_T, note)
        self._run_blocks(token_ids_1S, position_ids_1S, visible_1SS, None, None, watch)

    @torch.enable_grad()
    def gate_gradients(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        target_ids_T: torch.Tensor,
    ) -> torch.Tensor:
        """Derivative of each target's loss by the gate of each row, at gate 1: float32 [T, S], nats."""
        if visible_1SS is None:
            visible_1SS = causal_visibility(token_ids_1S.shape[1], token_ids_1S.device)
        # A gate multiplies exp(score), so its logarithm is added to the score; at gate 1 the derivative by
        # the one is that by the other.
        log_gates_S = torch.zeros(
            token_ids_1S.shape[1],
            dtype=self._model.transformer.wte.weight.dtype,
            device=self.device,
            requires_grad=True,
        )
        bias_1SS = torch.where(visible_1SS, log_gates_S, -math.inf)
        with sdpa_kernel(SDPBackend.MATH):  # not every fused kernel has a derivative by the mask
            hidden, _ = self._run_blocks(token_ids_1S, position_ids_1S, bias_1SS, query_rows_T[None], None)
        losses_T = self._losses(hidden, target_ids_T)[0]
        gradients = [torch.autograd.grad(loss, log_gates_S, retain_graph=True)[0] for loss in losses_T]
        return torch.stack(gradients).float()

    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """The tokens' embeddings: [1, S, D]."""
        return self._model.transformer.wte(token_ids_1S)

    @torch.enable_grad()
    def losses_of_embeddings(
        self,
        embedded_BSD: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        target_ids_T: torch.Tensor,
    ) -> torch.Tensor:
        """Each target's loss, given embeddings in the place of tokens: float32 [B, T], nats."""
        with sdpa_kernel(SDPBackend.MATH):
            hidden, _ = self._run_blocks(embedded_BSD, position_ids_1S, visible_1SS, query_rows_T[None], None)
        return self._losses(hidden, target_ids_T)

    def _losses(self, hidden_BTD: torch.Tensor, target_ids_T: torch.Tensor) -> torch.Tensor:
        """Before the last norm: [B, T]."""
        logits_BTV = logits_of(self._model, self._model.transformer.ln_f(hidden_BTD)).float()
        return torch.nn.functional.cross_entropy(
            logits_BTV.transpose(1, 2), target_ids_T.expand(len(logits_BTV), -1), reduction="none"
        )

    @torch.inference_mode()
    def logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        """Vocabulary logits [N, V] as OLMo computes them: tied or own weights, scaled or not."""
        return logits_of(self._model, hidden_ND)


def logits_of(model: OLMo, hidden: torch.Tensor) -> torch.Tensor:
    """Vocabulary logits [..., V] of hidden states [..., D]: tied or own weights, scaled or not."""
    transformer, config = model.transformer, model.config
    if config.weight_tying:
        logits = torch.nn.functional.linear(hidden, transformer.wte.weight)
    else:
        logits = transformer.ff_out(hidden)
    return logits * (1 / math.sqrt(config.d_model)) if config.scale_logits else logits


def find_checkpoint(path: Path) -> Path:
    """The checkpoint folder that `path` means: itself, or the latest `step<N>-unsharded` of a run folder.

    Raises:
        InputError: neither is there.
    """
    if holds_model(path):
        return path
    newest = newest_with_model(path)
    if newest is None:
        raise InputError(
            f"no OLMo checkpoint at {path}: expected config.yaml and model.pt there, or in a folder"
            " step<N>-unsharded below it, as pipeline/pretrain.py writes them; a Hugging Face model has a"
            " config.json"
        )
    return newest[1]


def model_name(path: Path) -> str:
    """The name results are filed under: the run folder's, with the step where one was asked for."""
    path = path.resolve()
    match = re.fullmatch(r"(step\d+)-unsharded", path.name)
    return f"{path.parent.name}-{match[1]}" if match else path.name


def load_olmo(
    checkpoint: Path,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    num_positions: int | None = None,
) -> OLMoCausalLM:
    """Load an unsharded OLMo checkpoint to be measured.

    Args:
        num_positions: as of `OLMoCausalLM`.

    Raises:
        InputError: as `load_stock_olmo`, or it does not fit the device.
    """
    model = load_stock_olmo(checkpoint, torch.device("cpu")).to(dtype)
    refuse_model_beyond_memory(model, device, str(checkpoint))
    return OLMoCausalLM(model.to(device), num_positions)


def load_stock_olmo(checkpoint: Path, device: torch.device) -> OLMo:
    """Load an unsharded OLMo checkpoint; torch reads tensors only, never code, from its model.pt.

    Raises:
        InputError: the folder is not an OLMo checkpoint, is damaged, or has no RoPE.
    """
    refuse_damaged(checkpoint, MODEL_FILES)
    config = _config(checkpoint)
    if config.block_type != BlockType.sequential:
        raise InputError(f"{checkpoint} has model.block_type {config.block_type}; only sequential is handled")
    if not config.rope:
        raise InputError(f"{checkpoint} has no RoPE (model.rope: false), so tokens cannot keep position IDs")
    try:
        return OLMo.from_checkpoint(str(checkpoint), device=str(device))
    except (pickle.UnpicklingError, EOFError, OSError, RuntimeError, ValueError, TypeError, KeyError,
            AttributeError, AssertionError) as error:  # fmt: skip
        if is_out_of_memory(error):
            raise InputError(f"{checkpoint}: the model does not fit the memory of {device}") from error
        raise InputError(_why_no_weights(checkpoint / "model.pt", error)) from error


def num_positions_of_olmo(checkpoint: Path) -> int:
    """How many positions an OLMo checkpoint was made for.

    Raises:
        InputError: its config.yaml is damaged.
    """
    return int(_config(checkpoint).max_sequence_length)


def _config(checkpoint: Path) -> ModelConfig:
    try:
        return ModelConfig.load(checkpoint / "config.yaml", key="model", validate_paths=False)
    except (OLMoConfigurationError, KeyError, TypeError, ValueError, YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{checkpoint / 'config.yaml'} is not an OLMo configuration: {reason}") from error


def _why_no_weights(path: Path, error: Exception) -> str:
    is_read = zipfile.is_zipfile(path) and not isinstance(error, pickle.UnpicklingError)
    if not is_read:
        return f"{path} {unreadable(path, error)}"
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return f"{path} is not the weights of its config.yaml: {reason}"
