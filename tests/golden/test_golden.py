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
