"""An OLMo as a trunk that a task model trains.

Shapes: B batch, S rows, P rows read before, K = S or P + S, D width, V vocabulary.
"""

import torch
from olmo.config import ActivationType, LayerNormType, ModelConfig
from olmo.model import OLMo
from torch import nn

from pipeline.models.causal_lm import Prefix
from pipeline.models.inspectable_lm import InspectableLM
from pipeline.models.olmo import OLMoCausalLM, logits_of
from pipeline.models.olmo_blocks import Rows, run_block
from pipeline.models.rope import RotaryTable, blocks_of
from pipeline.synthetic.trunk import Trunk, with_own_modules


class OLMoTrunk(Trunk):
    """An OLMo, whose parameters keep OLMo's names below `model`; without dropout."""

    def __init__(self, model: OLMo) -> None:
        super().__init__()
        self.model, self.width = model, model.config.d_model
        self._table = RotaryTable(model.config)

    def embed(self, token_ids_BS: torch.Tensor) -> torch.Tensor:
        """See `Trunk.embed`."""
        return self.model.transformer.wte(token_ids_BS)

    def run(
        self,
        embedded_BSD: torch.Tensor,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        past: Prefix | None,
    ) -> tuple[torch.Tensor, Prefix]:
        """See `Trunk.run`; the arithmetic is that of `OLMoCausalLM`."""
        visible_B1SK = None if visible_BSK is None else visible_BSK[:, None]
        rows = Rows(self._table, *self._table.at(position_ids_BS), visible_B1SK)
        blocks = blocks_of(self.model)
        pasts = [None] * len(blocks) if past is None else past.keys_and_values
        hidden, read = embedded_BSD, []
        for block, of_past in zip(blocks, pasts, strict=True):
            hidden, keys_and_values = run_block(block, hidden, rows, of_past, None)
            read.append(keys_and_values)
        return self.model.transformer.ln_f(hidden), Prefix(tuple(read))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Trunk.logits`."""
        return logits_of(self.model, hidden)

    @torch.no_grad()
    def sharpen_attention(self, factor: float) -> None:
        """See `Trunk.sharpen_attention`; queries are the first rows, without bias or norm."""
        for block in blocks_of(self.model):
            block.get_parameter("att_proj.weight")[: self.width] *= factor

    def inside(self, head: nn.Linear | None = None) -> InspectableLM:
        """See `Trunk.inside`."""
        if head is None:
            return OLMoCausalLM(self.model)
        model = with_own_modules(self.model)
        model.transformer = with_own_modules(model.transformer)
        model.transformer["ff_out"] = head
        return OLMoCausalLM(model)


def new_olmo(
    *, vocabulary_size: int, width: int, num_layers: int, num_heads: int, num_position_ids: int
) -> OLMo:
    """An OLMo as OLMo-1B is built, but small; its initial weights are drawn from torch's global generator."""
    return OLMo(
        ModelConfig(
            d_model=width,
            n_heads=num_heads,
            n_layers=num_layers,
            mlp_ratio=8,  # SwiGLU halves it
            activation_type=ActivationType.swiglu,
            rope=True,
            attention_dropout=0.0,
            residual_dropout=0.0,
            embedding_dropout=0.0,
            layer_norm_type=LayerNormType.default,
            layer_norm_with_affine=False,
            attention_layer_norm_with_affine=False,
            bias_for_layer_norm=False,
            include_bias=False,
            weight_tying=False,
            max_sequence_length=num_position_ids,
            vocab_size=vocabulary_size,
            embedding_size=vocabulary_size,
            eos_token_id=0,
            pad_token_id=0,
            init_device="cpu",
            init_std=0.02,
        )
    )
