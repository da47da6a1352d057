"""What a larger model has beyond a smaller one: paired by target, against the planted truth and by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_results import LONG_MODELS, SELECTION_BONUS, Truth, write_results

from analysis.gap.scale import changes_with_scale, compared_models
from pipeline.results.read import read_artefact
from pipeline.results.statistics import ratio_of_sums

DOCUMENTS_OF_LARGER = 21


@pytest.fixture(scope="module")
def truths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth, Truth]:
    """A smaller size, a larger one with fewer documents, and the larger at an earlier step."""
    folder = tmp_path_factory.mktemp("scales")
    smaller = write_results(folder / "small", models=LONG_MODELS, scale=(1_000_000, 400))
    larger = write_results(folder / "large", DOCUMENTS_OF_LARGER, 1, LONG_MODELS, scale=(3_000_000, 400))
    write_results(folder / "early", seed=2, models=LONG_MODELS, scale=(3_000_000, 100))
    return folder, smaller, larger


@pytest.fixture(scope="module")
def changes(truths: tuple[Path, Truth, Truth]) -> pd.DataFrame:
    folder = truths[0]
    return changes_with_scale(compared_models([folder / name for name in ("early", "large", "small")]))


def test_only_the_last_steps_and_the_targets_of_both_are_compared(changes: pd.DataFrame) -> None:
    assert set(changes["smaller"]) == {1_000_000}
    assert set(changes["larger"]) == {3_000_000}
    assert set(changes["num_documents"]) == {DOCUMENTS_OF_LARGER}
    assert set(changes["num_targets"]) == {16 * DOCUMENTS_OF_LARGER}
    assert list(changes["what"][:2]) == ["long_context_loss", "loss_difference"]
    assert set(changes["rule"][2:]) == {"nearest", "random"}  # the others need a null, or another judge


def test_a_changed_gain_is_the_mean_of_the_differences_of_targets(
    changes: pd.DataFrame, truths: tuple[Path, Truth, Truth]
) -> None:
    folder, _, larger = truths
    gains = [
        read_artefact(folder / name, "loss_differences", None, {"model": ["long-seed0"]})
        .set_index(["document_id", "target_position"])["loss_difference"]
        .astype("float64")
        for name in ("small", "large")
    ]
    differences = (gains[1] - gains[0]).dropna().groupby("document_id").sum().to_numpy()
    expected = ratio_of_sums(differences, np.full(len(differences), 16.0))
    (row,) = changes[changes["what"] == "loss_difference"].to_dict("records")
    found = [row[f"difference{end}"] for end in ("", "_low", "_high")]
    assert found == pytest.approx([expected.estimate, expected.low, expected.high], abs=1e-9)
    assert row["of_larger"] == pytest.approx(larger.targets["gain"].mean(), abs=1e-4)


def test_a_changed_share_is_the_planted_one(changes: pd.DataFrame, truths: tuple[Path, Truth, Truth]) -> None:
    rows = changes[changes["what"] == "share"].set_index(["rule", "k"])
    documents = set(truths[2].targets["document_id"])
    for rule, k in (("nearest", 16), ("random", 2)):
        shares = []
        for truth in truths[1:]:
            is_common = truth.targets["document_id"].isin(documents)
            carried = truth.recovered_gain(rule, k) + SELECTION_BONUS[rule] * np.log2(k + 1)
            shares.append(carried[is_common].sum() / truth.targets["gain"][is_common].sum())
        row = rows.loc[(rule, k)]
        assert [row["of_smaller"], row["of_larger"]] == pytest.approx(shares, abs=0.01)
        assert row["difference"] == pytest.approx(row["of_larger"] - row["of_smaller"], abs=1e-12)
        assert row["difference_low"] < row["difference"] < row["difference_high"]


def test_one_size_has_nothing_to_be_compared_with(truths: tuple[Path, Truth, Truth]) -> None:
    assert changes_with_scale(compared_models([truths[0] / "large", truths[0] / "early"])).empty


def test_changes_of_some_targets_are_of_these_alone(truths: tuple[Path, Truth, Truth]) -> None:
    folder, smaller, larger = truths
    compared = compared_models([folder / name for name in ("large", "small")])
    chosen = smaller.targets[smaller.targets["target_position"] % 4 == 0]
    rows = changes_with_scale(compared, chosen).set_index(["what", "rule", "k"])
    assert set(rows["num_targets"]) == {4 * DOCUMENTS_OF_LARGER}
    of_both = larger.targets["target_position"] % 4 == 0
    carried = larger.recovered_gain("nearest", 4) + SELECTION_BONUS["nearest"] * np.log2(5)
    share = carried[of_both].sum() / larger.targets["gain"][of_both].sum()
    assert rows.loc[("share", "nearest", 4), "of_larger"] == pytest.approx(share, abs=0.02)
    every = changes_with_scale(compared).set_index(["what", "rule", "k"])
    assert rows.loc[("share", "nearest", 4), "of_larger"] != every.loc[("share", "nearest", 4), "of_larger"]
