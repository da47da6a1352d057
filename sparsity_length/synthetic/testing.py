"""What evaluate_synthetic.py does: every model at every test size and k, a shard each."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from sparsity_length.cli import logger, progress
from sparsity_length.measuring.rules import RULES
from sparsity_length.models.checkpoints import MODEL_FILES
from sparsity_length.models.devices import keep_freed_memory, usable_device
from sparsity_length.results.files import sha256_of_files
from sparsity_length.results.write import StageOutput
from sparsity_length.synthetic.config import Cell, TaskConfig, tested_cells
from sparsity_length.synthetic.evaluation import accuracy, found_dependencies
from sparsity_length.synthetic.tasks import TASKS, TEST_STREAM, of_test_examples
from sparsity_length.synthetic.train import find_task_run, is_learnt, load_task_lm


def test(arguments: argparse.Namespace) -> None:
    """Test every model at every size and k."""
    for checkpoint, config, cells, output in _work(arguments):
        output.fill(partial(_measure, arguments, checkpoint, config, cells, output))


def left(arguments: argparse.Namespace) -> list[str]:
    """What is still to be tested, one line per model."""
    return [output.state() for *_, output in _work(arguments) if output.pending_shards()]


def _work(arguments: argparse.Namespace) -> list[tuple[Path, TaskConfig, list[Cell], StageOutput]]:
    """Each model's checkpoint and configuration, the cells (one shard each), and where its results go."""
    runs = [find_task_run(folder, arguments.task) for folder in arguments.checkpoints]
    cells = tested_cells(arguments, [config for _, config in runs])
    settings = {
        "task": arguments.task,
        # Sorted, as the order in which sizes were typed is no other setting.
        "sizes": sorted({size for size, _ in cells}),
        "sparsities": sorted({k for _, k in cells if k is not None}),
        "num_examples": arguments.num_examples,
        "test_stream": TEST_STREAM,
    }
    stage = "evaluate_synthetic"
    if arguments.dependencies:
        stage = "found_dependencies"
        rules = [rule for rule in RULES if rule in arguments.rules]
        settings |= {"rules": rules, "largest_k": arguments.largest_k}
    work = []
    for checkpoint, config in runs:
        inputs = {"checkpoint": sha256_of_files(*(checkpoint / name for name in MODEL_FILES))}
        name = checkpoint.parent.name
        output = StageOutput(
            arguments.results, stage, name, settings=settings, inputs=inputs, num_shards=len(cells)
        )
        work.append((checkpoint, config, cells, output))
    return work


def _measure(
    arguments: argparse.Namespace,
    checkpoint: Path,
    config: TaskConfig,
    cells: list[Cell],
    output: StageOutput,
) -> None:
    """Measure what is missing; columns that tell of run and cell are added to every table."""
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
