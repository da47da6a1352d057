"""The position IDs a training sequence is given: contiguous, with PoSE's skip, or a random subset.

Each scheme is a function of the number of sequences B, the tokens S of one sequence, the number of position
IDs P to draw from, and a random generator; it returns position_ids_BS, int64, strictly increasing.
"""

import numpy as np


def contiguous_position_ids(
    num_sequences: int, train_context_length: int, target_length: int, generator: np.random.Generator
) -> np.ndarray:
    """0, 1, 2, … for every sequence. Draws nothing from `generator`."""
    return np.tile(np.arange(train_context_length, dtype=np.int64), (num_sequences, 1))


def pose_position_ids(
    num_sequences: int, train_context_length: int, target_length: int, generator: np.random.Generator
) -> np.ndarray:
    """Positional Skip-wise training (PoSE) with two chunks (Zhu et al. 2023, arXiv 2309.10400, section 3.2).

    Each sequence is cut in two chunks, neither of them empty, at a place drawn uniformly; a skip drawn
    uniformly from 0 … target_length - S is added to the IDs of the second. So every distance below
    `target_length` occurs, while a model attends to S tokens. With S = 4, cut 1 and skip 3: 0 4 5 6.
    B cuts are drawn, then B skips.
    """
    # The upper end is exclusive: 1 to S - 1, so that both chunks hold a token.
    cuts_B1 = generator.integers(1, train_context_length, size=(num_sequences, 1))
    skips_B1 = generator.integers(
        0, target_length - train_context_length, size=(num_sequences, 1), endpoint=True
    )
    places_S = np.arange(train_context_length, dtype=np.int64)
    return places_S + skips_B1 * (places_S >= cuts_B1)


def randomized_position_ids(
    num_sequences: int, train_context_length: int, target_length: int, generator: np.random.Generator
) -> np.ndarray:
    """Randomized positions (Ruoss et al. 2023, arXiv 2305.16843, section 3).

    Each sequence is given a uniform subset of S of the IDs 0 … target_length - 1, in ascending order.
    Ruoss et al. draw one for all sequences of a step. With S = 3, say: 1 4 5.
    """
    # The places of the S least of as many independent keys as there are IDs are a uniform random subset.
    keys_BP = generator.random((num_sequences, target_length), dtype=np.float32)
    # Linear in P, where sorting all keys is not; a tie of float32 keys still gives distinct IDs.
    subset_BS = np.argpartition(keys_BP, train_context_length - 1, axis=1)[:, :train_context_length]
    return np.sort(subset_BS, axis=1).astype(np.int64)


POSITION_SCHEMES = {
    "contiguous": contiguous_position_ids,
    "pose": pose_position_ids,
    "randomized": randomized_position_ids,
}
