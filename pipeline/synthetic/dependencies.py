"""Which tokens the rules select in an example of a synthetic task, and which truly decide its answers.

The task's generator knows the true dependency sets. What of a set lies in the short context needs no
selection, so finding is about the rest: the set's places in the distant context.

Shapes: L tokens of an example, T targets, F distant-context positions (of the last target), K largest k, B
swaps.
"""

import argparse
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipeline.cli import InputError
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.rules import ABLATIONS, CONTROLS, MASK, RULES, find_rule, selected_positions
from pipeline.synthetic.tasks import Cell, ExampleBatch, task_called, test_examples

if TYPE_CHECKING:
    from pipeline.measuring.far_context import FarContext
    from pipeline.models.interface import CausalLM
    from pipeline.synthetic.config import TaskConfig
    from pipeline.synthetic.models import TaskModel

FINDING_RULES = tuple(RULES)
DEFAULT_RULES = (
    "attention_rollout",
    "leave_one_out",
    "leave_one_out_divergence",
    "add_one_in",
    "greedy",
    *CONTROLS,
)
"""The first finds most of the truth of these tasks (analysis/README.md)."""
_EFFECTS = {"leave_one_out": "influence_TF", "leave_one_out_divergence": "divergence_TF"}
"""Rule -> what a distant context tells of each distant token left out."""
TOKENS = "tokens"
POSITION_IDS = "position_ids"
ARTEFACTS = {TOKENS: "found_dependencies", POSITION_IDS: "found_id_dependencies"}
"""What is predicted -> what is written; results of both may stand in one folder."""
_TOKENS_PER_BATCH = 8192
"""Of a pass over small models."""


class Selection(NamedTuple):
    """The tokens that one rule selected."""

    rule: str
    ablation: str | None
    """remove or swap; None for rules that it does not matter to."""
    positions_TK: np.ndarray
    """int64; most influential first."""
    effects_TK: np.ndarray | None
    """float32, nats: what leaving out each does; None for rules that leave no single token out."""


def distant_context(
    model: "CausalLM",
    token_ids_L: np.ndarray,
    swaps_BL: np.ndarray,
    lengths: ContextLengths,
    ablation: str,
) -> "FarContext":
    """An example as the rules see it: one chunk, whose last tokens, the response, are the targets.

    Under `swap` other examples' tokens stand in the place of what is left out, and measurements are
    means over all of them: where a place has few values, one is often the token that stands there, and says
    nothing.
    """
    # Imported late: the names of the rules are wanted for a --help at once.
    from pipeline.measuring.contexts import Batching
    from pipeline.measuring.far_context import FarContext

    swap_ids_BL = None if ablation == MASK else swaps_BL
    batching = Batching(_TOKENS_PER_BATCH)
    return FarContext(model, lengths, batching, token_ids_L, token_ids_L, swap_ids_BL=swap_ids_BL)


def select(
    contexts: Mapping[str, "FarContext"],
    own: "FarContext",
    rules: Sequence[str],
    max_k: int,
    generator: np.random.Generator,
) -> list[Selection]:
    """The first `max_k` tokens of every rule, under each ablation (name -> context) that it knows.

    Rules that know none look at `own`.
    """
    found = []
    for rule in map(find_rule, rules):
        known = [name for name in contexts if name in rule.ablations]
        for ablation in known if rule.knows_ablations else [None]:
            context = own if ablation is None else contexts[ablation]
            positions_TK = selected_positions(context, rule.name, max_k, generator)
            effects_TK = None
            if rule.name in _EFFECTS:
                effects_TK = np.take_along_axis(getattr(context, _EFFECTS[rule.name]), positions_TK, axis=1)
            found.append(Selection(rule.name, ablation, positions_TK, effects_TK))
    return found


def far_dependencies(dependencies: Sequence[Sequence[int]], lengths: ContextLengths) -> list[set[int]]:
    """The places of each target's true dependency set that lie in its distant context."""
    return [
        {place for place in places if place < num_far}
        for places, num_far in zip(dependencies, lengths.num_far_tokens_T.tolist(), strict=True)
    ]


def _truth(
    asked: argparse.Namespace, config: "TaskConfig", batch: ExampleBatch
) -> tuple[ContextLengths, list[list[set[int]]]]:
    """An example as one chunk, and for each example and target the far places that decide it."""
    num_tokens = batch.token_ids_BS.shape[1]
    lengths = ContextLengths(asked.short_context_length, num_tokens, num_tokens - batch.num_prompt_tokens)
    dependencies = [example.dependencies for example in batch.examples]
    if asked.dependencies == POSITION_IDS:
        are_spread = config.spread_of_coupled_ids != "contiguous"
        dependencies = [example.id_dependencies(are_spread=are_spread) for example in batch.examples]
    return lengths, [far_dependencies(of_example, lengths) for of_example in dependencies]


def refuse_unanswerable(
    asked: argparse.Namespace, configs: Mapping[str, "TaskConfig"], cells: Sequence[Cell]
) -> None:
    """Refuse examples without a far dependency, and a largest k at which recall says nothing (InputError)."""
    for name, config in configs.items():
        if asked.dependencies == POSITION_IDS and config.positions != "predicted":
            raise InputError(
                f"--dependencies position_ids: model '{name}' was trained with positions"
                f" '{config.positions}' and predicts no IDs; name runs with positions predicted"
            )
    unlike = {config.spread_of_coupled_ids: config for config in configs.values()}
    for config, cell in product(unlike.values(), cells):
        batch, _ = test_examples(task_called(config.task), cell, asked.num_examples, asked.test_seed)
        lengths, truth = _truth(asked, config, batch)
        most = max(len(places) for of_example in truth for places in of_example)
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
    config: "TaskConfig",
    model: "TaskModel",
    batch: ExampleBatch,
    generator: np.random.Generator,
) -> dict[str, list[Any]]:
    """Columns of `found_dependencies`: a row a target, selection and rank.

    Args:
        asked: flags of evaluate_synthetic.
        config, model: the run's.
        batch, generator: the examples of a cell, and what has drawn them.
    """
    import torch

    from pipeline.models.devices import keep_freed_memory
    from pipeline.synthetic.models import PositionIdLM, TaskCausalLM

    keep_freed_memory()
    position_ids_BS = torch.from_numpy(config.position_ids(batch, generator, in_testing=True))
    lengths, truth = _truth(asked, config, batch)
    vocabulary = task_called(config.task).vocabulary
    num_examples = len(batch.token_ids_BS)
    rules = [rule for rule in FINDING_RULES if rule in asked.rules]
    rows: list[dict[str, Any]] = []
    for index, tokens_L in enumerate(batch.token_ids_BS):
        others_R = generator.integers(0, num_examples, asked.num_swaps)
        read_L = tokens_L
        swaps_RL = batch.token_ids_BS[others_R]
        lm = TaskCausalLM(model, len(vocabulary), position_ids_BS[index])
        if asked.dependencies == POSITION_IDS:
            lm = of_ids = PositionIdLM(
                model, len(vocabulary), position_ids_BS[index], tokens_L, batch.num_prompt_tokens
            )
            read_L = of_ids.codes_L
            swaps_RL = of_ids.codes_of(swaps_RL)
        contexts = {
            name: distant_context(lm, read_L, swaps_RL, lengths, name)
            for name in ABLATIONS
            if name in asked.ablations
        }
        own = distant_context(lm, read_L, swaps_RL, lengths, MASK)
        selections = select(contexts, own, rules, asked.largest_k, generator)
        for selection, (target, places) in product(selections, enumerate(truth[index])):
            effects_TK = selection.effects_TK
            for rank, place in enumerate(selection.positions_TK[target].tolist() if places else [], start=1):
                rows.append(
                    {
                        "example_index": index,
                        "target_index": target,
                        "num_distant_tokens": int(lengths.num_far_tokens_T[target]),
                        "num_dependencies": len(places),
                        "long_context_loss": float(own.long_losses_T[target]),
                        "rule": selection.rule,
                        "ablation": selection.ablation,
                        "rank": rank,
                        "context_position": place,
                        "is_dependency": place in places,
                        "effect": None if effects_TK is None else float(effects_TK[target, rank - 1]),
                        "context_token": vocabulary[tokens_L[place]],
                    }
                )
    return {name: [row[name] for row in rows] for name in rows[0]}
