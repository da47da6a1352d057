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

Measuring code names a token of an example by its place; a model `at` the example's position IDs reads it at
the one of that place, which a random start or coupling makes another number.

Shapes: B batch, S rows, K rows to look at, L tokens of an example, D width, V vocabulary, I position IDs.
"""

from copy import copy
from dataclasses import replace

import torch
import transformers
from olmo.config import ModelConfig
from olmo.model import OLMo
from torch import nn

from sparsity_length.models.huggingface import HuggingFaceCausalLM
from sparsity_length.models.interface import CausalLM, Running
from sparsity_length.models.olmo import OLMoCausalLM
from sparsity_length.synthetic.config import UNROTATED, TaskConfig
from sparsity_length.synthetic.schemes import scheme_of
from sparsity_length.synthetic.tasks import COUPLED_SCHEMES, TASKS


def _new_trunk(config: TaskConfig) -> CausalLM:
    """The part that reads tokens, with initial weights drawn from torch's global generator."""
    vocabulary_size = len(TASKS[config.task].vocabulary)
    model = config.model
    if model.architecture == "olmo":
        olmo_config = ModelConfig(  # as OLMo-1B is built
            d_model=model.width,
            n_heads=model.num_heads,
            n_layers=model.num_layers,
            mlp_ratio=8,  # SwiGLU halves it
            rope=True,
            attention_dropout=0.0,
            residual_dropout=0.0,
            embedding_dropout=0.0,
            layer_norm_with_affine=False,
            include_bias=False,
            weight_tying=False,
            max_sequence_length=config.num_position_ids,
            vocab_size=vocabulary_size,
            embedding_size=vocabulary_size,
            eos_token_id=0,  # never met; OLMo's own default is beyond these vocabularies
            pad_token_id=0,
        )
        return OLMoCausalLM(OLMo(olmo_config))
    neox_config = transformers.GPTNeoXConfig(
        vocab_size=vocabulary_size,
        hidden_size=model.width,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        intermediate_size=4 * model.width,
        max_position_embeddings=config.num_position_ids,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": model.rotary_fraction,
        },
        bos_token_id=None,
        eos_token_id=None,
    )
    return HuggingFaceCausalLM(transformers.GPTNeoXForCausalLM(neox_config))


class TaskLM(CausalLM):
    """A trunk that reads tokens at position IDs, with or without a table of them at the input and as a head.

    Training and generation call `_run`, which keeps gradients.
    """

    _position_ids_L: torch.Tensor | None = None
    """See `at`."""

    def __init__(self, config: TaskConfig) -> None:
        """On the CPU, with the initial weights that `config.seed` decides."""
        self.config = config
        torch.manual_seed(config.seed)
        self._trunk = _new_trunk(config)
        self._tables = nn.ParameterDict()
        if config.positions in COUPLED_SCHEMES and "predicted" in TASKS[config.task].coupled_schemes:
            # Drawn last, so that the trunk's initial weights do not depend on the positions; 0.02 is the
            # standard deviation of GPT-NeoX's token embedding, to which it is added.
            self._tables["table_ID"] = nn.Parameter(
                0.02 * torch.randn(config.num_position_ids, config.model.width)
            )
        parts: dict[str, nn.Module] = {
            "trunk": nn.ModuleDict({"model": self._trunk._model}),
            "position_ids": self._tables,
        }
        self._scheme = scheme_of(config.positions, config.model)
        if isinstance(self._scheme, nn.Module):
            parts["scheme"] = self._scheme
        # Checkpoints name their parameters so: trunk.model.<the library's name>, position_ids.table_ID.
        super().__init__(nn.ModuleDict(parts))

    @property
    def vocabulary_size(self) -> int:
        """See `CausalLM.vocabulary_size`."""
        return self._trunk.vocabulary_size

    def at(self, position_ids_L: torch.Tensor) -> "TaskLM":
        """The same model, given places in an example as position IDs, which it reads at these, int64."""
        placed = copy(self)  # shallow: the weights are shared
        placed._position_ids_L = position_ids_L.to(self.device)
        return placed

    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """See `CausalLM.embed`."""
        return self._trunk.embed(token_ids_1S)

    def _states(
        self,
        tokens: torch.Tensor,
        position_ids_BS: torch.Tensor,
        query_rows_BT: torch.Tensor | None,
        running: Running,
    ) -> torch.Tensor:
        if self._position_ids_L is not None:
            position_ids_BS = self._position_ids_L[position_ids_BS]
            running = replace(running, position_ids_BK=self._position_ids_L[running.position_ids_BK])
        placed_BSD = self.embed(tokens)
        if "table_ID" in self._tables:
            placed_BSD = placed_BSD + self._tables["table_ID"][position_ids_BS]
        running = self._scheme(running, position_ids_BS)
        if self.config.positions in UNROTATED:
            # RoPE leaves what stands at ID 0 as it is.
            position_ids_BS = torch.zeros_like(position_ids_BS)
        return self._trunk._states(placed_BSD, position_ids_BS, query_rows_BT, running)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `CausalLM.logits`."""
        return self._trunk.logits(hidden)

    def position_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [..., I] of the next token's position ID; of models with the table only."""
        return hidden @ self._tables["table_ID"].T
