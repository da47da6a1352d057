"""What looking inside a Hugging Face model takes, beyond running it (`InspectableLM`).

Under the name "eager" the library writes each family's attention out in plain tensor operations. Only there
are the weights to be had, and only there does every family add our mask to its scores, soft-capped or not,
so that a derivative by the mask is one by the gates.

Shapes: S rows, T query rows, H heads.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import transformers

from pipeline.models.inspectable_lm import NotInspectableError

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
    num_layers = model.config.get_text_config().num_hidden_layers
    shown = [layer for layer in weights_1HSS or () if layer is not None]
    if len(shown) != num_layers:
        raise _not_inspectable(model, f"{len(shown)} of its {num_layers} layers show their attention")
    for layer_1HSS in shown:
        weights_HTS = layer_1HSS[0, :, rows_T.to(layer_1HSS.device)].float()
        if not bool(((weights_HTS.sum(-1) - 1).abs() < _FAR_FROM_ONE).all()):
            raise _not_inspectable(model, "the attention of a token to those before it does not sum to 1")
        yield weights_HTS.to(rows_T.device)


def gate_derivatives(
    model: transformers.PreTrainedModel, losses_T: torch.Tensor, log_gates_S: torch.Tensor
) -> torch.Tensor:
    """The derivative of each loss by each log-gate: float32 [T, S], one backward pass a loss.

    Raises:
        NotInspectableError: the losses do not depend on the gates: the family looks at where its mask is
            low, and not at how low.
    """
    if not losses_T.requires_grad:
        raise _not_inspectable(
            model, "its losses have no derivative by what is added to its attention scores"
        )
    return torch.stack(
        [torch.autograd.grad(loss, log_gates_S, retain_graph=True)[0] for loss in losses_T]
    ).float()


def _not_inspectable(model: transformers.PreTrainedModel, reason: str) -> NotInspectableError:
    return NotInspectableError(f"{type(model).__name__} cannot be looked into: {reason}")
