"""GPT-NeoX of the `transformers` library as a trunk: the architecture of the paper's synthetic tasks.

Shapes: B batch, S rows, P rows read before, K = S or P + S, D width, V vocabulary.
"""

import torch
import transformers
from torch import nn

from pipeline.models.causal_lm import Prefix, causal_visibility
from pipeline.models.huggingface import HuggingFaceCausalLM
from pipeline.models.huggingface_prefix import PassCache
from pipeline.models.inspectable_lm import InspectableLM
from pipeline.models.score_masks import added_to_scores
from pipeline.synthetic.trunk import Trunk, with_own_modules


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
            past_key_values=cache,
            use_cache=True,
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

    def inside(self, head: nn.Linear | None = None) -> InspectableLM:
        """See `Trunk.inside`."""
        if head is None:
            return HuggingFaceCausalLM(self.model)
        model = with_own_modules(self.model)
        model.set_output_embeddings(head)
        return HuggingFaceCausalLM(model)
