"""From scores to an order of the far tokens.

Shapes: T targets, F far-context positions (of the last target), K the largest k.
"""

import numpy as np


def ranked(scores_TF: np.ndarray, max_k: int) -> np.ndarray:
    """Positions of the `max_k` largest scores, largest first, the nearer of equals first: int64 [T, K].

    NaN is no candidate.
    """
    # A stable sort keeps the order of equals, so sorting from the nearest token on breaks ties rightly.
    nearest_first_TF = np.where(np.isnan(scores_TF), -np.inf, scores_TF)[:, ::-1]
    order_TK = np.argsort(-nearest_first_TF, axis=1, kind="stable")[:, :max_k]
    return scores_TF.shape[1] - 1 - order_TK
