"""What is tested was not drawn in training: streams of different purposes never meet."""

from collections.abc import Iterable
from itertools import product

import numpy as np
import pytest

from pipeline.synthetic.evaluation import of_test_examples
from pipeline.synthetic.train import of_training_step


def states(streams: Iterable[np.random.Generator]) -> set[str]:
    return {str(stream.bit_generator.state["state"]) for stream in streams}


@pytest.mark.parametrize("seeds", [(0, 1, 2, 20, (1 << 32) - 1), (1 << 32, (20 << 32) + 1, (1 << 63) - 1)])
def test_streams_of_two_purposes_are_never_one(seeds: tuple[int, ...]) -> None:
    numbers = (1, 2, 20)
    tests = states(of_test_examples(seed, *cell) for seed, *cell in product(seeds, numbers, (None, *numbers)))
    training = states(of_training_step(seed, step) for seed, step in product(seeds, (0, *numbers)))
    assert (len(tests), len(training)) == (12 * len(seeds), 4 * len(seeds))
    assert len(tests | training) == 16 * len(seeds)
