"""What a language model may offer beyond the `CausalLM` interface, to rules that look inside.

Shapes: B batch, S rows of a sequence, T query rows, H heads of a layer, D width.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch

from pipeline.errors import InputError


class NotInspectableError(InputError):
    """A model that offers to be looked into, but whose kind shows no such thing; says why."""


@runtime_checkable
class InspectableLM(Protocol):
    """What a `CausalLM` may offer beyond predictions: its attention, and derivatives.

    Arguments are as in `CausalLM.hidden_states`, for one sequence without a prefix. Token IDs may also be
    given as their embeddings, [1, S, D].
    """

    def watch_attention(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor | None,
        note: Callable[[torch.Tensor], None],
    ) -> None:
        """Call `note` with the attention of each query row to each row, layer by layer: float32 [H, T, S].

        It sums to 1 over the rows. None: of all rows.

        Raises:
            NotInspectableError: the kind of model does not show it.
        """

    def gate_gradients(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        target_ids_T: torch.Tensor,
    ) -> torch.Tensor:
        """Derivative of each target's loss by the gate of each row, all gates being 1: float32 [T, S], nats.

        The gate of row i multiplies exp(score) of every attention edge into row i, in all layers and heads:
        1 leaves the model as it is, 0 removes the row. One forward pass, and one backward a target.

        Raises:
            NotInspectableError: the kind of model has no such derivative.
        """

    def embed(self, token_ids_1S: torch.Tensor) -> torch.Tensor:
        """What the model's first layer is given for each token, positions apart: [1, S, D]."""

    def losses_of_embeddings(
        self,
        embedded_BSD: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
        target_ids_T: torch.Tensor,
    ) -> torch.Tensor:
        """Each target's loss, given embeddings in the place of tokens: float32 [B, T], nats.

        It has a derivative by the embeddings.
        """


def attention_mass(
    model: InspectableLM,
    token_ids_1S: torch.Tensor,
    position_ids_1S: torch.Tensor,
    visible_1SS: torch.Tensor | None,
    query_rows_T: torch.Tensor,
) -> torch.Tensor:
    """Attention of each query row to each row, mean over layers and heads: float32 [T, S]; sums to 1."""
    of_layers: list[torch.Tensor] = []
    model.watch_attention(
        token_ids_1S, position_ids_1S, visible_1SS, query_rows_T,
        lambda weights_HTS: of_layers.append(weights_HTS.mean(0)),
    )  # fmt: skip
    return torch.stack(of_layers).mean(0)
