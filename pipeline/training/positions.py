"""The position IDs a training sequence is given: contiguous, with PoSE's skip, or a random subset.

Dimension letters: B sequences, S = `train_context_length` tokens of one sequence, P position IDs.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from pipeline.cli import InputError, unknown_name

PositionScheme = Callable[[int, int, np.random.Generator], np.ndarray]
"""(num_sequences B, train_context_length S, generator) -> position_ids_BS, int64."""


def contiguous_position_ids(
    num_sequences: int, train_context_length: int, generator: np.random.Generator
) -> np.ndarray:
    """0, 1, 2, … for every sequence: position_ids_BS, int64. Draws nothing from `generator`."""
    return np.tile(np.arange(train_context_length, dtype=np.int64), (num_sequences, 1))


def pose_position_ids(
    num_sequences: int, train_context_length: int, generator: np.random.Generator, *, target_length: int
) -> np.ndarray:
    """Positional Skip-wise training (PoSE) with two chunks (Zhu et al. 2023, arXiv 2309.10400, section 3.2).

    Each sequence is cut in two chunks, neither of them empty, at a place drawn uniformly; a skip drawn
    uniformly from 0 … target_length - S is added to the IDs of the second. So every distance below
    `target_length` occurs, while a model attends to S tokens. With S = 4, cut 1 and skip 3: 0 4 5 6.

    Returns position_ids_BS, int64, strictly increasing from 0. B cuts are drawn, then B skips.
    """
    assert 2 <= train_context_length <= target_length
    # The upper end is exclusive: 1 to S - 1, so that both chunks hold a token.
    cuts_B1 = generator.integers(1, train_context_length, size=(num_sequences, 1))
    skips_B1 = generator.integers(
        0, target_length - train_context_length, size=(num_sequences, 1), endpoint=True
    )
    places_S = np.arange(train_context_length, dtype=np.int64)
    return places_S + skips_B1 * (places_S >= cuts_B1)


def randomized_position_ids(
    num_sequences: int, train_context_length: int, generator: np.random.Generator, *, target_length: int
) -> np.ndarray:
    """Randomized positions (Ruoss et al. 2023, arXiv 2305.16843, section 3).

    Each sequence is given a uniform subset of S of the IDs 0 … target_length - 1, in ascending order:
    position_ids_BS, int64. Ruoss et al. draw one for all sequences of a step. With S = 3, say: 1 4 5.
    """
    assert 1 <= train_context_length <= target_length
    # The places of the S least of as many independent keys as there are IDs are a uniform random subset.
    keys_BP = generator.random((num_sequences, target_length), dtype=np.float32)
    # Linear in P, where sorting all keys is not; a tie of float32 keys still gives distinct IDs.
    subset_BS = np.argpartition(keys_BP, train_context_length - 1, axis=1)[:, :train_context_length]
    return np.sort(subset_BS, axis=1).astype(np.int64)


POSITION_SCHEMES = ("contiguous", "pose", "randomized")


def position_scheme(name: str, target_length: int | None = None) -> PositionScheme:
    """The scheme of this name, which draws IDs below `target_length`, None for contiguous ones."""
    if name not in POSITION_SCHEMES:
        raise unknown_name("position_scheme", name, POSITION_SCHEMES)
    if name == "contiguous":
        return contiguous_position_ids
    if target_length is None:
        raise InputError(
            f"position_scheme '{name}' needs {name}_target_length, the length to generalize to in tokens"
        )
    scheme = pose_position_ids if name == "pose" else randomized_position_ids
    return partial(scheme, target_length=target_length)
