"""The numbers of one tiny run of everything are what they were; see golden_run.py."""

import json
from pathlib import Path
from typing import Any

import pytest
from golden_run import COMMAND, GOLDEN_PATH, moved, run


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
