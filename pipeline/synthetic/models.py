"""Models of synthetic tasks: a GPT-NeoX, as the paper's, or an OLMo, with or without coupled position IDs.

Predictive Position Coupling (PPC). From the sources: in training the coupled position IDs of prompt and
response are given, and a second head on the model learns the next token's position ID beside the next token;
in testing the prompt's IDs are given only, and what is predicted is fed back.

Our choice, as the exact head is not in our sources: RoPE sees differences of IDs only, and coupled IDs start
at random, so a head alone could not know which ID is meant. Hence a learned table of position IDs: a
row is added to the token's embedding, and the head's logit of an ID is the product of the hidden state with
its row (one table for both, as input and output embeddings are tied). To predict an ID that stands in the
prompt is then to copy it. Predicting the difference from the current ID instead would need no table, but
differences beyond those of training are classes that were never trained. RoPE rotates by the same IDs.

Shapes: B batch, S rows, K rows to look at, D width, V vocabulary, I position IDs.
"""

import torch
import transformers
from olmo.config import ModelConfig
from olmo.model import OLMo
from torch import nn

from pipeline.models.huggingface import HuggingFaceCausalLM
from pipeline.models.interface import CausalLM, Prefix
from pipeline.models.olmo import blocks_of


def new_gpt_neox(
    *, vocabulary_size: int, width: int, num_layers: int, num_heads: int, num_position_ids: int,
    rotary_fraction: float,
) -> HuggingFaceCausalLM:  # fmt: skip
    """A small GPT-NeoX; its initial weights are drawn from torch's global generator.

    RoPE rotates `rotary_fraction` of each head; GPT-NeoX has a quarter.
    """
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": rotary_fraction}
    config = transformers.GPTNeoXConfig(
        vocab_size=vocabulary_size, hidden_size=width, num_hidden_layers=num_layers,
        num_attention_heads=num_heads, intermediate_size=4 * width,
        max_position_embeddings=num_position_ids, rope_parameters=rope, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return HuggingFaceCausalLM(transformers.GPTNeoXForCausalLM(config))


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
            rope=True,
            attention_dropout=0.0,
            residual_dropout=0.0,
            embedding_dropout=0.0,
            layer_norm_with_affine=False,
            attention_layer_norm_with_affine=False,
            include_bias=False,
            weight_tying=False,
            max_sequence_length=num_position_ids,
            vocab_size=vocabulary_size,
            embedding_size=vocabulary_size,
            eos_token_id=0,
            pad_token_id=0,
            init_device="cpu",
        )
    )


_INITIAL_STD = 0.02  # as GPT-NeoX's token embedding


class PositionIDs(nn.Module):
    """The component: a table of position IDs, at the input and as a head."""

    def __init__(self, num_position_ids: int, width: int) -> None:
        super().__init__()
        self.table_ID = nn.Parameter(torch.randn(num_position_ids, width) * _INITIAL_STD)


class TaskModel(nn.Module):
    """A model that reads tokens at position IDs, with the component where its positions are coupled.

    Its parameters keep their library's names, below `trunk.model`: so checkpoints have them.
    """

    def __init__(self, lm: CausalLM, position_ids: PositionIDs | None) -> None:
        super().__init__()
        self.lm, self.trunk = lm, nn.ModuleDict({"model": lm._model})
        self.position_ids = position_ids
        self.train().requires_grad_()  # what is behind a `CausalLM` is not trained, elsewhere

    @property
    def device(self) -> torch.device:
        """Where inputs must lie."""
        return next(self.parameters()).device

    def forward(
        self, token_ids_BS: torch.Tensor, position_ids_BS: torch.Tensor, past: Prefix | None = None,
        visible_BSK: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, Prefix]:  # fmt: skip
        """Final hidden states [B, S, D], and the keys and values of the rows given.

        `past` are rows read before, shared by all sequences or each sequence's own; `visible_BSK` is as in
        `CausalLM.hidden_states`.
        """
        placed_BSD = self.placed(self.lm.embed(token_ids_BS), position_ids_BS)
        hidden, read = self.lm._run(placed_BSD, position_ids_BS, visible_BSK, None, past, keeps_rows=True)
        assert read is not None
        return hidden, read

    def placed(self, embedded_BSD: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        """Embeddings of tokens with what the component adds to them: [B, S, D]."""
        if self.position_ids is None:
            return embedded_BSD
        return embedded_BSD + self.position_ids.table_ID[position_ids_BS]

    def token_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [..., V] of the next token."""
        return self.lm._project(hidden)

    def position_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [..., I] of the next token's position ID; of models with the component only."""
        assert self.position_ids is not None
        return hidden @ self.position_ids.table_ID.T

    @torch.no_grad()
    def sharpen_attention(self, factor: float) -> None:
        """Multiply all attention scores, by way of the queries' weights: above 1 attention spreads less."""
        model = self.lm._model
        if isinstance(model, OLMo):
            for block in blocks_of(model):  # queries are the first rows, without bias or norm
                block.get_parameter("att_proj.weight")[: model.config.d_model] *= factor
            return
        assert isinstance(model, transformers.GPTNeoXForCausalLM)
        for layer in model.base_model.layers:
            projection = layer.attention.query_key_value
            for parameter in (projection.weight, projection.bias):
                # Each head's rows are its query, its key, its value.
                parameter.view(model.config.num_attention_heads, 3, -1)[:, 0] *= factor
