"""The loss of a response: the next token and, with PPC, the next position ID.

Dimension letters: B examples, P tokens of a prompt, T of a response, S = P + T, D width.
"""

import torch
from torch.nn.functional import cross_entropy

from pipeline.synthetic.task_model import TaskModel


def response_losses(
    model: TaskModel,
    token_ids_BS: torch.Tensor,
    position_ids_BS: torch.Tensor,
    num_prompt_tokens: int,
    *,
    with_position_ids: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Mean cross-entropy of the response's tokens and of its position IDs, nats; their sum is PPC's loss.

    Tokens and IDs are given (teacher forcing); the token at place p is predicted, ID and all, from p - 1.

    Args:
        with_position_ids: the second loss is wanted; None without.
    """
    hidden_BSD, _ = model(token_ids_BS[:, :-1], position_ids_BS[:, :-1])
    hidden_BTD = hidden_BSD[:, num_prompt_tokens - 1 :]
    token_loss = _mean_loss(model.token_logits(hidden_BTD), token_ids_BS[:, num_prompt_tokens:])
    if not with_position_ids:
        return token_loss, None
    position_logits = model.position_logits(hidden_BTD)
    return token_loss, _mean_loss(position_logits, position_ids_BS[:, num_prompt_tokens:])


def _mean_loss(logits_BTC: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits_BTC.float().flatten(0, 1), targets_BT.flatten())
