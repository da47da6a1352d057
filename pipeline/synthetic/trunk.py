"""The trunk of a decoder-only model, as a task model trains it: embeddings in, hidden states out.

Shapes: B batch, S rows, P rows read before, K = S or P + S, D width, V vocabulary.
"""

import copy
from typing import TypeVar

import torch
from torch import nn

from pipeline.models.causal_lm import KeysAndValues, Prefix
from pipeline.models.inspectable_lm import InspectableLM

M = TypeVar("M", bound=nn.Module)


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

    def inside(self, head: nn.Linear | None = None) -> InspectableLM:
        """The model as one that can be looked into, given embeddings in the place of token IDs.

        It is measured from then on, and not trained.

        Args:
            head: what predicts, without a bias; None: the model's own, of tokens.
        """
        raise NotImplementedError


def joined(past: Prefix | None, new: Prefix) -> Prefix:
    """The rows of `past`, then those of `new`, of the same sequences."""
    if past is None:
        return new
    layers = zip(past.keys_and_values, new.keys_and_values, strict=True)
    return Prefix(tuple(_joined_layer(before, after) for before, after in layers))


def _joined_layer(before: KeysAndValues, after: KeysAndValues) -> KeysAndValues:
    return torch.cat((before[0], after[0]), dim=2), torch.cat((before[1], after[1]), dim=2)


def with_own_modules(module: M) -> M:
    """The same module, its parameters shared, one of whose modules may be replaced for this copy only."""
    shallow = copy.copy(module)
    shallow._modules = dict(module._modules)
    return shallow
