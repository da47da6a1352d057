"""Slopes and tests of the gap against what was planted, confounders included."""

import numpy as np
import pandas as pd
import pytest
from synthetic_results import KS, MEAN_GAP, SHORT_MODELS

from analysis.gap import slopes as gap_slopes
from analysis.gap.gaps import ALL_TARGETS, AMONG_REACHED, CODINGS
from analysis.read import TARGET
from pipeline.cli import InputError

COUNTS = np.array([1, 2, 4, 8, 16, 32, 64])  # of the seven token IDs of the synthetic results


@pytest.fixture(scope="module")
def targets(loss_differences: pd.DataFrame) -> pd.DataFrame:
    return gap_slopes.gap_targets(
        loss_differences, short_models=SHORT_MODELS, reference_model="long-seed1",
        difficulty_model="long-seed1", gain_model="long-seed0", token_counts_V=COUNTS,
    )  # fmt: skip


@pytest.fixture(scope="module")
def measured(dependency_sparsity: pd.DataFrame) -> pd.DataFrame:
    rows = dependency_sparsity[dependency_sparsity["model"] == "long-seed0"]
    return rows.rename(columns={"rule": "measure"}).astype({"dependency_sparsity": "float64"})


@pytest.fixture(scope="module")
def slopes(targets: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    return gap_slopes.gap_slopes(targets, measured, KS[-1])


@pytest.fixture(scope="module")
def tests(targets: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    return gap_slopes.permutation_tests(targets, measured, KS[-1])


def test_controls_are_those_of_the_target(targets: pd.DataFrame) -> None:
    row = targets[targets["target_position"] == 243].iloc[0]
    assert row["log_token_count"] == np.log(COUNTS[243 % 7] + 1)
    assert row["num_long_context_tokens"] == 243


def test_every_estimate_finds_the_planted_slope(slopes: pd.DataFrame) -> None:
    # The gap was planted as so much a doubling of k* + 1, censored targets and those without a gain too.
    chosen = slopes[slopes["coding"] == ALL_TARGETS]
    assert len(chosen) == 2 * 4
    for row in chosen.to_dict("records"):
        assert row["slope"] == pytest.approx(MEAN_GAP[row["model"]], abs=0.002), row["adjustment"]
        assert row["slope_low"] < row["slope"] < row["slope_high"]
        assert (row["num_targets"], row["num_documents"]) == (384, 24)


def test_the_planted_effect_is_no_chance(tests: pd.DataFrame) -> None:
    assert len(tests) == 2 * len(CODINGS)
    assert (tests["p_value"] == 1 / 2000).all()


def test_a_slope_that_is_only_a_confounder_goes(targets: pd.DataFrame, measured: pd.DataFrame) -> None:
    """Targets that need more are harder, or gain more, and the gap is of that alone."""
    of_k = measured[[*TARGET, "dependency_sparsity"]]
    one = targets[targets["model"] == "short-pose"].merge(of_k, on=TARGET)
    for confounder, without, held in (
        ("short_context_loss", gap_slopes.NO_CONTROLS, gap_slopes.ALL_CONTROLS),
        ("loss_difference", gap_slopes.ALL_CONTROLS, gap_slopes.WITH_GAIN),
    ):
        generator = np.random.default_rng(0)
        values = np.log2(one["dependency_sparsity"].fillna(1)) + generator.normal(size=len(one))
        gap = 0.3 * values + 0.05 * generator.normal(size=len(one))
        confounded = one.assign(**{confounder: values + 5, "generalization_gap": gap})
        found = gap_slopes.gap_slopes(confounded, measured, KS[-1])
        found = found[found["coding"] == AMONG_REACHED].set_index("adjustment")
        assert found.loc[without, "slope_low"] > 0.2, confounder
        assert found.loc[held, "slope"] == pytest.approx(0, abs=0.02), confounder


def test_without_token_counts_frequency_is_no_control(loss_differences: pd.DataFrame) -> None:
    models = dict.fromkeys(("reference_model", "difficulty_model", "gain_model"), "long-seed1")
    settings = {"short_models": ["short-pose"], **models}
    targets = gap_slopes.gap_targets(loss_differences, **settings, token_counts_V=None)
    assert gap_slopes.FREQUENCY not in targets
    with pytest.raises(InputError, match="token ID 6, and the tokens counted are 3"):
        gap_slopes.gap_targets(loss_differences, **settings, token_counts_V=COUNTS[:3])


def test_targets_measured_elsewhere_are_refused(targets: pd.DataFrame, measured: pd.DataFrame) -> None:
    elsewhere = measured.assign(target_position=measured["target_position"] + 1000)
    with pytest.raises(InputError, match="no target is common"):
        gap_slopes.gap_slopes(targets, elsewhere, KS[-1])


def test_the_expected_gap_in_its_place(
    targets: pd.DataFrame, measured: pd.DataFrame, slopes: pd.DataFrame
) -> None:
    expected = targets.assign(expected_gap=3 * targets["generalization_gap"], floor_divergence=0.0)
    tripled = gap_slopes.expected_gap_slopes(targets, expected, measured, KS[-1])
    np.testing.assert_allclose(tripled["slope"], 3 * slopes["slope"], rtol=1e-9)
    # The drawn gap rises by a third for each nat of the expected one, of all targets and models.
    np.testing.assert_allclose(tripled["calibration_slope"], 1 / 3, rtol=1e-9)
    fewer = gap_slopes.expected_gap_slopes(targets, expected.iloc[:-5], measured, KS[-1])  # 5 not compared
    assert fewer["num_targets"].sum() < tripled["num_targets"].sum()


def test_few_and_many_by_hand() -> None:
    documents = [f"d{index // 2}" for index in range(24)]
    of_target = {"model": "m", "document_id": documents, "chunk_index": 0, "target_position": range(24)}
    targets = pd.DataFrame(
        of_target | {"generalization_gap": [3.0, 1.0] * 12, "loss_difference": [6.0, 4.0] * 12}
    )
    k_star = {"dependency_sparsity": [2.0, np.nan] * 12, "is_censored": [False, True] * 12}
    measured = pd.DataFrame(of_target).assign(**k_star)
    # Of the last two targets nothing is gained: they are neither.
    measured.loc[22:, ["dependency_sparsity", "is_censored"]] = [np.nan, False]
    (row,) = gap_slopes.few_and_many(targets, measured.astype({"is_censored": bool})).to_dict("records")
    assert (row["num_few"], row["num_many"]) == (11, 11)
    assert row["few_less_many"] == pytest.approx(2.0)
    assert (row["few_share"], row["many_share"]) == (0.5, 0.25)


def test_of_a_single_target_nothing_can_be_permuted(targets: pd.DataFrame, measured: pd.DataFrame) -> None:
    alone = measured[measured["dependency_sparsity"].notna()].head(1)
    tests = gap_slopes.permutation_tests(targets, alone, KS[-1])
    assert set(tests["num_targets"]) == {1} and tests["p_value"].isna().all()
