"""What the stages that test models of synthetic tasks share: their flags, examples, shards and progress.

A cell is a test size and, where the task has one, a k; it is a shard of the results.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.cli import InputError, folder_path, logger, positive_int, progress, random_seed, whole_number
from pipeline.results.write import StageOutput
from pipeline.synthetic.tasks import ExampleBatch, Task, draw_batch, task_called

if TYPE_CHECKING:
    from pipeline.synthetic.config import TaskConfig
    from pipeline.synthetic.models import TaskModel
    from pipeline.synthetic.train import TaskRun

NUM_EXAMPLES = 1000
"""Of each size and k, where accuracy is measured and no other number is asked for."""
_LARGEST_SIZE, _MOST_EXAMPLES = 1_000_000, 1_000_000  # what is more is a slip of the hand
Cell = tuple[int, int | None]
"""A test size, and k where the task has one."""
Measure = Callable[["TaskRun", "TaskModel", Cell, ExampleBatch, np.random.Generator], dict[str, list[Any]]]
"""What a stage does with the examples of a cell: column -> values. The generator has drawn them."""


def add_task_evaluation_arguments(parser: argparse.ArgumentParser, *, num_examples: int) -> None:
    """The flags of every stage that tests models of a synthetic task.

    Args:
        num_examples: the stage's default.
    """
    add = parser.add_argument
    add("--task", required=True, help="the task's name; run folders of other tasks are refused")
    add("--checkpoints", type=folder_path, nargs="+", required=True, metavar="RUN",
        help="run folders of train_synthetic.py")  # fmt: skip
    add("--results", type=folder_path, required=True, help="results folder; complete shards in it are kept")
    add("--sizes", type=whole_number(1, _LARGEST_SIZE), nargs="+", required=True,
        help="sizes of the test examples, in the task's own unit (letters, bits, digits, assignments, prompt"
        " tokens)")  # fmt: skip
    add("--sparsities", type=positive_int, nargs="+",
        help="k of the test examples, where the task has it; left out at sizes without room")  # fmt: skip
    add("--num-examples", type=whole_number(1, _MOST_EXAMPLES), default=num_examples,
        help="test examples of each size and k")  # fmt: skip
    add("--test-seed", type=random_seed, default=0, help="of the test examples")


def cells_of(
    task_name: str, sizes: Sequence[int], sparsities: Sequence[int] | None
) -> tuple[Task, list[Cell]]:
    """The task, and every size with every k that it has room for.

    Raises:
        InputError: there is no such task, or k is missing, too large, or would be ignored.
    """
    task = task_called(task_name)
    if not task.has_sparsity:
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


def test_examples(
    task: Task, cell: Cell, num_examples: int, test_seed: int
) -> tuple[ExampleBatch, np.random.Generator]:
    """The examples of a cell, the same for every model, and the generator that has drawn them."""
    from pipeline.synthetic.train import of_test_examples  # late, for a --help at once

    size, sparsity = cell
    generator = of_test_examples(test_seed, size, sparsity)
    return draw_batch(task, size, [sparsity] * num_examples, generator), generator


@dataclass(frozen=True)
class Tested:
    """What is tested on what: every model on every cell of a task."""

    task: Task
    cells: Sequence[Cell]
    runs: Sequence["TaskRun"]


def find_tested(arguments: argparse.Namespace) -> Tested:
    """What the flags of `add_task_evaluation_arguments` ask for.

    Raises:
        InputError: a checkpoint is missing, of another task or damaged, or two have one name.
    """
    from pipeline.synthetic.train import find_task_run  # late, for a --help at once

    task, cells = cells_of(arguments.task, arguments.sizes, arguments.sparsities)
    runs = [find_task_run(folder, task.name) for folder in arguments.checkpoints]
    _refuse_equal_names(runs)
    return Tested(task, cells, runs)


def evaluate_task_runs(
    arguments: argparse.Namespace,
    tested: Tested,
    stage: str,
    artefact: str,
    settings: Mapping[str, Any],
    measure: Measure,
    prepare: Callable[["TaskModel"], None] | None = None,
) -> None:
    """Run `measure` on the examples of every cell with every model, writing a shard a cell.

    Args:
        arguments: of `add_task_evaluation_arguments`.
        tested: what they ask for.
        stage: the stage's name, as results are filed under.
        artefact: what it writes; columns that tell of run and cell are added to those of `measure`.
        settings: the stage's own, beyond those of `add_task_evaluation_arguments`.
        measure: the stage's work.
        prepare: what is done to a loaded model before it is measured.

    Raises:
        InputError: a checkpoint is damaged, or the results folder holds another configuration's results.
    """
    from pipeline.models.devices import usable_device  # late, for a --help at once

    device = usable_device(None, "CUDA_VISIBLE_DEVICES= computes on the CPU")
    for run in tested.runs:
        output = _output_of(run, arguments, tested, stage, settings)
        if not output.is_done():
            with output.writing():
                pending = output.pending_shards()
                model, is_learnt = run.load(device), run.is_learnt
                if prepare is not None:
                    prepare(model)
                for shard in progress(pending, f"{stage} {run.name}", "cells"):
                    cell = tested.cells[shard]
                    batch, generator = test_examples(
                        tested.task, cell, arguments.num_examples, arguments.test_seed
                    )
                    columns = measure(run, model, cell, batch, generator)
                    num_rows = len(next(iter(columns.values())))
                    shared = {**_columns_of_run(run.config), "is_learnt": is_learnt, **_columns_of_cell(cell)}
                    columns |= {name: [value] * num_rows for name, value in shared.items()}
                    output.write_shard(shard, {artefact: columns})
        logger.info(output.state())


def has_evaluated(
    arguments: argparse.Namespace, tested: Tested, stage: str, settings: Mapping[str, Any]
) -> bool:
    """Whether `evaluate_task_runs` would find every cell measured."""
    return all(_output_of(run, arguments, tested, stage, settings).is_done() for run in tested.runs)


def _output_of(
    run: "TaskRun", arguments: argparse.Namespace, tested: Tested, stage: str, settings: Mapping[str, Any]
) -> StageOutput:
    return StageOutput(
        arguments.results, stage, run.name, settings={**_settings(arguments, tested), **settings},
        inputs={"checkpoint": run.sha256}, num_shards=len(tested.cells),
    )  # fmt: skip


def _settings(arguments: argparse.Namespace, tested: Tested) -> dict[str, Any]:
    from pipeline.synthetic.train import TEST_STREAM

    return {
        "task": tested.task.name,
        "sizes": sorted({size for size, _ in tested.cells}),
        "sparsities": sorted({sparsity for _, sparsity in tested.cells if sparsity is not None}),
        "num_examples": arguments.num_examples,
        "test_seed": arguments.test_seed,
        "test_stream": TEST_STREAM,
    }


def _columns_of_run(config: "TaskConfig") -> dict[str, Any]:
    return {
        "task": config.task,
        "positions": config.positions,
        "seed": config.seed,
        "largest_train_size": config.largest_size,
        "largest_train_sparsity": config.largest_sparsity,
    }


def _columns_of_cell(cell: Cell) -> dict[str, Any]:
    size, sparsity = cell
    return {"size": size, "sparsity": sparsity}


def _refuse_equal_names(runs: Sequence["TaskRun"]) -> None:
    names = [run.name for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two of --checkpoints are called '{name}'; results are filed under that name")


def refuse_impossible(name: str, config: "TaskConfig", cells: Sequence[Cell]) -> None:
    """Refuse the first size or k that the task or a model's position table has no room for.

    Args:
        name: the model's.
        config: what it was, or will be, trained with.
        cells: what it is to be tested on.

    Raises:
        InputError: names the model and the size.
    """
    from pipeline.synthetic.accuracy import position_ids_in_testing
    from pipeline.synthetic.config import refuse_beyond_table

    for size, sparsity in cells:
        generator = np.random.default_rng(0)
        try:
            # Before drawing: no example has fewer tokens, or coupled IDs, than its size.
            refuse_beyond_table(size, config.num_position_ids)
            batch = draw_batch(config.distribution.task, size, [sparsity], generator)
            position_ids_in_testing(batch, config, generator)
        except InputError as error:
            raise InputError(f"model '{name}', size {size}: {error}") from error
