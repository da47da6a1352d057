"""Generalization gaps, drawn and expected, and k* by class and bin: planted truth and sums by hand."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic_results import CENSORED_K, KS, MEAN_GAP, NO_GAIN_K, SHORT_MODELS, Truth

from analysis.gap import gaps, slopes
from analysis.read import TARGET

NAMES = {**{k: str(k) for k in KS}, CENSORED_K: "more than 16", NO_GAIN_K: "no gain"}


def by_sparsity(losses: pd.DataFrame, sparsity: pd.DataFrame, **changes: Any) -> pd.DataFrame:
    settings = {"short_models": SHORT_MODELS, "reference_model": "long-seed1", "studied_ks": KS}
    of_model = sparsity[sparsity["model"] == "long-seed0"]
    return gaps.generalization_gap_by_sparsity(losses, of_model, **(settings | changes))


def test_planted_gaps(
    loss_differences: pd.DataFrame, dependency_sparsity: pd.DataFrame, truth: Truth
) -> None:
    table = by_sparsity(loss_differences, dependency_sparsity)
    assert list(table["category"].unique()) == list(NAMES.values())
    counts = truth.targets["needed_k"].map(NAMES).value_counts()
    needed_k = {name: k for k, name in NAMES.items()}
    for row in table.to_dict("records"):
        expected = MEAN_GAP[row["model"]] * np.log2(needed_k[row["category"]] + 1)
        assert row["generalization_gap"] == pytest.approx(expected, abs=0.015), row["category"]
        assert row["num_targets"] == counts[row["category"]]
    without = dependency_sparsity[dependency_sparsity["dependency_sparsity"] != 4]
    row = by_sparsity(loss_differences, without, short_models=["short-pose"]).set_index("category").loc["4"]
    assert row["num_targets"] == 0 and np.isnan(row["generalization_gap"])  # it keeps its place


def rows(model: str, losses: list[float], divergences: list[float | None]) -> pd.DataFrame:
    num_targets = len(losses)
    return pd.DataFrame(
        {
            "model": model, "document_id": [f"d{index // 2}" for index in range(num_targets)],
            "chunk_index": 0, "target_position": range(num_targets), "long_context_loss": losses,
            "reference_divergence": divergences,
        }
    )  # fmt: skip


def test_expected_gaps_by_hand() -> None:
    by_hand = pd.concat(
        [
            rows("ref", [1.0] * 4, [0.0] * 4),
            rows("seed", [1.0, 1.0, 2.0, 2.0], [0.125, 0.125, 0.25, 0.5]),
            rows("short", [2.0, 2.0, 2.0, 4.0], [1.125, 0.125, 0.5, 1.0]),
            rows("old", [2.0] * 4, [None] * 4),
        ]
    )
    # The floor is a long seed that is not the reference.
    assert gaps.floor_models(by_hand, ["ref", "seed", "old", "nobody"]) == ["seed"]
    assert gaps.floor_models(by_hand.drop(columns="reference_divergence"), ["seed"]) == []
    found = gaps.expected_gaps(by_hand, short_models=["short", "old"], floor_model="seed")
    assert set(found["model"]) == {"short"}
    assert found["expected_gap"].tolist() == [1.0, 0.0, 0.25, 0.5]
    assert found["generalization_gap"].tolist() == [1.0, 1.0, 0.0, 2.0]
    (row,) = slopes.mean_gaps(found).to_dict("records")
    assert (row["num_targets"], row["num_documents"]) == (4, 2)
    assert (row["expected_gap"], row["generalization_gap"], row["floor_divergence"]) == (0.4375, 1.0, 0.25)
    # Documents of 1/2 and 3/8 nats: an error of 1/16, times t at one degree of freedom.
    assert row["expected_gap_high"] == pytest.approx(0.4375 + 12.7062 / 16)


def test_drawn_from_the_reference_the_gaps_agree() -> None:
    """KL(ref || short) - KL(ref || seed) is the mean over x ~ ref of ln p_seed(x) - ln p_short(x)."""
    generator = np.random.default_rng(1)
    log_p = {name: np.log(generator.dirichlet(np.ones(6))) for name in ("ref", "seed", "short")}
    answers = generator.choice(6, size=6000, p=np.exp(log_p["ref"]))
    tables = []
    for name, of_model in log_p.items():
        divergence = float(np.exp(log_p["ref"]) @ (log_p["ref"] - of_model))
        tables.append(rows(name, (-of_model[answers]).tolist(), [divergence] * 6000))
    found = gaps.expected_gaps(pd.concat(tables), short_models=["short"], floor_model="seed")
    assert len(found.drop_duplicates(TARGET)) == 6000
    (row,) = slopes.mean_gaps(found).to_dict("records")
    assert row["generalization_gap_low"] <= row["expected_gap"] <= row["generalization_gap_high"]
    assert row["generalization_gap_high"] - row["generalization_gap_low"] < 0.2


@pytest.fixture(scope="module")
def measured(dependency_sparsity: pd.DataFrame) -> pd.DataFrame:
    of_model = dependency_sparsity[dependency_sparsity["model"] == "long-seed0"]
    return of_model.rename(columns={"rule": "measure"})


def test_every_target_is_counted_once(measured: pd.DataFrame, truth: Truth) -> None:
    table = gaps.sparsity_distribution(measured, KS).set_index("category")
    planted = truth.targets["needed_k"].map(NAMES).value_counts(normalize=True)
    assert table["share"].to_dict() == pytest.approx(planted.reindex(table.index).to_dict())
    assert (table["num_targets"] == 384).all()


def test_shares_of_gaining_targets_rise(measured: pd.DataFrame, truth: Truth) -> None:
    table = gaps.shares_of_gaining_targets(measured, KS).set_index("k")
    needed = truth.targets.loc[truth.targets["needed_k"] > 0, "needed_k"]
    assert table["share"].to_dict() == pytest.approx({k: (needed <= k).mean() for k in KS})
    assert set(table["num_targets"]) == {len(needed)}
    nothing = measured.assign(dependency_sparsity=np.nan, is_censored=False)
    assert gaps.shares_of_gaining_targets(nothing, [1, 16]).empty
