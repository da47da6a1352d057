"""What is found of the tokens that decide position IDs, by hand; and that the notebook draws it."""

import pandas as pd
import pytest
from legible_figures import assert_legible

from analysis.synthetic import dependencies as found_ids
from analysis.synthetic import dependencies as found_ids_figures


def row(model: str, target: int, is_found: bool, rule: str = "leave_one_out_divergence") -> dict[str, object]:
    """The first token that a rule selects for the ID of one token of the response."""
    return {
        "task": "variable_assignment", "positions": "predicted", "largest_train_size": 6,
        "largest_train_sparsity": None, "size": 6, "sparsity": None, "model": model, "example_index": 0,
        "target_index": target, "rule": rule, "intervention": "substitute", "rank": 1, "context_token": "v1",
        "context_position": 3, "is_dependency": is_found, "num_far_tokens": 20, "num_dependencies": 1,
        "effect": 3.0 if is_found else 1.0,
    }  # fmt: skip


@pytest.fixture
def kinds() -> pd.DataFrame:
    # Two assignments, of which the left side, = and the right side are targets.
    found = {"a": [True, False, False, True, False, False], "b": [True, True, False, True, False, False]}
    rows = [row(model, target, is_found) for model in found for target, is_found in enumerate(found[model])]
    further = pd.DataFrame([row("a", 0, False)]).assign(rank=2)  # beyond its one dependency: not counted
    return found_ids.by_kind(pd.concat([pd.DataFrame(rows), further]))


def test_ids_that_the_content_decides_stand_apart(kinds: pd.DataFrame) -> None:
    of_kind = kinds.set_index("part")
    left, sign, right = (of_kind.loc[name] for name in ("a left side", "=", "a right side"))
    assert (left["found"], left["found_lowest"], left["num_targets"]) == (1, 1, 2)
    assert (sign["found"], sign["found_lowest"], sign["found_highest"]) == (0.25, 0, 0.5)
    assert right["found"] == 0
    assert (left["effect"], sign["effect"], right["effect"]) == (3.0, 1.5, 1.0)
    assert set(kinds["chance"]) == {0.05} and set(kinds["num_seeds"]) == {2}


def test_the_figure_draws_every_kind_of_id(kinds: pd.DataFrame) -> None:
    both = pd.concat(
        [kinds, kinds.assign(intervention="remove", found=0.98, found_lowest=0.9, found_highest=1.0)]
    )
    figure = found_ids_figures.found_ids_figure(both)
    assert [ax.get_title() for ax in figure.axes] == ["ID of a left side", "ID of =", "ID of a right side"]
    drawn = [float(container.lines[0].get_xdata()[0]) for container in figure.axes[1].containers]
    assert sorted(drawn) == [0.25, 0.98]
    assert_legible(figure)


def test_other_tasks_have_one_kind() -> None:
    rows = pd.DataFrame([row("a", target, target == 0) for target in range(4)]).assign(task="copy")
    kinds = found_ids.by_kind(rows)
    assert kinds[["part", "found"]].values.tolist() == [["every ID", 0.25]]
    assert_legible(found_ids_figures.found_ids_figure(kinds))


def test_the_figure_is_of_the_largest_examples_alone(kinds: pd.DataFrame) -> None:
    larger, other = kinds.assign(size=9), kinds.assign(size=9, largest_train_size=7)
    assert set(found_ids.of_largest_size(pd.concat([larger, kinds]))["size"]) == {9}
    of_several = found_ids.of_largest_size(pd.concat([kinds, other, larger]))  # one condition, drawn alone
    assert of_several[["size", "largest_train_size"]].drop_duplicates().values.tolist() == [[9, 7]]
    assert len(of_several) == len(kinds)
    assert found_ids.of_largest_size(kinds).equals(kinds)
