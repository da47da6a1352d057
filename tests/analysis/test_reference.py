"""What is kept under version control of the studies: little, whole, readable, and told of by a page."""

import re
from pathlib import Path

import pytest

from pipeline.query import connect, rows_of
from pipeline.results.read import artefacts_in, read_artefact, read_model_facts

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "analysis" / "reference"
FILES = [path for path in REFERENCE.rglob("*") if path.is_file()]
PAGES = [ROOT / "README.md", *sorted((ROOT / "analysis").glob("*.md")), REFERENCE / "README.md"]


@pytest.mark.parametrize("manifest", sorted(REFERENCE.rglob("exported.json")))
def test_the_reference_results_are_whole(manifest: Path) -> None:
    results = manifest.parent
    assert {path.suffix for path in results.iterdir()} == {".json", ".parquet"}
    for artefact in artefacts_in(results):
        models = read_artefact(results, artefact, [])["model"]
        assert set(models) == read_model_facts(results, artefact).keys()
        sql = f"SELECT count(*) FROM {artefact}"
        assert rows_of(connect(results, sql), sql) == [(len(models),)]


def test_the_page_of_figures_names_every_notebook_and_no_file_that_is_not_there() -> None:
    page = (REFERENCE / "README.md").read_text(encoding="utf-8")
    _, _, table = page.partition("| figure | notebook in `notebooks/` |")
    rows = [row.split("|") for row in table.partition("\n\n")[0].splitlines()[2:]]
    notebooks = {name for row in rows for name in re.findall(r"`(\w+)`", row[2])}
    assert notebooks == {path.stem for path in (ROOT / "analysis" / "notebooks").glob("*.ipynb")}
    files = {path.name for path in (ROOT / "analysis").rglob("*.py")}
    assert set(re.findall(r"`(?:\w+/)?(\w+\.py)`", page)) <= files


def test_every_figure_is_shown_by_a_page() -> None:
    told = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    figures = {path.relative_to(REFERENCE).as_posix() for path in FILES if path.suffix == ".png"}
    assert {figure for figure in figures if f"reference/{figure}" not in told} == set()
    shown = {name.removeprefix("analysis/") for name in re.findall(r"\((\S*reference/\S+\.png)\)", told)}
    assert shown and shown <= {f"reference/{figure}" for figure in figures}
