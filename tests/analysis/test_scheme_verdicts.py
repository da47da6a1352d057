"""Verdicts on schemes of attention, by hand: the planned rule at ten times the trained length."""

import pandas as pd
import pytest

from sparsity_length.figures import schemes


def cells(by_cell: dict[tuple[str, str], float], num_learned: int = 4) -> pd.DataFrame:
    """Four seeds of each (task, scheme), 1 point apart, right in so many cases at ten times the length."""
    rows = [
        (task, scheme, seed, seed < num_learned, 18 * times, 18, None if task == "copy" else 8, value)
        for (task, scheme), accuracy in by_cell.items()
        for seed in range(4)
        for times, value in ((1, 1.0), (10, accuracy + 0.01 * seed))
    ]
    names = ["task", "positions", "seed", "is_learnt", "size", "largest_train_size", "sparsity"]
    return schemes.of_cells(pd.DataFrame(rows, columns=[*names, "token_accuracy"]))


CLAIMED = {
    ("sparse_first", "pose"): 0.9,
    ("sparse_first", "alibi"): 0.5,
    ("copy", "coupled"): 0.9,
    ("copy", "alibi"): 0.2,
    ("sparse_last", "alibi"): 0.95,
}


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({}, "supported"),
        ({("sparse_last", "alibi"): 0.75}, "inconclusive"),  # near it is better by 25 points, and no success
        ({("sparse_last", "alibi"): 0.55}, "refuted"),
        ({("sparse_first", "alibi"): 0.75}, "inconclusive"),  # N is now 20 points, F1 15
        ({("sparse_first", "pose"): 0.55, ("copy", "coupled"): 0.25}, "refuted"),
        ({("sparse_first", "pose"): 0.5, ("sparse_first", "alibi"): 0.5}, "inconclusive"),
    ],
)
def test_the_claim_needs_all_contrasts(changed: dict[tuple[str, str], float], word: str) -> None:
    assert schemes.verdict(cells(CLAIMED | changed)) == word


def test_contrasts_and_cells_count_seeds_that_learned() -> None:
    lead, word = schemes.contrast(cells(CLAIMED), "F1")
    assert lead is not None and word == "supported"
    assert lead.estimate == pytest.approx(0.4)
    assert lead.low == pytest.approx(0.4 - 2.447 * (2 * 0.01**2 * 5 / 3 / 4) ** 0.5, abs=1e-4)
    few = cells(CLAIMED, num_learned=2)
    assert schemes.contrast(few, "F1") == (None, "inconclusive")
    assert schemes.cell_words(few, "copy", "alibi") == "20% (2/4)"
    assert schemes.cell_words(cells(CLAIMED, num_learned=0), "copy", "alibi") == "(0/4)"
    assert not schemes.cell_words(few, "copy", "pose")
