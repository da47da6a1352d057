"""Intervals over documents. Tokens of one document are not independent, so documents are resampled."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

NUM_RESAMPLES = 2000
_RESAMPLES_PER_BLOCK = 250  # bounds memory at 250 x D floats a block


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
        num_resamples: bootstrap resamples, rounded up to whole blocks.

    Raises:
        ValueError: no documents, or arrays of different shape.
    """
    numerators_D = np.asarray(numerators_D, dtype=np.float64)
    denominators_D = np.asarray(denominators_D, dtype=np.float64)
    if numerators_D.shape != denominators_D.shape or numerators_D.ndim != 1 or len(numerators_D) == 0:
        raise ValueError("one numerator and one denominator a document are needed, for at least one document")
    sums_D2 = np.stack([numerators_D, denominators_D], axis=1)
    num_blocks = -(-num_resamples // _RESAMPLES_PER_BLOCK)
    sums_R2 = np.concatenate(
        [_draw_counts(len(sums_D2), seed, block) @ sums_D2 for block in range(num_blocks)]
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        estimate = numerators_D.sum() / denominators_D.sum()
        low, high = np.nanquantile(sums_R2[:, 0] / sums_R2[:, 1], [0.025, 0.975])
    return Interval(float(estimate), float(low), float(high))


@lru_cache(maxsize=16)
def _draw_counts(num_documents: int, seed: int, block: int) -> np.ndarray:
    """How often each document is drawn, which says all there is to know of a resample: float64 [R, D].

    Kept, since one table draws the same resamples a hundred times.
    """
    equal_D = np.full(num_documents, 1 / num_documents)
    generator = np.random.default_rng([seed, block])
    return generator.multinomial(num_documents, equal_D, _RESAMPLES_PER_BLOCK).astype(np.float64)
