"""k* beyond the null and its codings, on targets done by hand and against the planted truth."""

import numpy as np
import pandas as pd
import pytest
from synthetic_results import CENSORED_K, KS, NO_GAIN_K, Truth

from analysis.gap import gaps as measures
from analysis.read import TARGET

SETTINGS = {"recovery_fraction": 0.9, "minimum_gain": 0.1}


def by_hand(own: list[float], null: list[float], gain: float) -> pd.DataFrame:
    """One target: what 1, 2 and 4 tokens recover of a gain, own and null."""
    rows = [
        {"far_context": far_context, "k": k, "sparse_context_loss": 3.0 - recovered}
        for far_context, amounts in (("own", own), ("other_document", null))
        for k, recovered in zip((1, 2, 4), amounts, strict=True)
    ]
    constant = {"model": "m", "rule": "leave_one_out", "document_id": "a", "chunk_index": 0,
                "target_position": 7, "short_context_loss": 3.0, "long_context_loss": 3.0 - gain}  # fmt: skip
    return pd.DataFrame(rows).assign(**constant)


@pytest.mark.parametrize(
    ("own", "null", "gain", "k_star", "is_censored"),
    [
        ([0.9375, 1.0, 1.0], [0.0, 0.0, 0.0], 1.0, 1, False),
        ([0.9375, 1.0, 1.0], [0.5, 0.0625, 0.0], 1.0, 2, False),  # 0.44, then 0.94 beyond the null
        ([0.875, 1.0, 2.0], [0.5, 0.625, 1.0], 1.0, 4, False),
        ([2.0, 2.0, 2.0], [2.0, 2.0, 2.0], 1.0, None, True),  # all of it is selection
        ([0.2, 0.2, 0.2], [0.0, 0.0, 0.0], 0.09, None, False),  # too small a gain to need any
    ],
)
def test_k_beyond_the_null_by_hand(
    own: list[float], null: list[float], gain: float, k_star: int | None, is_censored: bool
) -> None:
    losses = by_hand(own, null, gain)
    (row,) = measures.sparsity_beyond_null(losses, **SETTINGS).to_dict("records")
    found = row["dependency_sparsity"]
    assert (None if np.isnan(found) else found, row["is_censored"]) == (k_star, is_censored)
    assert row["measure"] == "leave_one_out beyond its null"


def test_a_target_without_a_null_is_left_out() -> None:
    losses = by_hand([1.0, 1.0, 1.0], [0.0, 0.0, 0.0], 1.0)
    assert measures.sparsity_beyond_null(losses[losses["far_context"] == "own"], **SETTINGS).empty


def test_readings_of_a_rule_stand_together_and_the_judged_one_is_shown() -> None:
    blind, seeing = "leave_one_out_divergence", "leave_one_out"
    names = [f"{seeing}{measures.BEYOND_NULL}", f"{blind}{measures.JUDGED}", seeing, "nearest", blind]
    ordered = measures.measures_in_order(pd.DataFrame({"measure": names}))
    assert ordered.index(blind) + 1 == ordered.index(f"{blind}{measures.JUDGED}")
    assert ordered.index(seeing) + 1 == ordered.index(f"{seeing}{measures.BEYOND_NULL}")
    assert {measures.rule_of(name) for name in names} == {blind, seeing, "nearest"}
    assert measures.shown_measure(names) == f"{blind}{measures.JUDGED}"
    assert measures.shown_measure(["nearest", blind]) == blind
    words = [measures.measure_text(name) for name in names[:2]]
    assert words == ["leave one out, beyond its null", "leave one out, by divergence, judged by another seed"]


def test_codings_by_hand() -> None:
    measured = pd.DataFrame(
        {"dependency_sparsity": [1.0, 4.0, np.nan, np.nan], "is_censored": [False, False, True, False]}
    )
    reached = measures.coded_sparsity(measured, measures.AMONG_REACHED, largest_k=16)
    np.testing.assert_array_equal(reached, [0, 2, np.nan, np.nan])
    everything = measures.coded_sparsity(measured, measures.ALL_TARGETS, largest_k=16)
    np.testing.assert_allclose(everything, np.log2([2, 5, 33, 1]))


def test_both_measures_find_the_planted_k(
    dependency_sparsity: pd.DataFrame, sparse_context_losses: pd.DataFrame, truth: Truth
) -> None:
    of_model = [
        frame[frame["model"] == "long-seed0"] for frame in (dependency_sparsity, sparse_context_losses)
    ]
    measured = measures.sparsity_measures(*of_model, SETTINGS)
    assert measures.measures_in_order(measured) == ["leave_one_out", "leave_one_out beyond its null"]
    targets = measured.merge(truth.targets[[*TARGET, "needed_k"]], on=TARGET)
    exact = targets[targets["measure"] == "leave_one_out"]
    coded = measures.coded_sparsity(exact, measures.ALL_TARGETS, largest_k=KS[-1])
    np.testing.assert_allclose(coded, np.log2(exact["needed_k"] + 1))
    # The planted selection bonus is the same in the null: taken out, the planted k is left, but for noise.
    beyond = targets[targets["measure"] == "leave_one_out beyond its null"]
    found = beyond["dependency_sparsity"].fillna(0).mask(beyond["is_censored"], CENSORED_K)
    assert (found == beyond["needed_k"]).mean() > 0.8
    assert (found[beyond["needed_k"] == NO_GAIN_K] == 0).all()
