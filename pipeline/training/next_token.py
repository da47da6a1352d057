"""The loss of predicting the next token: the one place in training where the one-position shift stands.

Dimension letters: B sequences, S tokens of a sequence, V vocabulary.
"""

import torch
from torch.nn.functional import cross_entropy

_NO_TARGET = -100
_LOGITS_AT_ONCE = 2**20
"""On a processor: as many as its caches hold in float32, with their gradient."""


def next_token_loss(
    logits_BSV: torch.Tensor,
    token_ids_BS: torch.Tensor,
    reduction: str = "mean",
    behind: torch.Tensor | None = None,
) -> torch.Tensor:
    """Cross-entropy in nats of each sequence's tokens but the first, computed in float32.

    EOS tokens are targets like any other, as in OLMo; so are the tokens after one, in the same sequence.

    Args:
        logits_BSV: what the model says at each token.
        token_ids_BS: the tokens.
        reduction: "mean" or "sum" over the B (S - 1) targets.
        behind: token IDs; only the tokens that stand behind one of them are targets then, and the loss is 0
            where none does. None: all are.
    """
    # The targets are shifted and not the logits cut: that would copy the largest tensor, and its gradient.
    targets = torch.nn.functional.pad(token_ids_BS[:, 1:], (0, 1), value=_NO_TARGET).flatten()
    logits = logits_BSV.flatten(0, 1)
    if behind is not None:
        is_asked = torch.isin(token_ids_BS.flatten(), behind) & (targets != _NO_TARGET)
        logits, targets = logits[is_asked], targets[is_asked]
    on_cpu = logits.device.type == "cpu"
    tokens_at_once = max(1, _LOGITS_AT_ONCE // logits.shape[-1]) if on_cpu else len(targets)
    pieces = zip(logits.split(tokens_at_once), targets.split(tokens_at_once), strict=True)
    total = torch.stack([_summed(piece, piece_targets) for piece, piece_targets in pieces]).sum()
    return total if reduction == "sum" else total / (targets != _NO_TARGET).sum().clamp(min=1)


def _summed(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits.float(), targets, ignore_index=_NO_TARGET, reduction="sum")
