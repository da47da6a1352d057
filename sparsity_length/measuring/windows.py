"""Losses of every token of a text, with shared windows of near tokens: what a page is colored by.

A short context of exactly s tokens for every one of L predictions takes 2 s L forward tokens; here neighbors
share a window, of which the first sees s near tokens and each other one more. So these are other numbers than
short_context_loss and the total effect, which the library tells of exactly s near tokens.

Shapes: L tokens, S rows of a window, T targets, N windows of W targets each, Q targets of some windows.
"""

import numpy as np
import pandas as pd
import torch

from sparsity_length.measuring.contexts import Batching, Pass, Rows, measured_contexts
from sparsity_length.models.interface import CausalLM, Predictions, Prefix


def window_starts(length: int, first: int, short: int, shared: int) -> np.ndarray:
    """Starts of the near tokens of the targets [first, length): int64 [T], ascending.

    So many neighbors share a window: the first of them sees `short` near tokens, each other one more. Of ten
    targets, four to a window, the windows' first targets are 0 0 0 0 4 4 6 6 6 6: the last window holds as
    many as the others, for one shape serves all passes.
    """
    places_T = np.arange(length - first)
    last = max(0, len(places_T) - shared)
    return np.where(places_T < last, places_T // shared * shared, last) + first - short


def window_losses(
    model: CausalLM,
    batching: Batching,
    hidden_TD: torch.Tensor,
    token_ids_L: np.ndarray,
    other: Prefix,
    near_T: np.ndarray,
    short: int,
) -> pd.DataFrame:
    """Losses of the last T tokens, nats, in a few passes; `explain` lists the columns.

    `hidden_TD` are those that predict them with the full context, and `other` the distant rows of a swapped
    context.
    """
    first = len(token_ids_L) - len(near_T)
    starts_N, num_each_N = np.unique(near_T, return_counts=True)
    num_targets = int(num_each_N.max())
    num_rows = short + num_targets - 1
    found = np.zeros((5, len(near_T)), dtype=np.float32)
    # At most 128 MiB of logits in float32; a reference holds two such tensors, log-probabilities and
    # probabilities.
    targets_at_once = min(256, (1 << 25) // model.vocabulary_size)
    windows_at_once = max(1, targets_at_once // num_targets)
    for start in range(0, len(starts_N), windows_at_once):
        starts_N1 = starts_N[start : start + windows_at_once, None]
        places_NS = starts_N1 + np.arange(num_rows)
        # Row short - 1 is the first that sees `short` near tokens, itself among them.
        queries_NW = np.tile(np.arange(short - 1, num_rows), (len(starts_N1), 1))
        targets_NW = starts_N1 + 1 + queries_NW
        reference = Predictions.of(model.logits(hidden_TD[targets_NW.ravel() - first]))
        full_Q = reference.losses(token_ids_L[targets_NW.ravel()])
        rows = Rows(token_ids_L[places_NS], places_NS, None, queries_NW)
        alone = Pass(rows, token_ids_L[targets_NW], np.arange(targets_NW.size).reshape(targets_NW.shape))
        # Of the other document a window sees the tokens at positions before its own; none sees those behind.
        prefix = other.first(max(1, int(starts_N1[-1, 0])))
        sees_other_NSF = np.broadcast_to(
            np.arange(prefix.num_rows) < starts_N1[:, None], (*places_NS.shape, prefix.num_rows)
        )
        sees_own_NSS = np.broadcast_to(np.tri(num_rows, dtype=bool), (*places_NS.shape, num_rows))
        visible_NSK = np.concatenate([sees_other_NSF, sees_own_NSS], axis=2)
        swapped = alone._replace(rows=rows._replace(visible_BSK=visible_NSK), prefix=prefix)
        measured = [
            values_NW
            for contexts in (alone, swapped)
            for values_NW in measured_contexts(model, batching, reference, contexts)
        ]
        # The last window may overlap the one before it; for targets in both the later values stay.
        found[:, targets_NW - first] = full_Q.reshape(targets_NW.shape), *measured
    names = ["short_loss", "short_divergence", "swapped_loss", "swapped_divergence"]
    return pd.DataFrame(found.T, columns=["long_context_loss", *(f"window_{name}" for name in names)])
