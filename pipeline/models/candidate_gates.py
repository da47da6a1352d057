"""What letting one more token in would do, to first order: gates on candidates that are all closed.

The gate g of candidate i mixes, in every layer and head, what a row gathers without i and what it gathers
with i:

    (1 - g) o + g (o + a (v_i - o)),    a = exp(score_i) / (exp(score_i) + sum of exp(score) of rows seen)

Closed, it leaves the model as it is without i; open, every row sees i. The derivative of a loss by the closed
gate is a <dloss/do, v_i - o>, summed over layers, heads and rows. So one pass without any candidate, one
backward pass to every o, and the candidates' keys and values tell it of all of them. (A gate that multiplies
exp(score_i), open or closed, has the same ends. Its derivative where it is closed has exp(score_i) over the
sum without it for a, which is far too much of a candidate that would draw most of the attention.)

Shapes: B batch, S rows, P candidates, V vocabulary, H heads, G key-value heads, X = H / G, E head width.
"""

import math
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from pipeline.models.causal_lm import KeysAndValues, Prefix
from pipeline.models.prefix_attention import attend


@runtime_checkable
class ScreenedLM(Protocol):
    """What a `CausalLM` may offer beyond predictions: derivatives by the closed gates of candidates."""

    def candidate_gradients(
        self,
        token_ids_BS: torch.Tensor,
        position_ids_BS: torch.Tensor,
        answers: torch.Tensor,
        candidates: Prefix,
        visible_BSP: torch.Tensor,
    ) -> torch.Tensor:
        """Derivative of each sequence's loss by each candidate's gate, all being 0: float32 [B, P], nats.

        One forward and one backward pass through the B sequences, in which no candidate is a row.

        Args:
            token_ids_BS, position_ids_BS: int64 [B, S]; each row sees the rows up to itself.
            answers: what the last row predicts, int64 [B]; or float32 [B, V], how likely each token is: then
                the loss is the mean over them.
            candidates: rows of one sequence, already read.
            visible_BSP: bool; which row would see which candidate.

        Raises:
            NotInspectableError: the kind of model has no such derivative.
        """


class _Layer(NamedTuple):
    query_BHSE: torch.Tensor
    key_BGSE: torch.Tensor
    gathered_BHSE: torch.Tensor
    nothing_BHSE: torch.Tensor
    """Zeros that were added to what was gathered, whose gradient is its."""


class CandidateGates:
    """Attention among the rows of a pass, which notes what the derivatives by the gates need."""

    def __init__(self, candidates: Prefix, visible_BSP: torch.Tensor) -> None:
        """Gates on candidates.

        Args:
            candidates: their keys and values, of one sequence.
            visible_BSP: bool; which row would see which of them.
        """
        self._candidates, self._visible_BSP = candidates, visible_BSP
        self._layers: list[_Layer] = []

    def attend(
        self,
        query_BHSE: torch.Tensor,
        key_BGSE: torch.Tensor,
        value_BGSE: torch.Tensor,
        past: KeysAndValues | None,
        visible: torch.Tensor | None,
    ) -> torch.Tensor:
        """As `prefix_attention.attend` of rows that each see the rows up to themselves."""
        assert past is None and visible is None, "gates are for contexts that are sequences of their own"
        gathered_BHSE = attend(query_BHSE, key_BGSE, value_BGSE, None, None)
        nothing_BHSE = torch.zeros_like(gathered_BHSE, requires_grad=True)
        self._layers.append(
            _Layer(query_BHSE.detach(), key_BGSE.detach(), gathered_BHSE.detach(), nothing_BHSE)
        )
        return gathered_BHSE + nothing_BHSE

    def derivatives(self, losses_B: torch.Tensor) -> torch.Tensor:
        """Of each sequence's loss by each candidate's gate, at 0: float32 [B, P]."""
        gradients = torch.autograd.grad(losses_B.sum(), [layer.nothing_BHSE for layer in self._layers])
        with torch.no_grad():
            of_layers = [
                self._of_layer(layer, gradient_BHSE, past)
                for layer, gradient_BHSE, past in zip(
                    self._layers, gradients, self._candidates.keys_and_values, strict=True
                )
            ]
        return torch.stack(of_layers).sum(0)

    def _of_layer(self, layer: _Layer, gradient_BHSE: torch.Tensor, past: KeysAndValues) -> torch.Tensor:
        key_1GPE, value_1GPE = past
        num_groups, width = key_1GPE.shape[1], key_1GPE.shape[-1]
        query, gathered, gradient = (
            tensor.unflatten(1, (num_groups, -1)).float()
            for tensor in (layer.query_BHSE, layer.gathered_BHSE, gradient_BHSE)
        )
        query = query / math.sqrt(width)
        scores_BGXSS = query @ layer.key_BGSE[:, :, None].float().transpose(-1, -2)
        is_later_SS = torch.ones_like(scores_BGXSS[0, 0, 0], dtype=torch.bool).triu(1)
        sums_BGXS = scores_BGXSS.masked_fill(is_later_SS, -math.inf).logsumexp(-1)
        scores_BGXSP = query @ key_1GPE[:, :, None].float().transpose(-1, -2)
        shares_BGXSP = (scores_BGXSP - sums_BGXS[..., None]).sigmoid()
        worths_BGXSP = gradient @ value_1GPE[:, :, None].float().transpose(-1, -2)
        worths_BGXSP -= (gradient * gathered).sum(-1, keepdim=True)
        of_rows_BSP = (shares_BGXSP * worths_BGXSP).sum((1, 2))
        return of_rows_BSP.masked_fill(~self._visible_BSP, 0).sum(1)
