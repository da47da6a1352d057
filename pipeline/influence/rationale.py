"""Rationale size: how few far tokens make the model predict what it predicts from the whole long context.

Vafa, Deng, Blei and Rush 2021, "Rationales for Sequential Predictions", arXiv 2109.06387. Greedy
rationalization adds the best token, again and again, until the most likely next token is that of the full
context; what it has added is the rationale. Theirs starts from the token before the target, ours from the
short context: a rationale of 0 tokens means that it suffices. The order is that of the rules `greedy*`.

Shapes: T targets, K tokens in the order of a rule, C context, N contexts.
"""

import numpy as np
import torch

from pipeline.influence.far_context import FarContext

RATIONALE_RULES = ("greedy", "greedy_divergence")
"""Searches that add the best token to those already added."""


def rationale_sizes(context: FarContext, positions_TK: np.ndarray) -> list[int | None]:
    """The least number of a rule's first tokens with which the prediction is that of the long context.

    Args:
        context: the far context whose tokens these are.
        positions_TK: of each target, in the rule's order.

    Returns:
        For each target 0 to K, or None where K tokens do not reach it.
    """
    wanted_T = context.reference.log_probs_TV.argmax(-1).cpu().numpy()
    sizes: list[int | None] = [None] * len(positions_TK)
    rest_N = np.arange(len(positions_TK))
    for size in range(positions_TK.shape[1] + 1):
        found_N = _most_likely(context, rest_N, positions_TK[rest_N, :size])
        for target in rest_N[found_N == wanted_T[rest_N]]:
            sizes[target] = size
        rest_N = rest_N[found_N != wanted_T[rest_N]]
        if not len(rest_N):
            break
    return sizes


def _most_likely(context: FarContext, target_index_N: np.ndarray, sets_NK: np.ndarray) -> np.ndarray:
    """The most likely token of each target given the short context and a set of far tokens: int64 [N]."""
    model, lengths = context.model, context.lengths
    targets_N1 = lengths.targets_T[target_index_N, None]
    short_NC = targets_N1 + np.arange(-lengths.short_context_length, 0)
    far_NK = np.sort(sets_NK, axis=1)
    tokens_NC = np.concatenate([context.token_ids_L[far_NK], context.chunk_L[short_NC]], axis=1)
    positions_NC = np.concatenate([far_NK, short_NC], axis=1)
    batching, found, start = context.measurement.batching, [], 0
    while start < len(tokens_NC):
        num_rows = tokens_NC.shape[1]
        batch = slice(start, start + batching.num_sequences(model, num_rows))
        tokens_BC, positions_BC = (
            torch.as_tensor(array[batch], device=model.device) for array in (tokens_NC, positions_NC)
        )
        with batching.halved_where_memory_runs_out(len(tokens_BC), num_rows):
            last_11 = torch.full((1, 1), num_rows - 1, device=model.device)
            hidden_B1D = model.hidden_states(tokens_BC, positions_BC, None, last_11)
            found.append(model.logits(hidden_B1D[:, 0]).argmax(-1).cpu().numpy())
            start += len(tokens_BC)
    return np.concatenate(found)
