"""Numbers with their intervals over documents, and what goes into a row beside them.

Every mean is over targets and every interval is a 95 % interval over documents. A column `x` with an interval
is followed by `x_low` and `x_high`, in the unit of `x`.
"""

from collections.abc import Hashable

import numpy as np
import pandas as pd

from pipeline.results.bootstrap import Interval, difference_of_ratios, ratio_of_sums


def interval_over_documents(
    document_ids: pd.Series, numerators: pd.Series, denominators: pd.Series | None = None
) -> Interval:
    """sum(numerators) / sum(denominators) over targets, with its interval over documents.

    Args:
        document_ids: the document of each target.
        numerators, denominators: one value a target, same index; the mean of `numerators` where
            `denominators` is None.

    Returns:
        The ends are NaN for fewer than two documents, which say nothing about other documents.
    """
    sums_D = _sums(document_ids, numerators, denominators)
    if sums_D.empty:
        return Interval(np.nan, np.nan, np.nan)
    return ratio_of_sums(sums_D["numerator"].to_numpy(), sums_D["denominator"].to_numpy())


def paired_difference(
    document_ids: pd.Series,
    first: tuple[pd.Series, pd.Series | None],
    second: tuple[pd.Series, pd.Series | None],
) -> Interval:
    """The second number less the first, both of the same targets, with its interval over documents.

    Args:
        document_ids: the document of each target.
        first, second: numerators and denominators, as of `interval_over_documents`.
    """
    sums = [_sums(document_ids, *number) for number in (first, second)]
    if sums[0].empty:
        return Interval(np.nan, np.nan, np.nan)
    ratios = [(of_D["numerator"].to_numpy(), of_D["denominator"].to_numpy()) for of_D in sums]
    return difference_of_ratios(*ratios)


def _sums(document_ids: pd.Series, numerators: pd.Series, denominators: pd.Series | None) -> pd.DataFrame:
    """Both, summed over the targets of each document."""
    counted = 1.0 if denominators is None else denominators.astype("float64")
    values = {"numerator": numerators.astype("float64"), "denominator": counted}
    return pd.DataFrame(values, index=numerators.index).groupby(document_ids).sum()


def interval_columns(name: str, interval: Interval) -> dict[Hashable, float]:
    """`name`, `name`_low and `name`_high of a row."""
    return {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}


def sample_counts(rows: pd.DataFrame) -> dict[Hashable, int]:
    """num_targets and num_documents of a row; `rows` are targets."""
    return {"num_targets": len(rows), "num_documents": rows["document_id"].nunique()}


def multiple_comparison_note(table: pd.DataFrame, value: str) -> str:
    """The sentence that goes with every table or figure of several intervals.

    Each interval covers its own truth in 95 of 100 studies; that all of them do is less likely. The
    level that Bonferroni's bound asks of each, for 95 % together, needs no independence of them.

    Args:
        table: a row an interval.
        value: the column with the intervals; those that could not be measured (NaN) do not count.

    Returns:
        "" for fewer than two intervals.
    """
    num_intervals = int(table[f"{value}_low"].notna().sum())
    if num_intervals < 2:
        return ""
    return (
        f"{num_intervals} intervals of 95 % each: expect {0.05 * num_intervals:.1f} of them to miss the"
        f" truth; for 95 % together each would be one of {100 * (1 - 0.05 / num_intervals):.2f} %."
    )
