"""What many passes tell, left on the device until all of them are queued.

A host that reads the losses of each pass, or looks whether they are finite, lets a GPU idle while it prepares
the next one. So a loop adds its passes here, and all are read, and looked at, after its end.

Shapes: B sequences of a batch, S rows, T targets.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from pipeline.models.causal_lm import refuse_not_finite

_KINDS = ("loss", "divergence")


@dataclass
class QueuedPasses:
    """Losses, and divergences where they are asked for, of passes in their order."""

    _passes: list[tuple[np.ndarray, np.ndarray, tuple[torch.Tensor, ...]]] = field(default_factory=list)

    def add(self, position_ids_BS: np.ndarray, query_rows_BT: np.ndarray, *values_BT: torch.Tensor) -> None:
        """One pass: its losses and, if any, its divergences, which may still be computed.

        Args:
            position_ids_BS, query_rows_BT: as `CausalLM.hidden_states` took them.
        """
        self._passes.append((position_ids_BS, query_rows_BT, values_BT))

    def read(self) -> list[list[np.ndarray]]:
        """Of each kind, float32 [B, T] a pass, nats. Waits for the device.

        Raises:
            NotFiniteLossError: one is not a finite number; the first of them is named.
        """
        of_passes = []
        for position_ids_BS, query_rows_BT, values_BT in self._passes:
            on_host = [values.cpu() for values in values_BT]
            where = torch.as_tensor(position_ids_BS), torch.as_tensor(query_rows_BT)
            for kind, values in zip(_KINDS, on_host, strict=False):
                refuse_not_finite(values, *where, kind)
            of_passes.append([values.numpy() for values in on_host])
        return [list(values) for values in zip(*of_passes, strict=True)]
