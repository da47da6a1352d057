"""An export reads as the results that it was made from, by every reader; a changed one is refused."""

from pathlib import Path

import pandas as pd
import pytest
from sparsity_length.programs.query import STAGE, connect, export, select
from written_results import write_length_losses

from sparsity_length.cli import InputError
from sparsity_length.results.read import Results


@pytest.fixture(scope="module")
def exported(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "model=x" / "results"  # no column
    STAGE(["--results", str(results), "--out", str(out)])
    return out


def test_every_artefact_reads_as_from_its_parts(results: Path, exported: Path) -> None:
    assert Results(exported).tables == Results(results).tables != []
    assert sorted(path.name for path in exported.iterdir()) == sorted(
        ["exported.json", *(f"{artefact}.parquet" for artefact in Results(results).tables)]
    )
    for artefact in Results(results).tables:
        rows = Results(results).frame(artefact)
        pd.testing.assert_frame_equal(Results(exported).frame(artefact), rows, check_exact=True)
        only = {"model": [rows["model"].iloc[-1]], "document_id": [rows["document_id"].iloc[-1]]}
        some = Results(results).frame(artefact, ["chunk_index"], only)
        assert 0 < len(some) < len(rows)
        pd.testing.assert_frame_equal(Results(exported).frame(artefact, ["chunk_index"], only), some)
        assert Results(exported).facts(artefact) == Results(results).facts(artefact)
        sql = f"SELECT * FROM {artefact} ORDER BY ALL"
        assert select(connect(exported, sql), sql).fetchall() == select(connect(results, sql), sql).fetchall()
    for stage in ("loss_differences", "influential_tokens", "length_losses"):
        assert Results(exported).made_by(stage) == Results(results).made_by(stage)


def test_an_export_that_was_changed_is_refused(tmp_path: Path) -> None:
    def refused() -> str:
        with pytest.raises(InputError) as error:
            Results(out).frame("length_losses")
        return str(error.value)

    results = write_length_losses(tmp_path / "results", "a", [1.0, 2.0])
    out = tmp_path / "out"
    export(results, out)
    path = out / "length_losses.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])
    assert "it is damaged, or another file; run export again" in refused()
    path.unlink()
    assert "length_losses.parquet is missing" in refused()
    path.write_bytes(whole)
    assert Results(out).frame("length_losses")["mean_loss"].tolist() == [1.0, 2.0]
    with pytest.raises(InputError, match=r"out is an export of results \(exported.json\); choose another"):
        write_length_losses(out, "b", [3.0])
    (out / "exported.json").write_text("{")
    assert "exported.json is damaged" in refused()
