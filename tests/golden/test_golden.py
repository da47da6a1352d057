"""The numbers of one tiny run of everything are what they were; see golden_run.py."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from golden_run import COMMAND, GOLDEN_PATH, TOLERANCE, moved, run


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return json.loads(GOLDEN_PATH.read_text(encoding="utf-8"))


def test_no_number_has_moved(golden: dict[str, Any], tmp_path: Path) -> None:
    changes = moved(golden, run(tmp_path))
    assert not changes, (
        "these columns moved:\n  " + "\n  ".join(changes) + f"\nif that is meant, run `{COMMAND}` and say why"
    )


def test_the_run_is_worth_comparing(golden: dict[str, Any]) -> None:
    losses = golden["metrics"]["loss_nats"]
    assert losses["sum"] / losses["num_values"] < losses["first"][0]  # it learned
    for table, column in (("loss_differences", "loss_difference"), ("influences", "influences")):
        assert golden[table][column]["mean_magnitude"] > 0.005  # far above the noise of float32
    assert golden["dependency_sparsity"]["dependency_sparsity"]["num_values"] > 0


def test_a_moved_column_is_named(golden: dict[str, Any]) -> None:
    for field, change, is_seen in (
        ("sum", 0.5 * TOLERANCE, False), ("sum", 2 * TOLERANCE, True), ("first", 0.01, True),
        ("num_values", 1, True),
    ):  # fmt: skip
        found = copy.deepcopy(golden)
        column = found["loss_differences"]["long_context_loss"]
        if field == "first":
            column["first"][1] *= 1 + change
        else:
            column[field] += change * (column["sum"] if field == "sum" else 1)
        changes = moved(golden, found)
        assert len(changes) == is_seen, (field, change)
        assert all(line.startswith(f"loss_differences.long_context_loss: {field} was ") for line in changes)
    del found["influences"]["influences"]
    found["metrics"]["extra"] = found["metrics"]["step"]
    assert {"influences.influences is gone", "metrics.extra is new"} <= {*moved(golden, found)}
