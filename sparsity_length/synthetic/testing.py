"""What evaluate_synthetic.py does: every model at every test size and k, a shard each."""

from functools import partial
from pathlib import Path
from typing import Any

from sparsity_length.cli import logger, progress
from sparsity_length.models.checkpoints import MODEL_FILES
from sparsity_length.models.devices import keep_freed_memory, usable_device
from sparsity_length.results.files import sha256_of_files
from sparsity_length.results.write import StageOutput
from sparsity_length.synthetic.config import TaskConfig, Testing
from sparsity_length.synthetic.evaluation import accuracy, found_dependencies
from sparsity_length.synthetic.tasks import TASKS, of_test_examples
from sparsity_length.synthetic.train import find_task_run, is_learnt, load_task_lm


def test(asked: Testing) -> None:
    """Test every model at every size and k."""
    for checkpoint, config, output in _work(asked):
        output.fill(partial(_measure, asked, checkpoint, config, output))


def left(asked: Testing) -> list[str]:
    """What is still to be tested, one line per model."""
    return [output.state() for *_, output in _work(asked) if output.pending_shards()]


def _work(asked: Testing) -> list[tuple[Path, TaskConfig, StageOutput]]:
    """Each model's checkpoint and configuration, and where its results go, a cell a shard."""
    runs = [find_task_run(folder, asked.task) for folder in asked.checkpoints]
    asked.check([config for _, config in runs])
    work = []
    for checkpoint, config in runs:
        inputs = {"checkpoint": sha256_of_files(*(checkpoint / name for name in MODEL_FILES))}
        output = StageOutput(
            asked.results,
            "found_dependencies" if asked.dependencies else "evaluate_synthetic",
            checkpoint.parent.name,
            settings=asked.as_metadata,
            inputs=inputs,
            num_shards=len(asked.cells),
        )
        work.append((checkpoint, config, output))
    return work


def _measure(asked: Testing, checkpoint: Path, config: TaskConfig, output: StageOutput) -> None:
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
        size, k = asked.cells[shard]
        # The same examples for every model; what else is drawn comes behind them from their own stream.
        generator = of_test_examples(size, k)
        examples = TASKS[config.task].draw(size, [k] * asked.num_examples, generator)
        if asked.dependencies:
            tables: dict[str, Any] = found_dependencies(
                model, examples, generator, asked.rules, asked.largest_k
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
