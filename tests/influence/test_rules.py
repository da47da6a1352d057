"""Selection rules on influences a human can rank."""

import numpy as np
import pytest

from pipeline.errors import InputError
from pipeline.influence.rules import RULES, find_rule

NAN = np.nan
INFLUENCE_TF = np.array([[0.1, 0.5, -0.2, 0.5, NAN], [0.0, 0.0, 0.3, 0.0, 0.2]], dtype=np.float32)
NUM_FAR_T = np.array([4, 5])


def _select(rule: str, max_k: int, seed: int = 0) -> list[list[int]]:
    return find_rule(rule)(INFLUENCE_TF, NUM_FAR_T, max_k, np.random.default_rng(seed)).tolist()


def test_leave_one_out_ranks_by_influence_and_breaks_ties_by_nearness() -> None:
    assert _select("leave_one_out", 4) == [[3, 1, 0, 2], [2, 4, 3, 1]]


def test_nearest_starts_right_before_the_short_context() -> None:
    assert _select("nearest", 3) == [[3, 2, 1], [4, 3, 2]]


def test_random_draws_far_positions_without_repeating_and_again_the_same() -> None:
    for seed in range(50):
        first, second = _select("random", 4, seed)
        assert sorted(first) == [0, 1, 2, 3]
        assert len(set(second)) == 4 and set(second) <= set(range(5))
        assert _select("random", 4, seed) == [first, second]


def test_random_is_uniform() -> None:
    draws = [_select("random", 1, seed)[1][0] for seed in range(2000)]
    counts = np.bincount(draws, minlength=5)
    assert (abs(counts - 400) < 5 * np.sqrt(400 * 0.8)).all()


@pytest.mark.parametrize("rule", RULES)
def test_selections_are_nested(rule: str) -> None:
    assert [row[:2] for row in _select(rule, 4)] == _select(rule, 2)


def test_unknown_rule_names_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown rule 'leave_one_in'; did you mean 'leave_one_out'"):
        find_rule("leave_one_in")
