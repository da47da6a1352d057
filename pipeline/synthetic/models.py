"""Models of synthetic tasks: a trunk (GPT-NeoX, the paper's, or OLMo), with or without coupled position IDs.

Predictive Position Coupling (PPC). From the sources: in training the coupled position IDs of prompt and
response are given, and a second head on the trunk learns the next token's position ID beside the next token;
in testing the prompt's IDs are given only, and what is predicted is fed back.

Our choice, as the exact head is not in our sources: RoPE sees differences of IDs only, and coupled IDs start
at random, so a head on the trunk could not know which ID is meant. Hence a learned table of position IDs: a
row is added to the token's embedding, and the head's logit of an ID is the product of the hidden state with
its row (one table for both, as input and output embeddings are tied). To predict an ID that stands in the
prompt is then to copy it. Predicting the difference from the current ID instead would need no table, but
differences beyond those of training are classes that were never trained. RoPE rotates by the same IDs.

Shapes: B batch, S rows, P rows read before, K = S or P + S, D width, V vocabulary, I position IDs.
"""

import torch
import transformers
from olmo.config import ActivationType, LayerNormType, ModelConfig
from olmo.model import OLMo
from torch import nn

from pipeline.models.attention import added_to_scores
from pipeline.models.huggingface import HuggingFaceCausalLM, PassCache, cache_argument
from pipeline.models.interface import CausalLM, Prefix, causal_visibility
from pipeline.models.olmo import (
    OLMoCausalLM,
    RotaryTable,
    Rows,
    blocks_of,
    logits_of,
    num_keys_seen,
    run_block,
)


class Trunk(nn.Module):
    """All of a decoder-only model, with its embedding taken apart so that something may be added to it."""

    width: int
    """D."""

    def embed(self, token_ids_BS: torch.Tensor) -> torch.Tensor:
        """Token embeddings [B, S, D]."""
        raise NotImplementedError

    def run(
        self,
        embedded_BSD: torch.Tensor,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        past: Prefix | None,
    ) -> tuple[torch.Tensor, Prefix]:
        """Hidden states after the last norm, [B, S, D], and the keys and values of the rows given.

        Args:
            embedded_BSD: of the rows.
            position_ids_BS: int64; what RoPE rotates by.
            visible_BSK: as in `CausalLM.hidden_states`; None: a row sees `past` and the rows up to itself.
            past: rows read before, shared by all sequences ([1, …]) or each sequence's own ([B, …]).
        """
        raise NotImplementedError

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Vocabulary logits [..., V] of hidden states [..., D]."""
        raise NotImplementedError

    def sharpen_attention(self, factor: float) -> None:
        """Multiply all attention scores, by way of the queries' weights: above 1 attention spreads less."""
        raise NotImplementedError

    def inside(self) -> CausalLM:
        """The model as one that can be looked into, given embeddings in the place of token IDs.

        It is measured from then on, and not trained.
        """
        raise NotImplementedError


class GPTNeoXTrunk(Trunk):
    """A `GPTNeoXForCausalLM`, whose parameters keep the library's names below `model`."""

    def __init__(
        self,
        *,
        vocabulary_size: int,
        width: int,
        num_layers: int,
        num_heads: int,
        num_position_ids: int,
        rotary_fraction: float,
    ) -> None:
        """Draw the initial weights from torch's global generator.

        Args:
            rotary_fraction: the share of each head that RoPE rotates; GPT-NeoX has a quarter.
        """
        super().__init__()
        self.width = width
        config = transformers.GPTNeoXConfig(
            vocab_size=vocabulary_size,
            hidden_size=width,
            num_hidden_layers=num_layers,
            num_attention_heads=num_heads,
            intermediate_size=4 * width,
            max_position_embeddings=num_position_ids,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0,
                             "partial_rotary_factor": rotary_fraction},
            bos_token_id=None,
            eos_token_id=None,
        )  # fmt: skip
        self.model = transformers.GPTNeoXForCausalLM(config)
        self._cache_argument = cache_argument(self.model)

    def embed(self, token_ids_BS: torch.Tensor) -> torch.Tensor:
        """See `Trunk.embed`."""
        return self.model.get_input_embeddings()(token_ids_BS)

    def run(
        self,
        embedded_BSD: torch.Tensor,
        position_ids_BS: torch.Tensor,
        visible_BSK: torch.Tensor | None,
        past: Prefix | None,
    ) -> tuple[torch.Tensor, Prefix]:
        """See `Trunk.run`."""
        if visible_BSK is None:
            # Never left to the library: without a mask it takes a gap in the position IDs for the border of
            # two packed sequences, and cuts the attention there.
            visible_BSK = causal_visibility(embedded_BSD.shape[1], embedded_BSD.device)
        cache = PassCache(past)
        output = self.model.base_model(
            inputs_embeds=embedded_BSD,
            position_ids=position_ids_BS.expand(embedded_BSD.shape[:2]),
            attention_mask=added_to_scores(visible_BSK, cache.get_seq_length(), embedded_BSD.dtype),
            use_cache=True,
            **{self._cache_argument: cache},
        )
        return output.last_hidden_state, cache.read_rows()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `Trunk.logits`."""
        return self.model.get_output_embeddings()(hidden)

    @torch.no_grad()
    def sharpen_attention(self, factor: float) -> None:
        """See `Trunk.sharpen_attention`."""
        num_heads = self.model.config.num_attention_heads
        for layer in self.model.base_model.layers:
            projection = layer.attention.query_key_value
            for parameter in (projection.weight, projection.bias):
                # Each head's rows are its query, its key, its value.
                parameter.view(num_heads, 3, -1)[:, 0] *= factor

    def inside(self) -> CausalLM:
        """See `Trunk.inside`."""
        return HuggingFaceCausalLM(self.model)


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
        num_past = 0 if past is None else past.num_rows
        num_keys_BS = num_keys_seen(self.model, embedded_BSD.shape[1], num_past, visible_BSK)
        rows = Rows(self._table, *self._table.at(position_ids_BS), visible_B1SK, num_keys_BS)
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

    def inside(self) -> CausalLM:
        """See `Trunk.inside`."""
        return OLMoCausalLM(self.model)


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


_INITIAL_STD = 0.02  # as GPT-NeoX's token embedding


class PositionIDs(nn.Module):
    """The component: a table of position IDs, at the input and as a head."""

    def __init__(self, num_position_ids: int, width: int) -> None:
        super().__init__()
        self.table_ID = nn.Parameter(torch.randn(num_position_ids, width) * _INITIAL_STD)

    def embed(self, position_ids_BS: torch.Tensor) -> torch.Tensor:
        """What is added to the tokens' embeddings: [B, S, D]."""
        return self.table_ID[position_ids_BS]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [..., I] of the next token's position ID."""
        return hidden @ self.table_ID.T


class TaskModel(nn.Module):
    """A trunk that reads tokens at position IDs, with the component where its positions are coupled."""

    def __init__(self, trunk: Trunk, position_ids: PositionIDs | None) -> None:
        super().__init__()
        self.trunk, self.position_ids = trunk, position_ids

    @property
    def device(self) -> torch.device:
        """Where inputs must lie."""
        return next(self.parameters()).device

    def forward(
        self,
        token_ids_BS: torch.Tensor,
        position_ids_BS: torch.Tensor,
        past: Prefix | None = None,
        visible_BSK: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, Prefix]:
        """Final hidden states [B, S, D], and the keys and values of the rows given; see `Trunk.run`."""
        embedded_BSD = self.placed(self.trunk.embed(token_ids_BS), position_ids_BS)
        return self.trunk.run(embedded_BSD, position_ids_BS, visible_BSK, past)

    def placed(self, embedded_BSD: torch.Tensor, position_ids_BS: torch.Tensor) -> torch.Tensor:
        """Embeddings of tokens with what the component adds to them: [B, S, D]."""
        if self.position_ids is None:
            return embedded_BSD
        return embedded_BSD + self.position_ids.embed(position_ids_BS)

    def token_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [..., V] of the next token."""
        return self.trunk.logits(hidden)

    def position_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [..., I] of the next token's position ID; of models with the component only."""
        assert self.position_ids is not None
        return self.position_ids.logits(hidden)
