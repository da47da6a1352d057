"""The k-subsets that sparse functional attention sums over, and what a relative key may see of each.

Dimension letters: S positions of a sequence, N subsets, K = k positions of a subset.

With reach r a key sees a subset only where its position IDs lie within r of each other: the largest minus
the smallest is below r. The relation of a subset is what relativity (Assumption 3.2) leaves of its position
IDs: their differences from the first one's. For k = 2 and r = 3 these are -2 … 2 (contiguous position IDs
make only 1 and 2, coupled ones all five), numbered 0 … 4.
"""

from functools import lru_cache

import numpy as np

from pipeline.errors import InputError

PositionIds = tuple[int, ...]
"""The ID of each position of a sequence, in the order of the tokens."""


@lru_cache(maxsize=64)
def subsets_within_reach(position_ids_S: PositionIds, sparsity: int, key_reach: int) -> np.ndarray:
    """Every set of k positions whose IDs lie within reach: subsets_NK, int64, each set ascending.

    Grown position by position, so that the cost follows the number of subsets within reach and not all
    of them.

    Raises:
        InputError: k is not 1 to the number of positions.
    """
    num_positions = len(position_ids_S)
    if not 1 <= sparsity <= num_positions:
        raise InputError(
            f"sparse functional attention: k = {sparsity} of {num_positions} tokens cannot be attended to;"
            f" k is 1 to {num_positions}"
        )
    ids_S, places_S = np.array(position_ids_S), np.arange(num_positions)
    subsets_NK = places_S[:, None]
    for _ in range(sparsity - 1):
        distances_NKS = np.abs(ids_S[subsets_NK][:, :, None] - ids_S)
        is_next_NS = (distances_NKS < key_reach).all(axis=1) & (places_S > subsets_NK[:, -1:])
        chosen_N, added_N = np.nonzero(is_next_NS)
        subsets_NK = np.column_stack([subsets_NK[chosen_N], added_N])
    subsets_NK.setflags(write=False)  # shared by all who ask again
    return subsets_NK


def num_relations(sparsity: int, key_reach: int) -> int:
    """How many relations k position IDs within reach may have."""
    return int((2 * key_reach - 1) ** (sparsity - 1))


def relations_of(position_ids_S: PositionIds, subsets_NK: np.ndarray, key_reach: int) -> np.ndarray:
    """The number of each subset's relation, below `num_relations`: relations_N, int64."""
    ids_NK = np.array(position_ids_S)[subsets_NK]
    differences = ids_NK[:, 1:] - ids_NK[:, :1]
    relations_N = np.zeros(len(subsets_NK), dtype=np.int64)
    for differences_N in differences.T:
        relations_N = relations_N * (2 * key_reach - 1) + differences_N + key_reach - 1
    return relations_N
