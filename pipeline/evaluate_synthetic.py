"""Accuracy of models of one synthetic task, at every test size and sparsity.

The models answer freely: each token of the response, and with predicted positions (PPC) each position ID, is
the likeliest, and read back. Exact match counts a response where all are right, a wrong ID being an error.
Of signs_* the loss beyond the best possible one is measured, too, and the attention on the signs.
Test examples are drawn by (test seed, size, k), the same for every model. Prints a line for each size and k.

writes   <results>/synthetic_accuracy/model=<run folder's name>/*.parquet      columns: pipeline/RESULTS.md
resumes  run the same command again; a size and k is a shard, kept once complete; other settings are refused

full size, on one GPU:
  python pipeline/evaluate_synthetic.py --task sparse_parity --checkpoints runs/paper/models/* \\
      --results runs/paper/results --sizes 20 50 100 200 300 400 500 --sparsities 4 6 8 10 12 14 16

on a laptop, after the laptop command of train_synthetic.py (seconds):
  python pipeline/evaluate_synthetic.py --task copy --checkpoints runs/demo/synthetic/copy-predicted-seed0 \\
      --results runs/demo/synthetic/results --sizes 5 10 20 30 --num-examples 100
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.cli import logger, positive_float, stage_parser
from pipeline.results.statistics import wilson_interval
from pipeline.synthetic.evaluation import (
    NUM_EXAMPLES,
    Cell,
    Evaluation,
    add_task_evaluation_arguments,
    cells_of,
    in_words,
    refuse_impossible,
)
from pipeline.synthetic.tasks import ExampleBatch, task_called

_EXAMPLES_PER_BATCH = 100
_NUM_LOOKED_INTO = 64
"""Examples that are generated together, and those whose attention is looked at, which takes a while."""

if TYPE_CHECKING:
    from pipeline.synthetic.config import TaskConfig
    from pipeline.synthetic.models import TaskModel
    from pipeline.synthetic.train import TaskRun


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add_task_evaluation_arguments(stage, num_examples=NUM_EXAMPLES)
    stage.add_argument(
        "--attention-scale",
        type=positive_float,
        default=1.0,
        help="what every attention score is multiplied by, to see whether answers fail as attention spreads"
        " over more tokens than in training; a look, no part of the model",
    )
    return stage


def check(arguments: argparse.Namespace, configs: Mapping[str, "TaskConfig"]) -> None:
    """Refuse a size or k that the task, or a model trained so (name -> configuration), has no room for."""
    _, cells = cells_of(arguments.task, arguments.sizes, arguments.sparsities)
    refuse_impossible(configs, cells)


def _evaluation(arguments: argparse.Namespace) -> Evaluation:
    scale = arguments.attention_scale  # left out where it is 1: results that know nothing of it were made so
    return Evaluation(arguments, "evaluate_synthetic", {} if scale == 1 else {"attention_scale": scale})


def is_done(arguments: argparse.Namespace) -> bool:
    """Whether every model was tested at every size and sparsity."""
    return _evaluation(arguments).is_done()


def main(arguments: argparse.Namespace) -> None:
    """Test every model at every size and sparsity, then print what was found."""
    evaluation = _evaluation(arguments)
    check(arguments, {run.name: run.config for run in evaluation.runs})
    evaluation.run(_measure)


def _measure(
    run: "TaskRun", model: "TaskModel", cell: Cell, batch: ExampleBatch, generator: np.random.Generator
) -> dict[str, dict[str, list[Any]]]:
    """One row of the cell, and one of each of its examples."""
    # Imported late, for a --help at once.
    from pipeline.synthetic.accuracy import answers, attention_on_signs, excess_losses

    of_answers = model, batch, run.config, generator
    found = answers(*of_answers, _EXAMPLES_PER_BATCH)
    id_is_right_BT = found.position_id_is_right_BT
    exact = wilson_interval(int(found.is_right_B.sum()), len(found.is_right_B))
    vocabulary = task_called(run.config.task).vocabulary
    has_sparsity = cell[1] is not None
    of_examples: dict[str, list[Any]] = {
        "example_index": list(range(len(batch.examples))),
        "is_right": found.is_right_B.tolist(),
        "answer": [vocabulary[token_id] for token_id in found.token_ids_BT[:, 0]],
        "decisive_tokens": [
            " ".join(vocabulary[example.token_ids_S[place]] for place in example.dependencies[0])
            if has_sparsity
            else None
            for example in batch.examples
        ],
        "distances": [None] * len(batch.examples),
        "excess_loss": [None] * len(batch.examples),
    }
    row: dict[str, Any] = {
        "num_tokens": batch.token_ids_BS.shape[1],
        "num_examples": len(found.is_right_B),
        "exact_match": exact.estimate,
        "exact_match_low": exact.low,
        "exact_match_high": exact.high,
        "token_accuracy": float(found.token_is_right_BT.mean()),
        "position_id_accuracy": None if id_is_right_BT is None else float(id_is_right_BT.mean()),
    }
    if batch.log_posterior_BV is not None:  # the best possible loss is known
        excess_B = excess_losses(*of_answers, _EXAMPLES_PER_BATCH)
        of_examples["excess_loss"], question = excess_B.tolist(), batch.num_prompt_tokens - 1
        of_examples["distances"] = [
            [question - place for place in example.dependencies[0]] for example in batch.examples
        ]
        row |= {
            "excess_loss": float(excess_B.mean()),
            "excess_loss_error": float(excess_B.std() / len(excess_B) ** 0.5),
            "attention_scaling": run.config.model.attention_scaling,
            "best_loss": batch.examples[0].best_loss,
            "sign_attention": attention_on_signs(*of_answers, _NUM_LOOKED_INTO).tolist(),
        }
    logger.info(
        "%s: %s: exact match %s%s",
        run.name,
        in_words(cell),
        exact,
        "" if run.is_learnt else " (the task was not learnt in distribution)",
    )
    of_cell = {name: [value] for name, value in row.items()}
    return {"synthetic_accuracy": of_cell, "synthetic_examples": of_examples}
