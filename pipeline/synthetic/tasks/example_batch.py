"""Examples of one size, stacked.

Dimension letters: B examples, P tokens of a prompt, T of a response, S = P + T.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.synthetic.tasks.example import Example
from pipeline.synthetic.tasks.registry import Task


@dataclass(frozen=True)
class ExampleBatch:
    """Examples of one task and size; sparsities may differ."""

    token_ids_BS: np.ndarray
    """int64."""
    num_prompt_tokens: int
    """P."""
    coupled_ids_BS: np.ndarray | None
    """int64, from 0; None: the task has none."""
    dependencies: tuple[tuple[tuple[int, ...], ...], ...]
    """For each example and target, the places that decide it."""
    examples: tuple[Example, ...]
    """One by one."""

    def id_dependencies(self, *, are_spread: bool) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """For each example and target, the places that decide its coupled ID; see `Example`."""
        return tuple(example.id_dependencies(are_spread=are_spread) for example in self.examples)


def draw_batch(
    task: Task, size: int, sparsities: Sequence[int | None], generator: np.random.Generator
) -> ExampleBatch:
    """As many examples as there are sparsities.

    Raises:
        InputError: the task has no such size or sparsity.
    """
    examples = [task.draw(size, sparsity, generator) for sparsity in sparsities]
    return ExampleBatch(
        np.stack([example.token_ids_S for example in examples]),
        examples[0].num_prompt_tokens,
        _stacked_coupled_ids(examples),
        tuple(example.dependencies for example in examples),
        tuple(examples),
    )


def _stacked_coupled_ids(examples: Sequence[Example]) -> np.ndarray | None:
    coupled_ids = [example.coupled_ids_S for example in examples if example.coupled_ids_S is not None]
    return np.stack(coupled_ids) if coupled_ids else None


@dataclass(frozen=True)
class TrainingDistribution:
    """What examples a model is trained on: uniform over the sizes, and over k from 1 to K_train."""

    task: Task
    smallest_size: int
    largest_size: int
    size_step: int = 1
    """Sizes are the smallest, and this much more, up to the largest."""
    largest_sparsity: int | None = None
    """K_train, where the task has k: k is uniform on 1 to this, or to what a smaller size has room for. None
    elsewhere."""

    @property
    def sizes(self) -> range:
        """All of them."""
        return range(self.smallest_size, self.largest_size + 1, self.size_step)

    def draw(self, num_examples: int, generator: np.random.Generator) -> ExampleBatch:
        """Examples of one size, which is drawn first.

        Raises:
            InputError: the task has no such sizes or sparsities.
        """
        return self.draw_of_size(int(generator.choice(self.sizes)), num_examples, generator)

    def draw_of_size(self, size: int, num_examples: int, generator: np.random.Generator) -> ExampleBatch:
        """Examples of a given size; each has a sparsity of its own.

        Raises:
            InputError: the task has no such size or sparsities.
        """
        if self.largest_sparsity is None:
            return draw_batch(self.task, size, [None] * num_examples, generator)
        largest = min(self.largest_sparsity, self.task.largest_sparsity(size))
        sparsities = generator.integers(1, largest, num_examples, endpoint=True)
        return draw_batch(self.task, size, sparsities.tolist(), generator)
