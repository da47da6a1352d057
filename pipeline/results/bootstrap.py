"""Intervals over documents. Tokens of one document are not independent, so documents are resampled."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

NUM_RESAMPLES = 10_000
_RESAMPLES_PER_BLOCK = 1000
_DRAWS_PER_BLOCK = 4_000_000  # of one block, D a resample: 64 MB while it is drawn
_BLOCKS_KEPT = 32  # of a byte a draw: 128 MB, 10,000 resamples of 12,800 documents


@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its 95 % interval, in the estimate's own unit."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}]"


def ratio_of_sums(
    numerators_D: np.ndarray,
    denominators_D: np.ndarray,
    *,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> Interval:
    """Percentile-bootstrap interval of sum(numerators) / sum(denominators), resampling documents.

    The estimator of every mean and fraction here: with token counts as denominators it is a mean over
    tokens, with sums of L_short - L_long it is a recovered fraction (design: a ratio of sums, never a
    mean of ratios, which one document with a tiny denominator would rule).

    Args:
        numerators_D, denominators_D: one value a document (D documents), each summed over its targets.
        seed: of the resampling; the same seed draws the same documents, whatever is measured on them.
        num_resamples: bootstrap resamples.

    Raises:
        ValueError: no documents, or arrays of different shape.
    """
    numerators_D = np.asarray(numerators_D, dtype=np.float64)
    denominators_D = np.asarray(denominators_D, dtype=np.float64)
    if numerators_D.shape != denominators_D.shape or numerators_D.ndim != 1 or len(numerators_D) == 0:
        raise ValueError("one numerator and one denominator a document are needed, for at least one document")
    sums_R2 = _resampled_sums(np.stack([numerators_D, denominators_D], axis=1), seed, num_resamples)
    with np.errstate(divide="ignore", invalid="ignore"):
        estimate = numerators_D.sum() / denominators_D.sum()
        low, high = np.nanquantile(sums_R2[:, 0] / sums_R2[:, 1], [0.025, 0.975])
    return Interval(float(estimate), float(low), float(high))


def _resampled_sums(sums_D2: np.ndarray, seed: int, num_resamples: int) -> np.ndarray:
    """Both sums over the documents of each resample: float64 [R, 2]."""
    blocks: list[np.ndarray] = []
    num_drawn = 0
    while num_drawn < num_resamples:
        counts_BD = _draw_counts(len(sums_D2), seed, len(blocks))[: num_resamples - num_drawn]
        blocks.append(counts_BD.astype(np.float64) @ sums_D2)
        num_drawn += len(counts_BD)
    return np.concatenate(blocks)


@lru_cache(maxsize=_BLOCKS_KEPT)
def _draw_counts(num_documents: int, seed: int, block: int) -> np.ndarray:
    """How often each document is drawn, which says all there is to know of a resample: unsigned [B, D].

    Kept, since one table draws the same resamples a hundred times; counts are small, a byte holds them.
    """
    num_resamples = max(1, min(_RESAMPLES_PER_BLOCK, _DRAWS_PER_BLOCK // num_documents))
    generator = np.random.default_rng([seed, block])
    cells = generator.integers(num_documents, size=(num_resamples, num_documents))
    cells += num_documents * np.arange(num_resamples)[:, None]
    counts = np.bincount(cells.ravel(), minlength=cells.size)
    return counts.astype(np.min_scalar_type(counts.max())).reshape(cells.shape)
