"""Intervals against closed forms, against another implementation, and by their coverage."""

import numpy as np
import pytest
from scipy import stats

from pipeline.results.bootstrap import Interval, ratio_of_sums


def test_interval_of_a_mean_is_the_normal_one() -> None:
    values = np.random.default_rng(3).normal(2.0, 1.5, 400)
    interval = ratio_of_sums(values, np.ones(400), num_resamples=20_000)
    half_width = 1.96 * values.std() / np.sqrt(400)
    assert interval.estimate == pytest.approx(values.mean(), abs=1e-12)
    assert interval.low == pytest.approx(values.mean() - half_width, abs=0.05 * half_width)
    assert interval.high == pytest.approx(values.mean() + half_width, abs=0.05 * half_width)


def test_a_ratio_of_sums_is_not_a_mean_of_ratios() -> None:
    assert ratio_of_sums(np.array([1.0, 30.0]), np.array([1.0, 10.0])).estimate == 31 / 11


def test_constant_ratio_has_an_interval_of_no_width() -> None:
    denominators = np.array([1.0, 2.0, 4.0])
    interval = ratio_of_sums(0.25 * denominators, denominators)
    assert (interval.low, interval.high) == (0.25, 0.25)


def test_agrees_with_scipy_on_a_ratio() -> None:
    generator = np.random.default_rng(5)
    denominators = generator.gamma(3.0, 1.0, 60)
    numerators = 0.4 * denominators + generator.normal(0, 0.5, 60)
    ours = ratio_of_sums(numerators, denominators, num_resamples=10_000)
    theirs = stats.bootstrap(
        (numerators, denominators),
        lambda n, d, axis: n.sum(axis) / d.sum(axis),
        paired=True, vectorized=True, n_resamples=10_000, method="percentile", random_state=0,
    ).confidence_interval  # fmt: skip
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.03 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.03 * width)


def covers(num_tokens: int, by_document: bool, generator: np.random.Generator) -> bool:
    """One simulated study of 80 documents, whose tokens share their document's luck; the true mean is 0."""
    document_effect = generator.normal(0, 1, (80, 1))
    tokens = document_effect + generator.normal(0, 1, (80, num_tokens))
    sums = tokens.sum(axis=1) if by_document else tokens.ravel()
    counts = np.full(len(sums), num_tokens if by_document else 1)
    interval = ratio_of_sums(sums, counts, seed=int(generator.integers(2**31)), num_resamples=400)
    return interval.low <= 0 <= interval.high


def test_the_interval_over_documents_covers_the_truth_95_times_in_100() -> None:
    generator = np.random.default_rng(0)
    coverage = np.mean([covers(5, True, generator) for _ in range(1000)])
    assert 0.93 <= coverage <= 0.97


def test_an_interval_over_tokens_would_be_too_narrow() -> None:
    generator = np.random.default_rng(0)
    assert np.mean([covers(5, False, generator) for _ in range(60)]) < 0.85


def test_same_seed_same_interval() -> None:
    values = np.random.default_rng(1).normal(size=30)
    first = ratio_of_sums(values, np.ones(30), seed=1)
    assert ratio_of_sums(values, np.ones(30), seed=2) != first
    assert ratio_of_sums(values, np.ones(30), seed=1) == first


@pytest.mark.parametrize("shapes", [(0, 0), (2, 3)])
def test_refuses_what_is_no_sample(shapes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="one numerator and one denominator a document"):
        ratio_of_sums(np.ones(shapes[0]), np.ones(shapes[1]))


def test_reads_well() -> None:
    assert str(Interval(0.12345, -0.5, 1.0)) == "0.123 [-0.500, 1.000]"
