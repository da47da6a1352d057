"""The permutation test against all permutations of small cases, and over many studies without an effect."""

from itertools import permutations, product

import numpy as np
import pytest
import scipy.stats

from analysis.gap.slopes import permutation_p_value


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


def study(seed: int, effect: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sparsity and gap of 30 documents; between documents both rise together, within them by `effect`."""
    generator = np.random.default_rng([11, seed])
    strata = np.repeat(np.arange(30), 5)
    of_document = generator.normal(size=30)[strata]
    sparsity = of_document + generator.normal(size=150)
    return of_document + effect * sparsity + generator.normal(size=150), sparsity, strata


def test_without_an_effect_all_p_values_are_as_likely() -> None:
    # 99 permutations: each of 0.01, 0.02, ..., 1.00 has probability 0.01.
    p_values = [
        permutation_p_value(*study(seed, 0.0), num_permutations=99, seed=seed) for seed in range(1000)
    ]
    counts = np.histogram(p_values, bins=np.arange(0.005, 1.01, 0.1))[0]
    assert counts.sum() == 1000
    assert scipy.stats.chisquare(counts).pvalue > 0.01
    # The same data would be called an effect, were strata not kept.
    gaps, sparsity, strata = study(0, 0.0)
    assert permutation_p_value(gaps, sparsity, np.zeros_like(strata)) < 0.01


def test_an_effect_of_either_sign_is_found() -> None:
    assert permutation_p_value(*study(0, 0.5)) == 1 / 2000
    assert permutation_p_value(*study(0, -0.5)) == 1 / 2000


def test_the_seed_decides_and_labels_do_not() -> None:
    gaps, sparsity, strata = study(4, 0.05)
    p_value = permutation_p_value(gaps, sparsity, strata, seed=1)
    assert permutation_p_value(gaps, sparsity, strata, seed=1) == p_value
    names = np.array([f"document {stratum:02d}" for stratum in strata])
    assert permutation_p_value(gaps, sparsity, names, seed=1) == p_value
    assert permutation_p_value(gaps, sparsity, strata, seed=2) != p_value


def test_nothing_to_permute_is_not_a_number() -> None:
    gaps, sparsity, strata = study(0, 0.5)
    assert np.isnan(permutation_p_value(gaps, sparsity, np.arange(150)))
    assert np.isnan(permutation_p_value(gaps, np.ones(150), strata))
