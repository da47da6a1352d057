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

Measuring code sees one example through `TaskCausalLM`: it names a token by its place, and the model reads it
at the position ID that the place has in this example, which a random start or coupling makes another number.

Shapes: B batch, S rows, K rows to look at, L tokens of an example, D width, V vocabulary, I position IDs.
"""

from typing import Any

import torch
import transformers
from olmo.config import ModelConfig
from olmo.model import OLMo
from torch import nn

from pipeline.models.huggingface import HuggingFaceCausalLM
from pipeline.models.interface import CausalLM, Prefix, Watch, rows_of


def new_gpt_neox(
    *,
    vocabulary_size: int,
    width: int,
    num_layers: int,
    num_heads: int,
    num_position_ids: int,
    rotary_fraction: float,
) -> HuggingFaceCausalLM:
    """A small GPT-NeoX; its initial weights are drawn from torch's global generator.

    RoPE rotates `rotary_fraction` of each head; GPT-NeoX has a quarter.
    """
    config = transformers.GPTNeoXConfig(
        vocab_size=vocabulary_size,
        hidden_size=width,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        intermediate_size=4 * width,
        max_position_embeddings=num_position_ids,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": rotary_fraction,
        },
        bos_token_id=None,
        eos_token_id=None,
    )
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
            include_bias=False,
            weight_tying=False,
            max_sequence_length=num_position_ids,
            vocab_size=vocabulary_size,
            embedding_size=vocabulary_size,
            eos_token_id=0,
            pad_token_id=0,
        )
    )


_INITIAL_STD = 0.02  # as GPT-NeoX's token embedding


class TaskModel(nn.Module):
    """A model that reads tokens at position IDs, with or without a table of them at the input and as a head.

    Its parameters keep their library's names, below `trunk.model`: so checkpoints have them.
    """

    def __init__(self, lm: CausalLM, table_shape: tuple[int, int] | None) -> None:
        """With a table of `table_shape`, position IDs by the width of the model; None: there is none."""
        super().__init__()
        self.lm = lm
        self.trunk = nn.ModuleDict({"model": lm._model})
        self.position_ids = nn.ParameterDict()
        if table_shape is not None:
            self.position_ids["table_ID"] = nn.Parameter(torch.randn(table_shape) * _INITIAL_STD)
        self.train().requires_grad_()  # what is behind a `CausalLM` is not trained, elsewhere

    def forward(
        self,
        tokens: torch.Tensor,
        position_ids_BS: torch.Tensor,
        past: Prefix | None = None,
        visible_BSK: torch.Tensor | None = None,
        **how: Any,
    ) -> tuple[torch.Tensor, Prefix | None]:
        """Final hidden states [B, S, D], and the rows given as a prefix with `keeps_rows`.

        Arguments are those of `CausalLM._run`; `past` are rows read before, shared by all sequences or each
        sequence's own.
        """
        placed_BSD = tokens if tokens.is_floating_point() else self.lm.embed(tokens)
        if "table_ID" in self.position_ids:
            placed_BSD = placed_BSD + self.position_ids["table_ID"][position_ids_BS]
        return self.lm._run(placed_BSD, position_ids_BS, visible_BSK, None, past, **how)

    def token_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [..., V] of the next token."""
        return self.lm._project(hidden)

    def position_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [..., I] of the next token's position ID; of models with the table only."""
        return hidden @ self.position_ids["table_ID"].T


class TaskCausalLM(CausalLM):
    """Predicts the next token of one example; position IDs of `CausalLM` are places.

    Args:
        model: it is measured from now on, and not trained.
        position_ids_L: int64; the position ID of each place.
    """

    _model: TaskModel

    def __init__(self, model: TaskModel, position_ids_L: torch.Tensor) -> None:
        super().__init__(model)
        self._position_ids_L = position_ids_L.to(self.device)

    @property
    def vocabulary_size(self) -> int:
        """See `CausalLM.vocabulary_size`."""
        return self._model.lm.vocabulary_size

    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """See `CausalLM.embed`."""
        return self._model.lm.embed(token_ids_1S)

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
        ids_BS = self._position_ids_L[position_ids_BS]
        hidden_BSD, read = self._model(
            tokens, ids_BS, prefix, visible_BSK, keeps_rows=keeps_rows, watch=watch
        )
        return rows_of(hidden_BSD, query_rows_BT), read

    def _project(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.token_logits(hidden)
