"""The theory's tables and figure, on errors whose powers of length and delta are planted."""

import numpy as np
import pandas as pd
import pytest
from legible_figures import assert_legible

from analysis.synthetic import theory_bounds

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
    return theory_bounds.with_bounds(pd.concat([kept, lost], ignore_index=True))


def test_delta_is_the_mean_over_the_lengths_of_training(fits: pd.DataFrame) -> None:
    row = fits.query("model == 'local-k2' and seed == 1 and training_step == 20 and test_length == 64")
    delta = 1e-4 * np.mean([(4 / 8) ** 2, (6 / 8) ** 2, 1])
    assert row["in_distribution_error"].item() == pytest.approx(delta)
    assert row["improved_bound"].item() == pytest.approx(64 * delta)
    assert row["published_bound"].item() == pytest.approx(8 * 64 * 64 * delta)


def test_planted_powers_are_found(fits: pd.DataFrame) -> None:
    conditions = theory_bounds.summarize_conditions(fits).set_index("model")
    for model, power in (("local-k2", 2.0), ("uniform_all_keys-k2", 4.0)):
        of_model = conditions.loc[model]
        assert (of_model["num_seeds"], of_model["length_ratio"]) == (3, 8)
        for end in ("", "_low", "_high"):
            assert of_model[f"growth_exponent{end}"] == pytest.approx(power)
            assert of_model[f"delta_exponent{end}"] == pytest.approx(1)
    mean = np.mean([(4 / 8) ** 2, (6 / 8) ** 2, 1])
    assert conditions.loc["local-k2", "error_over_improved_bound"] == pytest.approx(1 / mean)


def lengths_of(error_rates: dict[str, float]) -> pd.DataFrame:
    """The errors by length of these conditions, each with its rate of wrong answers beyond training."""
    errors = [planted_errors(f"{name}-k2", 2.0, rate) for name, rate in error_rates.items()]
    return theory_bounds.errors_by_length(theory_bounds.with_bounds(pd.concat(errors, ignore_index=True)))


THREE_CASES = {"local": 0.0, "halves_coupled": 0.0, "halves_trained_keys": 0.5}


def test_the_figure_of_every_k_draws_the_tables() -> None:
    kept_at_1 = dict.fromkeys(THREE_CASES, 0.0)
    by_length_of = {1: lengths_of(kept_at_1), 2: lengths_of(THREE_CASES), 3: lengths_of(THREE_CASES)}
    figure = theory_bounds.bounds_figure(by_length_of, "3 to 6 seeds", 500)
    assert [ax.get_title() for ax in figure.axes[:3]] == ["k = 1", "k = 2", "k = 3"]
    uncoupled = [max(ax.lines[2].get_ydata()) for ax in figure.axes[:3]]
    assert uncoupled == [0, 0.5, 0.5]
    drawn = by_length_of[2].query("model == 'local-k2'")
    assert list(figure.axes[4].lines[0].get_ydata()) == drawn["squared_error"].tolist()
    bound = figure.axes[4].lines[3]
    assert list(bound.get_xdata()) == [8, 16, 64]
    assert list(bound.get_ydata()) == drawn["improved_bound"].tolist()[2:]
    assert len({ax.get_ylim() for ax in figure.axes[3:]}) == 1
    title = " ".join(figure.texts[0].get_text().split())
    assert title.endswith("only where the deciding tokens are far apart and uncoupled, at k = 2 and 3")
    assert_legible(figure)
    figure = theory_bounds.bounds_figure({1: by_length_of[1]}, "3 seeds", 500)
    assert figure.texts[0].get_text() == "At 8 times the training length answers hold in every case"
