"""Intervals over documents: tokens of one document are not independent, so documents are resampled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy

FEWEST_RESAMPLED = 50
"""Documents, or seeds; of fewer the bootstrap's intervals are too narrow (`ratio_of_sums`)."""
_NUM_BLOCKS = 10
_RESAMPLES_PER_BLOCK = 1000  # 10,000 resamples in all


@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its 95 % interval, in the estimate's own unit."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}]"


def decided(*, supported: bool, refuted: bool) -> str:
    """The word for a claim, by whether the conditions of either hold that its plan names."""
    if supported:
        return "supported"
    return "refuted" if refuted else "inconclusive"


def ratio_of_sums(
    numerators_D: np.ndarray, denominators_D: np.ndarray, fewest_resampled: int = FEWEST_RESAMPLED
) -> Interval:
    """Interval of sum(numerators) / sum(denominators), each one value per document, the sum over its targets.

    The estimator of every mean and fraction here: with token counts as denominators it is a mean over
    tokens, with sums of L_short - L_long it is a recovered fraction (design: a ratio of sums, never a
    mean of ratios, which one document with a tiny denominator would rule).

    The interval is the percentile bootstrap's, which resamples documents. If there are fewer than
    `fewest_resampled`, it is Student's t times the jackknife's error, leaving out one document at a time.
    Percent of intervals that cover the truth, if gains of documents are lognormal with a standard
    deviation of 0.5 and 1.5 (a few documents rule the sum; tests/benchmarks/interval_coverage.py):

        documents    8         19        24        49        100
        bootstrap    87, 84    92, 89    91, 90    93, 92    94, 92
        jackknife    95, 91    96, 92    95, 92    96, 94    96, 94

    The ends are NaN if documents say nothing about others: one alone, or no denominator without one.
    """
    return interval_of_statistic([numerators_D, denominators_D], ratio, fewest_resampled)


def ratio(sums_X2: np.ndarray) -> np.ndarray:
    """The first column over the second: float64 [X]."""
    quotients: np.ndarray = sums_X2[:, 0] / sums_X2[:, 1]
    return quotients


def difference_of_ratios(sums_X4: np.ndarray) -> np.ndarray:
    """The first two columns' ratio minus the last two's: float64 [X]."""
    return ratio(sums_X4[:, :2]) - ratio(sums_X4[:, 2:])


def interval_of_statistic(
    columns: Sequence[np.ndarray],
    statistic: Callable[[np.ndarray], np.ndarray],
    fewest_resampled: int = FEWEST_RESAMPLED,
) -> Interval:
    """The interval of a statistic of sums over documents: float64 [X, num columns] -> [X].

    Each column has one value per document. Resamples for which the statistic is NaN are left out.
    """
    columns = [np.asarray(column, dtype=np.float64) for column in columns]
    sums_DC = np.stack(columns, axis=1)
    num_documents = len(columns[0])
    whole_1C = np.array([[column.sum() for column in columns]])
    with np.errstate(divide="ignore", invalid="ignore"):
        estimate = float(statistic(whole_1C)[0])
        if num_documents < fewest_resampled:  # the jackknife
            error = np.sqrt((num_documents - 1) * statistic(whole_1C - sums_DC).var())
            if num_documents < 2 or not np.isfinite(error):
                return Interval(estimate, np.nan, np.nan)
            # The attribute loads this part of the library: late, as it is slow.
            half_width = float(scipy.stats.t.ppf(0.975, num_documents - 1) * error)
            return Interval(estimate, estimate - half_width, estimate + half_width)
        sums_of_blocks = [
            _draw_counts(num_documents, block).astype(np.float64) @ sums_DC for block in range(_NUM_BLOCKS)
        ]
        resampled = statistic(np.concatenate(sums_of_blocks))
        low, high = np.nanquantile(resampled, [0.025, 0.975])
    return Interval(estimate, float(low), float(high))


@lru_cache(maxsize=3 * _NUM_BLOCKS)  # of one byte per draw: 40 MB for 4,000 documents
def _draw_counts(num_documents: int, block: int) -> np.ndarray:
    """How often each document is drawn, which says all there is to know of a resample: unsigned [B, D].

    Kept, since one table draws the same resamples a hundred times; counts are small, a byte holds them.
    """
    generator = np.random.default_rng([0, block])  # the same documents, whatever is measured on them
    cells = generator.integers(num_documents, size=(_RESAMPLES_PER_BLOCK, num_documents))
    cells += num_documents * np.arange(_RESAMPLES_PER_BLOCK)[:, None]
    counts = np.bincount(cells.ravel(), minlength=cells.size)
    return counts.astype(np.min_scalar_type(counts.max())).reshape(cells.shape)
