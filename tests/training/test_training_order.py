"""The order of an epoch: every sequence once, whatever the size, in memory that does not grow with it."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

from pipeline.training.data import LARGEST_SHUFFLE, EpochOrder

C4_SEQUENCES = 156_000_000_000 // 64


def whole(num_sequences: int, seed: list[int], largest_shuffle: int) -> np.ndarray:
    order = EpochOrder(num_sequences, seed, largest_shuffle=largest_shuffle)
    return order.sequences_at(np.arange(num_sequences))


@pytest.mark.parametrize("largest_shuffle", [0, LARGEST_SHUFFLE])
def test_every_sequence_comes_once_at_every_size(largest_shuffle: int) -> None:
    for num_sequences in (*range(1, 70), 127, 128, 129, 1000, 4095, 4097, 65_537):
        order = whole(num_sequences, [3, 0, 1], largest_shuffle)
        assert sorted(order.tolist()) == list(range(num_sequences)), num_sequences
        assert order.dtype == np.int64


def test_a_small_order_is_numpys_shuffle() -> None:
    assert whole(5, [0, 0, 0], 5).tolist() == np.random.default_rng([0, 0, 0]).permutation(5).tolist()


def test_a_place_is_a_function_of_seed_and_epoch_alone() -> None:
    places = np.array([77_777, 3, 12])
    order = EpochOrder(100_003, [1, 0, 0], largest_shuffle=0)
    assert order.sequences_at(places).tolist() == whole(100_003, [1, 0, 0], 0)[places].tolist()
    for other in ([2, 0, 0], [1, 0, 1]):
        assert (whole(100_003, other, 0) == whole(100_003, [1, 0, 0], 0)).sum() < 20


def test_the_order_is_like_a_uniform_shuffle() -> None:
    # Three numbers whose distribution under uniform shuffles is known: fixed points are Poisson with mean 1,
    # neighbours stay neighbours as often, and the rank correlation with the identity has deviation n**-0.5.
    size, seeds = 10_007, range(40)
    orders = [whole(size, [seed, 0, 0], 0) for seed in seeds]
    assert 15 < sum(int((order == np.arange(size)).sum()) for order in orders) < 70
    assert 15 < sum(b - a == 1 for order in orders for a, b in pairwise(order.tolist())) < 70
    correlations = [np.corrcoef(order, np.arange(size))[0, 1] * size**0.5 for order in orders]
    assert 0.6 < np.std(correlations) < 1.5
    assert abs(np.mean(correlations)) < 0.7
    # and each sequence comes first about as often as any other
    firsts = [
        int(EpochOrder(5, [s, 0, 0], largest_shuffle=0).sequences_at(np.array([0]))[0]) for s in range(2000)
    ]
    assert np.bincount(firsts, minlength=5).min() > 320  # 400 expected, deviation 18


def test_all_of_c4_is_ordered_in_a_few_kilobytes() -> None:
    tracemalloc.start()
    try:
        order = EpochOrder(C4_SEQUENCES, [0, 0, 0])
        sequences = order.sequences_at(np.arange(10**9, 10**9 + 4096))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20
    assert len(set(sequences.tolist())) == 4096
    assert sequences.min() >= 0
    assert sequences.max() < C4_SEQUENCES
    # spread over the whole: 4,096 uniform draws have their quartiles within 5 % of it
    quartiles = np.quantile(sequences, [0.25, 0.5, 0.75]) / C4_SEQUENCES
    assert np.abs(quartiles - [0.25, 0.5, 0.75]).max() < 0.05
