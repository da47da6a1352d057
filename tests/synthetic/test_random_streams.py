"""What is tested was not drawn in training: streams of different purposes never meet."""

from collections.abc import Iterable
from itertools import product

import numpy as np
import pytest

from pipeline.synthetic.train import of_measuring_in_training, of_test_examples, of_training_step


def test_a_list_alone_does_not_tell_streams_apart() -> None:
    assert np.random.default_rng([0, 20, 0]).random() == np.random.default_rng([0, 20]).random()


def states(streams: Iterable[np.random.Generator]) -> set[str]:
    return {str(stream.bit_generator.state["state"]) for stream in streams}


@pytest.mark.parametrize("seeds", [(0, 1, 2, 20, (1 << 32) - 1), (1 << 32, (20 << 32) + 1, (1 << 63) - 1)])
def test_streams_of_two_purposes_are_never_one(seeds: tuple[int, ...]) -> None:
    numbers = (1, 2, 20)
    tests = states(of_test_examples(seed, *cell) for seed, *cell in product(seeds, numbers, (None, *numbers)))
    training = states(of_training_step(seed, step) for seed, step in product(seeds, numbers))
    measuring = states(of_measuring_in_training(seed) for seed in seeds)
    assert (len(tests), len(training), len(measuring)) == (12 * len(seeds), 3 * len(seeds), len(seeds))
    assert len(tests | training | measuring) == 16 * len(seeds)
