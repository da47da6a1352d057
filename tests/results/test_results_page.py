"""pipeline/RESULTS.md is the schemas in prose, and is kept equal to them."""

from pathlib import Path

from pipeline.results.schemas import SCHEMAS, results_page

PAGE = Path(__file__).resolve().parents[2] / "pipeline" / "RESULTS.md"


def test_results_page_equals_the_schemas() -> None:
    assert PAGE.read_text(encoding="utf-8") == results_page(), (
        "run: python -m pipeline.results.schemas > pipeline/RESULTS.md"
    )


def test_results_page_has_a_row_a_column() -> None:
    for artefact, schema in SCHEMAS.items():
        section = results_page().split(f"## {artefact}\n")[1].split("## ")[0]
        assert section.count("\n| `") == len(schema)
