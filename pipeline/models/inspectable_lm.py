"""What a language model may offer beyond the `CausalLM` interface, to rules that look inside.

Shapes: S rows of a sequence, T query rows.
"""

from typing import Protocol, runtime_checkable

import torch


@runtime_checkable
class InspectableLM(Protocol):
    """What a `CausalLM` may offer beyond predictions: its attention, and derivatives with respect to it.

    Arguments of both are as in `CausalLM.hidden_states`, for one sequence without a prefix.
    """

    def attention_mass(
        self,
        token_ids_1S: torch.Tensor,
        position_ids_1S: torch.Tensor,
        visible_1SS: torch.Tensor | None,
        query_rows_T: torch.Tensor,
    ) -> torch.Tensor:
        """Attention of each query row to each row, mean over layers and heads: float32 [T, S].

        It sums to 1 over the rows.
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
        """
