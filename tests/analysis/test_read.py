"""Which rows are a model's own; models by their training."""

from pathlib import Path

import pytest
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
