"""Numbers against planted truth and against sums done by hand."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic_results import (
    CENSORED_K,
    KS,
    LONG_MODELS,
    MEAN_GAP,
    NO_GAIN_K,
    SELECTION_BONUS,
    SHORT_MODELS,
    Truth,
)

from analysis import statistics
from pipeline.errors import InputError


def tokens(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"model": "m", "chunk_index": 0, "target_position": range(4), **columns})


@pytest.fixture
def by_hand() -> pd.DataFrame:
    """Two documents of two targets, one k: own recovers 3 of 4 nats; the null 1 of 4."""
    own = tokens(
        document_id=["a", "a", "b", "b"], rule="nearest", far_context="own", k=1,
        short_context_loss=[3.0, 3.0, 3.0, 3.0], long_context_loss=[2.0, 2.0, 2.0, 2.0],
        sparse_context_loss=[2.0, 3.0, 2.0, 2.0],
    )  # fmt: skip
    # The long loss of the null's own rows must not be used: a gain is always the own document's.
    null = own.assign(
        far_context="other_document", sparse_context_loss=[3.0, 3.0, 3.0, 2.0], long_context_loss=9.0
    )
    return pd.concat([own, null])


def test_recovered_losses_by_hand(by_hand: pd.DataFrame) -> None:
    table = statistics.recovered_losses(by_hand).set_index("far_context")
    own, null = table.loc["own"], table.loc["other_document"]
    assert (own["recovered_loss"], own["recovered_fraction"], own["loss_difference"]) == (0.75, 0.75, 1.0)
    assert (null["recovered_loss"], null["recovered_fraction"], null["loss_difference"]) == (0.25, 0.25, 1.0)
    assert (own["num_targets"], own["num_documents"]) == (4, 2)
    # Document a recovers 1 of 2 nats, b 2 of 2: an error of 1/4, times t at one degree of freedom.
    interval = own["recovered_fraction_low"], own["recovered_fraction_high"]
    assert interval == pytest.approx((0.75 - 12.7062 / 4, 0.75 + 12.7062 / 4))


def test_excess_by_hand(by_hand: pd.DataFrame) -> None:
    (excess,) = statistics.excess_over_null(by_hand).to_dict("records")
    assert (excess["excess_loss"], excess["excess_fraction"]) == (0.5, 0.5)
    # Both documents recover 1 nat beyond their null over 2 targets: paired, no resample differs.
    assert (excess["excess_loss_low"], excess["excess_loss_high"]) == (0.5, 0.5)


def test_excess_without_a_null_has_no_rows(by_hand: pd.DataFrame) -> None:
    assert statistics.excess_over_null(by_hand[by_hand["far_context"] == "own"]).empty


def test_targets_without_a_null_are_left_out_of_the_excess(by_hand: pd.DataFrame) -> None:
    is_left_out = (by_hand["far_context"] == "other_document") & (by_hand["target_position"] == 0)
    (excess,) = statistics.excess_over_null(by_hand[~is_left_out]).to_dict("records")
    assert excess["num_targets"] == 3
    assert excess["excess_loss"] == pytest.approx(1 / 3)


def test_a_single_document_gives_no_interval(by_hand: pd.DataFrame) -> None:
    one = statistics.recovered_losses(by_hand[by_hand["document_id"] == "a"]).iloc[0]
    assert one["recovered_loss"] in (0.0, 0.5)
    assert np.isnan(one["recovered_loss_low"])
    assert np.isnan(one["recovered_fraction"])
    assert not one["is_gain_clear"]


def test_summary_states_sign_and_sample(loss_differences: pd.DataFrame, truth: Truth) -> None:
    summary = statistics.summarize_models(loss_differences).set_index("model")
    assert sorted(summary.index) == sorted([*SHORT_MODELS, *LONG_MODELS])
    row = summary.loc["long-seed0"]
    assert row["loss_difference"] == pytest.approx(truth.targets["gain"].mean(), abs=1e-5)
    assert row["short_context_loss"] - row["long_context_loss"] == pytest.approx(
        row["loss_difference"], abs=1e-5
    )
    assert (row["num_targets"], row["num_documents"]) == (384, 24)
    assert row["loss_difference_low"] < row["loss_difference"] < row["loss_difference_high"]


@pytest.mark.parametrize("rule", SELECTION_BONUS)
def test_the_excess_finds_the_planted_gain_and_the_null_the_planted_bonus(
    sparse_context_losses: pd.DataFrame, truth: Truth, rule: str
) -> None:
    chosen = sparse_context_losses[
        (sparse_context_losses["model"] == "long-seed0") & (sparse_context_losses["rule"] == rule)
    ]
    excess = statistics.excess_over_null(chosen).set_index("k")
    recovered = statistics.recovered_losses(chosen).set_index(["far_context", "k"])
    assert list(excess.index) == KS
    for k in KS:
        planted = truth.recovered_gain(rule, k)
        assert excess.loc[k, "excess_loss"] == pytest.approx(planted.mean(), abs=0.005)
        assert excess.loc[k, "excess_fraction"] == pytest.approx(
            planted.sum() / truth.targets["gain"].sum(), abs=0.02
        )
        bonus = SELECTION_BONUS[rule] * np.log2(k + 1)
        assert recovered.loc[("other_document", k), "recovered_loss"] == pytest.approx(bonus, abs=0.005)


def test_no_fraction_of_a_gain_that_is_not_there(sparse_context_losses: pd.DataFrame) -> None:
    chosen = sparse_context_losses[sparse_context_losses["model"] == "short-contiguous"]
    recovered = statistics.recovered_losses(chosen)
    assert not recovered["is_gain_clear"].any()
    assert recovered[["recovered_fraction", "recovered_fraction_low"]].isna().all(axis=None)
    # Selection alone recovers this much: the reason why the null stands beside every number.
    leave_one_out = recovered[(recovered["rule"] == "leave_one_out") & (recovered["k"] == 16)]
    assert (leave_one_out["recovered_loss_low"] > 0.25).all()
    excess = statistics.excess_over_null(chosen)
    assert ((excess["excess_loss_low"] < 0.005) & (excess["excess_loss_high"] > -0.005)).all()


def test_length_losses_weigh_documents_by_their_targets() -> None:
    losses = pd.DataFrame(
        {
            "model": "m",
            "document_id": ["a", "b", "b", "a", "b", "b"],
            "chunk_index": [0, 0, 1, 0, 0, 1],  # several chunks of a document are not several documents
            "context_length": [16, 16, 16, 32, 32, 32],
            "num_targets": [1, 1, 2, 1, 1, 2],
            "mean_loss": [4.0, 3.0, 1.5, 3.0, 1.0, 2.5],
        }
    )
    table = statistics.losses_by_context_length(losses).set_index("context_length")
    assert table["loss"].to_dict() == {16: 2.5, 32: 2.25}
    assert table["loss_change"].to_dict() == {16: 0.0, 32: -0.25}
    assert (table["num_targets"].to_list(), table["num_documents"].to_list()) == ([4, 4], [2, 2])
    interval = table.loc[32, "loss_change_low"], table.loc[32, "loss_change_high"]  # of -1 and 0, weighed
    assert interval == pytest.approx((-0.25 - 12.7062 / 2, -0.25 + 12.7062 / 2))


def gaps(loss_differences: pd.DataFrame, dependency_sparsity: pd.DataFrame, **changes: Any) -> pd.DataFrame:
    settings = {
        "short_models": SHORT_MODELS,
        "sparsity_model": "long-seed0",
        "reference_model": "long-seed1",
        "studied_ks": KS,
    }
    return statistics.generalization_gap_by_sparsity(
        loss_differences, dependency_sparsity, **(settings | changes)
    )


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


def test_gap_refuses_models_rules_and_targets_it_does_not_have(
    loss_differences: pd.DataFrame, dependency_sparsity: pd.DataFrame
) -> None:
    with pytest.raises(InputError, match="unknown model 'long-seed9'; did you mean 'long-seed"):
        gaps(loss_differences, dependency_sparsity, reference_model="long-seed9")
    with pytest.raises(InputError, match="unknown rule 'leave-one-out'; did you mean 'leave_one_out'"):
        gaps(loss_differences, dependency_sparsity, rule="leave-one-out")
    elsewhere = dependency_sparsity.assign(target_position=dependency_sparsity["target_position"] + 1000)
    with pytest.raises(InputError, match="no target is common"):
        gaps(loss_differences, elsewhere)
