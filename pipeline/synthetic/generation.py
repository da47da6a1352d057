"""Greedy generation of responses of known length, position IDs given or predicted (PPC).

The prompt is read once; then each pass reads one token of every sequence, whose key is rotated by the ID that
it was given or that was predicted for it.

Shapes: B batch, P rows of the prompt, T tokens of the response, S = P + T.
"""

import torch

from pipeline.synthetic.task_model import TaskModel
from pipeline.synthetic.trunk import joined


@torch.inference_mode()
def generate(
    model: TaskModel,
    prompt_ids_BP: torch.Tensor,
    position_ids_BS: torch.Tensor,
    *,
    num_tokens: int,
    predict_position_ids: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest token at every place of the response, each read back before the next.

    Args:
        prompt_ids_BP: the prompts, of one length.
        position_ids_BS: int64; of the prompts alone, [B, P], where the response's are predicted.
        num_tokens: T.
        predict_position_ids: the response's IDs are the likeliest ones, read back too.

    Returns:
        Tokens and position IDs of the response: two int64 [B, T].
    """
    num_prompt_tokens = prompt_ids_BP.shape[1]
    tokens_B1, ids_B1 = prompt_ids_BP, position_ids_BS[:, :num_prompt_tokens]
    past, tokens, position_ids = None, [], []
    for step in range(num_tokens):
        hidden_BSD, read = model(tokens_B1, ids_B1, past)
        past, last_B1D = joined(past, read), hidden_BSD[:, -1:]
        tokens_B1 = model.token_logits(last_B1D).argmax(-1)
        place = num_prompt_tokens + step
        if predict_position_ids:
            ids_B1 = model.position_logits(last_B1D).argmax(-1)
        else:
            ids_B1 = position_ids_BS[:, place : place + 1]
        tokens.append(tokens_B1)
        position_ids.append(ids_B1)
    return torch.cat(tokens, dim=1), torch.cat(position_ids, dim=1)
