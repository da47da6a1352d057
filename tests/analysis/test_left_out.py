"""A target that one of two tables lacks is left out, and every statistic that joins them says how many."""

import logging

import numpy as np
import pandas as pd
import pytest
from synthetic_results import KS, SHORT_MODELS

from analysis.gap import gaps as gain_bins
from analysis.gap import scale as model_scale
from analysis.gap import slopes as gap_slopes
from analysis.gap.gaps import generalization_gaps
from analysis.gap.sparsity import sparsity_beyond_null
from analysis.losses.token_worth import with_recovered_losses
from analysis.read import TARGET, joined_on_common, of_common_groups
from analysis.tokens.kinds import ASPECTS, loss_differences_by_category
from analysis.tokens.places import RELATIONS, relation_shares
from pipeline.results.schemas import OTHER_DOCUMENT, OWN


@pytest.fixture
def measured(dependency_sparsity: pd.DataFrame) -> pd.DataFrame:
    rows = dependency_sparsity.query("model == 'long-seed0' and rule == 'leave_one_out'")
    return rows.rename(columns={"rule": "measure"}).astype({"dependency_sparsity": "float64"})


def without_first(table: pd.DataFrame, num_targets: int) -> pd.DataFrame:
    """`table` without all rows of its first targets."""
    gone = table[TARGET].drop_duplicates().head(num_targets).assign(is_gone=True)
    is_gone = table[TARGET].merge(gone, on=TARGET, how="left")["is_gone"].notna().to_numpy()
    return table[~is_gone]


def num_targets(table: pd.DataFrame) -> int:
    return len(table[TARGET].drop_duplicates())


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


def test_a_table_that_may_know_more_leaves_nothing_out(caplog: pytest.LogCaptureFixture) -> None:
    left, right = pd.DataFrame({"a": [1, 2]}), pd.DataFrame({"a": [2, 3, 4]})
    assert joined_on_common(left, right, ["a"], "x")["a"].tolist() == [2]
    assert joined_on_common(left, right, ["a"], "x", may_right_have_more=True)["a"].tolist() == [2]
    assert said(caplog) == [
        "x: 3 of 4 are not in both tables and left out", "x: 1 of 2 are not in both tables and left out",
    ]  # fmt: skip


def test_what_one_table_did_not_measure_at_all_is_not_left_out(caplog: pytest.LogCaptureFixture) -> None:
    left = pd.DataFrame({"k": [1, 1, 2], "x": [1, 2, 3]})
    both = of_common_groups(left, pd.DataFrame({"k": [1, 4], "x": [1, 1]}), ["k"])
    assert [table["x"].tolist() for table in both] == [[1, 2], [1]]
    assert said(caplog) == []


def test_nothing_is_said_of_tables_of_the_same_targets(
    loss_differences: pd.DataFrame, measured: pd.DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    bins = gain_bins.gain_bins(loss_differences, "long-seed1")
    gain_bins.sparsity_distribution(measured, KS, bins)
    assert said(caplog) == []


def test_bins_of_other_targets(
    loss_differences: pd.DataFrame, measured: pd.DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    bins = without_first(gain_bins.gain_bins(loss_differences, "long-seed1"), 3)
    table = gain_bins.sparsity_distribution(measured, KS, bins)
    of_a_category = table[table["category"] == "no gain"]
    assert of_a_category["num_targets"].sum() == num_targets(measured) - 3
    assert said(caplog) == [
        f"targets with k* and with a bin: 3 of {num_targets(measured):,} are not in both tables and left out"
    ]


def test_the_gap_at_one_size(
    loss_differences: pd.DataFrame, measured: pd.DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    gaps = generalization_gaps(loss_differences, short_models=SHORT_MODELS[:1], reference_model="long-seed1")
    found = ("long-seed0", without_first(measured, 5), list(KS))
    whole = model_scale._dense_minus_sparse(gaps, ("long-seed0", measured, list(KS)), "leave_one_out")
    assert said(caplog) == []
    lacking = model_scale._dense_minus_sparse(gaps, found, "leave_one_out")
    assert lacking != whole
    assert said(caplog) == [
        f"targets of the gap and of k*: 5 of {num_targets(gaps):,} are not in both tables and left out"
    ]


def test_slopes_of_the_gap(
    loss_differences: pd.DataFrame, measured: pd.DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    targets = gap_slopes.gap_targets(
        loss_differences, short_models=SHORT_MODELS, reference_model="long-seed1",
        difficulty_model="long-seed1", gain_model="long-seed0", token_counts_V=None,
    )  # fmt: skip
    gap_slopes.gap_slopes(targets, without_first(measured, 4), KS[-1])
    assert said(caplog) == [
        f"targets of the gap and of k*: 4 of {num_targets(targets):,} are not in both tables and left out"
    ]


def test_targets_of_the_null_alone_and_of_no_null(
    sparse_context_losses: pd.DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    rows = sparse_context_losses.query("model == 'long-seed0' and rule == 'leave_one_out'")
    own, null = (rows[rows["far_context"] == far_context] for far_context in (OWN, OTHER_DOCUMENT))
    num_all = num_targets(rows)
    with_recovered_losses(pd.concat([without_first(own, 2), null]))
    assert said(caplog) == [
        f"targets with k tokens of their own far context: 2 of {num_all:,} are not in both tables and left"
        " out"
    ]
    caplog.clear()
    found = sparsity_beyond_null(
        pd.concat([own, without_first(null, 6)]), recovery_fraction=0.9, minimum_gain=0.1
    )
    assert num_targets(found) == num_all - 6
    num_ks = rows["k"].nunique()
    assert said(caplog) == [
        f"choices of own and null tokens for k*: {6 * num_ks:,} of {num_all * num_ks:,} are not in both"
        " tables and left out"
    ]


def test_targets_without_a_category(loss_differences: pd.DataFrame, caplog: pytest.LogCaptureFixture) -> None:
    targets = loss_differences[TARGET].drop_duplicates()
    labels = targets.assign(**{aspect: names[0] for aspect, names in ASPECTS.items()})
    whole = loss_differences_by_category(loss_differences, labels.assign(part_of_speech=None))
    # An aspect that is null has no rows, and leaves no target out.
    assert "part_of_speech" not in set(whole["aspect"])
    # Nor do the categories of targets that the statistic is not of.
    loss_differences_by_category(without_first(loss_differences, 9), labels)
    assert said(caplog) == []
    table = loss_differences_by_category(loss_differences, without_first(labels, 7))
    assert (table["num_targets"] == len(targets) - 7).all()
    assert said(caplog) == [
        f"targets with a category: 7 of {len(targets):,} are not in both tables and left out"
    ]


def test_targets_whose_far_tokens_are_not_known(caplog: pytest.LogCaptureFixture) -> None:
    places = pd.DataFrame({"document_id": list("aabb"), "chunk_index": 0, "target_position": [8, 9, 8, 9]})
    available = places.assign(far_context=OWN, **dict.fromkeys(RELATIONS, np.float64(0.5)))
    selected = pd.concat(
        places.assign(model=model, rule="nearest", far_context=OWN, rank=1, distance=5, relation=RELATIONS[0])
        for model in "mn"
    )
    table = relation_shares(selected[selected["target_position"] == 8], available, [1, 2])
    assert said(caplog) == []
    table = relation_shares(selected, available[1:], [1, 2])
    assert (table["num_targets"] == 3).all()
    # Once, not for each model, rule and k.
    assert said(caplog) == ["targets and their far tokens: 1 of 4 are not in both tables and left out"]
