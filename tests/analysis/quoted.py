"""What tests of quoted numbers share: the results that are kept, pages, their tables, numbers as quoted."""

import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from shown_commands import ROOT

REFERENCE = ROOT / "analysis" / "reference"
STUDY = REFERENCE / "study" / "results"
JUDGED = REFERENCE / "judged" / "results"
"""The reference study; STUDY is its earlier run."""
CHOOSING, JUDGE = "2m-long-seed0", "2m-long-seed1"
FINDINGS, FIRST_PAGE, RECIPES = (
    ROOT / "analysis" / "README.md",
    ROOT / "README.md",
    ROOT / "pipeline" / "RECIPES.md",
)
LOG = ROOT / "analysis" / "LOG.md"
Row = Mapping[Hashable, Any]
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def section(page: Path, heading: str) -> str:
    """The text below a heading, up to the next of whatever level."""
    _, found, rest = page.read_text(encoding="utf-8").partition(f"# {heading}\n")
    assert found, f"{page} has no heading {heading!r}"
    return re.split(r"\n##+ ", rest)[0]


def cells_of(text: str, label: str) -> list[str]:
    """The cells of the one table row that begins like this, without the first."""
    rows = [line for line in text.splitlines() if line.startswith(f"| {label}")]
    assert len(rows) == 1, f"{len(rows)} rows begin with {label!r}"
    return [cell.strip() for cell in rows[0].strip("|").split("|")[1:]]


def agree(quoted: str, *values: float) -> None:
    """As many numbers as are quoted, in order, are these values, rounded to the digits that are quoted."""
    numbers = [number.replace(",", "") for number in NUMBER.findall(quoted)]
    assert 0 < len(numbers) <= len(values), quoted
    rounded = [
        f"{value:.{len(number.partition('.')[2])}f}" for number, value in zip(numbers, values, strict=False)
    ]
    assert numbers == rounded, quoted


def agree_cell(text: str, label: str, row: Row, name: str, place: int = 0) -> None:
    """The cell of the row that begins like this is this column of a table, with its interval."""
    agree(cells_of(text, label)[place], *interval(row, name))


def interval(row: Row, name: str) -> tuple[float, float, float]:
    return row[name], row[f"{name}_low"], row[f"{name}_high"]


def by(table: pd.DataFrame, *keys: str) -> dict[Any, Row]:
    """The rows of a table by their keys."""
    rows: Iterable[Row] = table.to_dict("records")
    return {tuple(row[key] for key in keys) if keys[1:] else row[keys[0]]: row for row in rows}
