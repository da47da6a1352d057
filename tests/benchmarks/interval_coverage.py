"""How often 95% intervals of a recovered fraction cover the truth, by the number of documents and the method.

  python tests/benchmarks/interval_coverage.py

The program prints the table that the docstring of `results.statistics.ratio_of_sums` quotes: the percentage
of 4,000 samples whose interval covers the truth. It takes half a minute on one core.
"""

import sys

import numpy as np

from sparsity_length.results.statistics import ratio_of_sums

TRUE_SHARE = 0.5
METHODS = {"bootstrap": 0, "jackknife": sys.maxsize}
"""Method -> the fewest documents of which the bootstrap is taken."""


def draw(generator: np.random.Generator, num_documents: int, tail: float) -> tuple[np.ndarray, np.ndarray]:
    """Recovered and whole gain of each document: float64 [D] each, nats.

    Gains are lognormal with the standard deviation `tail` of their logarithm. What is recovered errs in
    proportion to the gain, so that a few documents rule the sum.
    """
    gains_D = generator.lognormal(0.0, tail, num_documents)
    return gains_D * (TRUE_SHARE + 0.4 * generator.standard_t(3, num_documents)), gains_D


def coverage(num_documents: int, tail: float, fewest_resampled: int, num_trials: int = 4000) -> float:
    """Share of samples whose interval covers the truth."""
    generator = np.random.default_rng(num_documents)  # every method sees the same samples
    num_covered = 0
    for _ in range(num_trials):
        interval = ratio_of_sums(*draw(generator, num_documents, tail), fewest_resampled)
        num_covered += interval.low <= TRUE_SHARE <= interval.high
    return num_covered / num_trials


if __name__ == "__main__":
    for tail in (0.5, 1.0, 1.5):
        for num_documents in (8, 19, 24, 49, 100):
            cells = [f"{name} {coverage(num_documents, tail, of):.1%}" for name, of in METHODS.items()]
            sys.stdout.write(f"tail {tail}, {num_documents} documents: {', '.join(cells)}\n")
