"""The theory's tables and figure, on errors whose powers of length and delta are planted."""

import math

import numpy as np
import pandas as pd
import pytest
from legible_figures import assert_legible

from analysis.synthetic import theory_bounds as bound_scaling
from analysis.synthetic import theory_bounds as bound_scaling_figures
from pipeline.results.schemas import SCHEMAS

TRAIN, TEST_LENGTHS, STEPS = 8, (4, 6, 8, 16, 64), (10, 20)


def planted_errors(model: str, growth: float, error_rate: float = 0.0, scale: float = 1e-4) -> pd.DataFrame:
    """Squared error scale (seed + 1) (L̄/L)^growth, halved by the second measured step."""
    rows = [
        {
            "model": model, "seed": seed, "sparsity": 2, "train_context_length": TRAIN, "training_step": step,
            "test_length": test, "error_rate": error_rate if test > TRAIN else 0.0,
            "squared_error": scale * (seed + 1) * (test / TRAIN) ** growth * 10 / step,
        }
        for seed in range(3) for step in STEPS for test in TEST_LENGTHS
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture
def fits() -> pd.DataFrame:
    kept, lost = planted_errors("local-k2", 2.0), planted_errors("uniform_all_keys-k2", 4.0, 0.5)
    return bound_scaling.with_bounds(pd.concat([kept, lost], ignore_index=True))


def test_delta_is_the_mean_over_the_lengths_of_training(fits: pd.DataFrame) -> None:
    row = fits.query("model == 'local-k2' and seed == 1 and training_step == 20 and test_length == 64")
    delta = 1e-4 * np.mean([(4 / 8) ** 2, (6 / 8) ** 2, 1])
    assert row["in_distribution_error"].item() == pytest.approx(delta)
    assert row["improved_bound"].item() == pytest.approx(64 * delta)
    assert row["published_bound"].item() == pytest.approx(8 * 64 * 64 * delta)


def test_the_errors_after_training_with_their_range(fits: pd.DataFrame) -> None:
    by_length = bound_scaling.errors_by_length(fits)
    assert by_length["test_length"].tolist() == [*TEST_LENGTHS, *TEST_LENGTHS]
    longest = by_length.query("model == 'local-k2' and test_length == 64").squeeze()
    shown = longest[["squared_error", "squared_error_low", "squared_error_high"]].tolist()
    assert shown == pytest.approx([64e-4, 32e-4, 96e-4])  # seeds 1, 0 and 2 at step 20


def test_planted_powers_are_found(fits: pd.DataFrame) -> None:
    conditions = bound_scaling.summarize_conditions(fits).set_index("model")
    for model, power in (("local-k2", 2.0), ("uniform_all_keys-k2", 4.0)):
        of_model = conditions.loc[model]
        assert (of_model["num_seeds"], of_model["length_ratio"]) == (3, 8)
        for end in ("", "_low", "_high"):
            assert of_model[f"growth_exponent{end}"] == pytest.approx(power)
            assert of_model[f"delta_exponent{end}"] == pytest.approx(1)
    mean = np.mean([(4 / 8) ** 2, (6 / 8) ** 2, 1])
    assert conditions.loc["local-k2", "error_over_improved_bound"] == pytest.approx(1 / mean)


def test_the_sentences_say_what_was_planted(fits: pd.DataFrame) -> None:
    conditions = bound_scaling.summarize_conditions(fits)
    kept, lost = (bound_scaling.verdict(row) for _, row in conditions.iterrows())
    assert kept == (
        "local-k2: at 8 L the answer is kept: 0.0 [0.0, 0.0] % wrong, squared error 6.4e-03 [3.2e-03,"
        " 9.6e-03], 6.0e-05 [3.0e-05, 9.1e-05] in distribution. From L to there it grows as L̄ to the"
        " 2.00 [2.00, 2.00], and reaches 1.66 [1.66, 1.66] times (L̄/L)² delta; at the end of training it"
        " falls as delta to the 1.00 [1.00, 1.00]."
    )
    assert "neither kept nor lost: 50.0 [50.0, 50.0] % wrong" in lost
    assert "range over 3 seeds" in bound_scaling.what_ranges_mean(conditions)
    assert "probability 75 %" in bound_scaling.what_ranges_mean(conditions)


@pytest.mark.parametrize(
    ("scale", "sentence"), [(0.1, "not learnt in distribution by every seed"), (1e-3, "the answer is lost")]
)
def test_what_was_not_learnt_or_is_lost_is_called_so(scale: float, sentence: str) -> None:
    fits = bound_scaling.with_bounds(planted_errors("uniform_all_keys-k2", 4.0, 0.5, scale))
    verdict = bound_scaling.verdict(bound_scaling.summarize_conditions(fits).iloc[0])
    assert sentence in verdict and "grows" not in verdict


@pytest.mark.parametrize("num_seeds", [3, 6])
def test_the_range_of_seeds_covers_the_median_as_often_as_it_says(num_seeds: int) -> None:
    draws = np.random.default_rng(0).lognormal(size=(4000, num_seeds))  # its median is 1
    covered = np.mean(
        [
            interval.low <= 1 <= interval.high
            for interval in (bound_scaling.range_over_seeds(pd.Series(row)) for row in draws)
        ]
    )
    expected = bound_scaling.coverage_of_range(num_seeds)
    assert abs(covered - expected) < 5 * math.sqrt(expected * (1 - expected) / 4000)


def lengths_of(error_rates: dict[str, float]) -> pd.DataFrame:
    """The errors by length of these conditions, each with its rate of wrong answers beyond training."""
    errors = [planted_errors(f"{name}-k2", 2.0, rate) for name, rate in error_rates.items()]
    return bound_scaling.errors_by_length(bound_scaling.with_bounds(pd.concat(errors, ignore_index=True)))


THREE_CASES = {"local": 0.0, "halves_coupled": 0.0, "halves_trained_keys": 0.5}


def test_the_figure_draws_the_table() -> None:
    by_length = lengths_of(THREE_CASES)
    figure = bound_scaling_figures.bound_scaling_figure(by_length, "3 seeds", 500)
    rate_ax, error_ax = figure.axes
    drawn = by_length[by_length["model"] == "local-k2"]
    assert list(error_ax.lines[0].get_ydata()) == drawn["squared_error"].tolist()
    bound = error_ax.lines[3]
    assert list(bound.get_xdata()) == [8, 16, 64]
    assert list(bound.get_ydata()) == drawn["improved_bound"].tolist()[2:]
    assert [max(line.get_ydata()) for line in rate_ax.lines[:3]] == [0, 0, 0.5]
    assert_legible(figure)


@pytest.mark.parametrize(
    ("error_rates", "title"),
    [
        (
            THREE_CASES,
            "At 8 times the training length answers hold for deciding tokens close together, or far apart but"
            " coupled; far apart and uncoupled, 50 % are wrong",
        ),
        (dict.fromkeys(THREE_CASES, 0.5), "Wrong answers and squared error beyond the training lengths"),
        (dict.fromkeys(THREE_CASES, 0.0), "Wrong answers and squared error beyond the training lengths"),
        (
            {"uniform_all_keys": 0.4, "other": 0.0},
            "At 8 times the training length answers hold for deciding tokens other; uniform all keys, 40 %"
            " are wrong",
        ),
    ],
)
def test_the_title_says_which_cases_hold(error_rates: dict[str, float], title: str) -> None:
    assert bound_scaling_figures.bound_scaling_title(lengths_of(error_rates)) == title


def test_the_figure_of_every_k_draws_the_tables_and_says_where_answers_hold() -> None:
    kept_at_1 = dict.fromkeys(THREE_CASES, 0.0)
    by_length_of = {1: lengths_of(kept_at_1), 2: lengths_of(THREE_CASES), 3: lengths_of(THREE_CASES)}
    figure = bound_scaling_figures.by_sparsity_figure(by_length_of, "3 to 6 seeds", 500)
    assert [ax.get_title() for ax in figure.axes[:3]] == ["k = 1", "k = 2", "k = 3"]
    uncoupled = [max(ax.lines[2].get_ydata()) for ax in figure.axes[:3]]
    assert uncoupled == [0, 0.5, 0.5]
    drawn = by_length_of[2].query("model == 'local-k2'")["squared_error"].tolist()
    assert list(figure.axes[4].lines[0].get_ydata()) == drawn
    assert len({ax.get_ylim() for ax in figure.axes[3:]}) == 1
    assert bound_scaling_figures.by_sparsity_title(by_length_of) == (
        "At 8 times the training length answers hold for deciding tokens close together, or far apart but"
        " coupled, at every k up to 3; far apart and uncoupled, at k = 1 only"
    )
    never = {2: lengths_of({"local": 0.5})}
    assert bound_scaling_figures.by_sparsity_title(never).endswith("close together, at no k")
    assert_legible(figure)


def test_fits_and_seeds_that_are_left_out_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    errors = planted_errors("local-k2", 2.0)
    bound_scaling.summarize_conditions(bound_scaling.with_bounds(errors))
    assert caplog.messages == []
    is_trained = errors["test_length"] <= TRAIN
    fits = bound_scaling.with_bounds(errors[~(is_trained & (errors["seed"] == 2))])
    assert set(fits["seed"]) == {0, 1}
    assert caplog.messages == [
        "fits with and without a length of training: 2 of 6 are not in both tables and left out"
    ]
    caplog.clear()
    is_early = (errors["seed"] == 2) & (errors["training_step"] == STEPS[0])
    bound_scaling.summarize_conditions(bound_scaling.with_bounds(errors[~is_early]))
    assert caplog.messages == [
        "seeds measured at every length and step: 1 of 3 are not in both tables and left out"
    ]


def test_the_tables_need_only_columns_of_the_artefact() -> None:
    columns = set(planted_errors("m-k2", 2.0)) - {"model"}
    assert columns <= set(SCHEMAS["sparse_functional_attention"].names)
