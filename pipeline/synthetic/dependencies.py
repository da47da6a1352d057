"""Which tokens the rules select in an example of a synthetic task, and which truly decide its answers.

The task's generator knows the true dependency sets. What of a set lies in the short context needs no
selection, so finding is about the rest: the set's places in the distant context.

Shapes: L tokens of an example, T targets, F distant-context positions (of the last target), K largest k, B
swaps.
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from pipeline.cli import InputError
from pipeline.measuring.contexts import Batching
from pipeline.measuring.far_context import FarContext
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.rules import ABLATIONS, MASK, RULES, SWAP, find_rule, selected_positions
from pipeline.models.devices import keep_freed_memory
from pipeline.models.interface import CausalLM
from pipeline.synthetic.config import TaskConfig
from pipeline.synthetic.models import TaskCausalLM, TaskModel
from pipeline.synthetic.tasks import Cell, Example, task_called, test_examples

NUM_SWAPS = 8
"""Other examples that a swap is the mean of."""
_TOKENS_PER_BATCH = 8192
"""Tokens of a pass over small models."""


def distant_contexts(
    model: CausalLM, token_ids_L: np.ndarray, swaps_BL: np.ndarray, lengths: ContextLengths
) -> dict[str, FarContext]:
    """An example as the rules see it, under each ablation: one chunk, whose last tokens are the targets.

    Under `swap` other examples' tokens stand in the place of what is left out, and measurements are
    means over all of them: where a place has few values, one is often the token that stands there, and says
    nothing.
    """
    seen = (model, lengths, Batching(_TOKENS_PER_BATCH), token_ids_L, token_ids_L)
    return {MASK: FarContext(*seen), SWAP: FarContext(*seen, swap_ids_BL=swaps_BL)}


def select(
    contexts: dict[str, FarContext], rules: Sequence[str], max_k: int, generator: np.random.Generator
) -> Iterator[tuple[str, str | None, np.ndarray]]:
    """The first `max_k` tokens of every rule: int64 [T, K], most influential first.

    Under each ablation (name -> context) that the rule knows; None for rules that it does not matter to.
    """
    for rule in map(find_rule, rules):
        for ablation in ABLATIONS if rule.knows_ablations else (None,):
            context = contexts[ablation or MASK]
            yield rule.name, ablation, selected_positions(context, rule.name, max_k, generator)


def far_dependencies(dependencies: Sequence[Sequence[int]], lengths: ContextLengths) -> list[set[int]]:
    """The places of each target's true dependency set that lie in its distant context."""
    return [
        {place for place in places if place < num_far}
        for places, num_far in zip(dependencies, lengths.num_far_tokens_T.tolist(), strict=True)
    ]


def _lengths(short_context_length: int, example: Example) -> ContextLengths:
    """An example as one chunk, whose response is the targets."""
    num_tokens = len(example.token_ids_S)
    return ContextLengths(short_context_length, num_tokens, num_tokens - example.num_prompt_tokens)


def refuse_unanswerable(asked: argparse.Namespace, cells: Sequence[Cell]) -> None:
    """Refuse examples without a far dependency, and a largest k at which recall says nothing (InputError)."""
    for cell in cells:
        examples, _ = test_examples(task_called(asked.task), cell, asked.num_examples, asked.test_seed)
        lengths = _lengths(asked.short_context_length, examples[0])
        truth = [places for one in examples for places in far_dependencies(one.dependencies, lengths)]
        most = max(map(len, truth))
        num_far = int(lengths.num_far_tokens_T[0])
        # Precision and recall are equal at the number of true dependencies.
        if not 0 < most <= asked.largest_k <= num_far:
            raise InputError(
                f"--largest-k {asked.largest_k}: an answer of size {cell[0]} has {most} true dependencies in"
                f" its distant context, and the first answer {num_far} tokens to select from; choose a number"
                " between these, larger --sizes, or a smaller --short-context-length"
            )


def found_dependencies(
    asked: argparse.Namespace,
    config: TaskConfig,
    model: TaskModel,
    examples: Sequence[Example],
    generator: np.random.Generator,
) -> dict[str, list[Any]]:
    """Columns of `found_dependencies`: a row a target, selection and rank.

    Args:
        asked: flags of evaluate_synthetic.
        config, model: the run's.
        examples, generator: those of a cell, and what has drawn them.
    """
    keep_freed_memory()
    position_ids_BS = torch.from_numpy(config.position_ids(examples, generator, in_testing=True))
    token_ids_BS = np.stack([example.token_ids_S for example in examples])
    lengths = _lengths(asked.short_context_length, examples[0])
    vocabulary = task_called(config.task).vocabulary
    rules = [rule for rule in RULES if rule in asked.rules]
    rows: list[dict[str, Any]] = []
    for index, example in enumerate(examples):
        swaps_BL = token_ids_BS[generator.integers(0, len(examples), NUM_SWAPS)]
        lm = TaskCausalLM(model, position_ids_BS[index])
        contexts = distant_contexts(lm, example.token_ids_S, swaps_BL, lengths)
        truth = far_dependencies(example.dependencies, lengths)
        for rule, ablation, positions_TK in select(contexts, rules, asked.largest_k, generator):
            for target, places in enumerate(truth):
                for rank, place in enumerate(positions_TK[target].tolist() if places else (), start=1):
                    rows.append(
                        {
                            "example_index": index,
                            "target_index": target,
                            "num_distant_tokens": int(lengths.num_far_tokens_T[target]),
                            "num_dependencies": len(places),
                            "long_context_loss": float(contexts[MASK].long_losses_T[target]),
                            "rule": rule,
                            "ablation": ablation,
                            "rank": rank,
                            "context_position": place,
                            "is_dependency": place in places,
                            "context_token": vocabulary[example.token_ids_S[place]],
                        }
                    )
    return {name: [row[name] for row in rows] for name in rows[0]}
