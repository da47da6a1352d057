"""Intervals against closed forms, against another implementation, and by their coverage."""

import numpy as np
import pytest
from scipy import stats

from sparsity_length.results.statistics import ratio_of_sums

MEAN_GAIN = 0.1
NUM_TRIALS = 600


def test_agrees_with_scipy_on_a_ratio() -> None:
    generator = np.random.default_rng(5)
    denominators = generator.gamma(3.0, 1.0, 60)
    numerators = 0.4 * denominators + generator.normal(0, 0.5, 60)
    ours = ratio_of_sums(numerators, denominators)
    theirs = stats.bootstrap(
        (numerators, denominators),
        lambda n, d, axis: n.sum(axis) / d.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=10_000,
        method="percentile",
        random_state=0,
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.03 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.03 * width)


def few_alike(generator: np.random.Generator, num_documents: int) -> tuple[np.ndarray, np.ndarray]:
    """Chunks of 8 to 32 targets whose mean gain, nats, varies by document and by target."""
    counts = generator.integers(8, 33, num_documents)
    gains = counts * generator.normal(MEAN_GAIN, 0.1, num_documents)
    return gains + np.sqrt(counts) * generator.normal(0, 0.5, num_documents), counts.astype(float)


@pytest.mark.parametrize("num_documents", [3, 19, 24, 49])
def test_intervals_of_few_documents_cover_the_truth(num_documents: int) -> None:
    generator = np.random.default_rng(num_documents)
    num_covered = 0
    for _ in range(NUM_TRIALS):
        interval = ratio_of_sums(*few_alike(generator, num_documents))
        num_covered += interval.low <= MEAN_GAIN <= interval.high
    assert 0.93 <= num_covered / NUM_TRIALS <= 0.97
