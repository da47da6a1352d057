"""The errors of sparse functional attention beyond its training lengths, beside what the theory bounds.

Words: L the longest training length, L̄ (`test_length`) a test length, delta (`in_distribution_error`) the
mean squared error over the lengths of training, all of one fit after one training step. The bounds are
upper bounds up to constants that our sources do not state; here the constants, and the published bound's
eta (at least 1), are taken as 1. So slopes can be compared with them, and heights cannot.

An interval is the range over seeds. The median over all seeds lies within the range of n of them with
probability 1 - 2^(1-n), whatever the distribution: 75 % for three, 97 % for six.
"""

from collections.abc import Hashable
from typing import Any

import numpy as np
import pandas as pd

from analysis.document_intervals import interval_columns
from analysis.paired_targets import joined_on_common, tell_left_out
from pipeline.results.bootstrap import Interval

FIT = ["model", "seed", "training_step"]
LEARNT, KEPT, LOST = 0.01, 0.01, 0.5
"""Learnt: delta of every seed below this. Kept: error rate of every seed below this at the longest test
length. Lost: median squared error above this there; saying 0 costs 1."""


def range_over_seeds(values: pd.Series) -> Interval:
    """The median with the least and the largest."""
    return Interval(float(values.median()), float(values.min()), float(values.max()))


def coverage_of_range(num_seeds: int) -> float:
    """How surely the range of that many seeds holds the median of all."""
    return 1.0 - 2.0 ** (1 - num_seeds)


def with_bounds(errors: pd.DataFrame) -> pd.DataFrame:
    """The artefact with delta and both bounds in each row.

    Args:
        errors: the artefact `sparse_functional_attention`, any number of models.

    Returns:
        The rows, with in_distribution_error (delta), length_ratio (L̄ / L), improved_bound
        ((L̄ / L)^2 delta) and published_bound (L L̄^2 delta).
    """
    is_trained = errors["test_length"] <= errors["train_context_length"]
    deltas = errors[is_trained].groupby(FIT)["squared_error"].mean().rename("in_distribution_error")
    rows = joined_on_common(errors, deltas.reset_index(), FIT, "fits with and without a length of training")
    train, test, delta = (
        rows[name].astype("float64")
        for name in ("train_context_length", "test_length", "in_distribution_error")
    )
    rows["length_ratio"] = test / train
    rows["improved_bound"] = (test / train) ** 2 * delta
    rows["published_bound"] = train * test**2 * delta
    return rows


def after_training(fits: pd.DataFrame) -> pd.DataFrame:
    """The rows of each fit's last measured step."""
    return fits[fits["training_step"] == fits.groupby("model")["training_step"].transform("max")]


def errors_by_length(fits: pd.DataFrame) -> pd.DataFrame:
    """After training, a row a model and test length.

    Args:
        fits: `with_bounds`.

    Returns:
        model, test_length, length_ratio, then with the range over seeds squared_error and error_rate;
        improved_bound, published_bound (medians).
    """
    rows = []
    for (model, test_length), group in after_training(fits).groupby(["model", "test_length"]):
        medians = group[["length_ratio", "improved_bound", "published_bound"]].median().to_dict()
        ranges = _range_columns(group[["squared_error", "error_rate"]])
        rows.append({"model": model, "test_length": test_length} | medians | ranges)
    return pd.DataFrame(rows)


def summarize_conditions(fits: pd.DataFrame) -> pd.DataFrame:
    """A row a model: its error in distribution and at the longest test length, and how it got there.

    Args:
        fits: `with_bounds`.

    Returns:
        model, num_seeds, length_ratio (of the longest test length), then with the range over seeds
        in_distribution_error, squared_error, error_rate (both at the longest test length), growth_exponent
        (p where the squared error grows as L̄^p from L to there; the improved bound's is 2),
        error_over_improved_bound, and delta_exponent (q where, between the last two measured steps of the
        training, the error there falls as delta^q; the bounds' is 1, and an error near 1 cannot show it).
    """
    rows = []
    for model, of_model in fits.groupby("model"):
        measured = _a_row_a_seed(of_model)
        about = {
            "model": model,
            "num_seeds": len(measured),
            "length_ratio": of_model["length_ratio"].max(),
        }
        rows.append(about | _range_columns(measured))
    return pd.DataFrame(rows)


def _range_columns(values: pd.DataFrame) -> dict[Hashable, Any]:
    columns: dict[Hashable, Any] = {}
    for name in values:
        columns |= interval_columns(str(name), range_over_seeds(values[name]))
    return columns


def _a_row_a_seed(of_model: pd.DataFrame) -> pd.DataFrame:
    """What `summarize_conditions` takes the range of; indexed by seed."""
    last = after_training(of_model)
    at_longest = last[last["test_length"] == last["test_length"].max()].set_index("seed")
    at_training = last[last["length_ratio"] == 1].set_index("seed")
    before_last = after_training(of_model[of_model["training_step"] < last["training_step"].iloc[0]])
    early = before_last[before_last["test_length"] == last["test_length"].max()].set_index("seed")
    _tell_seeds_left_out(*(rows.index for rows in (at_longest, at_training, early) if not rows.empty))
    error, delta = at_longest["squared_error"], at_longest["in_distribution_error"]
    growth = np.log(error / at_training["squared_error"]) / np.log(at_longest["length_ratio"])
    falls = np.log(error / early["squared_error"]) / np.log(delta / early["in_distribution_error"])
    return pd.DataFrame(
        {
            "in_distribution_error": delta,
            "squared_error": error,
            "error_rate": at_longest["error_rate"],
            "growth_exponent": growth,
            "error_over_improved_bound": error / at_longest["improved_bound"],
            "delta_exponent": falls,
        }
    )


def _tell_seeds_left_out(*seeds: pd.Index) -> None:
    """A ratio between two lengths or steps is of the seeds that have both."""
    of_all, of_any = set(seeds[0]).intersection(*seeds), set().union(*seeds)
    tell_left_out(len(of_any) - len(of_all), len(of_any), "seeds measured at every length and step")


def verdict(condition: pd.Series) -> str:
    """A sentence on a row of `summarize_conditions`."""
    name, times = condition["model"], f"{condition['length_ratio']:.0f} L"
    if condition["in_distribution_error_high"] >= LEARNT:
        return (
            f"{name}: not learnt in distribution by every seed (squared error up to"
            f" {condition['in_distribution_error_high']:.2g}), so that longer lengths say little."
        )
    is_lost, is_kept = condition["squared_error"] > LOST, condition["error_rate_high"] < KEPT
    outcome = "lost" if is_lost else "kept" if is_kept else "neither kept nor lost"
    sentence = (
        f"{name}: at {times} the answer is {outcome}: {_percent(condition, 'error_rate')} wrong, squared"
        f" error {_scientific(condition, 'squared_error')},"
        f" {_scientific(condition, 'in_distribution_error')} in distribution."
    )
    return sentence if is_lost else f"{sentence} {_scaling(condition)}"


def _scaling(condition: pd.Series) -> str:
    """Only of errors that are still far below 1, where they stop growing."""
    return (
        f"From L to there it grows as L̄ to the {_plain(condition, 'growth_exponent')}, and reaches"
        f" {_plain(condition, 'error_over_improved_bound')} times (L̄/L)² delta; at the end of training it"
        f" falls as delta to the {_plain(condition, 'delta_exponent')}."
    )


def what_ranges_mean(conditions: pd.DataFrame) -> str:
    """The sentence that goes with every range of `summarize_conditions`."""
    num_seeds = int(conditions["num_seeds"].min())
    return (
        f"In brackets the range over {num_seeds} seeds, which holds the median of all seeds with probability"
        f" {100 * coverage_of_range(num_seeds):.0f} % for each number by itself."
    )


def _scientific(row: pd.Series, name: str) -> str:
    return f"{row[name]:.1e} [{row[f'{name}_low']:.1e}, {row[f'{name}_high']:.1e}]"


def _plain(row: pd.Series, name: str) -> str:
    return f"{row[name]:.2f} [{row[f'{name}_low']:.2f}, {row[f'{name}_high']:.2f}]"


def _percent(row: pd.Series, name: str) -> str:
    return f"{100 * row[name]:.1f} [{100 * row[f'{name}_low']:.1f}, {100 * row[f'{name}_high']:.1f}] %"
