"""Accuracy of models of one synthetic task, at every test size and sparsity.

The models answer freely: each token of the response, and with predicted positions (PPC) each position ID, is
the likeliest, and read back. Exact match counts a response where all are right, a wrong ID being an error.
Test examples are drawn by (test seed, size, k), the same for every model. Prints a line for each size and k.

writes   <results>/synthetic_accuracy/model=<run folder's name>/*.parquet      columns: RESULTS.md
resumes  run the same command again; a size and k is a shard, kept once complete; other settings are refused
needs    run folders of train_synthetic.py, of which the newest checkpoint is tested

full size, on one GPU:
  python pipeline/evaluate_synthetic.py --task sparse_parity --checkpoints runs/synthetic/sparse_parity-* \\
      --results runs/synthetic/results --sizes 20 50 100 200 300 400 500 --sparsities 4 6 8 10 12 14 16

on a laptop, after the laptop command of train_synthetic.py (seconds):
  python pipeline/evaluate_synthetic.py --task copy --checkpoints runs/demo/synthetic/copy-predicted-seed0 \\
      --results runs/demo/synthetic/results --sizes 5 10 20 30 --num-examples 100
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file: put the repository, not pipeline/, on the path
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from pipeline.errors import InputError
from pipeline.stage import logger, positive_int, progress, run_stage, stage_parser

if TYPE_CHECKING:
    import torch

    from pipeline.models.task_model import TaskModel
    from pipeline.tasks.registry import Task
    from pipeline.training.task_accuracy import Answers
    from pipeline.training.task_runs import TaskRun

Cell = tuple[int, int | None]
"""A test size, and k where the task has one."""


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add = stage.add_argument
    add("--task", required=True, help="the task's name; run folders of other tasks are refused")
    add("--checkpoints", type=Path, nargs="+", required=True, metavar="RUN",
        help="run folders of train_synthetic.py")  # fmt: skip
    add("--results", type=Path, required=True, help="results folder; complete shards in it are kept")
    add("--sizes", type=positive_int, nargs="+", required=True,
        help="sizes of the test examples, in the task's own unit (letters, bits, digits, assignments, prompt"
        " tokens)")  # fmt: skip
    add("--sparsities", type=positive_int, nargs="+",
        help="k of the test examples, where the task has it; left out at sizes without room")  # fmt: skip
    add("--num-examples", type=positive_int, default=1000, help="test examples of each size and k")
    add("--examples-per-batch", type=positive_int, default=100,
        help="examples that are generated together; no setting that moves a result")  # fmt: skip
    add("--test-seed", type=int, default=0, help="of the test examples")
    return stage


def main(arguments: argparse.Namespace) -> None:
    """Test every model at every size and sparsity, then print what was found."""
    # Imported late, for a --help at once.
    import torch

    from pipeline.tasks.registry import task_called
    from pipeline.training.task_runs import find_task_run

    task = task_called(arguments.task)
    cells = _cells(task, arguments.sizes, arguments.sparsities)
    runs = [find_task_run(folder, task.name) for folder in arguments.checkpoints]
    _refuse_equal_names(runs)
    for run in runs:
        _refuse_impossible(run, cells)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for run in runs:
        _evaluate(run, cells, arguments, device)


def _cells(task: "Task", sizes: Sequence[int], sparsities: Sequence[int] | None) -> list[Cell]:
    """Every size with every k that it has room for."""
    if not task.has_sparsity:
        if sparsities is not None:
            raise InputError(f"--sparsities: task {task.name} has no k, and would ignore it")
        return [(size, None) for size in sorted(set(sizes))]
    if sparsities is None:
        raise InputError(f"task {task.name} needs --sparsities, such as --sparsities 2 4")
    most = task.largest_sparsity(max(sizes))
    if max(sparsities) > most:
        raise InputError(f"--sparsities {max(sparsities)}: k is at most {most} at --sizes {max(sizes)}")
    return [
        (size, sparsity)
        for size in sorted(set(sizes))
        for sparsity in sorted(set(sparsities))
        if sparsity <= task.largest_sparsity(size)
    ]


def _refuse_equal_names(runs: Sequence["TaskRun"]) -> None:
    names = [run.name for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two of --checkpoints are called '{name}'; results are filed under that name")


def _refuse_impossible(run: "TaskRun", cells: Sequence[Cell]) -> None:
    """Raise for the first size or k that the task or the model's position table has no room for."""
    import numpy as np

    from pipeline.tasks.example_batch import draw_batch
    from pipeline.training.task_accuracy import position_ids_in_testing

    for size, sparsity in cells:
        generator = np.random.default_rng(0)
        batch = draw_batch(run.config.distribution.task, size, [sparsity], generator)
        try:
            position_ids_in_testing(batch, run.config, generator)
        except InputError as error:
            raise InputError(f"model '{run.name}', size {size}: {error}") from error


def _evaluate(
    run: "TaskRun", cells: Sequence[Cell], arguments: argparse.Namespace, device: "torch.device"
) -> None:
    from pipeline.results.folder import StageOutput

    output = StageOutput(
        arguments.results,
        "evaluate_synthetic",
        run.name,
        settings={
            "task": run.config.task,
            "sizes": sorted({size for size, _ in cells}),
            "sparsities": sorted({sparsity for _, sparsity in cells if sparsity is not None}),
            "num_examples": arguments.num_examples,
            "test_seed": arguments.test_seed,
        },
        inputs={"checkpoint": run.sha256},
        num_shards=len(cells),
    )
    pending = output.pending_shards()
    if pending:
        model, is_learnt = run.load(device), run.is_learnt
        for shard in progress(pending, f"evaluate_synthetic {run.name}", "cells"):
            row = _measure(run, model, cells[shard], arguments) | {"is_learnt": is_learnt}
            columns = {name: [value] for name, value in row.items()}
            output.write_shard(shard, {"synthetic_accuracy": columns})
            logger.info("%s: %s", run.name, _in_words(row))
    logger.info(output.state())


def _measure(run: "TaskRun", model: "TaskModel", cell: Cell, arguments: argparse.Namespace) -> dict[str, Any]:
    """The row of one size and k."""
    import numpy as np

    from pipeline.tasks.example_batch import draw_batch
    from pipeline.training.task_accuracy import answers

    size, sparsity = cell
    config = run.config
    generator = np.random.default_rng([arguments.test_seed, size, sparsity or 0])
    batch = draw_batch(config.distribution.task, size, [sparsity] * arguments.num_examples, generator)
    found = answers(model, batch, config, generator, arguments.examples_per_batch)
    return {
        "task": config.task,
        "positions": config.positions,
        "seed": config.seed,
        "largest_train_size": config.largest_size,
        "largest_train_sparsity": config.largest_sparsity,
        "size": size,
        "sparsity": sparsity,
        "num_tokens": batch.token_ids_BS.shape[1],
        "num_examples": arguments.num_examples,
        **_accuracies(found),
    }


def _accuracies(found: "Answers") -> dict[str, float | None]:
    from pipeline.results.wilson import wilson_interval

    is_right_B, id_is_right_BT = found.is_right_B, found.position_id_is_right_BT
    interval = wilson_interval(int(is_right_B.sum()), len(is_right_B))
    return {
        "exact_match": interval.estimate,
        "exact_match_low": interval.low,
        "exact_match_high": interval.high,
        "token_accuracy": float(found.token_is_right_BT.mean()),
        "position_id_accuracy": None if id_is_right_BT is None else float(id_is_right_BT.mean()),
    }


def _in_words(row: Mapping[str, Any]) -> str:
    of_k = "" if row["sparsity"] is None else f", k {row['sparsity']}"
    interval = f"[{row['exact_match_low']:.3f}, {row['exact_match_high']:.3f}]"
    learnt = "" if row["is_learnt"] else " (the task was not learnt in distribution)"
    return f"size {row['size']}{of_k}: exact match {row['exact_match']:.3f} {interval}{learnt}"


if __name__ == "__main__":
    run_stage(parser(), main)
