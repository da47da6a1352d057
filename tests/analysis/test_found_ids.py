"""What is found of the tokens that decide position IDs, by hand; and that the notebook draws it."""

import pandas as pd
import pytest
from legible_figures import assert_legible

from analysis.synthetic import found_dependencies_figures, found_ids


def row(model: str, target: int, is_found: bool, rule: str = "leave_one_out_divergence") -> dict[str, object]:
    """The first token that a rule selects for the ID of one token of the response."""
    return {
        "task": "variable_assignment", "positions": "predicted", "largest_train_size": 6,
        "largest_train_sparsity": None, "size": 6, "sparsity": None, "model": model, "example_index": 0,
        "target_index": target, "rule": rule, "intervention": "substitute", "rank": 1, "context_token": "v1",
        "context_position": 3, "is_dependency": is_found, "num_far_tokens": 20, "num_dependencies": 1,
    }  # fmt: skip


@pytest.fixture
def kinds() -> pd.DataFrame:
    # Of targets 0 and 3 an assignment begins; of the other four one goes on.
    found = {"a": [True, False, False, True, False, False], "b": [True, True, False, True, False, False]}
    rows = [row(model, target, is_found) for model in found for target, is_found in enumerate(found[model])]
    further = pd.DataFrame([row("a", 0, False)]).assign(rank=2)  # beyond its one dependency: not counted
    return found_ids.by_kind(pd.concat([pd.DataFrame(rows), further]))


def test_ids_that_the_content_decides_stand_apart(kinds: pd.DataFrame) -> None:
    of_kind = kinds.set_index("part")
    begins, within = of_kind.loc["where an assignment begins"], of_kind.loc["within one"]
    assert (begins["found"], begins["found_lowest"], begins["num_targets"]) == (1, 1, 2)
    assert (within["found"], within["found_lowest"], within["found_highest"]) == (0.125, 0, 0.25)
    assert set(kinds["chance"]) == {0.05} and set(kinds["num_seeds"]) == {2}


def test_the_title_and_the_figure_say_so(kinds: pd.DataFrame) -> None:
    title = found_ids.kinds_title(kinds)
    assert title == (
        "Of the tokens that decide the next position ID the best rule finds 100 % where an assignment begins"
        " and 12 % within one"
    )
    unclear = kinds.assign(found_lowest=0.0, found_highest=1.0)
    assert found_ids.kinds_title(unclear).startswith("What the rules find")
    figure = found_dependencies_figures.found_figure(kinds, title)
    assert_legible(figure)


def test_other_tasks_have_one_kind() -> None:
    rows = pd.DataFrame([row("a", target, target == 0) for target in range(4)]).assign(task="copy")
    assert found_ids.by_kind(rows)[["part", "found"]].values.tolist() == [["every ID", 0.25]]
