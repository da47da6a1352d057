"""Dependency sparsity k* by hand: short loss 3, long loss 1, so 90 % of the gain is 1.8 nats."""

import numpy as np

from pipeline.measuring.sparsity import dependency_sparsity


def _k_star(long_loss: float, sparse_losses: list[float]) -> tuple[list[int | None], list[bool]]:
    k_star, censored = dependency_sparsity(
        np.array([3.0 - long_loss]), 3.0 - np.array([sparse_losses]), np.array([1, 2, 4]),
        recovery_fraction=0.9, minimum_gain=0.1,
    )  # fmt: skip
    return k_star, censored.tolist()


def test_least_k_that_reaches_ninety_percent() -> None:
    assert _k_star(1.0, [2.0, 1.1, 1.0]) == ([2], [False])


def test_the_first_k_counts_even_where_a_later_one_falls_back() -> None:
    assert _k_star(1.0, [1.15, 2.9, 2.9]) == ([1], [False])


def test_none_reaches_it() -> None:
    assert _k_star(1.0, [2.9, 2.5, 1.3]) == ([None], [True])


def test_nothing_to_recover() -> None:
    assert _k_star(2.95, [0.0, 0.0, 0.0]) == ([None], [False])
    assert _k_star(4.0, [0.0, 0.0, 0.0]) == ([None], [False])
