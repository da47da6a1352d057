"""Position IDs of examples: where coupled ones start, and what each scheme gives."""

import numpy as np

from sparsity_length.synthetic.config import TaskConfig
from sparsity_length.synthetic.tasks import Example

COUPLED = np.array([1, 2, 0, 1, 2])


def ids_of(
    scheme: str, num_examples: int, num_position_ids: int, seed: int = 0, spread: str = "contiguous"
) -> np.ndarray:
    examples = [Example(np.zeros(5, int), 1, (), COUPLED)] * num_examples
    config = TaskConfig("copy", scheme, num_position_ids=num_position_ids, spread_of_coupled_ids=spread)
    return config.ids_of(examples, np.random.default_rng(seed))[1]


def test_every_start_that_fits_is_as_likely_and_no_other() -> None:
    starts, counts = np.unique(ids_of("coupled", 3000, 5, seed=1), axis=0, return_counts=True)
    assert starts.tolist() == [[1, 2, 0, 1, 2], [2, 3, 1, 2, 3], [3, 4, 2, 3, 4]]
    assert (abs(counts - 1000) < 130).all()  # a standard deviation of 26
    assert ids_of("coupled", 1, 3).tolist() == [COUPLED.tolist()]


def test_a_spread_parts_coupled_ids_by_one_skip() -> None:
    # With 5 position IDs: no skip and starts 0 to 2; a skip of 1 or 2 before coupled ID 1 or 2 and what fits.
    drawn = ids_of("coupled", 1000, 5, spread="pose")
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
    drawn = ids_of("coupled", 3000, 40, spread="pose")
    assert set((drawn[:, 1] - drawn[:, 2]).tolist()) == set(range(2, 40))


def test_coupled_schemes_keep_the_coupling_and_others_ignore_it() -> None:
    for scheme in ("coupled", "predicted"):
        ids = ids_of(scheme, 4, 40)
        assert (ids - ids[:, 2:3] == COUPLED).all() and len(set(ids[:, 2].tolist())) > 1
    assert ids_of("contiguous", 2, 9).tolist() == [[0, 1, 2, 3, 4]] * 2
    pose = ids_of("pose", 400, 9)
    # No skip, or one of 1 to 4 before any of the last four tokens.
    assert pose.max() == 8 and (pose[:, 0] == 0).all() and len({tuple(row) for row in pose.tolist()}) == 17
    randomized = ids_of("randomized", 200, 9)
    assert randomized.max() == 8 and randomized[:, 0].max() > 0
