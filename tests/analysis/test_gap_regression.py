"""Regressions and the permutation test against formulas, all permutations, and simulated truth."""

from dataclasses import dataclass
from itertools import permutations, product

import numpy as np
import pytest
import scipy.stats

from analysis.gap.slopes import FEWEST_DOCUMENTS, cluster_robust_slope, permutation_p_value

SLOPE, DOCUMENT_DEVIATION, RESIDUAL_DEVIATION = 0.3, 0.8, 1.0


@dataclass(frozen=True)
class Documents:
    """Targets whose gap has a planted slope on sparsity and an intercept of the document's own."""

    gaps: np.ndarray
    sparsity: np.ndarray
    controls: np.ndarray
    labels: np.ndarray

    @classmethod
    def simulate(cls, seed: int, num_documents: int = 80, num_targets: int = 8) -> "Documents":
        generator = np.random.default_rng([7, seed])
        labels = np.repeat(np.arange(num_documents), num_targets)
        # Sparsity too has a part common to the document, without which dependence would do no harm.
        sparsity = generator.normal(size=num_documents)[labels] + generator.normal(size=len(labels))
        controls = generator.normal(size=(len(labels), 1)) + 0.5 * sparsity[:, None]
        gaps = SLOPE * sparsity + 0.4 * controls[:, 0]
        gaps += DOCUMENT_DEVIATION * generator.normal(size=num_documents)[labels]
        gaps += RESIDUAL_DEVIATION * generator.normal(size=len(labels))
        return cls(gaps, sparsity, controls, labels)

    @property
    def arguments(self) -> tuple[np.ndarray, ...]:
        return self.gaps, self.sparsity, self.controls, self.labels


def sandwich(documents: Documents) -> tuple[float, float]:
    """Slope and its cluster-robust standard error, by the formula, document by document."""
    design = np.column_stack([np.ones(len(documents.gaps)), documents.sparsity, documents.controls])
    bread = np.linalg.inv(design.T @ design)
    coefficients = bread @ design.T @ documents.gaps
    residuals = documents.gaps - design @ coefficients
    names = np.unique(documents.labels)
    scores = [design[documents.labels == name].T @ residuals[documents.labels == name] for name in names]
    meat = sum(np.outer(score, score) for score in scores)
    (num_targets, num_parameters), num_documents = design.shape, len(names)
    correction = num_documents / (num_documents - 1) * (num_targets - 1) / (num_targets - num_parameters)
    return coefficients[1], np.sqrt(correction * (bread @ meat @ bread)[1, 1])


def test_the_interval_is_that_of_the_sandwich_formula() -> None:
    documents = Documents.simulate(seed=0, num_documents=12)
    slope, error = sandwich(documents)
    found = cluster_robust_slope(*documents.arguments)
    assert found.estimate == pytest.approx(slope, rel=1e-9)
    half = scipy.stats.t.ppf(0.975, df=11) * error
    assert (found.low, found.high) == pytest.approx((slope - half, slope + half), rel=1e-9)


def test_what_cannot_be_estimated_is_not_a_number() -> None:
    documents = Documents.simulate(seed=0, num_documents=FEWEST_DOCUMENTS)
    assert np.isfinite(cluster_robust_slope(*documents.arguments).low)
    few = tuple(values[documents.labels > 0] for values in documents.arguments)
    same_as_control = (documents.gaps, documents.sparsity, documents.sparsity[:, None], documents.labels)
    none = tuple(values[:0] for values in documents.arguments)
    for arguments in (few, same_as_control, none):
        assert np.isnan(cluster_robust_slope(*arguments).estimate)


def exact_p_value(gaps: np.ndarray, sparsity: np.ndarray, strata: np.ndarray) -> float:
    """Share of all permutations within strata whose slope within strata is as far from 0 or farther."""
    places = [np.flatnonzero(strata == stratum) for stratum in np.unique(strata)]

    def slope(values: np.ndarray) -> float:
        parts = [(values[at] - values[at].mean()) @ (gaps[at] - gaps[at].mean()) for at in places]
        return abs(sum(parts))

    observed, statistics = slope(sparsity), []
    for orders in product(*(list(permutations(at)) for at in places)):
        permuted = np.empty_like(sparsity)
        for at, order in zip(places, orders, strict=True):
            permuted[at] = sparsity[list(order)]
        statistics.append(slope(permuted))
    return float(np.mean(np.array(statistics) >= observed - 1e-9))


@pytest.mark.parametrize("seed", range(3))
def test_it_estimates_the_share_of_all_permutations(seed: int) -> None:
    generator = np.random.default_rng(seed)
    strata = np.array([0, 1, 0, 2, 0, 1, 1, 0, 2])
    sparsity = generator.integers(0, 4, 9).astype(float)  # with ties, as k* has
    gaps = generator.normal(size=9) + 0.3 * sparsity
    exact = exact_p_value(gaps, sparsity, strata)
    found = permutation_p_value(gaps, sparsity, strata, num_permutations=20_000)
    assert found == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 20_000) + 1e-4)


def test_nothing_to_permute_is_not_a_number() -> None:
    gaps, sparsity = np.random.default_rng(0).normal(size=(2, 20))
    assert np.isnan(permutation_p_value(gaps, sparsity, np.arange(20)))
    assert np.isnan(permutation_p_value(gaps, np.ones(20), np.arange(20) // 5))
