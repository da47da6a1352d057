"""What is kept under version control of the studies is whole."""

from pathlib import Path

import pytest
from sparsity_length.programs.query import connect, select

from sparsity_length.results.read import Results

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "analysis" / "reference"


@pytest.mark.parametrize("manifest", sorted(REFERENCE.rglob("exported.json")))
def test_the_reference_results_are_whole(manifest: Path) -> None:
    results = manifest.parent
    assert {path.suffix for path in results.iterdir()} == {".json", ".parquet"}
    for artefact in Results(results).tables:
        models = Results(results).frame(artefact, [])["model"]
        assert set(models) == Results(results).facts(artefact).keys()
        sql = f"SELECT count(*) FROM {artefact}"
        assert select(connect(results, sql), sql).fetchall() == [(len(models),)]
