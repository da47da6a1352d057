"""What is kept under version control of the studies is whole."""

from pathlib import Path

import pytest

from pipeline.query import connect, select
from pipeline.results.read import artefacts_in, read_artefact, read_model_facts

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "analysis" / "reference"


@pytest.mark.parametrize("manifest", sorted(REFERENCE.rglob("exported.json")))
def test_the_reference_results_are_whole(manifest: Path) -> None:
    results = manifest.parent
    assert {path.suffix for path in results.iterdir()} == {".json", ".parquet"}
    for artefact in artefacts_in(results):
        models = read_artefact(results, artefact, [])["model"]
        assert set(models) == read_model_facts(results, artefact).keys()
        sql = f"SELECT count(*) FROM {artefact}"
        assert select(connect(results, sql), sql).fetchall() == [(len(models),)]
