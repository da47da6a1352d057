"""The position IDs of a training sequence: PoSE's one skip, and subsets that are equally likely."""

import numpy as np

from sparsity_length.training.positions import (
    contiguous_position_ids,
    pose_position_ids,
    randomized_position_ids,
)


def test_pose_shifts_the_second_chunk_only() -> None:
    ids_BS = pose_position_ids(2000, 4, 10, np.random.default_rng(3))
    skips_BC = np.diff(ids_BS, axis=1) - 1
    assert ids_BS.dtype == np.int64 and (ids_BS[:, 0] == 0).all()
    assert ((skips_BC > 0).sum(axis=1) <= 1).all(), "one cut, which leaves neither chunk empty"
    # The largest skip puts the last token at the last ID, 9; every cut comes with every skip.
    pairs = {(int(skips_C.argmax()), int(skips_C.max())) for skips_C in skips_BC}
    assert pairs == {(0, 0)} | {(cut, skip) for cut in range(3) for skip in range(1, 7)}
    for ids in (contiguous_position_ids, pose_position_ids):
        assert ids(3, 4, 4, np.random.default_rng(3)).tolist() == [[0, 1, 2, 3]] * 3


def test_randomized_ids_are_every_subset_equally_often() -> None:
    ids_BS = randomized_position_ids(12_000, 2, 4, np.random.default_rng(4))
    subsets, counts = np.unique(ids_BS, axis=0, return_counts=True)
    # The six pairs out of 0 … 3, ascending; 2,000 of each expected, with a standard deviation of 41.
    assert subsets.tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert np.abs(counts - 2000).max() < 4.5 * 41
    assert ids_BS.dtype == np.int64
