"""What k tokens recover and are worth: sums by hand, planted truth and nulls, the nearest tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic_results import KS, SELECTION_BONUS, Truth

from sparsity_length.figures.recovered_loss import loss_curves, token_effects


def tokens(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"model": "m", "chunk_index": 0, "target_position": range(4), **columns})


@pytest.fixture
def by_hand() -> pd.DataFrame:
    """Two documents of two targets, one k: own recovers 3 of 4 nats; the null 1 of 4."""
    own = tokens(
        document_id=["a", "a", "b", "b"],
        evaluator="m",
        rule="recency",
        distant_context="own",
        k=1,
        short_context_loss=[3.0, 3.0, 3.0, 3.0],
        long_context_loss=[2.0, 2.0, 2.0, 2.0],
        sparse_context_loss=[2.0, 3.0, 2.0, 2.0],
    )
    # The long loss of the null's own rows must not be used: a gain is always the own document's.
    null = own.assign(
        distant_context="other_document", sparse_context_loss=[3.0, 3.0, 3.0, 2.0], long_context_loss=9.0
    )
    return pd.concat([own, null])


def test_what_is_recovered_by_hand(by_hand: pd.DataFrame) -> None:
    (row,) = token_effects(by_hand).to_dict("records")
    assert (row["gain"], row["recovered"], row["null_recovered"], row["excess"]) == (1.0, 0.75, 0.25, 0.5)
    assert (row["num_targets"], row["num_documents"], row["effect"], row["share"]) == (4, 2, 0.75, 0.75)
    # Document a recovers 1 of 2 nats, b 2 of 2: an error of 1/4, times t at one degree of freedom.
    ends = row["share_low"], row["share_high"]
    assert ends == pytest.approx((0.75 - 12.7062 / 4, 0.75 + 12.7062 / 4))
    # Both documents recover 1 nat beyond their null over 2 targets: paired, no resample differs.
    assert (row["excess_low"], row["excess_high"]) == (0.5, 0.5)
    (one,) = token_effects(by_hand[by_hand["document_id"] == "a"]).to_dict("records")
    assert np.isnan([one["recovered_low"], one["share"]]).all()  # a single document gives no interval


def test_curves_of_the_loss_by_hand(by_hand: pd.DataFrame) -> None:
    """Document a costs a nat more throughout; the null is of b alone, where it recovers 1 of 2 nats."""
    losses = [name for name in by_hand if name.endswith("_loss")]
    by_hand.loc[by_hand["document_id"] == "a", losses] += 1
    rows = by_hand[(by_hand["distant_context"] == "own") | (by_hand["document_id"] == "b")]
    curves = loss_curves(rows).set_index(["distant_context", "k"])
    assert curves["loss"].to_dict() == {
        ("other_document", 0): 3.5,
        ("other_document", 1): 3.0,
        ("own", 0): 3.5,
        ("own", 1): 2.75,
    }
    own = curves.loc[("own", 1)]
    assert (own["loss_low"], own["loss_high"]) == pytest.approx((2.75 - 3.17655, 2.75 + 3.17655), abs=1e-5)
    assert (curves[["long_loss", "long_loss_low", "long_loss_high"]] == 2.5).all(axis=None)
    assert (curves.loc[("own", 0), ["loss_low", "loss_high"]] == 3.5).all()


@pytest.mark.parametrize("rule", SELECTION_BONUS)
def test_the_excess_finds_the_planted_gain_and_the_null_the_planted_bonus(
    sparse_context_losses: pd.DataFrame, truth: Truth, rule: str
) -> None:
    chosen = sparse_context_losses[
        (sparse_context_losses["model"] == "long-seed0") & (sparse_context_losses["rule"] == rule)
    ]
    effects = token_effects(chosen).set_index("k")
    assert list(effects.index) == KS
    for k in KS:
        planted = truth.recovered_gain(rule, k)
        bonus = SELECTION_BONUS[rule] * np.log2(k + 1)
        assert effects.loc[k, "excess"] == pytest.approx(planted.mean(), abs=0.005)
        assert effects.loc[k, "null_recovered"] == pytest.approx(bonus, abs=0.005)
        if rule == "leave_one_out":  # whose effect is what lies beyond the null
            share = planted.sum() / truth.targets["gain"].sum()
            assert effects.loc[k, "share"] == pytest.approx(share, abs=0.02)


def choice(
    rule: str,
    k: int,
    sparse: Sequence[float],
    divergence: Sequence[float],
    distant_context: str = "own",
    **more: object,
) -> pd.DataFrame:
    """Four targets of two documents: 3 nats under the short context, 2 under the long; 1 expected."""
    rows = {
        "model": "m",
        "evaluator": "m",
        "document_id": ["a", "a", "b", "b"],
        "chunk_index": 0,
        "target_position": range(4),
        "rule": rule,
        "distant_context": distant_context,
        "k": k,
        "short_context_loss": 3.0,
        "long_context_loss": 2.0,
        "sparse_context_loss": list(sparse),
        "short_context_divergence": 1.0,
        "sparse_context_divergence": list(divergence),
    }
    return pd.DataFrame(rows | more)


def of(effects: pd.DataFrame, criterion: str, **wanted: object) -> dict:
    rows = effects[effects["criterion"] == criterion]
    for name, value in wanted.items():
        rows = rows[rows[name] == value]
    (row,) = rows.to_dict("records")
    return row


def test_both_criteria_by_hand() -> None:
    own = choice("greedy_divergence", 2, [2.0, 2.5, 2.5, 2.0], [0.25, 0.5, 0.5, 0.25])
    null = choice("greedy_divergence", 2, [3.0, 3.0, 2.5, 2.5], [0.5, 0.5, 1.0, 0.5], "other_document")
    effects = token_effects(pd.concat([own, null]))
    by_loss = of(effects, "loss")
    by_divergence = of(effects, "divergence")
    assert (by_loss["gain"], by_loss["recovered"], by_loss["null_recovered"]) == (1.0, 0.75, 0.25)
    assert (by_loss["excess"], by_loss["share"]) == (0.5, 0.5)
    assert (by_divergence["gain"], by_divergence["recovered"]) == (1.0, 0.625)
    assert (by_divergence["null_recovered"], by_divergence["excess"]) == (0.375, 0.25)
    # Excesses of the documents by the divergence: 1/8 and 3/8.
    assert by_divergence["excess_high"] == pytest.approx(0.25 + 12.7062 / 8)
    assert by_loss["effect"] == by_loss["excess"]


def test_within_a_background_its_loss_is_the_baseline() -> None:
    """The swapped context loses another nat: 4, of which the tokens recover 1.5 and others' 0."""
    swap = {"swapped_loss": 4.0, "swapped_divergence": 1.5}
    own = choice("add_one_in_divergence", 1, [2.5] * 4, [0.5] * 4, **swap)
    null = choice("add_one_in_divergence", 1, [4.0] * 4, [1.5] * 4, "other_document", **swap)
    effects = token_effects(pd.concat([own, null]))
    by_loss = of(effects, "loss")
    by_divergence = of(effects, "divergence")
    assert (by_loss["gain"], by_loss["recovered"], by_loss["null_recovered"]) == (2.0, 1.5, 0.0)
    assert (by_loss["share"], by_divergence["gain"], by_divergence["excess"]) == (0.75, 1.5, 1.0)
