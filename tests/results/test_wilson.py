"""Wilson's interval against its definition and hand-checked values."""

import math

import pytest

from pipeline.results.statistics import wilson_interval


@pytest.mark.parametrize(("num_successes", "num_examples"), [(1, 10), (5, 10), (37, 100), (999, 1000)])
def test_ends_are_1_96_standard_errors_from_the_share(num_successes: int, num_examples: int) -> None:
    # The definition: at an end p the observed share lies 1.96 errors of p away.
    interval = wilson_interval(num_successes, num_examples)
    for end in (interval.low, interval.high):
        error = math.sqrt(end * (1 - end) / num_examples)
        assert abs(interval.estimate - end) == pytest.approx(1.959963984540054 * error, rel=1e-9)


def test_certain_outcomes_have_a_width() -> None:
    none, all_of_them = wilson_interval(0, 100), wilson_interval(100, 100)
    assert (none.low, all_of_them.high) == (0.0, 1.0)
    # 3.8415 of 103.8415, 3.8415 being the square of 1.96
    assert none.high == pytest.approx(0.0369935)
    assert all_of_them.low == pytest.approx(1 - 0.0369935)
