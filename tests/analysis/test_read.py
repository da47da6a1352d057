"""Which rows are a model's own; exports read as the results that they are of."""

from pathlib import Path

import pandas as pd
import pytest
from measured_documents import flip
from sparsity_length.programs.query import STAGE, connect, export, select
from written_results import (
    ABSURD_LOSS,
    EVALUATOR,
    FURTHER_KS,
    KS,
    LONG_MODELS,
    NUM_DOCUMENTS,
    SHORT_MODELS,
    TARGETS_PER_DOCUMENT,
    write_length_losses,
    write_results,
)

from sparsity_length.cli import InputError
from sparsity_length.figures.drawing import (
    TRAINED_CONTIGUOUS,
    TRAINED_LONG,
    TRAINED_POSE,
    model_labels,
)
from sparsity_length.figures.read import (
    TARGET,
    models_by_training,
    read_sparse_losses,
    read_sparsity,
)
from sparsity_length.results.read import Results
from sparsity_length.results.schemas import DIVERGENCE

NUM_TARGETS = NUM_DOCUMENTS * TARGETS_PER_DOCUMENT


def test_own_losses_are_all_that_the_model_measured_at_the_requested_k(results: Path) -> None:
    rows = read_sparse_losses(results)
    assert set(rows["k"]) == set(KS) and (rows["evaluator"] == rows["model"]).all()
    assert rows["sparse_context_loss"].max() < ABSURD_LOSS
    # 3 models with selections, 3 rules, own and null.
    assert len(rows) == NUM_TARGETS * 3 * 3 * 2 * len(KS)
    assert set(read_sparse_losses(results, every_evaluator=True)["evaluator"]) > {EVALUATOR}
    every_k = read_sparse_losses(results, every_k=True).groupby("rule")["k"].unique().map(sorted)
    assert every_k.to_dict() == dict.fromkeys(["random", "recency"], KS + FURTHER_KS) | {"leave_one_out": KS}
    some = read_sparse_losses(results, ["rule"], {"model": ["long-seed0"], "rule": ["recency"]})
    assert {*some} == {"model", "rule", "evaluator", "k"} and len(some) == NUM_TARGETS * 2 * len(KS)


def test_sparsity_is_of_one_criterion(results: Path) -> None:
    only = {"model": ["long-seed0"]}
    by_loss = read_sparsity(results, only=only)
    assert len(by_loss) == NUM_TARGETS and by_loss["k_90"].isna().any()
    assert read_sparsity(results, DIVERGENCE, only=only)["k_90"].tolist() == [1] * NUM_TARGETS
    assert {*TARGET} < {*read_sparsity(results, columns=TARGET)}


def test_models_are_told_apart(results: Path, tmp_path: Path) -> None:
    assert models_by_training(results) == (LONG_MODELS, SHORT_MODELS)
    assert models_by_training(results, ["long-seed1", "nobody"]) == (["long-seed1"], [])
    untold = write_results(tmp_path / "untold", ["short-pose", "long-seed0"], tells_training=False)
    assert models_by_training(untold) == (["long-seed0", "short-pose"], [])
    # Those that chose tokens first.
    assert models_by_training(write_results(tmp_path / "short", SHORT_MODELS[::-1])) == (SHORT_MODELS, [])
    with pytest.raises(InputError, match="unknown model 'nobody'"):
        models_by_training(results, ["nobody"])
    assert {name: label[:2] for name, label in model_labels(results, "loss_differences").items()} == {
        "short-contiguous": ("trained at 32, seed 0", TRAINED_CONTIGUOUS),
        "short-pose": ("trained at 32, PoSE, seed 0", TRAINED_POSE),
        "long-seed0": ("trained at 256, seed 0", TRAINED_LONG),
        "long-seed1": ("trained at 256, seed 1", TRAINED_LONG),
    }


@pytest.mark.parametrize("only", [{"rule": ["recency"]}, {"model": ["none"]}])
def test_a_wrong_folder_is_refused_whatever_rows_are_asked_for(
    only: dict[str, list[str]], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="holds no rows of 'dependency_sparsity'"):
        Results(tmp_path).frame("dependency_sparsity", only=only)


def test_every_artefact_reads_as_from_its_parts(results: Path, tmp_path: Path) -> None:
    exported = tmp_path / "model=x" / "results"  # no column
    STAGE(["--results", str(results), "--out", str(exported)])
    parts = Results(results)
    whole = Results(exported)
    assert whole.tables == parts.tables != []
    files = {"exported.json", *(f"{artefact}.parquet" for artefact in parts.tables)}
    assert {path.name for path in exported.iterdir()} == files
    for artefact in parts.tables:
        rows = parts.frame(artefact)
        pd.testing.assert_frame_equal(whole.frame(artefact), rows, check_exact=True)
        only = {"model": [rows["model"].iloc[-1]], "document_id": [rows["document_id"].iloc[-1]]}
        some = parts.frame(artefact, ["chunk_index"], only)
        assert 0 < len(some) < len(rows)
        pd.testing.assert_frame_equal(whole.frame(artefact, ["chunk_index"], only), some)
        assert whole.facts(artefact) == parts.facts(artefact)
        sql = f"SELECT * FROM {artefact} ORDER BY ALL LIMIT 1000"
        assert select(connect(exported, sql), sql).fetchall() == select(connect(results, sql), sql).fetchall()
    for stage in ("loss_differences", "influential_tokens", "length_losses"):
        assert whole.made_by(stage) == parts.made_by(stage)


def test_an_export_that_was_changed_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(write_length_losses(tmp_path / "results", "a", [1.0, 2.0]), out)
    with pytest.raises(InputError, match=r"out is an export of results \(exported.json\); choose another"):
        write_length_losses(out, "b", [3.0])
    for name, damage, sentence in (
        ("length_losses.parquet", flip, "it is damaged, or another file; run export again"),
        ("length_losses.parquet", Path.unlink, "length_losses.parquet is missing"),
        ("exported.json", lambda path: path.write_text("{"), "exported.json is damaged"),
    ):
        damage(out / name)
        with pytest.raises(InputError, match=sentence):
            Results(out).frame("length_losses")
