"""An export reads as the results that it was made from, by every reader; a changed one is refused."""

from pathlib import Path

import pandas as pd
import pytest

from pipeline.cli import InputError
from pipeline.query import connect, rows_of
from pipeline.results.export import export, main, parser
from pipeline.results.read import artefacts_in, read_artefact, read_made_by, read_model_facts
from pipeline.results.write import StageOutput


@pytest.fixture(scope="module")
def exported(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "model=x" / "results"  # no column either
    main(parser().parse_args([str(results), "--out", str(out)]))
    return out


def lengths(*losses: float) -> dict[str, dict[str, list]]:
    count = len(losses)
    columns = {
        "document_id": ["d"] * count,
        "chunk_index": list(range(count)),
        "mean_loss": list(losses),
        "context_length": [16] * count,
        "num_targets": [4] * count,
    }
    return {"length_losses": columns}


def write(results: Path, model: str, *shards: dict[str, dict[str, list]], dtype: str = "float32") -> Path:
    output = StageOutput(
        results, "length_losses", model, settings={"dtype": dtype}, inputs={}, num_shards=len(shards)
    )
    for index, shard in enumerate(shards):
        output.write_shard(index, shard, {"num_parameters": len(model)})
    return results


def test_every_artefact_reads_as_from_its_parts(results: Path, exported: Path) -> None:
    assert artefacts_in(exported) == artefacts_in(results) != []
    assert sorted(path.name for path in exported.iterdir()) == sorted(
        ["exported.json", *(f"{artefact}.parquet" for artefact in artefacts_in(results))]
    )
    for artefact in artefacts_in(results):
        rows = read_artefact(results, artefact)
        pd.testing.assert_frame_equal(read_artefact(exported, artefact), rows, check_exact=True)
        only = {"model": [rows["model"].iloc[-1]], "document_id": [rows["document_id"].iloc[-1]]}
        some = read_artefact(results, artefact, ["chunk_index"], only)
        assert 0 < len(some) < len(rows)
        pd.testing.assert_frame_equal(read_artefact(exported, artefact, ["chunk_index"], only), some)
        assert read_model_facts(exported, artefact) == read_model_facts(results, artefact)
        sql = f"SELECT * FROM {artefact} ORDER BY ALL"
        assert rows_of(connect(exported, sql), sql) == rows_of(connect(results, sql), sql)
    for stage in ("loss_differences", "influential_tokens", "length_losses"):
        assert read_made_by(exported, stage) == read_made_by(results, stage)


def test_shards_and_folders_are_joined_by_model(tmp_path: Path) -> None:
    """Models in the order of their folders, which is that of bytes; shards in theirs."""
    first = write(tmp_path / "first", "b", lengths(3.0), lengths(1.0, 2.0))
    second = write(write(tmp_path / "second", "a", lengths(5.0)), "B", lengths(4.0))
    export([first, second], tmp_path / "out")
    rows = read_artefact(tmp_path / "out", "length_losses")
    assert list(zip(rows["model"], rows["mean_loss"], strict=True)) == [
        ("B", 4.0),
        ("a", 5.0),
        ("b", 3.0),
        ("b", 1.0),
        ("b", 2.0),
    ]
    facts = read_model_facts(tmp_path / "out", "length_losses")
    assert facts == {model: {"num_parameters": 1} for model in ("B", "a", "b")}
    export([tmp_path / "out"], tmp_path / "again")
    files = [(tmp_path / name / "length_losses.parquet").read_bytes() for name in ("out", "again")]
    assert files[0] == files[1]


def test_models_measured_in_two_ways_are_still_told_apart(tmp_path: Path) -> None:
    write(write(tmp_path / "results", "a", lengths(1.0)), "b", lengths(2.0), dtype="bfloat16")
    export([tmp_path / "results"], tmp_path / "out")
    with pytest.raises(InputError, match="dtype was 'float32', now 'bfloat16' in model=b"):
        connect(tmp_path / "out")


def test_bad_exports_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    def refused(*words: str | Path) -> str:
        with pytest.raises(InputError) as error:
            main(parser().parse_args(list(map(str, words))))
        return str(error.value)

    first, second = (write(tmp_path / name, "a", lengths(1.0), lengths(2.0)) for name in ("first", "second"))
    out = tmp_path / "out"
    both = refused(first, second, "--out", out)
    assert f"{second} and an earlier folder hold length_losses of model 'a'" in both
    lacking = refused(first, "--out", out, "--artefacts", "length_losses", "loss_differences")
    assert "holds no 'loss_differences' results; it holds length_losses" in lacking
    assert f"--out {second} holds results" in refused(first, "--out", second)
    assert "holds no results" in refused(tmp_path / "nowhere", "--out", out)
    next(first.rglob("00001-of-00002.done")).unlink()
    assert "1 of 2 shards" in refused(first, "--out", out)
    assert not out.exists()


def test_an_export_that_was_changed_is_refused(tmp_path: Path) -> None:
    def refused() -> str:
        with pytest.raises(InputError) as error:
            read_artefact(out, "length_losses")
        return str(error.value)

    results = write(tmp_path / "results", "a", lengths(1.0, 2.0))
    out = tmp_path / "out"
    export([results], out)
    path = out / "length_losses.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])
    assert "it is damaged, or another file; copy the folder" in refused()
    path.unlink()
    assert "length_losses.parquet is missing" in refused()
    path.write_bytes(whole)
    assert read_artefact(out, "length_losses")["mean_loss"].tolist() == [1.0, 2.0]
    with pytest.raises(InputError, match=r"out is an export of results \(exported.json\); choose another"):
        write(out, "b", lengths(3.0))
    (out / "exported.json").write_text("{")
    assert "exported.json is damaged" in refused()
