"""Position IDs of examples: where coupled ones start, and what each scheme gives."""

import numpy as np

from pipeline.synthetic.config import TaskConfig, from_random_starts
from pipeline.synthetic.tasks import Example

COUPLED = np.array([[1, 2, 0, 1, 2]])


def ids_of(
    scheme: str, num_examples: int, num_tokens: int, num_position_ids: int, coupled: np.ndarray | None = None
) -> np.ndarray:
    examples = [
        Example(np.zeros(num_tokens, int), 1, (), None if coupled is None else coupled[index])
        for index in range(num_examples)
    ]
    config = TaskConfig("copy", scheme, num_position_ids=num_position_ids)
    return config.position_ids(examples, np.random.default_rng(0))


def test_every_start_that_fits_is_as_likely_and_no_other() -> None:
    drawn = from_random_starts(COUPLED.repeat(3000, axis=0), 5, np.random.default_rng(1))
    starts, counts = np.unique(drawn, axis=0, return_counts=True)
    assert starts.tolist() == [[1, 2, 0, 1, 2], [2, 3, 1, 2, 3], [3, 4, 2, 3, 4]]
    assert (abs(counts - 1000) < 130).all()  # a standard deviation of 26
    assert from_random_starts(COUPLED, 3, np.random.default_rng(0)).tolist() == COUPLED.tolist()


def test_a_spread_parts_coupled_ids_by_one_skip() -> None:
    # With 5 position IDs: no skip and starts 0 to 2; a skip of 1 or 2 before coupled ID 1 or 2 and what fits.
    drawn = from_random_starts(COUPLED.repeat(1000, axis=0), 5, np.random.default_rng(0), "pose")
    assert sorted(set(map(tuple, drawn.tolist()))) == [
        (1, 2, 0, 1, 2),
        (1, 3, 0, 1, 3),
        (1, 4, 0, 1, 4),
        (2, 3, 0, 2, 3),
        (2, 3, 1, 2, 3),
        (2, 4, 1, 2, 4),
        (3, 4, 0, 3, 4),
        (3, 4, 1, 3, 4),
        (3, 4, 2, 3, 4),
    ]
    drawn = from_random_starts(COUPLED.repeat(3000, axis=0), 40, np.random.default_rng(0), "pose")
    assert set((drawn[:, 1] - drawn[:, 2]).tolist()) == set(range(2, 40))


def test_coupled_schemes_keep_the_coupling_and_others_ignore_it() -> None:
    for scheme in ("coupled", "predicted"):
        ids = ids_of(scheme, 4, 5, 40, COUPLED.repeat(4, axis=0))
        assert (ids - ids[:, 2:3] == COUPLED).all() and len(set(ids[:, 2].tolist())) > 1
    assert ids_of("contiguous", 2, 3, 9).tolist() == [[0, 1, 2]] * 2
    pose = ids_of("pose", 200, 3, 9)
    assert pose.max() == 8 and (pose[:, 0] == 0).all() and len({tuple(row) for row in pose.tolist()}) == 13
    randomized = ids_of("randomized", 200, 3, 9)
    assert randomized.max() == 8 and randomized[:, 0].max() > 0
