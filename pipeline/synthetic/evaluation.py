"""The test examples of synthetic tasks: sizes and k, and the streams that they are drawn from."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from pipeline.cli import InputError
from pipeline.synthetic.tasks import ExampleBatch, Task, draw_batch, task_called

if TYPE_CHECKING:
    from pipeline.synthetic.config import TaskConfig

Cell = tuple[int, int | None]
"""A test size, and k for tasks that have it."""
TEST_STREAM = 1
"""The spawn key of test examples; training draws have none. Results tell it among their settings."""


def cells_of(task_name: str, sizes: Sequence[int], sparsities: Sequence[int] | None) -> list[Cell]:
    """Every size with every k that the task has room for; InputError where k is missing or of no use."""
    task = task_called(task_name)
    if task.largest_sparsity is None:
        if sparsities is not None:
            raise InputError(f"--sparsities: task {task.name} has no k, and would ignore it")
        return [(size, None) for size in sorted(set(sizes))]
    most = task.largest_sparsity(max(sizes))
    if sparsities is None or max(sparsities) > most:
        raise InputError(f"--sparsities: k of task {task.name} is 1 to {most} at --sizes {max(sizes)}")
    return [
        (size, sparsity)
        for size, sparsity in product(sorted(set(sizes)), sorted(set(sparsities)))
        if sparsity <= task.largest_sparsity(size)
    ]


def of_test_examples(test_seed: int, size: int, sparsity: int | None) -> np.random.Generator:
    """The source of the test examples of a size, and of a k for tasks that have it.

    No test example is drawn as in training. Lists of numbers alone would not keep the streams apart: to NumPy
    zeros at a list's end do not count, and [0, 20, 0] is [0, 20]. A spawn key does, which NumPy sets behind
    the list, at a place of its own.
    """
    numbers = [test_seed, size, sparsity or 0]
    return np.random.default_rng(np.random.SeedSequence(numbers, spawn_key=(TEST_STREAM,)))


def test_examples(
    task: Task, cell: Cell, num_examples: int, test_seed: int
) -> tuple[ExampleBatch, np.random.Generator]:
    """The examples of a cell, the same for every model, and the generator that has drawn them."""
    size, sparsity = cell
    generator = of_test_examples(test_seed, size, sparsity)
    return draw_batch(task, size, [sparsity] * num_examples, generator), generator


def refuse_impossible(configs: Mapping[str, "TaskConfig"], cells: Sequence[Cell]) -> None:
    """Refuse the first size or k that the task or a model's position table has no room for (InputError)."""
    from pipeline.synthetic.config import refuse_beyond_table  # late, for a --help at once

    for (name, config), (size, sparsity) in product(configs.items(), cells):
        generator = np.random.default_rng(0)
        try:
            # Before drawing: no example has fewer tokens, or coupled IDs, than its size.
            refuse_beyond_table(size, config.num_position_ids)
            batch = draw_batch(task_called(config.task), size, [sparsity], generator)
            config.position_ids(batch, generator, in_testing=True)
        except InputError as error:
            raise InputError(f"model '{name}', size {size}: {error}") from error
