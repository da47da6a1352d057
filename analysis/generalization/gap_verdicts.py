"""What the regressions of the gap on sparsity say, in sentences that are read off their tables."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.generalization.gap_slopes import ALL_CONTROLS, NO_CONTROLS, RANDOM_EFFECTS, WITH_GAIN
from analysis.generalization.sparsity_measures import AMONG_REACHED
from pipeline.results.bootstrap import Interval

Row = Mapping[Hashable, Any]


def direction(row: Row) -> str:
    """What the interval of a slope says of the gap: it rises with k*, falls, or neither clearly."""
    if row["slope_low"] > 0:
        return "rises"
    return "falls" if row["slope_high"] < 0 else "not clear"


def slope_sentences(slopes: pd.DataFrame, tests: pd.DataFrame) -> list[str]:
    """A sentence a short model and measure, of targets that have a k*; then one a model on all readings.

    Args:
        slopes: `gap_slopes.gap_slopes`.
        tests: `gap_slopes.permutation_tests`, of the same targets and measures.
    """
    keys = ["model", "measure", "coding"]
    p_value = tests.set_index(keys)["p_value"].to_dict()
    sentences = []
    for (model, measure), rows in slopes[slopes["coding"] == AMONG_REACHED].groupby(keys[:2], sort=False):
        of = {row["adjustment"]: row for row in rows.to_dict("records")}
        sentences.append(
            f"{model}, k* by {measure} (n = {of[NO_CONTROLS]['num_targets']:,}): a doubling of k* changes the"
            f" gap by {_slope(of[NO_CONTROLS])} without controls, {_slope(of[ALL_CONTROLS])} with them,"
            f" {_slope(of[WITH_GAIN])} with the gain held constant too, and {_slope(of[RANDOM_EFFECTS])} with"
            " document effects and without the gain; permutation"
            f" p = {p_value[model, measure, AMONG_REACHED]:.4f}."
        )
    sentences += [_count_of_readings(str(model), rows) for model, rows in slopes.groupby("model", sort=False)]
    return sentences


def expected_slope_sentences(slopes: pd.DataFrame) -> list[str]:
    """A sentence a short model: the slope of the expected gap, of targets that have a k*.

    Args:
        slopes: `gap_slopes.gap_slopes` of `gap_slopes.of_expected_gap`, one measure.
    """
    among = slopes[slopes["coding"] == AMONG_REACHED]
    sentences = []
    for (model, measure), rows in among.groupby(["model", "measure"], sort=False):
        of = {row["adjustment"]: row for row in rows.to_dict("records")}
        sentences.append(
            f"{model}, k* by {measure} (n = {of[NO_CONTROLS]['num_targets']:,}): a doubling of k* changes the"
            f" expected gap by {_slope(of[NO_CONTROLS])} without controls,"
            f" {_slope(of[ALL_CONTROLS])} with them and {_slope(of[WITH_GAIN])} with the gain held constant."
        )
    return sentences


def _slope(row: Row) -> str:
    if pd.isna(row["slope_low"]):
        return "an amount that cannot be estimated"
    interval = Interval(row["slope"], row["slope_low"], row["slope_high"])
    return f"{interval} nats ({direction(row)})"


def _count_of_readings(model: str, rows: pd.DataFrame) -> str:
    """How many readings of k*, a measure and a coding each, agree."""
    parts = []
    for adjustment in (NO_CONTROLS, ALL_CONTROLS, WITH_GAIN):
        directions = [direction(row) for row in rows[rows["adjustment"] == adjustment].to_dict("records")]
        parts.append(
            f"the gap clearly rises with k* in {directions.count('rises')} and falls in"
            f" {directions.count('falls')} ({adjustment})"
        )
    num_readings = len(rows[["measure", "coding"]].drop_duplicates())
    return f"{model}, of {num_readings} readings of k*: {'; '.join(parts)}."


_DIRECTIONS = {"rises": "rises", "falls": "falls", "not clear": "neither rises nor falls steadily"}


def gap_title(slopes: pd.DataFrame, expected: pd.DataFrame | None = None) -> str:
    """Whether the gap changes with k*, and whether it still does with the gain held constant.

    Args:
        slopes: `gap_slopes.gap_slopes`, one measure and coding, one or more models.
        expected: the rows with the gain held constant of the expected gap, which is the less noisy one.
    """
    if slopes["slope_low"].isna().any():
        return "The gap by k*: too few targets to say whether it rises"
    without, with_gain = (
        _common_direction(slopes[slopes["adjustment"] == adjustment])
        for adjustment in (NO_CONTROLS, WITH_GAIN)
    )
    if expected is not None and expected["slope_low"].notna().all():
        with_gain = _common_direction(expected)
        return f"The gap {without} with k*; with the gain held constant the expected gap {with_gain}"
    if without == with_gain:
        return f"The gap {without} with k*, with or without the gain held constant"
    return f"The gap {without} with k*; with the gain held constant it {with_gain}"


def _common_direction(rows: pd.DataFrame) -> str:
    found = [direction(row) for row in rows.to_dict("records")]
    if len(set(found)) == 1:
        return _DIRECTIONS[found[0]]
    clear = [name for name in ("rises", "falls") if name in found]
    return f"{' and '.join(f'{name} for {found.count(name)}' for name in clear)} of {len(found)} models"


def slopes_title(slopes: pd.DataFrame) -> str:
    """How many slopes rise and fall clearly, with nothing held constant, and with the gain too.

    Args:
        slopes: `gap_slopes.gap_slopes`.
    """
    found = {
        adjustment: [direction(row) for row in slopes[slopes["adjustment"] == adjustment].to_dict("records")]
        for adjustment in (NO_CONTROLS, WITH_GAIN)
    }
    without, with_gain = found[NO_CONTROLS], found[WITH_GAIN]
    return (
        f"The gap rises with k* in {_number(without, 'rises')} of {len(without)} readings; with the gain held"
        f" constant it rises in {_number(with_gain, 'rises')} and falls in {_number(with_gain, 'falls')}"
    )


def _number(found: Sequence[str], name: str) -> str:
    return str(found.count(name) or "none")
