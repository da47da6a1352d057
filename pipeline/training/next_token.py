"""The loss of predicting the next token: the one place in training where the one-position shift stands.

Dimension letters: B sequences, S tokens of a sequence, V vocabulary.
"""

import torch
from torch.nn.functional import cross_entropy

_NO_TARGET = -100


def next_token_loss(
    logits_BSV: torch.Tensor, token_ids_BS: torch.Tensor, reduction: str = "mean"
) -> torch.Tensor:
    """Cross-entropy in nats of each sequence's tokens but the first, computed in float32.

    EOS tokens are targets like any other, as in OLMo; so are the tokens after one, in the same sequence.

    Args:
        logits_BSV: what the model says at each token.
        token_ids_BS: the tokens.
        reduction: "mean" or "sum" over the B (S - 1) targets.
    """
    # The targets are shifted and not the logits cut: that would copy the largest tensor, and its gradient.
    target_ids_BS = torch.nn.functional.pad(token_ids_BS[:, 1:], (0, 1), value=_NO_TARGET)
    logits = logits_BSV.float().flatten(0, 1)
    return cross_entropy(logits, target_ids_BS.flatten(), ignore_index=_NO_TARGET, reduction=reduction)
