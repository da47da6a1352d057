"""Which rows are a model's own; models by their training; what a join leaves out is counted in a warning."""

from pathlib import Path

import pandas as pd
import pytest
from synthetic_results import (
    ABSURD_LOSS,
    FURTHER_KS,
    JUDGE,
    KS,
    LONG_MODELS,
    SHORT_MODELS,
    Truth,
    write_results,
)

from analysis.read import (
    TARGET,
    joined_on_common,
    models_by_training,
    needs_null,
    read_sparse_losses,
    read_sparsity,
    sees_answer,
    shown_rule,
)
from pipeline.cli import InputError
from pipeline.measuring.rules import RULES
from pipeline.results.read import read_artefact
from pipeline.results.schemas import DIVERGENCE


def test_own_losses_are_all_that_the_model_measured_at_the_requested_k(results: Path, truth: Truth) -> None:
    rows = read_sparse_losses(results)
    assert set(rows["k"]) == set(KS)
    assert (rows["judge"] == rows["model"]).all()
    assert rows["sparse_context_loss"].max() < ABSURD_LOSS
    # 3 models with selections, 3 rules, own and null.
    assert len(rows) == len(truth.targets) * 3 * 3 * 2 * len(KS)
    all_rows = read_artefact(results, "sparse_context_losses")
    assert len(read_sparse_losses(results, every_judge=True, every_k=True)) == len(all_rows)
    assert set(read_sparse_losses(results, every_judge=True)["judge"]) > {JUDGE}
    every_k = read_sparse_losses(results, every_k=True).groupby("rule")["k"].unique()
    assert sorted(every_k["leave_one_out"]) == KS
    assert sorted(every_k["nearest"]) == KS + FURTHER_KS
    only = {"model": ["long-seed0"], "rule": ["nearest"]}
    some = read_sparse_losses(results, ["rule"], only)
    assert list(some) == ["model", "rule"] and len(some) == len(read_sparse_losses(results, only=only))


def test_sparsity_is_of_one_criterion(results: Path, truth: Truth) -> None:
    only = {"model": ["long-seed0"]}
    by_loss = read_sparsity(results, only=only)
    assert len(by_loss) == len(truth.targets)
    assert by_loss["dependency_sparsity"].isna().any()
    by_divergence = read_sparsity(results, DIVERGENCE, only=only)
    assert by_divergence["dependency_sparsity"].tolist() == [1] * len(truth.targets)
    assert list(read_sparsity(results, columns=TARGET)) == ["model", *TARGET]


def test_rules_that_fit_anything_need_their_null_and_controls_are_not_shown() -> None:
    for rule, is_seeing, is_fitting in (
        ("leave_one_out", True, True),
        ("gradient", True, True),
        ("greedy_divergence", False, True),
        ("add_one_in_divergence", False, True),
        ("leave_one_out_divergence", False, False),
        ("attention", False, False),
        ("nearest", False, False),
        ("of another program", True, True),
    ):
        assert (sees_answer(rule), needs_null(rule)) == (is_seeing, is_fitting), rule
    every = ["random", "leave_one_out", "greedy_divergence", "leave_one_out_divergence"]
    assert shown_rule(every) == "leave_one_out_divergence"
    assert shown_rule(["random", "leave_one_out", "add_one_in_divergence"]) == "add_one_in_divergence"
    assert shown_rule(["random", "leave_one_out", "gradient"]) == "leave_one_out"
    assert shown_rule(["random", "of another program"]) == "of another program"
    assert shown_rule(["random", "nearest"]) in RULES


def test_models_are_told_apart(scales: tuple[Path, Truth, Truth], results: Path, tmp_path: Path) -> None:
    small = scales[0] / "small"
    assert models_by_training(small) == (LONG_MODELS, SHORT_MODELS)
    assert models_by_training(small, ["long-seed1", "nobody"]) == (["long-seed1"], [])
    assert models_by_training(results) == (LONG_MODELS + SHORT_MODELS, [])  # which do not say
    write_results(tmp_path, models=SHORT_MODELS[::-1], scale=(1000, 50), num_documents=4)
    assert models_by_training(tmp_path) == (SHORT_MODELS, [])  # those that chose tokens first
    with pytest.raises(InputError, match="unknown model 'nobody'"):
        models_by_training(small, ["nobody"])


def test_what_one_table_lacks_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    left = pd.DataFrame({"a": [1, 2]})
    right = pd.DataFrame({"a": [2, 3, 4]})
    assert joined_on_common(left, right, ["a"], "x")["a"].tolist() == [2]
    assert joined_on_common(left, right.replace(3, 1), ["a"], "x")["a"].tolist() == [1, 2]
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith("x: 1 of 2")
