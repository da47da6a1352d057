"""Slopes and tests of the gap against what was planted, confounders included; their sentences and figures."""

from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from synthetic_results import KS, MEAN_GAP, SHORT_MODELS

from analysis import drawing as figures
from analysis.drawing import TRAINED_CONTIGUOUS, TRAINED_POSE, Role
from analysis.gap import slopes as gap_figures
from analysis.gap import slopes as gap_slopes
from analysis.gap import slopes as gap_verdicts
from analysis.gap.sparsity import ALL_TARGETS, AMONG_REACHED, CODINGS
from analysis.read import TARGET
from pipeline.cli import InputError

ROLES = {
    model: Role(model, look, None, 32)
    for model, look in zip(SHORT_MODELS, (TRAINED_CONTIGUOUS, TRAINED_POSE), strict=True)
}
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


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    yield
    plt.close("all")


def test_controls_are_those_of_the_target(targets: pd.DataFrame) -> None:
    row = targets[targets["target_position"] == 243].iloc[0]
    assert row["log_token_count"] == np.log(COUNTS[243 % 7] + 1)
    assert row["num_long_context_tokens"] == 243


def test_every_estimate_finds_the_planted_slope(slopes: pd.DataFrame) -> None:
    # The gap was planted as so much a doubling of k* + 1, censored targets and those without a gain too.
    chosen = slopes[slopes["coding"] == ALL_TARGETS]
    assert len(chosen) == 2 * 5
    for row in chosen.to_dict("records"):
        assert row["slope"] == pytest.approx(MEAN_GAP[row["model"]], abs=0.002), row["adjustment"]
        assert row["slope_low"] < row["slope"] < row["slope_high"]
        assert (row["num_targets"], row["num_documents"]) == (384, 24)


def test_targets_without_a_k_are_left_out_by_one_coding(slopes: pd.DataFrame, measured: pd.DataFrame) -> None:
    reached = slopes.loc[slopes["coding"] == AMONG_REACHED, "num_targets"]
    assert set(reached) == {measured["dependency_sparsity"].notna().sum()}


def test_the_planted_effect_is_no_chance(tests: pd.DataFrame) -> None:
    assert len(tests) == 2 * len(CODINGS)
    assert (tests["p_value"] == 1 / 2000).all()


@pytest.fixture(scope="module")
def confounded(targets: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Targets that need more are harder under the short context, and the gap is of hardness alone."""
    generator = np.random.default_rng(0)
    one = targets[targets["model"] == "short-pose"].merge(
        measured[[*TARGET, "dependency_sparsity"]], on=TARGET
    )
    hardness = np.log2(one["dependency_sparsity"].fillna(1)) + generator.normal(size=len(one))
    gap = 0.3 * hardness + 0.05 * generator.normal(size=len(one))
    return one.assign(short_context_loss=hardness + 5, generalization_gap=gap)


def test_a_slope_that_is_only_hardness_goes_when_hardness_is_held_constant(
    confounded: pd.DataFrame, measured: pd.DataFrame
) -> None:
    slopes = gap_slopes.gap_slopes(confounded, measured, KS[-1])
    slopes = slopes[slopes["coding"] == AMONG_REACHED].set_index("adjustment")
    assert slopes.loc[gap_slopes.NO_CONTROLS, "slope_low"] > 0.2
    for adjustment in (gap_slopes.ALL_CONTROLS, gap_slopes.RANDOM_EFFECTS):
        assert slopes.loc[adjustment, "slope"] == pytest.approx(0, abs=0.02)


def test_a_slope_that_is_only_gain_goes_when_the_gain_is_held_constant(
    targets: pd.DataFrame, measured: pd.DataFrame
) -> None:
    one = targets[targets["model"] == "short-pose"].merge(
        measured[[*TARGET, "dependency_sparsity"]], on=TARGET
    )
    generator = np.random.default_rng(0)
    gain = np.log2(one["dependency_sparsity"].fillna(1)) + generator.normal(size=len(one))
    gap = 0.3 * gain + 0.05 * generator.normal(size=len(one))
    only_gain = one.assign(loss_difference=gain, generalization_gap=gap)
    slopes = gap_slopes.gap_slopes(only_gain, measured, KS[-1])
    slopes = slopes[slopes["coding"] == AMONG_REACHED].set_index("adjustment")
    assert slopes.loc[gap_slopes.ALL_CONTROLS, "slope_low"] > 0.2
    assert slopes.loc[gap_slopes.WITH_GAIN, "slope"] == pytest.approx(0, abs=0.02)


def test_without_token_counts_frequency_is_no_control(loss_differences: pd.DataFrame) -> None:
    settings = {
        "short_models": ["short-pose"],
        "reference_model": "long-seed1",
        "difficulty_model": "long-seed1",
        "gain_model": "long-seed0",
    }
    targets = gap_slopes.gap_targets(loss_differences, **settings, token_counts_V=None)
    assert gap_slopes.FREQUENCY not in targets
    with pytest.raises(InputError, match="token ID 6, and the tokens counted are 3"):
        gap_slopes.gap_targets(loss_differences, **settings, token_counts_V=COUNTS[:3])


def test_targets_measured_elsewhere_are_refused(targets: pd.DataFrame, measured: pd.DataFrame) -> None:
    elsewhere = measured.assign(target_position=measured["target_position"] + 1000)
    with pytest.raises(InputError, match="no target is common"):
        gap_slopes.gap_slopes(targets, elsewhere, KS[-1])


def test_the_sentences_say_what_the_tables_hold(slopes: pd.DataFrame, tests: pd.DataFrame) -> None:
    sentences = gap_verdicts.slope_sentences(slopes, tests)
    assert len(sentences) == 4
    row = slopes[(slopes["model"] == "short-pose") & (slopes["coding"] == AMONG_REACHED)].iloc[0]
    assert (
        f"{row['slope']:.3f} [{row['slope_low']:.3f}, {row['slope_high']:.3f}] nats (rises)" in sentences[1]
    )
    assert sentences[1].startswith("short-pose, k* by leave_one_out (n = ")
    assert "p = 0.0005" in sentences[1]
    assert "the gap clearly rises with k* in 2 and falls in 0 (no controls)" in sentences[3]
    reversed_sentences = gap_verdicts.slope_sentences(
        slopes.assign(
            slope=-slopes["slope"], slope_low=-slopes["slope_high"], slope_high=-slopes["slope_low"]
        ),
        tests,
    )
    assert "rises with k* in 0 and falls in 2 (no controls)" in reversed_sentences[3]
    unknown = gap_verdicts.slope_sentences(slopes.assign(slope_low=np.nan, slope=np.nan), tests)
    assert "cannot be estimated" in unknown[0]


def test_the_expected_gap_takes_the_place_of_the_sampled_one(
    targets: pd.DataFrame, measured: pd.DataFrame, slopes: pd.DataFrame
) -> None:
    drawn = targets.iloc[:-5]  # five were not compared with the reference
    expected = drawn.assign(expected_gap=3 * drawn["generalization_gap"])[["model", *TARGET, "expected_gap"]]
    replaced = gap_slopes.of_expected_gap(targets, expected)
    assert len(replaced) == len(targets) - 5 and list(replaced.columns.sort_values()) == sorted(targets)
    whole = gap_slopes.of_expected_gap(
        targets, targets.assign(expected_gap=3 * targets["generalization_gap"])
    )
    tripled = gap_slopes.gap_slopes(whole, measured, KS[-1])
    np.testing.assert_allclose(tripled["slope"], 3 * slopes["slope"], rtol=1e-9)
    sentence = gap_verdicts.expected_slope_sentences(tripled[tripled["model"] == "short-pose"])
    row = tripled[(tripled["model"] == "short-pose") & (tripled["coding"] == AMONG_REACHED)].iloc[0]
    assert len(sentence) == 1
    assert f"changes the expected gap by {row['slope']:.3f} [{row['slope_low']:.3f}, " in sentence[0]


def test_the_title_tells_the_expected_gap_where_it_was_measured(slopes: pd.DataFrame) -> None:
    among = slopes[slopes["coding"] == AMONG_REACHED]
    held = among[among["adjustment"] == gap_slopes.WITH_GAIN]
    falling = held.assign(slope_low=-0.2, slope_high=-0.1)
    assert gap_verdicts.gap_title(among, falling).endswith(
        "with the gain held constant the expected gap falls"
    )
    few = held.assign(slope_low=np.nan)
    assert gap_verdicts.gap_title(among, few) == gap_verdicts.gap_title(among)


def test_the_figure_shows_every_slope_with_its_interval_and_n(slopes: pd.DataFrame, tmp_path: Path) -> None:
    figure = gap_figures.slopes_figure(slopes, ROLES, "frequency")
    axes = figure.axes
    assert axes[0].get_xlim() == axes[1].get_xlim()
    for ax, adjustment in zip(axes, (gap_slopes.NO_CONTROLS, gap_slopes.WITH_GAIN), strict=True):
        rows = slopes[slopes["adjustment"] == adjustment].set_index(["coding", "model"])
        expected = [rows.loc[(coding, model)] for coding in CODINGS for model in SHORT_MODELS]
        for bar, row in zip(ax.containers, expected, strict=True):
            line, _, (ends,) = bar
            np.testing.assert_allclose(np.asarray(line.get_xdata(), dtype=float), [row["slope"]])
            np.testing.assert_allclose(ends.get_segments()[0][:, 0], [row["slope_low"], row["slope_high"]])
    names = [label.get_text() for label in axes[0].get_yticklabels()]
    assert (names[0], names[3]) == ("Targets that have a k*", "leave one out (384)")
    assert "nats" in axes[0].get_xlabel()
    few = slopes.assign(num_targets=slopes["num_targets"].mask(slopes["coding"] == AMONG_REACHED, 29))
    without = gap_figures.slopes_figure(few, ROLES, "frequency").axes[0]
    assert without.get_yticklabels()[1].get_text() == "leave one out (fewer than 30)"
    assert len(without.containers) == len(axes[0].containers) / 2
    assert {path.suffix for path in figures.save(figure, tmp_path, "slopes")} == {".png", ".pdf"}


def test_of_a_single_target_nothing_can_be_permuted(targets: pd.DataFrame, measured: pd.DataFrame) -> None:
    alone = measured[measured["dependency_sparsity"].notna()].head(1)
    tests = gap_slopes.permutation_tests(targets, alone, KS[-1])
    assert set(tests["num_targets"]) == {1} and tests["p_value"].isna().all()
