"""Synthetic accuracy over seeds, by hand, and that what is drawn is the table."""

import pandas as pd
import pytest
from matplotlib.axes import Axes

from analysis import synthetic_accuracy, synthetic_figures

SIZES = [10, 20, 40]


def rows(seed: int, sparsity: int, exact_match: list[float], *, is_learnt: bool = True) -> pd.DataFrame:
    return pd.DataFrame({
        "task": "sparse_parity", "positions": "pose", "seed": seed, "largest_train_size": 20,
        "largest_train_sparsity": 2, "is_learnt": is_learnt, "size": SIZES, "sparsity": sparsity,
        "exact_match": exact_match,
    })  # fmt: skip


@pytest.fixture
def cells() -> pd.DataFrame:
    accuracy = pd.concat([
        rows(0, 1, [1.0, 1.0, 0.8]), rows(1, 1, [1.0, 0.9, 1.0]),
        rows(0, 2, [1.0, 0.6, 1.0], is_learnt=False), rows(1, 2, [1.0, 0.8, 0.9]),
        rows(0, 3, [0.5, 0.5, 0.5]),
    ])  # fmt: skip
    return synthetic_accuracy.over_seeds(accuracy)


def test_means_and_ranges_over_seeds(cells: pd.DataFrame) -> None:
    columns = ["sparsity", "size", "exact_match", "lowest", "highest", "num_seeds", "is_learnt"]
    expected = [
        [1, 10, 1.0, 1.0, 1.0, 2, True], [1, 20, 0.95, 0.9, 1.0, 2, True], [1, 40, 0.9, 0.8, 1.0, 2, True],
        [2, 10, 1.0, 1.0, 1.0, 2, False], [2, 20, 0.7, 0.6, 0.8, 2, False],
        [2, 40, 0.95, 0.9, 1.0, 2, False], [3, 10, 0.5, 0.5, 0.5, 1, True], [3, 20, 0.5, 0.5, 0.5, 1, True],
        [3, 40, 0.5, 0.5, 0.5, 1, True],
    ]  # fmt: skip
    pd.testing.assert_frame_equal(cells[columns], pd.DataFrame(expected, columns=columns), check_dtype=False)


def test_tasks_without_k_are_kept() -> None:
    without = rows(0, 1, [1.0, 1.0, 0.0]).assign(sparsity=None, largest_train_sparsity=None)
    cells = synthetic_accuracy.over_seeds(without)
    assert cells["exact_match"].tolist() == [1.0, 1.0, 0.0]
    assert synthetic_accuracy.largest_solved_sizes(cells)["largest_solved_size"].tolist() == [20]


def test_a_size_is_solved_where_all_smaller_ones_are(cells: pd.DataFrame) -> None:
    # k = 2 is above 0.9 at 40 again, and that does not count; k = 3 is nowhere.
    solved = synthetic_accuracy.largest_solved_sizes(cells)
    assert solved["largest_solved_size"].fillna(-1).tolist() == [40, 10, -1]


def test_lines_are_the_means_and_dashed_where_not_learnt(cells: pd.DataFrame, ax: Axes) -> None:
    synthetic_figures.accuracy_by_sparsity(cells, ax)
    training, *lines = ax.lines
    assert list(training.get_xdata()) == [20, 20]
    assert [list(line.get_ydata()) for line in lines] == [[1.0, 0.95, 0.9], [1.0, 0.7, 0.95], [0.5] * 3]
    assert [line.get_linestyle() for line in lines] == ["-", "--", "-"]
    assert ax.get_legend_handles_labels()[1] == ["k = 1", "k = 2", "k = 3"]


def test_schemes_are_drawn_in_one_order(cells: pd.DataFrame, ax: Axes) -> None:
    one = cells[cells["sparsity"] == 1]
    both = pd.concat([one.assign(positions="predicted"), one.assign(positions="contiguous")])
    synthetic_figures.accuracy_by_positions(both, ax)
    assert ax.get_legend_handles_labels()[1] == ["contiguous", "predicted"]


def test_the_heat_map_says_its_numbers(cells: pd.DataFrame, ax: Axes) -> None:
    synthetic_figures.largest_solved_size(synthetic_accuracy.largest_solved_sizes(cells), ax)
    assert [text.get_text() for text in ax.texts] == ["40", "10"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "3"]
