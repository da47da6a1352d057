"""How far two measurements of the same influences agree.

Shapes: T targets, F far tokens.
"""

import numpy as np
import pandas as pd


def top_k_overlap(influence_TF: np.ndarray, other_TF: np.ndarray, k: int = 8) -> float:
    """Mean share of each target's k most influential tokens that the other measurement names too."""
    ours, theirs = (
        np.argsort(-np.nan_to_num(values, nan=-np.inf), axis=1)[:, :k] for values in (influence_TF, other_TF)
    )
    return float(
        np.mean([len(set(a) & set(b)) / k for a, b in zip(ours.tolist(), theirs.tolist(), strict=True)])
    )


def rank_correlation(influence_TF: np.ndarray, other_TF: np.ndarray) -> float:
    """Spearman's correlation over each target's far tokens, mean over targets; NaN is no far token."""
    ranks, other_ranks = (pd.DataFrame(values).rank(axis=1) for values in (influence_TF, other_TF))
    return float(ranks.corrwith(other_ranks, axis=1).mean())
