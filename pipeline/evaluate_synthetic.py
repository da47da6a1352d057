"""Test models of one synthetic task at every test size and k: accuracy, or which tokens decide.

The models answer freely: each token of the response, and with predicted positions (PPC) each position ID, is
the likeliest, and read back. Exact match counts a response where all are right, a wrong ID being an error.
For cues_* the loss beyond the best possible one is measured, too.
Test examples are drawn by (size, k), the same for every model. Prints a line for each size and k.

--dependencies asks instead whether the selection rules find the tokens that truly decide an answer, which the
task's generator knows: the tokens that every rule selects in the distant context of every answer token, as
influential_tokens.py selects them in text, and whether each is in the true dependency set. Answers are given,
not generated, and position IDs the true ones. A token left out is masked, or replaced by the tokens that
other examples have in its place (swap). What of a dependency set lies in the short context, the last two
tokens, is seen anyway and not counted; targets whose distant context holds no true dependency are left out.

writes   <results>/synthetic_accuracy/<run folder's name>/*.parquet      columns: pipeline/RESULTS.md
         with --dependencies found_dependencies
resumes  run the same command again; a size and k is a shard, kept once complete; other settings are refused

full size, on one GPU:
  python pipeline/evaluate_synthetic.py --task sparse_parity --checkpoints runs/paper/models/* \\
      --results runs/paper/results --sizes 20 50 100 200 300 400 500 --sparsities 4 6 8 10 12 14 16

on a laptop, after the laptop command of train_synthetic.py (seconds):
  python pipeline/evaluate_synthetic.py --task copy --checkpoints runs/demo/synthetic/copy-predicted-seed0 \\
      --results runs/demo/synthetic/results --sizes 5 10 20 30 --num-examples 100
  python pipeline/evaluate_synthetic.py --task copy --checkpoints runs/demo/synthetic/copy-predicted-seed0 \\
      --results runs/demo/synthetic/results --sizes 5 10 --num-examples 20 --dependencies --largest-k 4
"""

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from sparsity_length.cli import (
    Asked,
    InputError,
    folder_path,
    logger,
    positive_int,
    progress,
    run_stage,
    stage_parser,
)
from sparsity_length.measuring.rules import CONTROLS, RULES
from sparsity_length.results.files import sha256_of_files
from sparsity_length.results.write import StageOutput
from sparsity_length.synthetic.config import TaskConfig
from sparsity_length.synthetic.tasks import TASKS, TEST_STREAM, of_test_examples

Cell = tuple[int, int | None]
"""A test size, and k for tasks that have it."""


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add = stage.add_argument
    add(
        "--task",
        required=True,
        choices=TASKS,
        metavar="TASK",
        help="the task's name; run folders of other tasks are refused",
    )
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
        help="k of the test examples, for tasks with k; left out at sizes without room",
    )
    add("--num-examples", type=positive_int, default=1000, help="test examples of each size and k")
    add("--dependencies", action="store_true", help="find the tokens that decide, instead of the accuracy")
    add(
        "--rules",
        nargs="+",
        choices=RULES,
        # The first finds most of the truth of these tasks (analysis/README.md).
        default=[
            "attention_rollout",
            "leave_one_out",
            "leave_one_out_divergence",
            "add_one_in",
            "greedy",
            *CONTROLS,
        ],
        help="selection rules of --dependencies",
    )
    add(
        "--largest-k",
        type=positive_int,
        default=8,
        help="tokens that each rule selects, in its order; at least as many as truly decide",
    )
    return stage


def check(arguments: argparse.Namespace, configs: Sequence[TaskConfig]) -> list[Cell]:
    """Every size with every k that the task has room for.

    InputError for what the task, or a model that was trained so, has no room or no use for.
    """
    task = TASKS[arguments.task]
    sizes = sorted(set(arguments.sizes))
    ks = sorted(set(arguments.sparsities or ()))
    most = task.largest_sparsity(sizes[-1])
    if bool(ks) != bool(most) or max(ks, default=0) > most:
        raise InputError(
            f"--sparsities: task {arguments.task} has k up to {most} at --sizes {sizes[-1]} (0: it has none,"
            " and the flag is left out)"
        )
    cells = [(size, k) for size in sizes for k in ks or [None] if (k or 0) <= task.largest_sparsity(size)]
    # One example a cell is enough, as the position IDs needed follow from the size.
    generator = np.random.default_rng(0)
    for config, (size, k) in product(configs, cells):
        config.ids_of(task.draw(size, [k], generator), generator, in_testing=True)
    return cells


def _outputs(
    arguments: argparse.Namespace,
) -> tuple[list[Cell], list[tuple[tuple[Path, TaskConfig], StageOutput]]]:
    """The cells, a shard each; of each model its checkpoint and configuration, and where its results go."""
    # Imported late, for a --help at once.
    from sparsity_length.models.checkpoints import MODEL_FILES
    from sparsity_length.synthetic.train import find_task_run

    runs = [find_task_run(folder, arguments.task) for folder in arguments.checkpoints]
    cells = check(arguments, [config for _, config in runs])
    settings = {
        "task": arguments.task,
        # Sorted, as the order in which sizes were typed is no other setting.
        "sizes": sorted({size for size, _ in cells}),
        "sparsities": sorted({k for _, k in cells if k is not None}),
        "num_examples": arguments.num_examples,
        "test_stream": TEST_STREAM,
    }
    if arguments.dependencies:
        settings |= {
            "rules": [rule for rule in RULES if rule in arguments.rules],
            "largest_k": arguments.largest_k,
        }
    outputs = [
        StageOutput(
            arguments.results,
            "found_dependencies" if arguments.dependencies else "evaluate_synthetic",
            checkpoint.parent.name,
            settings=settings,
            inputs={"checkpoint": sha256_of_files(*(checkpoint / name for name in MODEL_FILES))},
            num_shards=len(cells),
        )
        for checkpoint, _ in runs
    ]
    return cells, list(zip(runs, outputs, strict=True))


def is_done(arguments: argparse.Namespace) -> bool:
    """Whether every model was tested at every size and k."""
    return not any(output.pending_shards() for _, output in _outputs(arguments)[1])


def left(arguments: argparse.Namespace, asked: Asked) -> tuple[bool, None]:
    """Whether a model was not tested at every size and k; those that it was not trained for are refused."""
    check(arguments, asked.needed)
    return not (asked.is_ready and is_done(arguments)), None


def main(arguments: argparse.Namespace) -> None:
    """Test every model at every size and k."""
    cells, outputs = _outputs(arguments)
    for (checkpoint, config), output in outputs:
        if output.pending_shards():
            with output.writing():
                _measure(arguments, checkpoint, config, cells, output)
        logger.info(output.state())


def _measure(
    arguments: argparse.Namespace,
    checkpoint: Path,
    config: TaskConfig,
    cells: list[Cell],
    output: StageOutput,
) -> None:
    """Measure what is missing; columns that tell of run and cell are added to every table."""
    # Imported late, for a --help at once.
    from sparsity_length.models.devices import keep_freed_memory, usable_device
    from sparsity_length.synthetic.evaluation import accuracy, found_dependencies
    from sparsity_length.synthetic.train import is_learnt, load_task_lm

    keep_freed_memory()
    model = load_task_lm(checkpoint, config, usable_device(None, "CUDA_VISIBLE_DEVICES= computes on the CPU"))
    of_run = {
        "task": config.task,
        "positions": config.positions,
        "seed": config.seed,
        "largest_train_size": config.largest_size,
        "largest_train_sparsity": config.largest_sparsity,
        "is_learnt": is_learnt(checkpoint, config),
    }
    for shard in progress(output.pending_shards(), f"evaluate_synthetic {checkpoint.parent.name}", "cells"):
        size, k = cells[shard]
        # The same examples for every model; what else is drawn comes behind them from their own stream.
        generator = of_test_examples(size, k)
        examples = TASKS[config.task].draw(size, [k] * arguments.num_examples, generator)
        if arguments.dependencies:
            tables: dict[str, Any] = found_dependencies(
                model, examples, generator, arguments.rules, arguments.largest_k
            )
        else:
            tables = accuracy(model, examples, generator)
            logger.info(
                "%s: size %s, k %s: exact match %.3f",
                checkpoint.parent.name,
                size,
                k,
                tables["synthetic_examples"]["is_right"].mean(),
            )
        output.write_shard(
            shard,
            [
                (table, {**of_run, "size": size, "sparsity": k, **columns.to_dict("list")})
                for table, columns in tables.items()
            ],
        )


if __name__ == "__main__":
    run_stage(parser(), main)
