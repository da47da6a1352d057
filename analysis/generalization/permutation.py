"""A permutation test: how often sparsity that is dealt at random goes with the gap as closely as it does.

Shapes: T targets, B permutations of a block.
"""

import numpy as np

NUM_PERMUTATIONS = 1_999
_VALUES_PER_BLOCK = 1_000_000
_ROUNDING = 1e-9  # of the statistic: sums in another order must still count as equal


def permutation_p_value(
    gaps_T: np.ndarray,
    sparsity_T: np.ndarray,
    strata_T: np.ndarray,
    *,
    seed: int = 0,
    num_permutations: int = NUM_PERMUTATIONS,
) -> float:
    """Two-sided p-value of the hypothesis that within a stratum the gap does not depend on sparsity.

    Sparsity is permuted among the targets of a stratum, so what differs between strata (documents, how hard
    a target is) can make no difference. The statistic is the sum of products of both, each less its
    stratum's mean: the slope within strata, but for a factor that permuting does not move.

    Args:
        gaps_T: generalization gap of each target, nats.
        sparsity_T: the coded k*.
        strata_T: the stratum of each target, any labels; one of a single target says nothing.
        seed: of the permutations.
        num_permutations: drawn at random.

    Returns:
        (1 + permutations at least as extreme) / (1 + permutations) (Phipson and Smyth 2010), which is never
        0; NaN where no permutation changes anything.
    """
    strata_T = np.unique(strata_T, return_inverse=True)[1]
    gaps_T, sparsity_T = _centred(gaps_T, strata_T), _centred(sparsity_T, strata_T)
    size = np.abs(gaps_T) @ np.abs(sparsity_T)
    if not size > 0:
        return np.nan
    least_extreme = np.abs(gaps_T @ sparsity_T) - _ROUNDING * size
    order = np.argsort(strata_T, kind="stable")
    gaps_T, sparsity_T, strata_T = gaps_T[order], sparsity_T[order], strata_T[order]
    generator = np.random.default_rng(seed)
    num_extreme, num_drawn = 0, 0
    while num_drawn < num_permutations:
        num_block = min(num_permutations - num_drawn, max(1, _VALUES_PER_BLOCK // len(strata_T)))
        # Sorted by stratum and then by chance: each place keeps its stratum, with another target's sparsity.
        chosen_BT = np.argsort(strata_T + generator.random((num_block, len(strata_T))), axis=1)
        num_extreme += int((np.abs(sparsity_T[chosen_BT] @ gaps_T) >= least_extreme).sum())
        num_drawn += num_block
    return (1 + num_extreme) / (1 + num_permutations)


def _centred(values_T: np.ndarray, strata_T: np.ndarray) -> np.ndarray:
    sums, counts = np.bincount(strata_T, values_T), np.bincount(strata_T)
    return values_T - (sums / counts)[strata_T]
