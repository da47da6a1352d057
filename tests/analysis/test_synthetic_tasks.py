"""Synthetic accuracy over seeds, and recall, by hand."""

import pandas as pd
import pytest

from sparsity_length.figures import synthetic_tasks

SIZES = [10, 20, 40]


def rows(seed: int, sparsity: int, exact_match: list[float], *, is_learnt: bool = True) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "task": "sparse_parity",
            "positions": "pose",
            "seed": seed,
            "largest_train_size": 20,
            "largest_train_sparsity": 2,
            "is_learnt": is_learnt,
            "size": SIZES,
            "sparsity": sparsity,
            "exact_match": exact_match,
        }
    )


@pytest.fixture
def cells() -> pd.DataFrame:
    accuracy = pd.concat(
        [
            rows(0, 1, [1.0, 1.0, 0.8]),
            rows(1, 1, [1.0, 0.9, 1.0]),
            rows(0, 2, [1.0, 0.6, 1.0], is_learnt=False),
            rows(1, 2, [1.0, 0.8, 0.9]),
            rows(0, 3, [0.5, 0.5, 0.5]),
        ]
    )
    return synthetic_tasks.over_seeds(accuracy)


def test_means_and_ranges_over_seeds(cells: pd.DataFrame) -> None:
    columns = [
        "sparsity",
        "size",
        "exact_match",
        "exact_match_low",
        "exact_match_high",
        "num_seeds",
        "is_learnt",
    ]
    expected = [
        [1, 10, 1.0, 1.0, 1.0, 2, True],
        [1, 20, 0.95, 0.9, 1.0, 2, True],
        [1, 40, 0.9, 0.8, 1.0, 2, True],
        [2, 10, 1.0, 1.0, 1.0, 2, False],
        [2, 20, 0.7, 0.6, 0.8, 2, False],
        [2, 40, 0.95, 0.9, 1.0, 2, False],
        [3, 10, 0.5, 0.5, 0.5, 1, True],
        [3, 20, 0.5, 0.5, 0.5, 1, True],
        [3, 40, 0.5, 0.5, 0.5, 1, True],
    ]
    pd.testing.assert_frame_equal(cells[columns], pd.DataFrame(expected, columns=columns), check_dtype=False)


def selection(model: str, example: int, is_dependency: list[bool]) -> dict[str, object]:
    """One target's selection in the order of rank; two true dependencies among five distant tokens."""
    return {
        "task": "sparse_parity",
        "positions": "pose",
        "largest_train_size": 20,
        "largest_train_sparsity": 2,
        "size": 20,
        "sparsity": 1,
        "model": model,
        "example_index": example,
        "rule": "leave_one_out",
        "ablation": None,
        "rank": [*range(1, len(is_dependency) + 1)],
        "is_dependency": is_dependency,
        "num_distant_tokens": 5,
        "num_dependencies": 2,
    }


def test_found_is_recall_at_the_number_of_true_dependencies() -> None:
    rows = [
        selection("a", 0, [True, False, True]),  # the third is beyond the two that there are
        selection("a", 1, [True, True, False]),
        selection("b", 0, [False, True, True]),
    ]
    (row,) = synthetic_tasks.found_shares(
        pd.DataFrame(rows).explode(["rank", "is_dependency"]).astype({"is_dependency": bool})
    ).to_dict("records")
    assert (row["found"], row["found_lowest"], row["found_highest"]) == (0.625, 0.5, 0.75)
    assert (row["chance"], row["num_seeds"]) == (0.4, 2)
