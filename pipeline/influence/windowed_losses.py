"""The short context that LongPPL's code approximates: a block of targets shares one window.

Exact windows (`context_loss.measured_windows`) cost one a target. LongPPL (Fang et al. 2024, arXiv
2410.23771) shares one among a block of targets. What its code does is done again here, so that both can be
compared:

- Blocks are counted from the start of the chunk, which stands for LongPPL's text: block j holds the targets
  [j·w + s, (j + 1)·w + s), w = `windowed_stride`. Its window begins at j·w and ends with the block, or with
  the chunk: the last block may be shorter.
- So a target sees s to s + w - 1 tokens, by its place in its block; only the first sees exactly s. With
  LongPPL's own s = 4,096 and w = 1,024 that is up to a quarter more.
- Position IDs restart at 0 in every window, where everything else in this project keeps them. RoPE does not
  see the difference; models with learned positions do.
- The first s tokens of a chunk have no window. They are never targets here either.

At w = 1 every target has a window of its own, and only the position IDs differ from `measured_windows`.

Shapes: L chunk (long_context_length), T targets, N windows, W tokens of a window, Q targets of a block.
"""

import numpy as np
import torch

from pipeline.influence.batching import Batching
from pipeline.models.causal_lm import CausalLM, NotFiniteLossError, target_losses


def windowed_losses(
    model: CausalLM,
    chunk_L: np.ndarray,
    targets_T: np.ndarray,
    short_context_length: int,
    windowed_stride: int,
    batching: Batching,
) -> np.ndarray:
    """loss(t | the tokens of t's shared window before t), position IDs from 0 in each window: float32 [T].

    Args:
        targets_T: ascending, none below `short_context_length`.
        short_context_length: s, `trunc_len` of LongPPL's code.
        windowed_stride: w, `sliding_window` of LongPPL's code.
    """
    starts_T = (targets_T - short_context_length) // windowed_stride * windowed_stride
    starts_N, first_N, num_targets_N = np.unique(starts_T, return_index=True, return_counts=True)
    place_Q = np.arange(num_targets_N.max())
    # Blocks and windows are filled up to one shape: by their last target, and by rows after it, which no
    # earlier row of a causal model sees.
    targets_NQ = targets_T[first_N[:, None] + np.minimum(place_Q, num_targets_N[:, None] - 1)]
    window_length = (targets_T - starts_T).max()
    losses, start = [], 0
    while start < len(starts_N):
        batch = slice(start, start + batching.num_sequences(model, window_length))
        block = starts_N[batch], targets_NQ[batch]
        with batching.halved_where_memory_runs_out(len(block[0]), window_length):
            losses.append(_losses_in_windows(model, chunk_L, *block, window_length))
            start += len(block[0])
    return np.concatenate(losses)[place_Q < num_targets_N[:, None]]


def _losses_in_windows(
    model: CausalLM, chunk_L: np.ndarray, starts_N: np.ndarray, targets_NQ: np.ndarray, window_length: int
) -> np.ndarray:
    """One forward pass over windows of `window_length` tokens from their starts: float32 [N, Q]."""
    positions_NW = np.minimum(starts_N[:, None] + np.arange(window_length), len(chunk_L) - 1)
    try:
        losses_NQ = target_losses(
            model,
            torch.as_tensor(chunk_L[positions_NW], device=model.device),
            torch.arange(window_length, device=model.device)[None],
            None,
            torch.as_tensor(targets_NQ - starts_N[:, None] - 1, device=model.device),
            torch.as_tensor(chunk_L[targets_NQ], device=model.device),
        )
    except NotFiniteLossError as error:
        start = int(starts_N[error.sequence_index])
        raise NotFiniteLossError(start + error.target_position, error.loss, what=error.what) from error
    return losses_NQ.cpu().numpy()
