"""What looking inside a Hugging Face model takes, beyond running it (`InspectableLM`).

Under the name "eager" the library writes each family's attention out in plain tensor operations. Only there
are the weights to be had, and only there does every family add our mask to its scores, soft-capped or not,
so that a derivative by the mask is one by the gates.

Shapes: B batch, S rows, P candidates, T query rows, H heads.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import transformers

from pipeline.models.inspectable_lm import NotInspectableError
from pipeline.models.score_masks import NEARLY_CLOSED

_FAR_FROM_ONE = 0.01
"""No rounding does this to a sum of weights; a share that is given to no token (attention sinks) does."""


@contextmanager
def eager_attention(model: transformers.PreTrainedModel) -> Iterator[None]:
    """Attention as plain tensor operations for a while, then as it was before.

    Raises:
        NotInspectableError: the family has its attention in one form only.
    """
    before = model.config._attn_implementation
    if before != "eager" and not model._can_set_attn_implementation():
        raise _not_inspectable(model, "its attention is written in one form, which shows no weights")
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def shown_attention(
    model: transformers.PreTrainedModel,
    weights_1HSS: Sequence[torch.Tensor | None] | None,
    rows_T: torch.Tensor,
) -> Iterator[torch.Tensor]:
    """The attention of some rows, layer by layer: float32 [H, T, S].

    Args:
        weights_1HSS: of each layer, as the library returns them.

    Raises:
        NotInspectableError: a layer shows none, or gives some of its attention to nothing, so that the mass
            of the tokens is not to be compared between layers.
    """
    for layer_1HSS in _all_layers(model, weights_1HSS):
        weights_HTS = layer_1HSS[0, :, rows_T.to(layer_1HSS.device)].float()
        if not bool(((weights_HTS.sum(-1) - 1).abs() < _FAR_FROM_ONE).all()):
            raise _not_inspectable(model, "the attention of a token to those before it does not sum to 1")
        yield weights_HTS.to(rows_T.device)


def candidate_derivatives(
    model: transformers.PreTrainedModel,
    losses_B: torch.Tensor,
    weights_BHSK: Sequence[torch.Tensor | None] | None,
    num_candidates: int,
) -> torch.Tensor:
    """The derivative of each loss by each candidate's gate, at 0 (`candidate_gates.py`): float32 [B, P].

    The family's own code weighs the candidates, so that each one's share of the attention is read off.

    Args:
        weights_BHSK: of each layer, as the library returns them, the candidates nearly closed and first.

    Raises:
        NotInspectableError: the family does not show what is needed.
    """
    layers = _all_layers(model, weights_BHSK)
    if not losses_B.requires_grad:
        raise _no_derivative(model)
    of_layers = []
    for weights, slopes in zip(layers, torch.autograd.grad(losses_B.sum(), layers), strict=True):
        weights, slopes = weights.detach().float(), slopes.float()
        # What all candidates together take away from the others is too little to show in a sum.
        slopes_of_all = (weights * slopes).sum(-1, keepdim=True)
        ratios = weights[..., :num_candidates] * math.exp(-NEARLY_CLOSED)
        effects = ratios / (1 + ratios) * (slopes[..., :num_candidates] - slopes_of_all)
        of_layers.append(effects.sum((1, 2)).to(losses_B.device))
    return torch.stack(of_layers).sum(0)


def gate_derivatives(
    model: transformers.PreTrainedModel, losses_T: torch.Tensor, log_gates_S: torch.Tensor
) -> torch.Tensor:
    """The derivative of each loss by each log-gate: float32 [T, S], one backward pass a loss.

    Raises:
        NotInspectableError: the losses do not depend on the gates: the family looks at where its mask is
            low, and not at how low.
    """
    if not losses_T.requires_grad:
        raise _no_derivative(model)
    return torch.stack(
        [torch.autograd.grad(loss, log_gates_S, retain_graph=True)[0] for loss in losses_T]
    ).float()


def _all_layers(
    model: transformers.PreTrainedModel, weights: Sequence[torch.Tensor | None] | None
) -> list[torch.Tensor]:
    num_layers = model.config.get_text_config().num_hidden_layers
    shown = [layer for layer in weights or () if layer is not None]
    if len(shown) != num_layers:
        raise _not_inspectable(model, f"{len(shown)} of its {num_layers} layers show their attention")
    return shown


def _no_derivative(model: transformers.PreTrainedModel) -> NotInspectableError:
    return _not_inspectable(model, "its losses have no derivative by what is added to its attention scores")


def _not_inspectable(model: transformers.PreTrainedModel, reason: str) -> NotInspectableError:
    return NotInspectableError(f"{type(model).__name__} cannot be looked into: {reason}")
