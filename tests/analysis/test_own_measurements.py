"""Which rows are a model's own: of its own judgement, at the k that were asked for, by one criterion."""

from pathlib import Path

import pandas as pd
import pytest
from synthetic_results import ABSURD_LOSS, FURTHER_KS, JUDGE, KS, Truth
from written_results import write_rows

from analysis.read import (
    TARGET,
    needs_null,
    read_judged_sparsity,
    read_sparse_losses,
    read_sparsity,
    sees_answer,
    shown_rule,
)
from pipeline.measuring.rules import RULES
from pipeline.results.read import read_artefact
from pipeline.results.schemas import DIVERGENCE, LOSS


def test_own_losses_are_all_that_the_model_measured_at_the_asked_k(results: Path, truth: Truth) -> None:
    rows = read_sparse_losses(results)
    assert set(rows["k"]) == set(KS)
    assert (rows["judge"] == rows["model"]).all()
    assert rows["sparse_context_loss"].max() < ABSURD_LOSS
    # 3 models with selections, 3 rules, own and null.
    assert len(rows) == len(truth.targets) * 3 * 3 * 2 * len(KS)


def test_other_judges_and_further_k_are_read_where_they_are_meant(results: Path) -> None:
    all_rows = read_artefact(results, "sparse_context_losses")
    assert len(read_sparse_losses(results, every_judge=True, every_k=True)) == len(all_rows)
    assert set(read_sparse_losses(results, every_judge=True)["judge"]) > {JUDGE}
    every_k = read_sparse_losses(results, every_k=True).groupby("rule")["k"].unique()
    assert sorted(every_k["leave_one_out"]) == KS
    assert sorted(every_k["nearest"]) == KS + FURTHER_KS


def test_only_the_wanted_columns_come_back(results: Path) -> None:
    only = {"model": ["long-seed0"], "rule": ["nearest"]}
    rows = read_sparse_losses(results, ["rule"], only)
    assert list(rows) == ["model", "rule"]
    assert len(rows) == len(read_sparse_losses(results, only=only))
    assert list(read_sparsity(results, columns=TARGET)) == ["model", *TARGET]


def test_sparsity_is_of_one_criterion(results: Path, truth: Truth) -> None:
    only = {"model": ["long-seed0"]}
    by_loss = read_sparsity(results, only=only)
    assert len(by_loss) == len(truth.targets)
    assert by_loss["dependency_sparsity"].isna().any()
    by_divergence = read_sparsity(results, DIVERGENCE, only=only)
    assert by_divergence["dependency_sparsity"].tolist() == [1] * len(truth.targets)


def test_rows_of_before_are_the_models_own_and_of_the_loss(tmp_path: Path) -> None:
    """A file of version 1 reads as null in the new columns."""
    of_target = {"document_id": ["a"], "chunk_index": [0], "target_position": [9]}
    target = pd.DataFrame(of_target).assign(model="m", rule="leave_one_out", judge=None)
    losses = pd.concat([target.assign(far_context="own", k=k) for k in (1, 7)])
    write_rows(tmp_path / "losses", "influential_tokens", "sparse_context_losses", losses)
    assert read_sparse_losses(tmp_path / "losses")["k"].tolist() == [1, 7]
    sparsity = target.assign(dependency_sparsity=3, criterion=None)
    write_rows(tmp_path / "sparsity", "influential_tokens", "dependency_sparsity", sparsity)
    assert read_sparsity(tmp_path / "sparsity")["dependency_sparsity"].tolist() == [3]
    assert read_sparsity(tmp_path / "sparsity", DIVERGENCE).empty


def test_judged_sparsity_is_of_the_first_other_judge_by_the_divergence(tmp_path: Path) -> None:
    rows = [
        {"rule": rule, "judge": judge, "criterion": criterion, "dependency_sparsity": k_star}
        for rule, judge, criterion, k_star in (
            ("leave_one_out_divergence", "m", DIVERGENCE, 1),
            ("leave_one_out_divergence", "seed1", LOSS, 2),
            ("leave_one_out_divergence", "seed1", DIVERGENCE, 4),
            ("leave_one_out_divergence", "seed2", DIVERGENCE, 8),
            ("leave_one_out", "seed1", DIVERGENCE, 16),  # it sees the answer
            ("nearest", "seed1", DIVERGENCE, 16),  # it chooses nothing
        )
    ]
    write_rows(tmp_path, "influential_tokens", "dependency_sparsity", pd.DataFrame(rows).assign(model="m"))
    assert read_judged_sparsity(tmp_path)["dependency_sparsity"].tolist() == [4]
    own = pd.DataFrame(rows[:1]).assign(model="m")
    write_rows(tmp_path / "own", "influential_tokens", "dependency_sparsity", own)
    assert read_judged_sparsity(tmp_path / "own").empty


@pytest.mark.parametrize(
    ("rule", "is_seeing", "is_fitting"),
    [
        ("leave_one_out", True, True),
        ("gradient", True, True),
        ("greedy_divergence", False, True),
        ("add_one_in_divergence", False, True),
        ("leave_one_out_divergence", False, False),
        ("attention", False, False),
        ("nearest", False, False),
        ("of another program", True, True),
    ],
)
def test_a_rule_that_fits_anything_needs_its_null(rule: str, is_seeing: bool, is_fitting: bool) -> None:
    assert (sees_answer(rule), needs_null(rule)) == (is_seeing, is_fitting)


def test_the_rule_shown_is_no_control() -> None:
    every = ["random", "leave_one_out", "greedy_divergence", "leave_one_out_divergence"]
    assert shown_rule(every) == "leave_one_out_divergence"
    assert shown_rule(["random", "leave_one_out", "add_one_in_divergence"]) == "add_one_in_divergence"
    assert shown_rule(["random", "leave_one_out", "gradient"]) == "leave_one_out"
    assert shown_rule(["random", "of another program"]) == "of another program"
    assert shown_rule(["random", "nearest"]) in RULES
