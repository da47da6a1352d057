"""Verdicts and intervals of marked bits, by hand."""

import pandas as pd
import pytest
from scipy.stats import t

from sparsity_length.figures import marked_bits, synthetic_tasks


def seeds(function: str, by_k: list[list[float]]) -> pd.DataFrame:
    """Accuracy at 180 tokens, a row per seed and k from 1, of seeds that learned the function; 1 at 18."""
    rows = [
        (f"sparse_{function}", seed, size, k, 1.0 if size == 18 else accuracy, True)
        for seed, accuracies in enumerate(by_k)
        for k, accuracy in enumerate(accuracies, start=1)
        for size in (18, 180)
    ]
    return pd.DataFrame(rows, columns=["task", "seed", "size", "sparsity", "exact_match", "is_learnt"])


def test_seeds_of_two_functions_are_no_pairs() -> None:
    """Welch by hand: means 0.9 and 0.5, variances 0.02 and 0.01, of two and three seeds."""
    accuracy = pd.concat([seeds("or", [[1.0], [0.8]]), seeds("parity", [[0.4], [0.5], [0.6]])])
    lead = marked_bits.or_minus_parity(accuracy, [1])
    error = (0.02 / 2 + 0.01 / 3) ** 0.5
    freedom = error**4 / ((0.02 / 2) ** 2 / 1 + (0.01 / 3) ** 2 / 2)
    assert lead.estimate == pytest.approx(0.4)
    assert (lead.high - lead.low) / 2 == pytest.approx(error * t.ppf(0.975, freedom))


@pytest.mark.parametrize(
    ("one_bit", "of_or", "word"),
    [
        (0.95, 0.95, "refuted"),
        (0.95, 0.55, "supported"),
        (0.95, 0.7, "inconclusive"),
        (0.6, 0.95, "inconclusive"),
    ],
)
def test_the_number_is_blamed_or_cleared_only_if_one_bit_holds(
    one_bit: float, of_or: float, word: str
) -> None:
    parity = [[one_bit, *[0.4 + 0.001 * seed] * 7] for seed in range(3)]
    accuracy = pd.concat(
        [seeds("parity", parity), seeds("or", [[of_or + 0.001 * seed] * 8 for seed in range(3)])]
    )
    assert marked_bits.verdict(accuracy) == word


def test_newcombe_of_a_difference_by_hand() -> None:
    """His example: 56 of 70 less 48 of 80 is 0.2, [0.0524, 0.3339], by Wilson's ends of both."""
    columns = ["size", "sparsity", "exact_match", "exact_match_low", "exact_match_high"]
    rows = pd.DataFrame([(9, 16, 0.8, 0.6916, 0.8768), (9, 4, 0.6, 0.4905, 0.7003)], columns=columns)
    difference = synthetic_tasks.beyond(rows, 16, 4)
    assert [difference.estimate, difference.low, difference.high] == pytest.approx(
        [0.2, 0.0524, 0.3339], abs=1e-3
    )
