"""Numbers against planted truth and against sums done by hand."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic_results import KS, SELECTION_BONUS, Truth

from analysis.losses.token_worth import excess_over_null, recovered_losses


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
    table = recovered_losses(by_hand).set_index("far_context")
    own, null = table.loc["own"], table.loc["other_document"]
    assert (own["recovered_loss"], own["recovered_fraction"], own["loss_difference"]) == (0.75, 0.75, 1.0)
    assert (null["recovered_loss"], null["recovered_fraction"], null["loss_difference"]) == (0.25, 0.25, 1.0)
    assert (own["num_targets"], own["num_documents"]) == (4, 2)
    # Document a recovers 1 of 2 nats, b 2 of 2: an error of 1/4, times t at one degree of freedom.
    interval = own["recovered_fraction_low"], own["recovered_fraction_high"]
    assert interval == pytest.approx((0.75 - 12.7062 / 4, 0.75 + 12.7062 / 4))


def test_excess_by_hand(by_hand: pd.DataFrame) -> None:
    (excess,) = excess_over_null(by_hand).to_dict("records")
    assert (excess["excess_loss"], excess["excess_fraction"]) == (0.5, 0.5)
    # Both documents recover 1 nat beyond their null over 2 targets: paired, no resample differs.
    assert (excess["excess_loss_low"], excess["excess_loss_high"]) == (0.5, 0.5)


def test_excess_without_a_null_has_no_rows(by_hand: pd.DataFrame) -> None:
    assert excess_over_null(by_hand[by_hand["far_context"] == "own"]).empty


def test_targets_without_a_null_are_left_out_of_the_excess(by_hand: pd.DataFrame) -> None:
    is_left_out = (by_hand["far_context"] == "other_document") & (by_hand["target_position"] == 0)
    (excess,) = excess_over_null(by_hand[~is_left_out]).to_dict("records")
    assert excess["num_targets"] == 3
    assert excess["excess_loss"] == pytest.approx(1 / 3)


def test_a_single_document_gives_no_interval(by_hand: pd.DataFrame) -> None:
    one = recovered_losses(by_hand[by_hand["document_id"] == "a"]).iloc[0]
    assert one["recovered_loss"] in (0.0, 0.5)
    assert np.isnan(one["recovered_loss_low"])
    assert np.isnan(one["recovered_fraction"])
    assert not one["is_gain_clear"]


@pytest.mark.parametrize("rule", SELECTION_BONUS)
def test_the_excess_finds_the_planted_gain_and_the_null_the_planted_bonus(
    sparse_context_losses: pd.DataFrame, truth: Truth, rule: str
) -> None:
    chosen = sparse_context_losses[
        (sparse_context_losses["model"] == "long-seed0") & (sparse_context_losses["rule"] == rule)
    ]
    excess = excess_over_null(chosen).set_index("k")
    recovered = recovered_losses(chosen).set_index(["far_context", "k"])
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
    recovered = recovered_losses(chosen)
    assert not recovered["is_gain_clear"].any()
    assert recovered[["recovered_fraction", "recovered_fraction_low"]].isna().all(axis=None)
    # Selection alone recovers this much: the reason why the null stands beside every number.
    leave_one_out = recovered[(recovered["rule"] == "leave_one_out") & (recovered["k"] == 16)]
    assert (leave_one_out["recovered_loss_low"] > 0.25).all()
    excess = excess_over_null(chosen)
    assert ((excess["excess_loss_low"] < 0.005) & (excess["excess_loss_high"] > -0.005)).all()
