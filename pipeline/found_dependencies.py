"""Whether influential tokens are the tokens that truly decide: on synthetic tasks, whose generator knows.

For each model of a synthetic task and each test example: the tokens that every rule selects in the far
context of every answer token, as pipeline/influential_tokens.py selects them in text, and whether each is in
the true dependency set. From these rows, precision (selected tokens that are true ones) and recall (true ones
that are selected) at every k; prints recall at k = the number of true ones, where the two are equal.

A token left out is removed, or replaced by the tokens that other examples have in its place (background);
these also fill the far context around the chosen tokens.

Answers are given, not generated, and position IDs the true ones. What of a dependency set lies in the short
context is seen anyway, and not counted; targets whose far context holds no true dependency are left out.

With --head position_ids the same is asked of the position IDs that a model trained with predicted positions
(PPC) predicts: the next ID is decided by the token before it and, where the content decides or training
parts the IDs at random (spread_of_coupled_ids), by the prompt's token that has that ID. A token replaced
keeps its ID; a token removed takes it along.

writes   <results>/found_dependencies/model=<run folder's name>/*.parquet      columns: pipeline/RESULTS.md
         <results>/found_id_dependencies/..., of the head of position IDs
resumes  run the same command again; a size and k is a shard, kept once complete; other settings are refused

full size, on one GPU:
  python pipeline/found_dependencies.py --task sparse_parity --checkpoints runs/paper/models/* \\
      --results runs/paper/results --sizes 50 100 --sparsities 1 2 4 8 --largest-k 16 --num-examples 1000

on a laptop, after the laptop command of train_synthetic.py (seconds):
  python pipeline/found_dependencies.py --task copy --checkpoints runs/demo/synthetic/copy-predicted-seed0 \\
      --results runs/demo/synthetic/results --sizes 5 10 --largest-k 4 --num-examples 20
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.cli import InputError, positive_int, stage_parser, whole_number
from pipeline.measuring.rules import INTERVENTIONS, find_rule
from pipeline.synthetic.dependencies import (
    DEFAULT_FINDING_RULES,
    DEFAULT_INTERVENTIONS,
    FINDING_RULES,
    LARGEST_K,
    NUM_BACKGROUNDS,
    NUM_EXAMPLES_OF_FINDING,
    POSITION_IDS,
    SHORT_CONTEXT_LENGTH,
    TOKENS,
    far_dependencies,
    lengths_of,
    searched_example,
)
from pipeline.synthetic.evaluation import (
    Cell,
    Evaluation,
    add_task_evaluation_arguments,
    cells_of,
    in_words,
    refuse_impossible,
    test_examples,
)
from pipeline.synthetic.tasks import ExampleBatch, task_called

if TYPE_CHECKING:
    from pipeline.synthetic.config import TaskConfig
    from pipeline.synthetic.models import TaskModel
    from pipeline.synthetic.train import TaskRun

ARTEFACT_OF_HEAD = {TOKENS: "found_dependencies", POSITION_IDS: "found_id_dependencies"}
"""What is predicted -> what is written; results of both may stand in one folder."""
TOKENS_PER_BATCH = 8192
"""Of a pass over small models."""
_MOST_BACKGROUNDS = 10_000


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add_task_evaluation_arguments(stage, num_examples=NUM_EXAMPLES_OF_FINDING)
    add = stage.add_argument
    add(
        "--head",
        choices=ARTEFACT_OF_HEAD,
        default=TOKENS,
        help="what is predicted: the next token, or its position ID (PPC)",
    )
    add(
        "--rules",
        nargs="+",
        choices=FINDING_RULES,
        default=list(DEFAULT_FINDING_RULES),
        help="selection rules",
    )
    add(
        "--interventions",
        nargs="+",
        choices=INTERVENTIONS,
        default=list(DEFAULT_INTERVENTIONS),
        help="what leaving a token out means; each is taken in turn",
    )
    add(
        "--num-backgrounds",
        type=whole_number(1, _MOST_BACKGROUNDS),
        default=NUM_BACKGROUNDS,
        help="other examples that a background is the mean of",
    )
    add(
        "--largest-k",
        type=positive_int,
        default=LARGEST_K,
        help="tokens that each rule selects, in its order",
    )
    add(
        "--short-context-length",
        type=positive_int,
        default=SHORT_CONTEXT_LENGTH,
        help="s, in tokens: what is seen anyway",
    )
    return stage


def check(arguments: argparse.Namespace, configs: Mapping[str, "TaskConfig"]) -> None:
    """Refuse what the task, or a model trained so (name -> configuration), has no room or no use for."""
    task, cells = cells_of(arguments.task, arguments.sizes, arguments.sparsities)
    refuse_impossible(configs, cells)
    for name, config in configs.items():
        if arguments.head == POSITION_IDS and config.positions != "predicted":
            raise InputError(
                f"--head position_ids: model '{name}' was trained with positions '{config.positions}'"
                " and predicts no IDs; name runs with positions predicted"
            )
    for rule in arguments.rules:
        find_rule(rule)
    for cell, are_spread in product(cells, set(map(_are_spread, configs.values()))):
        batch, _ = test_examples(task, cell, arguments.num_examples, arguments.test_seed)
        lengths = lengths_of(batch, arguments.short_context_length)
        where = in_words(cell)
        of_examples = _dependencies(arguments.head, batch, are_spread)
        found = [places for of_one in of_examples for places in far_dependencies(of_one, lengths)]
        num_far = int(lengths.num_far_tokens_T[0])
        most = max(map(len, found))
        if most == 0:
            raise InputError(
                f"no answer of the test examples of {where} depends on its far context; choose larger"
                " --sizes, a smaller --short-context-length or more --num-examples"
            )
        # Precision and recall are equal at the number of true dependencies.
        if not most <= arguments.largest_k <= num_far:
            raise InputError(
                f"--largest-k {arguments.largest_k}: an answer of {where} has {most} true dependencies in"
                f" its far context, and the first answer {num_far} tokens to select from; choose a number"
                " between these, or larger --sizes"
            )


def _evaluation(arguments: argparse.Namespace) -> Evaluation:
    """Of rules and interventions in their own order."""
    arguments.rules = [rule for rule in FINDING_RULES if rule in arguments.rules]
    arguments.interventions = [name for name in INTERVENTIONS if name in arguments.interventions]
    names = ("rules", "interventions", "num_backgrounds", "largest_k", "short_context_length")
    settings = {name: getattr(arguments, name) for name in names}
    return Evaluation(arguments, ARTEFACT_OF_HEAD[arguments.head], settings)


def is_done(arguments: argparse.Namespace) -> bool:
    """Whether every model was asked at every size and sparsity."""
    return _evaluation(arguments).is_done()


def main(arguments: argparse.Namespace) -> None:
    """Ask every model at every size and sparsity."""
    evaluation = _evaluation(arguments)
    check(arguments, {run.name: run.config for run in evaluation.runs})
    evaluation.run(partial(_measure, arguments))


def _are_spread(config: "TaskConfig") -> bool:
    """Whether coupled IDs were parted at random when they were learnt."""
    return config.spread_of_coupled_ids != "contiguous"


def _dependencies(head: str, batch: ExampleBatch, are_spread: bool) -> Sequence[Sequence[Sequence[int]]]:
    """For each example and target the places that decide the token, or its position ID."""
    if head == TOKENS:
        return [example.dependencies for example in batch.examples]
    return [example.id_dependencies(are_spread=are_spread) for example in batch.examples]


def _measure(
    arguments: argparse.Namespace,
    run: "TaskRun",
    model: "TaskModel",
    cell: Cell,
    batch: ExampleBatch,
    generator: np.random.Generator,
) -> dict[str, dict[str, list[Any]]]:
    """A row a target, selection and rank."""
    import torch

    from pipeline.measuring.contexts import Batching
    from pipeline.models.devices import keep_freed_memory

    keep_freed_memory()
    position_ids_BS = torch.from_numpy(run.config.position_ids(batch, generator, in_testing=True))
    lengths = lengths_of(batch, arguments.short_context_length)
    vocabulary = task_called(run.config.task).vocabulary
    num_examples = len(batch.token_ids_BS)
    dependencies_of_all = _dependencies(arguments.head, batch, _are_spread(run.config))
    columns: dict[str, list[Any]] = {}
    for index in range(num_examples):
        others_R = generator.integers(0, num_examples, arguments.num_backgrounds)
        tokens_L = batch.token_ids_BS[index]
        example = searched_example(
            arguments.head,
            model,
            len(vocabulary),
            tokens_L,
            position_ids_BS[index],
            batch.token_ids_BS[others_R],
            lengths,
            Batching(TOKENS_PER_BATCH),
        )
        selections, long_losses_T = example.select(
            arguments.rules, arguments.interventions, arguments.largest_k, generator
        )
        dependencies = far_dependencies(dependencies_of_all[index], lengths)
        for selection, (target, truth) in product(selections, enumerate(dependencies)):
            effects_TK = selection.effects_TK
            for rank, place in enumerate(selection.positions_TK[target].tolist() if truth else [], start=1):
                row = {
                    "example_index": index,
                    "target_index": target,
                    "num_far_tokens": int(lengths.num_far_tokens_T[target]),
                    "num_dependencies": len(truth),
                    "long_context_loss": float(long_losses_T[target]),
                    "rule": selection.rule,
                    "intervention": selection.intervention,
                    "rank": rank,
                    "context_position": place,
                    "is_dependency": place in truth,
                    "effect": None if effects_TK is None else float(effects_TK[target, rank - 1]),
                    "context_token": vocabulary[tokens_L[place]],
                }
                for name, value in row.items():
                    columns.setdefault(name, []).append(value)
    return {ARTEFACT_OF_HEAD[arguments.head]: columns}
