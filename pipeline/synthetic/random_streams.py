"""Where random numbers come from: a stream a purpose, so that no test example is drawn as in training.

Lists of numbers alone do not keep streams apart: to NumPy zeros at a list's end do not count, and [0, 20, 0]
is [0, 20]. A spawn key does, which NumPy sets behind the list, at a place of its own.
"""

import numpy as np

TEST_STREAM = 1
"""The spawn key of test examples; training draws have none. Results tell it among their settings."""
_OF_MEASURING = 0  # in place of a step; steps are counted from 1


def of_training_step(seed: int, step: int) -> np.random.Generator:
    """The source of a step's examples, which seed and step alone decide: nothing else is needed to resume."""
    return np.random.default_rng([seed, step])


def of_measuring_in_training(seed: int) -> np.random.Generator:
    """The source of the examples that a training run measures itself by, the same each time."""
    return np.random.default_rng([seed, _OF_MEASURING])


def of_test_examples(test_seed: int, size: int, sparsity: int | None) -> np.random.Generator:
    """The source of the test examples of a size, and of a k where the task has one."""
    numbers = [test_seed, size, sparsity or 0]
    return np.random.default_rng(np.random.SeedSequence(numbers, spawn_key=(TEST_STREAM,)))
