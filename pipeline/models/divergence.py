"""How far predictions move from a reference, as whole distributions.

    KL(reference || prediction) = sum_v p(v) (ln p(v) - ln q(v))

with logarithms from log-softmax: so it is 0 where the logits are the same, and small numbers are not rounded
away. They are what the loss needs anyway, so a divergence costs one product more than a loss; there is no
tensor of a vocabulary a context.

Shapes: B batch, S rows, K rows to look at, T references or query rows, V vocabulary, D width, N any number of
rows: I references with R each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pipeline.models.causal_lm import CausalLM, Prefix, refuse_not_finite, rows_per_block
from pipeline.models.transfers import to_device

_LOGITS_COMPARED = 1 << 19
"""Of a block that are compared at a time on a CPU: in float32 they stay in its caches, 2 MiB, through the
passes over them."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model predicts at T places, as whole distributions."""

    log_probs_TV: torch.Tensor
    """float32."""
    probs_TV: torch.Tensor
    """float32."""

    @classmethod
    def of(cls, model: CausalLM, hidden_TD: torch.Tensor) -> "Predictions":
        """Those of the states that predict."""
        return cls.of_logits(model.logits(hidden_TD))

    @classmethod
    def of_logits(cls, logits_TV: torch.Tensor) -> "Predictions":
        """Those that these logits are."""
        log_probs_TV = logits_TV.log_softmax(-1, dtype=torch.float32)
        return cls(log_probs_TV, log_probs_TV.exp())

    @classmethod
    def together(cls, parts: Sequence["Predictions"]) -> "Predictions":
        """Those of several, one after another."""
        return cls(
            torch.cat([part.log_probs_TV for part in parts]),
            torch.cat([part.probs_TV for part in parts]),
        )

    def at(self, places: slice) -> "Predictions":
        """Those at some of the places."""
        return Predictions(self.log_probs_TV[places], self.probs_TV[places])

    def divergences(self, log_probs_NV: torch.Tensor, index_N: torch.Tensor) -> torch.Tensor:
        """KL(reference || prediction) of N predictions, equal indices side by side: float32 [N], nats.

        Args:
            log_probs_NV: float32.
            index_N: int64, on the CPU; which reference each is compared with.
        """
        indices, counts = torch.unique_consecutive(index_N, return_counts=True)
        first, num_references, num_each = int(indices[0]), len(indices), int(counts[0])
        references = torch.arange(first, first + num_references)
        if bool((counts == num_each).all()) and torch.equal(indices, references):
            # As many predictions for each of neighbouring references: one product, where a GPU would have to
            # be told of two small ones for each.
            places, rows_IRV = slice(first, first + num_references), log_probs_NV.unflatten(0, (-1, num_each))
            divergences_N = self._divergences(rows_IRV, places).flatten()
        else:
            pairs = zip(indices.tolist(), log_probs_NV.split(counts.tolist()), strict=True)
            of_each = [
                self._divergences(rows_RV[None], slice(index, index + 1))[0] for index, rows_RV in pairs
            ]
            divergences_N = torch.cat(of_each)
        return divergences_N.clamp(min=0)  # rounding may take it below

    def _divergences(self, log_probs_IRV: torch.Tensor, places: slice) -> torch.Tensor:
        """Of R predictions for each of I references: [I, R]."""
        falls_IRV = self.log_probs_TV[places, None] - log_probs_IRV
        if falls_IRV.device.type == "cpu":  # where many small matrices times a vector each are slower
            return falls_IRV.mul_(self.probs_TV[places, None]).sum(-1)
        return (falls_IRV @ self.probs_TV[places, :, None])[..., 0]


def losses_and_divergences(
    model: CausalLM,
    token_ids_BS: torch.Tensor,
    position_ids_BS: torch.Tensor,
    visible_BSK: torch.Tensor | None,
    query_rows_BT: torch.Tensor,
    target_ids_BT: torch.Tensor,
    reference: Predictions,
    reference_index_BT: torch.Tensor | None = None,
    prefix: Prefix | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two float32 [B, T], nats: `target_losses`, and KL(reference || prediction) of the whole distribution.

    The divergence asks how far a prediction moved, not whether the target became likelier: it never sees the
    target. Predictions are compared block by block, so there is no [B, T, V] tensor.

    Args:
        reference: what the predictions are compared with.
        reference_index_BT: int64, best on the CPU; the place among them for each target; None: target t's is
            place t.

    Raises:
        NotFiniteLossError: a loss or a divergence is not a finite number.
    """
    inputs = model, token_ids_BS, position_ids_BS, visible_BSK, query_rows_BT, target_ids_BT
    both = unchecked_losses_and_divergences(*inputs, reference, reference_index_BT, prefix)
    for values_BT, what in zip(both, ("loss", "divergence"), strict=True):
        refuse_not_finite(values_BT, position_ids_BS, query_rows_BT, what)
    return both


def unchecked_losses_and_divergences(
    model: CausalLM,
    token_ids_BS: torch.Tensor,
    position_ids_BS: torch.Tensor,
    visible_BSK: torch.Tensor | None,
    query_rows_BT: torch.Tensor,
    target_ids_BT: torch.Tensor,
    reference: Predictions,
    reference_index_BT: torch.Tensor | None = None,
    prefix: Prefix | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, not looked at: a GPU is told what to compute, and nothing waits for it."""
    hidden_BTD = model.hidden_states(token_ids_BS, position_ids_BS, visible_BSK, query_rows_BT, prefix)
    shape, device = target_ids_BT.shape, hidden_BTD.device
    if reference_index_BT is None:
        reference_index_BT = torch.arange(shape[1]).expand(shape)
    index_N, order_N = reference_index_BT.cpu().reshape(-1).sort(stable=True)
    num_of_first = int((index_N == index_N[0]).sum())
    num_rows = num_compared = _whole(rows_per_block(model, device), num_of_first)
    if device.type == "cpu":
        num_compared = _whole(min(num_rows, _LOGITS_COMPARED // model.vocabulary_size), num_of_first)
    hidden_ND, target_ids_N = hidden_BTD.flatten(0, 1), target_ids_BT.reshape(-1)
    losses_N, divergences_N = (torch.empty(len(order_N), device=device) for _ in range(2))
    blocks = zip(to_device(order_N, device).split(num_rows), index_N.split(num_rows), strict=True)
    for block_rows, block_index in blocks:
        block_NV = model.logits(hidden_ND[block_rows])
        parts = (part.split(num_compared) for part in (block_rows, block_index, block_NV))
        for rows, index, logits_NV in zip(*parts, strict=True):
            log_probs_NV = logits_NV.log_softmax(-1, dtype=torch.float32)
            losses_N[rows] = -log_probs_NV.gather(-1, target_ids_N[rows, None])[:, 0]
            divergences_N[rows] = reference.divergences(log_probs_NV, index)
    return losses_N.reshape(shape), divergences_N.reshape(shape)


def _whole(num_rows: int, num_of_each: int) -> int:
    """So many rows, at least one, and of whole references where one fits."""
    return num_rows // num_of_each * num_of_each or max(1, num_rows)
