"""The tutorial runs from what is kept, without a model, and shows the outputs that are committed."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from sparsity_length.analysis.run_notebooks import ROOT, execute

TUTORIAL = ROOT / "analysis" / "tutorial.ipynb"


def shown(notebook: Any) -> list[list[str]]:
    """Printed text and tables of each cell; pictures are left out."""
    return [
        [
            output["text"] if "text" in output else output["data"]["text/plain"]
            for output in cell.outputs
            if "image/png" not in output.get("data", {})
        ]
        for cell in notebook.cells
        if cell.cell_type == "code" and cell.id != "injected"
    ]


@pytest.mark.slow
def test_the_tutorial_shows_what_is_kept(tmp_path: Path) -> None:
    execute(TUTORIAL, tmp_path, {"keep": False})
    committed = nbformat.read(TUTORIAL, as_version=4)
    assert shown(nbformat.read(tmp_path / TUTORIAL.name, as_version=4)) == shown(committed)
    assert any(
        "image/png" in output.get("data", {})
        for cell in committed.cells[1:]
        for output in cell.get("outputs", [])
    )
    assert TUTORIAL.stat().st_size < 300_000
