"""Whether expected gains are what they say: mean actual gain of targets that are expected to gain so much.

A divergence KL(p(.|long) || p(.|less)) is the gain that the long context would have over less of it if the
next token were drawn from the model's own prediction; it does not see that token. Over targets expected to
gain so much the mean actual gain is as large if the model is calibrated: actual gains rise with expected
ones by slope 1. Where they do not, divergences are no nats of loss, whatever else they say.
"""

from collections.abc import Hashable

import numpy as np
import pandas as pd

from analysis.gap.slopes import cluster_robust_slope
from analysis.read import interval_columns, interval_over_documents, mean_columns, summarized

EXPECTED_AND_ACTUAL = {
    "short_context_divergence": "loss_difference",
    "foreign_context_divergence": "specific_gain",
}
"""Expected gain -> actual gain, columns of loss_differences: over the short context alone, and over the short
context with another document's far context."""


def measured_expectations(loss_differences: pd.DataFrame) -> list[str]:
    """The expected gains that results have, of those in `EXPECTED_AND_ACTUAL`; earlier results have none."""
    present = loss_differences.columns[loss_differences.notna().any()]
    return [name for name, actual in EXPECTED_AND_ACTUAL.items() if {name, actual} <= set(present)]


def calibration_slopes(loss_differences: pd.DataFrame) -> pd.DataFrame:
    """How actual gains follow expected ones: a row a model and expected gain that results have.

    Returns:
        model, expected (the column's name), num_targets, num_documents, then with intervals expected_gain
        and actual_gain (means, nats), ratio (actual / expected, of sums) and slope (of actual on expected by
        least squares, robust to dependence within documents; NaN for fewer than ten). Both are 1 where the
        model is calibrated; the few targets of large expected gain decide the slope.
    """

    def numbers(targets: pd.DataFrame) -> dict[Hashable, float]:
        expected, actual, documents = (
            targets[name] for name in ("expected_gain", "actual_gain", "document_id")
        )
        slope = cluster_robust_slope(
            actual.to_numpy(), expected.to_numpy(), np.empty((len(targets), 0)), documents.to_numpy()
        )
        return {
            **mean_columns(targets, "expected_gain", "actual_gain"),
            **interval_columns("ratio", interval_over_documents(documents, actual, expected)),
            **interval_columns("slope", slope),
        }

    tables = [
        summarized(_gains(loss_differences, expected), ["model", "expected"], numbers)
        for expected in measured_expectations(loss_differences)
    ]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _gains(loss_differences: pd.DataFrame, expected: str) -> pd.DataFrame:
    columns = {expected: "expected_gain", EXPECTED_AND_ACTUAL[expected]: "actual_gain"}
    targets = loss_differences.dropna(subset=list(columns)).rename(columns=columns)
    return targets.astype(dict.fromkeys(columns.values(), "float64")).assign(expected=expected)
