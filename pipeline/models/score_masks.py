"""What is added to attention scores, as every Hugging Face family takes it: who sees whom, and how much.

Shapes: B batch, S rows, P rows of a prefix, K = S or P + S.
"""

import torch

from pipeline.models.causal_lm import causal_visibility

NEARLY_CLOSED = -32.0
"""Added to the scores of candidates: e to this is nothing beside 1, yet no 0 in float32 and bfloat16."""


def added_to_scores(visible_BSK: torch.Tensor, num_past: int, dtype: torch.dtype) -> torch.Tensor:
    """The mask as every family takes it: 0 where visible, else the least number; [B, 1, S, P + S]."""
    mask_BSK = torch.zeros(visible_BSK.shape, dtype=dtype, device=visible_BSK.device)
    mask_BSK.masked_fill_(~visible_BSK, torch.finfo(dtype).min)
    num_unmentioned = num_past + visible_BSK.shape[1] - visible_BSK.shape[2]
    return torch.nn.functional.pad(mask_BSK, (num_unmentioned, 0))[:, None]


def candidates_nearly_closed(visible_BSP: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to scores so that candidates, a prefix, hardly count among S rows: [B, 1, S, P + S]."""
    least = torch.finfo(dtype).min
    of_candidates_BSP = torch.where(visible_BSP, NEARLY_CLOSED, least).to(dtype)
    own_1SS = causal_visibility(visible_BSP.shape[1], visible_BSP.device)
    of_own_BSS = torch.where(own_1SS, 0.0, least).to(dtype).expand(len(visible_BSP), -1, -1)
    return torch.cat((of_candidates_BSP, of_own_BSS), dim=-1)[:, None]
