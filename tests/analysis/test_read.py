"""Which rows are a model's own; exports, those kept of the studies among them, read as their results."""

from pathlib import Path

import pandas as pd
import pytest
from measured_documents import flip
from sparsity_length.programs.query import STAGE, connect, export, select
from synthetic_results import (
    ABSURD_LOSS,
    EVALUATOR,
    FURTHER_KS,
    KS,
    LONG_MODELS,
    SHORT_MODELS,
    Truth,
    write_results,
)
from written_results import write_length_losses

from sparsity_length.cli import InputError
from sparsity_length.figures.read import (
    TARGET,
    models_by_training,
    read_sparse_losses,
    read_sparsity,
)
from sparsity_length.results.read import Results
from sparsity_length.results.schemas import DIVERGENCE


def test_own_losses_are_all_that_the_model_measured_at_the_requested_k(results: Path, truth: Truth) -> None:
    rows = read_sparse_losses(results)
    assert set(rows["k"]) == set(KS)
    assert (rows["evaluator"] == rows["model"]).all()
    assert rows["sparse_context_loss"].max() < ABSURD_LOSS
    # 3 models with selections, 3 rules, own and null.
    assert len(rows) == len(truth.targets) * 3 * 3 * 2 * len(KS)
    all_rows = Results(results).frame("sparse_context_losses")
    assert len(read_sparse_losses(results, every_evaluator=True, every_k=True)) == len(all_rows)
    assert set(read_sparse_losses(results, every_evaluator=True)["evaluator"]) > {EVALUATOR}
    every_k = read_sparse_losses(results, every_k=True).groupby("rule")["k"].unique()
    assert sorted(every_k["leave_one_out"]) == KS
    assert sorted(every_k["recency"]) == KS + FURTHER_KS
    only = {"model": ["long-seed0"], "rule": ["recency"]}
    some = read_sparse_losses(results, ["rule"], only)
    assert {*some} == {"model", "rule", "evaluator", "k"} and len(some) == len(
        read_sparse_losses(results, only=only)
    )


def test_sparsity_is_of_one_criterion(results: Path, truth: Truth) -> None:
    only = {"model": ["long-seed0"]}
    by_loss = read_sparsity(results, only=only)
    assert len(by_loss) == len(truth.targets)
    assert by_loss["k_90"].isna().any()
    by_divergence = read_sparsity(results, DIVERGENCE, only=only)
    assert by_divergence["k_90"].tolist() == [1] * len(truth.targets)
    assert {*TARGET} < {*read_sparsity(results, columns=TARGET)}


def test_models_are_told_apart(scales: tuple[Path, Truth, Truth], results: Path, tmp_path: Path) -> None:
    small = scales[0] / "small"
    assert models_by_training(small) == (LONG_MODELS, SHORT_MODELS)
    assert models_by_training(small, ["long-seed1", "nobody"]) == (["long-seed1"], [])
    assert models_by_training(results) == (LONG_MODELS + SHORT_MODELS, [])  # which do not say
    write_results(tmp_path, models=SHORT_MODELS[::-1], scale=(1000, 50), num_documents=4)
    assert models_by_training(tmp_path) == (SHORT_MODELS, [])  # those that chose tokens first
    with pytest.raises(InputError, match="unknown model 'nobody'"):
        models_by_training(small, ["nobody"])


def test_a_wrong_folder_is_refused_whatever_rows_are_asked_for(tmp_path: Path) -> None:
    for only in ({"rule": ["recency"]}, {"model": ["none"]}):
        with pytest.raises(InputError, match="holds no rows of 'dependency_sparsity'"):
            Results(tmp_path).frame("dependency_sparsity", only=only)


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
    results = write_length_losses(tmp_path / "results", "a", [1.0, 2.0])
    out = tmp_path / "out"
    export(results, out)
    path = out / "length_losses.parquet"
    whole = path.read_bytes()
    for damage, sentence in (
        (flip, "it is damaged, or another file; run export again"),
        (Path.unlink, "length_losses.parquet is missing"),
    ):
        damage(path)
        with pytest.raises(InputError, match=sentence):
            Results(out).frame("length_losses")
    path.write_bytes(whole)
    assert Results(out).frame("length_losses")["mean_loss"].tolist() == [1.0, 2.0]
    with pytest.raises(InputError, match=r"out is an export of results \(exported.json\); choose another"):
        write_length_losses(out, "b", [3.0])
    (out / "exported.json").write_text("{")
    with pytest.raises(InputError, match="exported.json is damaged"):
        Results(out).frame("length_losses")


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
