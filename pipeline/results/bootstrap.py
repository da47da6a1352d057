"""Intervals over documents. Tokens of one document are not independent, so documents are resampled."""

from dataclasses import dataclass

import numpy as np

NUM_RESAMPLES = 2000


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
    block_of_resamples: int = 256,
) -> Interval:
    """Percentile-bootstrap interval of sum(numerators) / sum(denominators), resampling documents.

    The estimator of every mean and fraction here: with token counts as denominators it is a mean over
    tokens, with sums of L_short - L_long it is a recovered fraction (design: a ratio of sums, never a
    mean of ratios, which one document with a tiny denominator would rule).

    Args:
        numerators_D, denominators_D: one value a document (D documents), each summed over its targets.
        seed: of the resampling; the same seed draws the same documents, whatever is measured on them.
        num_resamples: bootstrap resamples.
        block_of_resamples: how many are drawn at once; bounds memory at block x D floats.

    Raises:
        ValueError: no documents, or arrays of different shape.
    """
    numerators_D = np.asarray(numerators_D, dtype=np.float64)
    denominators_D = np.asarray(denominators_D, dtype=np.float64)
    if numerators_D.shape != denominators_D.shape or numerators_D.ndim != 1 or len(numerators_D) == 0:
        raise ValueError("one numerator and one denominator a document are needed, for at least one document")
    generator = np.random.default_rng(seed)
    num_documents = len(numerators_D)
    equal_D = np.full(num_documents, 1 / num_documents)
    ratios = []
    with np.errstate(divide="ignore", invalid="ignore"):
        for start in range(0, num_resamples, block_of_resamples):
            num_draws = min(block_of_resamples, num_resamples - start)
            # How often each document is drawn says all there is to know of a resample.
            counts_RD = generator.multinomial(num_documents, equal_D, num_draws)
            ratios.append((counts_RD @ numerators_D) / (counts_RD @ denominators_D))
        estimate = float(numerators_D.sum() / denominators_D.sum())
    low, high = np.nanquantile(np.concatenate(ratios), [0.025, 0.975])
    return Interval(estimate, float(low), float(high))
