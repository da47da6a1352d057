"""The generalization gap by k*: planted gaps are found, and what is not there is refused."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic_results import CENSORED_K, KS, MEAN_GAP, NO_GAIN_K, SHORT_MODELS, Truth

from analysis.gap.gaps import generalization_gap_by_sparsity
from pipeline.cli import InputError


def gaps(loss_differences: pd.DataFrame, dependency_sparsity: pd.DataFrame, **changes: Any) -> pd.DataFrame:
    settings = {
        "short_models": SHORT_MODELS,
        "reference_model": "long-seed1",
        "studied_ks": KS,
    }
    of_model = dependency_sparsity[dependency_sparsity["model"] == "long-seed0"]
    return generalization_gap_by_sparsity(loss_differences, of_model, **(settings | changes))


def test_gap_by_sparsity_finds_the_planted_gaps(
    loss_differences: pd.DataFrame, dependency_sparsity: pd.DataFrame, truth: Truth
) -> None:
    table = gaps(loss_differences, dependency_sparsity)
    names = {**{k: str(k) for k in KS}, CENSORED_K: "more than 16", NO_GAIN_K: "no gain"}
    assert list(table["category"].unique()) == list(names.values())
    counts = truth.targets["needed_k"].map(names).value_counts()
    for _, row in table.iterrows():
        needed_k = next(k for k, name in names.items() if name == row["category"])
        planted = MEAN_GAP[row["model"]] * np.log2(needed_k + 1)
        assert row["generalization_gap"] == pytest.approx(planted, abs=0.015), row["category"]
        assert row["num_targets"] == counts[row["category"]]


def test_an_empty_class_keeps_its_place(
    loss_differences: pd.DataFrame, dependency_sparsity: pd.DataFrame
) -> None:
    without = dependency_sparsity[dependency_sparsity["dependency_sparsity"] != 4]
    row = gaps(loss_differences, without, short_models=["short-pose"]).set_index("category").loc["4"]
    assert row["num_targets"] == 0
    assert np.isnan(row["generalization_gap"])


def test_gap_refuses_models_and_targets_it_does_not_have(
    loss_differences: pd.DataFrame, dependency_sparsity: pd.DataFrame
) -> None:
    with pytest.raises(InputError, match="unknown model 'long-seed9'; did you mean 'long-seed"):
        gaps(loss_differences, dependency_sparsity, reference_model="long-seed9")
    elsewhere = dependency_sparsity.assign(target_position=dependency_sparsity["target_position"] + 1000)
    with pytest.raises(InputError, match="no target is common"):
        gaps(loss_differences, elsewhere)
