"""The synthetic tasks by name."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeline.cli import InputError, unknown_name
from pipeline.synthetic.tasks import (
    addition,
    addition_padded,
    copy,
    parity_scratchpad,
    planted_correlation,
    sparse_parity,
    variable_assignment,
)
from pipeline.synthetic.tasks.example import Example, Vocabulary

COUPLED_SCHEMES = ("coupled", "predicted")
"""Schemes that take the task's coupled IDs. In training the two are given the same IDs; in testing `coupled`
is given those of the response too, as an oracle, and `predicted` (PPC) must predict them."""


@dataclass(frozen=True)
class Task:
    """A synthetic task; its file's docstring shows an example."""

    name: str
    vocabulary: Vocabulary
    _draw: Callable[..., Example]
    has_coupled_ids: bool
    _largest_sparsity: Callable[[int], int] | None

    @property
    def has_sparsity(self) -> bool:
        """Whether k is chosen; elsewhere the task fixes how many tokens decide each."""
        return self._largest_sparsity is not None

    def largest_sparsity(self, size: int) -> int:
        """The largest k that an example of this size has room for; of tasks with k only."""
        assert self._largest_sparsity is not None
        return self._largest_sparsity(size)

    def draw(self, size: int, sparsity: int | None, generator: np.random.Generator) -> Example:
        """One example.

        Args:
            size: how long, in the task's own unit (letters, bits, digits, assignments, prompt tokens).
            sparsity: k, where the task has one; None elsewhere.
            generator: the source of all that is random.

        Raises:
            InputError: there is no such size or k, or k is missing or would be ignored.
        """
        if self.has_sparsity and sparsity is None:
            raise InputError(f"task {self.name} needs k, the number of tokens that decide the answer")
        if not self.has_sparsity and sparsity is not None:
            raise InputError(f"k = {sparsity} is given, but task {self.name} has none and would ignore it")
        return self._draw(size, sparsity, generator)

    def require_coupled_ids(self, scheme: str) -> None:
        """Refuse the position scheme `scheme` where it needs coupled IDs and the task has none.

        Raises:
            InputError: names the tasks that have them.
        """
        if not self.has_coupled_ids:
            coupled = ", ".join(name for name, task in TASKS.items() if task.has_coupled_ids)
            raise InputError(
                f"positions '{scheme}' need coupled position IDs, which task {self.name} has none of;"
                f" tasks with coupled IDs: {coupled}"
            )


def _task(name: str, vocabulary: Vocabulary, draw: Callable[..., Example]) -> Task:
    """A task with coupled IDs and without k; the others are written out."""
    return Task(name, vocabulary, draw, has_coupled_ids=True, _largest_sparsity=None)


_PLANTED = planted_correlation.PlantedCorrelation()
_ALL = (
    _task("copy", copy.VOCABULARY, copy.draw),
    _task("addition", addition.VOCABULARY, addition.draw),
    _task("addition_padded", addition_padded.VOCABULARY, addition_padded.draw),
    _task("parity_scratchpad", parity_scratchpad.VOCABULARY, parity_scratchpad.draw),
    _task("variable_assignment", variable_assignment.VOCABULARY, variable_assignment.draw),
    Task(
        "sparse_parity",
        sparse_parity.VOCABULARY,
        sparse_parity.draw,
        has_coupled_ids=False,
        _largest_sparsity=lambda size: size // 2,
    ),
    Task(
        "planted_correlation",
        planted_correlation.VOCABULARY,
        _PLANTED.draw,
        has_coupled_ids=False,
        _largest_sparsity=lambda size: min(size, planted_correlation.DEFAULT_LOCAL_LENGTH),
    ),
)
TASKS: dict[str, Task] = {task.name: task for task in _ALL}


def task_called(name: str) -> Task:
    """The task of that name.

    Raises:
        InputError: there is none; names the nearest.
    """
    if name not in TASKS:
        raise unknown_name("task", name, TASKS)
    return TASKS[name]
