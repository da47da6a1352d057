"""Precision and recall by hand, and that what is drawn is the table."""

from pathlib import Path

import pandas as pd
import pytest
from matplotlib.axes import Axes
from written_results import write_rows

from analysis import notebook_execution
from analysis.synthetic import found_dependencies, found_dependencies_figures

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "analysis" / "notebooks" / "found_dependencies.ipynb"


def selection(
    model: str, example: int, tokens: str, is_dependency: list[bool], num_far: int, num_dependencies: int,
    rule: str = "leave_one_out", intervention: str | None = "remove",
) -> pd.DataFrame:  # fmt: skip
    """One target's selection in the order of rank; the tokens are letters."""
    return pd.DataFrame({
        "task": "sparse_parity", "positions": "pose", "largest_train_size": 20, "largest_train_sparsity": 2,
        "size": 20, "sparsity": 1, "model": model, "example_index": example, "target_index": 0, "rule": rule,
        "intervention": intervention, "rank": range(1, len(tokens) + 1), "context_token": list(tokens),
        "is_dependency": is_dependency, "num_far_tokens": num_far, "num_dependencies": num_dependencies,
    })  # fmt: skip


@pytest.fixture
def rows() -> pd.DataFrame:
    no, yes = False, True
    return pd.concat([
        selection("a", 0, "1*.", [yes, no, yes], 3, 2), selection("a", 1, ".0*", [no, yes, no], 3, 1),
        selection("b", 0, "1*.", [yes, yes, no], 3, 2), selection("b", 1, ".0*", [no, no, yes], 3, 1),
        selection("a", 0, ".", [no], 4, 2, "random", None),
    ])  # fmt: skip


def test_precision_and_recall_are_ratios_of_sums(rows: pd.DataFrame) -> None:
    cells = found_dependencies.by_k(rows)
    removed = cells[cells["rule"] == "leave_one_out"].set_index("k")
    # Of three true dependencies of each model, 1, 2 and 3 are among the first 1, 2 and 3.
    assert removed["recall"].round(4).tolist() == [0.3333, 0.6667, 1.0]
    assert removed["precision"].tolist() == [0.5, 0.5, 0.5]
    assert removed["num_seeds"].tolist() == [2, 2, 2] and removed["num_targets"].tolist() == [2, 2, 2]
    # A uniform draw hits with 2/3 and 1/3.
    assert removed["chance_precision"].tolist() == [0.5, 0.5, 0.5]
    assert removed["chance_recall"].round(4).tolist() == [0.3333, 0.6667, 1.0]
    random = cells[cells["rule"] == "random"].iloc[0]
    assert (random["recall"], random["chance_recall"], random["num_seeds"]) == (0.0, 0.25, 1)


def test_the_range_is_over_seeds(rows: pd.DataFrame) -> None:
    better = rows[rows["model"] == "b"].assign(
        is_dependency=lambda of_b: of_b["rank"] <= of_b["num_dependencies"]
    )
    cells = found_dependencies.by_k(pd.concat([rows[rows["model"] == "a"], better]))
    at_2 = cells[(cells["k"] == 2) & (cells["rule"] == "leave_one_out")].iloc[0]
    assert (at_2["recall_lowest"], at_2["recall_highest"]) == (pytest.approx(2 / 3), 1.0)
    assert (at_2["precision_lowest"], at_2["precision_highest"]) == (0.5, 0.75)


def test_at_their_number_precision_is_recall(rows: pd.DataFrame) -> None:
    table = found_dependencies.at_their_number(rows)
    # a: 1 of 2 and 0 of 1 found, b: 2 of 2 and 0 of 1.
    assert table[("leave_one_out", "remove")].tolist() == [pytest.approx((1 / 3 + 2 / 3) / 2)]


def test_true_dependencies_by_token(rows: pd.DataFrame) -> None:
    found = found_dependencies.by_token(rows).set_index("context_token")
    # Whole rankings only, so nothing of random; '1' is found twice of twice, '0' and '.' never of once.
    assert set(found["rule"]) == {"leave_one_out"}
    assert found["found"].to_dict() == {"*": 0.5, ".": 0.0, "0": 0.0, "1": 1.0}
    assert found["num_dependencies"].to_dict() == {"*": 2, ".": 1, "0": 1, "1": 2}


def test_lines_are_the_means(rows: pd.DataFrame, ax: Axes) -> None:
    replaced = rows[rows["model"] == "a"].dropna().assign(intervention="substitute")
    cells = found_dependencies.by_k(pd.concat([rows, replaced]))
    found_dependencies_figures.recall_against_k(cells, ax)
    *lines, chance = ax.lines
    assert [line.get_label() for line in lines] == [
        "leave_one_out (remove)",
        "leave_one_out (substitute)",
        "random",
    ]
    assert [line.get_linestyle() for line in lines] == ["-", "--", "-"]
    assert list(lines[0].get_ydata()) == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert chance.get_linestyle() == ":"


def test_the_sample_and_the_condition_are_told(rows: pd.DataFrame, ax: Axes) -> None:
    cells = found_dependencies.by_k(rows)
    assert found_dependencies.sample_size(cells) == "n = 1 to 2 seeds, 1 or more targets a sample"
    found_dependencies_figures.precision_against_k(cells, ax)
    assert ax.get_title() == "sparse_parity, size 20, k = 1\npose"


def test_the_notebook_runs_on_its_results(rows: pd.DataFrame, tmp_path: Path) -> None:
    write_rows(tmp_path / "results", "found_dependencies", "found_dependencies", rows)
    parameters = {"results": str(tmp_path / "results"), "figures_folder": str(tmp_path)}
    notebook_execution.execute(NOTEBOOK, tmp_path, parameters, "made from")
    assert {path.name for path in tmp_path.glob("*.p[dn][fg]")} == {
        "found_dependencies.pdf", "found_dependencies.png",
    }  # fmt: skip
