"""Predictive Position Coupling (PPC) as a component, and the model of a synthetic task with or without it.

From the sources: in training the coupled position IDs of prompt and response are given, and a second head on
the trunk learns the next token's position ID beside the next token; in testing the prompt's IDs are given
only, and what is predicted is fed back.

Our choice, as the exact head is not in our sources: RoPE sees differences of IDs only, and coupled IDs start
at random, so a head on the trunk could not know which ID is meant. Hence a learned table of position IDs: a
row is added to the token's embedding, and the head's logit of an ID is the product of the hidden state with
its row (one table for both, as input and output embeddings are tied). To predict an ID that stands in the
prompt is then to copy it. Predicting the difference from the current ID instead would need no table, but
differences beyond those of training are classes that were never trained. RoPE rotates by the same IDs.

Shapes: B batch, S rows, P rows read before, K = S or P + S, D width, V vocabulary, I position IDs.
"""

import torch
from torch import nn

from pipeline.models.causal_lm import Prefix
from pipeline.synthetic.trunk import Trunk

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

    def as_head(self) -> nn.Linear:
        """What gives the logits, as a layer of its own with the same table."""
        head = nn.Linear(self.table_ID.shape[1], self.table_ID.shape[0], bias=False, device="meta")
        head.weight = self.table_ID
        return head


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
