from typing import Any

import numpy as np

from pipeline.training.positions import contiguous_position_ids, pose_position_ids, randomized_position_ids


class FixedDraws:
    """A generator that hands out the numbers a test wrote down, and keeps the bounds it was asked for."""

    def __init__(self, *draws: list[int]) -> None:
        self._draws = list(draws)
        self.bounds: list[tuple[int, int]] = []

    def integers(self, low: int, high: int, size: Any, endpoint: bool = False) -> np.ndarray:
        self.bounds.append((low, high if endpoint else high - 1))
        return np.array(self._draws.pop(0), dtype=np.int64).reshape(size)


def test_pose_shifts_the_second_chunk_only() -> None:
    draws: Any = FixedDraws([1, 3, 2], [3, 6, 0])
    ids_BS = pose_position_ids(3, 4, draws, target_length=10)
    assert ids_BS.tolist() == [[0, 4, 5, 6], [0, 1, 2, 9], [0, 1, 2, 3]]
    assert ids_BS.dtype == np.int64
    # Cuts leave neither chunk empty; the largest skip puts the last token at the last ID, 9.
    assert draws.bounds == [(1, 3), (0, 6)]
    generator = np.random.default_rng(3)
    contiguous = contiguous_position_ids(3, 4, generator)
    assert contiguous.tolist() == pose_position_ids(3, 4, generator, target_length=4).tolist()
    assert contiguous.tolist() == [[0, 1, 2, 3]] * 3


def test_randomized_ids_are_every_subset_equally_often() -> None:
    ids_BS = randomized_position_ids(12_000, 2, np.random.default_rng(4), target_length=4)
    subsets, counts = np.unique(ids_BS, axis=0, return_counts=True)
    # The six pairs out of 0 … 3, ascending; 2,000 of each expected, with a standard deviation of 41.
    assert subsets.tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert np.abs(counts - 2000).max() < 4.5 * 41
    assert ids_BS.dtype == np.int64
