"""Position IDs of examples: where coupled ones start, what each scheme gives, what is refused."""

import numpy as np
import pytest

from pipeline.cli import InputError
from pipeline.synthetic.accuracy import position_ids_in_testing
from pipeline.synthetic.config import EXAMPLE_SCHEMES, TaskConfig, example_position_ids, from_random_starts
from pipeline.synthetic.tasks import draw_batch, task_called

COUPLED = np.array([[1, 2, 0, 1, 2]])


def test_starts_are_all_that_fit_and_no_others() -> None:
    drawn = from_random_starts(COUPLED.repeat(300, axis=0), 5, np.random.default_rng(0))
    assert sorted(set(map(tuple, drawn.tolist()))) == [(1, 2, 0, 1, 2), (2, 3, 1, 2, 3), (3, 4, 2, 3, 4)]


def test_every_start_is_as_likely() -> None:
    drawn = from_random_starts(COUPLED.repeat(3000, axis=0), 5, np.random.default_rng(1))
    counts = np.bincount(drawn[:, 2])
    # three starts, 3000 draws: 1000 each, with a standard deviation of 26
    assert counts.shape == (3,) and (abs(counts - 1000) < 130).all()


def test_a_table_that_just_fits_leaves_one_start() -> None:
    assert from_random_starts(COUPLED, 3, np.random.default_rng(0)).tolist() == COUPLED.tolist()


def test_a_spread_parts_coupled_ids_by_one_skip() -> None:
    # With 5 position IDs: no skip and starts 0 to 2; a skip of 1 or 2 before coupled ID 1 or 2 and what fits.
    drawn = from_random_starts(COUPLED.repeat(1000, axis=0), 5, np.random.default_rng(0), "pose")
    assert sorted(set(map(tuple, drawn.tolist()))) == [
        (1, 2, 0, 1, 2), (1, 3, 0, 1, 3), (1, 4, 0, 1, 4), (2, 3, 0, 2, 3), (2, 3, 1, 2, 3),
        (2, 4, 1, 2, 4), (3, 4, 0, 3, 4), (3, 4, 1, 3, 4), (3, 4, 2, 3, 4),
    ]  # fmt: skip


def test_every_difference_of_ids_is_drawn() -> None:
    drawn = from_random_starts(COUPLED.repeat(3000, axis=0), 40, np.random.default_rng(0), "pose")
    assert set((drawn[:, 1] - drawn[:, 2]).tolist()) == set(range(2, 40))
    assert (drawn[:, :2] == drawn[:, 3:]).all() and (drawn.min(), drawn.max()) == (0, 39)


@pytest.mark.parametrize("scheme", ["coupled", "predicted"])
def test_coupled_schemes_keep_the_coupling(scheme: str) -> None:
    ids = example_position_ids(scheme, (4, 5), COUPLED.repeat(4, axis=0), 40, np.random.default_rng(0))
    assert (ids - ids[:, 2:3] == COUPLED).all() and len(set(ids[:, 2].tolist())) > 1


def test_other_schemes_ignore_the_coupling() -> None:
    generator = np.random.default_rng(0)
    assert example_position_ids("contiguous", (2, 3), None, 9, generator).tolist() == [[0, 1, 2]] * 2
    pose = example_position_ids("pose", (200, 3), None, 9, generator)
    assert pose.max() == 8 and (pose[:, 0] == 0).all() and len({tuple(row) for row in pose.tolist()}) == 13
    randomized = example_position_ids("randomized", (200, 3), None, 9, generator)
    assert randomized.max() == 8 and randomized[:, 0].max() > 0


def test_pose_is_tested_at_contiguous_ids() -> None:
    generator = np.random.default_rng(0)
    batch = draw_batch(task_called("copy"), 3, [None] * 20, generator)
    ids = {
        scheme: position_ids_in_testing(batch, TaskConfig("copy", scheme), generator)
        for scheme in EXAMPLE_SCHEMES
    }
    assert (ids["pose"] == np.arange(7)).all() and (ids["contiguous"] == ids["pose"]).all()
    assert all((ids[scheme].std(axis=0) > 0).all() for scheme in ("randomized", "coupled", "predicted"))


@pytest.mark.parametrize(
    ("scheme", "coupled", "num_position_ids", "words"),
    [
        ("coupled", COUPLED, 2, "need 3 or more position IDs, but num_position_ids is 2"),
        ("pose", None, 4, "need 5 or more position IDs, but num_position_ids is 4"),
    ],
)
def test_refusals(scheme: str, coupled: np.ndarray | None, num_position_ids: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        example_position_ids(scheme, (1, 5), coupled, num_position_ids, np.random.default_rng(0))
