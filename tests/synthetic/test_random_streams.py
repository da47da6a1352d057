"""What is tested was not drawn in training: streams of different purposes never meet."""

from collections.abc import Iterable
from itertools import product

import numpy as np
import pytest

from pipeline.synthetic.tasks import draw_batch, task_called
from pipeline.synthetic.train import of_measuring_in_training, of_test_examples, of_training_step

SIZE = 20


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


@pytest.mark.parametrize(
    "name", ["copy", "addition", "addition_padded", "parity_scratchpad", "variable_assignment"]
)
def test_the_prompts_of_a_test_are_of_no_training_step(name: str) -> None:
    # Before, the test examples of seed 0 and size 20 were those that step 20 of seed 0 would draw.
    task = task_called(name)

    def prompts(generator: np.random.Generator) -> set[bytes]:
        batch = draw_batch(task, SIZE, [None] * 8, generator)
        return {row.tobytes() for row in batch.token_ids_BS[:, : batch.num_prompt_tokens]}

    of_tests = prompts(of_test_examples(0, SIZE, None))
    of_training = [prompts(of_training_step(0, step)) for step in range(1, 2 * SIZE)]
    assert len(of_tests) == 8
    assert all(of_tests.isdisjoint(others) for others in of_training)
    assert of_tests.isdisjoint(prompts(of_measuring_in_training(0)))
