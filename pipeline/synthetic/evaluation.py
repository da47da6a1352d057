"""What the stages that test models of synthetic tasks share: their flags, examples, shards and progress.

A cell is a test size and, where the task has one, a k; it is a shard of the results.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.cli import InputError, folder_path, logger, positive_int, progress, random_seed
from pipeline.results.schemas import Columns
from pipeline.results.write import StageOutput
from pipeline.synthetic.tasks import ExampleBatch, Task, draw_batch, task_called

if TYPE_CHECKING:
    from pipeline.synthetic.config import TaskConfig
    from pipeline.synthetic.models import TaskModel
    from pipeline.synthetic.train import TaskRun

NUM_EXAMPLES = 1000
"""Of each size and k, where accuracy is measured and no other number is asked for."""
Cell = tuple[int, int | None]
"""A test size, and k where the task has one."""
Measure = Callable[["TaskRun", "TaskModel", Cell, ExampleBatch, np.random.Generator], dict[str, Columns]]
"""What a stage does with the examples of a cell: artefact -> columns. The generator has drawn them."""


def add_task_evaluation_arguments(parser: argparse.ArgumentParser, *, num_examples: int) -> None:
    """The flags of every stage that tests models of a synthetic task."""
    add = parser.add_argument
    add("--task", required=True, help="the task's name; run folders of other tasks are refused")
    add(
        "--checkpoints",
        type=folder_path,
        nargs="+",
        required=True,
        metavar="RUN",
        help="run folders of train_synthetic.py",
    )
    add("--results", type=folder_path, required=True, help="results folder; complete shards in it are kept")
    add(
        "--sizes",
        type=positive_int,
        nargs="+",
        required=True,
        help="sizes of the test examples, in the task's own unit (letters, bits, digits, assignments, prompt"
        " tokens)",
    )
    add(
        "--sparsities",
        type=positive_int,
        nargs="+",
        help="k of the test examples, where the task has it; left out at sizes without room",
    )
    add("--num-examples", type=positive_int, default=num_examples, help="test examples of each size and k")
    add("--test-seed", type=random_seed, default=0, help="of the test examples")


def cells_of(
    task_name: str, sizes: Sequence[int], sparsities: Sequence[int] | None
) -> tuple[Task, list[Cell]]:
    """The task, and every size with every k that it has room for.

    InputError where there is no such task, or k is missing, too large, or would be ignored.
    """
    task = task_called(task_name)
    if task.largest_sparsity is None:
        if sparsities is not None:
            raise InputError(f"--sparsities: task {task.name} has no k, and would ignore it")
        return task, [(size, None) for size in sorted(set(sizes))]
    if sparsities is None:
        raise InputError(f"task {task.name} needs --sparsities, such as --sparsities 2 4")
    most = task.largest_sparsity(max(sizes))
    if max(sparsities) > most:
        raise InputError(f"--sparsities {max(sparsities)}: k is at most {most} at --sizes {max(sizes)}")
    return task, [
        (size, sparsity)
        for size in sorted(set(sizes))
        for sparsity in sorted(set(sparsities))
        if sparsity <= task.largest_sparsity(size)
    ]


TEST_STREAM = 1
"""The spawn key of test examples; training draws have none. Results tell it among their settings."""


def of_test_examples(test_seed: int, size: int, sparsity: int | None) -> np.random.Generator:
    """The source of the test examples of a size, and of a k where the task has one.

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


@dataclass(frozen=True)
class Evaluation:
    """What a stage measures: every model on every cell of a task, a shard a cell of each model's results."""

    arguments: argparse.Namespace
    """Of `add_task_evaluation_arguments`."""
    stage: str
    """As results are filed under."""
    settings: Mapping[str, Any]
    """The stage's own, beyond those of `add_task_evaluation_arguments`."""

    @cached_property
    def task_and_cells(self) -> tuple[Task, list[Cell]]:
        """Raises an InputError where a size or k does not suit the task."""
        return cells_of(self.arguments.task, self.arguments.sizes, self.arguments.sparsities)

    @cached_property
    def runs(self) -> list["TaskRun"]:
        """Raises an InputError where a checkpoint is missing, foreign or damaged."""
        from pipeline.synthetic.train import find_task_run  # late, for a --help at once

        return [find_task_run(folder, self.task_and_cells[0].name) for folder in self.arguments.checkpoints]

    def is_done(self) -> bool:
        """Whether every cell of every model is measured."""
        return all(self._output_of(run).is_done() for run in self.runs)

    def run(self, measure: Measure) -> None:
        """Measure what is missing; to the columns of `measure` those are added that tell of run and cell."""
        from pipeline.models.devices import usable_device  # late, for a --help at once

        arguments, (task, cells) = self.arguments, self.task_and_cells
        device = usable_device(None, "CUDA_VISIBLE_DEVICES= computes on the CPU")
        for run in self.runs:
            output = self._output_of(run)
            config = run.config
            if not output.is_done():
                with output.writing():
                    pending = output.pending_shards()
                    model = run.load(device)
                    is_learnt = run.is_learnt
                    if "attention_scale" in self.settings:
                        model.sharpen_attention(self.settings["attention_scale"])
                    for shard in progress(pending, f"{self.stage} {run.name}", "cells"):
                        size, sparsity = cell = cells[shard]
                        batch, generator = test_examples(
                            task, cell, arguments.num_examples, arguments.test_seed
                        )
                        tables = measure(run, model, cell, batch, generator)
                        of_all_rows = {
                            "task": config.task,
                            "positions": config.positions,
                            "seed": config.seed,
                            "largest_train_size": config.largest_size,
                            "largest_train_sparsity": config.largest_sparsity,
                            "is_learnt": is_learnt,
                            "size": size,
                            "sparsity": sparsity,
                        }
                        for columns in tables.values():
                            num_rows = len(next(iter(columns.values())))
                            columns |= {name: [value] * num_rows for name, value in of_all_rows.items()}
                        output.write_shard(shard, tables)
            logger.info(output.state())

    def _output_of(self, run: "TaskRun") -> StageOutput:
        task, cells = self.task_and_cells
        settings = {
            "task": task.name,
            "sizes": sorted({size for size, _ in cells}),
            "sparsities": sorted({sparsity for _, sparsity in cells if sparsity is not None}),
            "num_examples": self.arguments.num_examples,
            "test_seed": self.arguments.test_seed,
            "test_stream": TEST_STREAM,
            **self.settings,
        }
        return StageOutput(
            self.arguments.results,
            self.stage,
            run.name,
            settings=settings,
            inputs={"checkpoint": run.sha256},
            num_shards=len(cells),
        )


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


def in_words(cell: Cell) -> str:
    """The size and, where there is one, k."""
    size, sparsity = cell
    return f"size {size}" if sparsity is None else f"size {size}, k {sparsity}"
