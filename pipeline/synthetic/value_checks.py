"""Which values the configuration of a synthetic task's run may have, and which go together."""

import numpy as np

from pipeline.errors import InputError, unknown_name
from pipeline.synthetic.configuration import TaskConfig
from pipeline.synthetic.coupled_positions import (
    COUPLED_SCHEMES,
    EXAMPLE_SCHEMES,
    example_position_ids,
    refuse_beyond_table,
)
from pipeline.synthetic.tasks.example_batch import draw_batch
from pipeline.synthetic.tasks.registry import Task, task_called
from pipeline.training.value_checks import (
    FINITE_FROM_ZERO,
    LEARNING_RATE,
    POSITIVE,
    SEED,
    SHARE_BELOW_ONE,
    Range,
    Relation,
    refuse_bad_numbers,
    refuse_bad_relations,
)

ARCHITECTURES = ("gpt_neox", "olmo")
SPREADS = ("contiguous", "pose")

_COUNT = Range(1, 1_000_000)  # what is more is a slip of the hand
_STEPS = Range(1, 2**31 - 1)  # what the column of steps holds
RANGES = {
    "seed": SEED,
    "smallest_size": _COUNT,
    "largest_size": _COUNT,
    "size_step": _COUNT,
    "largest_sparsity": _COUNT,
    "num_position_ids": _COUNT,
    "model.width": Range(1, 65_536),
    "model.num_layers": Range(1, 1024),
    "model.num_heads": _COUNT,
    "model.rotary_fraction": Range(0, 1, leaves_least_out=True),
    "batch_size": _COUNT,
    "sizes_per_step": _COUNT,
    "num_steps": _STEPS,
    "learning_rate": LEARNING_RATE,
    "warm_up_steps": Range(0),
    "weight_decay": FINITE_FROM_ZERO,
    "betas": SHARE_BELOW_ONE,
    "max_grad_norm": POSITIVE,
    "save_interval": _STEPS,
    "eval_interval": _STEPS,
    "eval_num_examples": _COUNT,
}
"""Field of a `TaskConfig` -> where its number lies; of a list, where each of its numbers lies."""

RELATIONS: tuple[Relation, ...] = (
    (
        lambda config: config.model.width % (2 * config.model.num_heads) == 0,
        "model.width {0.model.width} is not a multiple of twice model.num_heads, {0.model.num_heads}: RoPE"
        " rotates pairs within a head",
    ),
    (
        lambda config: config.model.width // config.model.num_heads * config.model.rotary_fraction % 2 == 0,
        "model.rotary_fraction {0.model.rotary_fraction} of a head, which is model.width {0.model.width} over"
        " model.num_heads {0.model.num_heads}, is not an even number",
    ),
    (lambda config: len(config.betas) == 2, "betas is {0.betas}; AdamW takes two, such as [0.9,0.999]"),
    (
        lambda config: config.warm_up_steps < config.num_steps,
        "warm_up_steps is {0.warm_up_steps}; it must be below num_steps, {0.num_steps}",
    ),
    (
        lambda config: config.batch_size % config.sizes_per_step == 0,
        "batch_size {0.batch_size} is not divisible by sizes_per_step {0.sizes_per_step}",
    ),
    (
        lambda config: config.smallest_size <= config.largest_size,
        "largest_size is {0.largest_size}; it must be at least smallest_size, {0.smallest_size}",
    ),
)
"""Of the fields of a `TaskConfig`."""


def refuse_bad_values(config: TaskConfig) -> None:
    """Refuse values that could only fail later, or do nothing.

    Raises:
        InputError: names the field, its value and what would be right.
    """
    task = task_called(config.task)
    if config.positions in COUPLED_SCHEMES:
        task.require_coupled_ids(config.positions)
    for field, value, valid in (
        ("positions", config.positions, EXAMPLE_SCHEMES),
        ("spread_of_coupled_ids", config.spread_of_coupled_ids, SPREADS),
        ("model.architecture", config.model.architecture, ARCHITECTURES),
    ):
        if value not in valid:
            raise unknown_name(field, value, valid)
    refuse_bad_numbers(config, RANGES)
    refuse_bad_relations(config, RELATIONS)
    _refuse_sparsity(config, task)
    _refuse_sizes(config, task)


def _refuse_sparsity(config: TaskConfig, task: Task) -> None:
    largest = config.largest_sparsity
    if task.has_sparsity != (largest is not None):
        needs = "needs largest_sparsity, K_train" if task.has_sparsity else "has no k; leave it out"
        raise InputError(f"largest_sparsity is {largest}, but task {task.name} {needs}")
    if largest is not None and largest > (most := task.largest_sparsity(config.largest_size)):
        raise InputError(
            f"largest_sparsity is {largest}; with largest_size {config.largest_size} k is 1 to {most}"
        )


def _refuse_sizes(config: TaskConfig, task: Task) -> None:
    """By drawing examples: the task itself knows best which sizes it has."""
    # Before drawing: no example has fewer tokens, or coupled IDs, than its size.
    refuse_beyond_table(config.largest_size, config.num_position_ids)
    sizes = config.distribution.sizes
    # The smallest and the largest; and the second, as a task may have every other size only.
    for size in dict.fromkeys((*sizes[:2], sizes[-1])):
        generator = np.random.default_rng(0)
        batch = draw_batch(task, size, [1 if task.has_sparsity else None], generator)
        shape, coupled_ids = batch.token_ids_BS.shape, batch.coupled_ids_BS
        example_position_ids(config.positions, shape, coupled_ids, config.num_position_ids, generator)
