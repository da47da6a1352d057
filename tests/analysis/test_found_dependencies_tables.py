"""What is found of true dependencies, and of those of position IDs: by hand, and drawn as in the table."""

from pathlib import Path

import pandas as pd
import pytest
from legible_figures import assert_legible
from written_results import write_rows

from analysis import notebooks
from analysis.synthetic import dependencies
from pipeline.synthetic.tasks import PARITY_VOCABULARY, lay_out_assignments, lay_out_marked_bits

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "analysis" / "notebooks" / "found_dependencies.ipynb"


def selection(
    model: str,
    example: int,
    tokens: str,
    is_dependency: list[bool],
    num_far: int,
    num_dependencies: int,
    rule: str = "leave_one_out",
    intervention: str | None = "remove",
) -> pd.DataFrame:
    """One target's selection in the order of rank; the tokens are letters."""
    return pd.DataFrame(
        {
            "task": "sparse_parity",
            "positions": "pose",
            "largest_train_size": 20,
            "largest_train_sparsity": 2,
            "size": 20,
            "sparsity": 1,
            "model": model,
            "example_index": example,
            "target_index": 0,
            "rule": rule,
            "intervention": intervention,
            "rank": range(1, len(tokens) + 1),
            "context_token": list(tokens),
            "is_dependency": is_dependency,
            "num_far_tokens": num_far,
            "num_dependencies": num_dependencies,
        }
    )


@pytest.fixture
def rows() -> pd.DataFrame:
    no = False
    yes = True
    return pd.concat(
        [
            selection("a", 0, "1*.", [yes, no, yes], 3, 2),
            selection("a", 1, ".0*", [no, yes, no], 3, 1),
            selection("b", 0, "1*.", [yes, yes, no], 3, 2),
            selection("b", 1, ".0*", [no, no, yes], 3, 1),
            selection("a", 0, ".", [no], 4, 2, "random", None),
        ]
    )


def test_true_dependencies_by_part_are_those_of_whole_rankings(rows: pd.DataFrame) -> None:
    """Two marked bits a target, two bits and two marks; a misses one mark, b one bit."""
    selections = [
        selection("a", 0, "1*0.*", [True, True, True, False, True], 5, 4, intervention="substitute"),
        selection("b", 0, "*1*.0", [True, True, True, False, True], 5, 4, intervention="substitute"),
    ]
    parts = dependencies.by_part(pd.concat(selections)).set_index("part")
    assert parts["found"].to_dict() == {"bits": 0.75, "marks": 0.75}
    assert parts["found_lowest"].to_dict() == {"bits": 0.5, "marks": 0.5}
    assert (
        set(parts["chance"]) == {0.8} and set(parts["num_seeds"]) == {2} and set(parts["num_targets"]) == {1}
    )


def test_sides_of_an_assignment_are_told_by_their_place_as_the_task_lays_them_out() -> None:
    chosen = lay_out_assignments([("v1", "7"), ("v2", "v1")], "v2")
    ends = [sorted(places)[:2] for places in chosen.dependencies if len(places) == 3]
    assert ends == [[3, 5], [0, 2]]  # the left and the right side of each assignment that is restated
    rows = pd.DataFrame({"context_position": [*ends[0], *ends[1]]})
    sides = dependencies.PARTS["variable_assignment"]
    assert sides["left sides"](rows).tolist() == [True, False] * 2
    assert sides["right sides"](rows).tolist() == [False, True] * 2


def test_bits_and_marks_are_as_many_as_the_task_lays_out() -> None:
    example = lay_out_marked_bits(bits=[1, 0, 1, 1], marked=[0, 3])
    tokens = [PARITY_VOCABULARY[example.token_ids_S[place]] for place in example.dependencies[0]]
    parts = dependencies.PARTS["sparse_parity"]
    rows = pd.DataFrame({"context_token": tokens})
    assert [int(is_part(rows).sum()) for is_part in parts.values()] == [2, 2]


def test_the_figure_of_parts_can_be_read() -> None:
    """Bits and marks with the range of their seeds, found by one rule; and by random tokens."""
    rows = []
    for part, low, high in (("bits", 0.9, 1.0), ("marks", 0.4, 0.6)):
        for rule, intervention, shrunk in (("leave_one_out", "substitute", 1.0), ("random", None, 0.1)):
            ends = {"found": (low + high) / 2, "found_lowest": low, "found_highest": high}
            rows.append(
                {
                    "task": "sparse_parity",
                    "positions": "pose",
                    "largest_train_size": 20,
                    "largest_train_sparsity": 2,
                    "size": 20,
                    "sparsity": 2,
                    "rule": rule,
                    "intervention": intervention,
                    "part": part,
                    "chance": 0.2,
                    "num_seeds": 3,
                    "num_targets": 90,
                    **{name: shrunk * share for name, share in ends.items()},
                }
            )
    table = pd.DataFrame(rows)
    sides = table["part"].map({"bits": "right sides", "marks": "left sides"})
    assigned = table.assign(task="variable_assignment", sparsity=None, part=sides)
    fewer = table.assign(sparsity=1, found=0.0)  # of a task that with the most bits is drawn
    figure = dependencies.found_figure(pd.concat([fewer, table, assigned], ignore_index=True))
    assert [ax.get_title() for ax in figure.axes] == ["sparse parity of 2 bits", "variable assignment"]
    drawn = sorted(float(c.lines[0].get_xdata()[0]) for c in figure.axes[0].containers)
    assert drawn == pytest.approx([0.05, 0.095, 0.5, 0.95])
    assert_legible(figure)


def row(model: str, target: int, is_found: bool, rule: str = "leave_one_out_divergence") -> dict[str, object]:
    """The first token that a rule selects for the ID of one token of the response."""
    return {
        "task": "variable_assignment",
        "positions": "predicted",
        "largest_train_size": 6,
        "largest_train_sparsity": None,
        "size": 6,
        "sparsity": None,
        "model": model,
        "example_index": 0,
        "target_index": target,
        "rule": rule,
        "intervention": "substitute",
        "rank": 1,
        "context_token": "v1",
        "context_position": 3,
        "is_dependency": is_found,
        "num_far_tokens": 20,
        "num_dependencies": 1,
        "effect": 3.0 if is_found else 1.0,
    }


@pytest.fixture
def kinds() -> pd.DataFrame:
    # Two assignments, of which the left side, = and the right side are targets.
    found = {"a": [True, False, False, True, False, False], "b": [True, True, False, True, False, False]}
    rows = [row(model, target, is_found) for model in found for target, is_found in enumerate(found[model])]
    further = pd.DataFrame([row("a", 0, False)]).assign(rank=2)  # beyond its one dependency: not counted
    return dependencies.by_kind(pd.concat([pd.DataFrame(rows), further]))


def test_ids_that_the_content_decides_stand_apart(kinds: pd.DataFrame) -> None:
    of_kind = kinds.set_index("part")
    left, sign, right = (of_kind.loc[name] for name in ("a left side", "=", "a right side"))
    assert (left["found"], left["found_lowest"], left["num_targets"]) == (1, 1, 2)
    assert (sign["found"], sign["found_lowest"], sign["found_highest"]) == (0.25, 0, 0.5)
    assert right["found"] == 0
    assert (left["effect"], sign["effect"], right["effect"]) == (3.0, 1.5, 1.0)
    assert set(kinds["chance"]) == {0.05} and set(kinds["num_seeds"]) == {2}


@pytest.mark.slow
def test_the_notebook_runs_on_its_results(rows: pd.DataFrame, tmp_path: Path) -> None:
    write_rows(tmp_path / "results", "found_dependencies", "found_dependencies", rows)
    parameters = {"results": str(tmp_path / "results"), "figures_folder": str(tmp_path)}
    list(notebooks.execute_all([NOTEBOOK], tmp_path, parameters))
    assert {path.name for path in tmp_path.glob("*.p[dn][fg]")} == {
        "found_dependencies.pdf",
        "found_dependencies.png",
    }
    write_rows(tmp_path / "results", "found_id_dependencies", "found_id_dependencies", rows)
    list(notebooks.execute_all([NOTEBOOK], tmp_path, parameters))
    assert "every ID" in (tmp_path / NOTEBOOK.name).read_text()
