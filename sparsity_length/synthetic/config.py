"""Configuration of a run of train_synthetic, and the settings of evaluate_synthetic.

A YAML file has the fields of `TaskConfig`: task, training distribution, positions, model and optimizer; and
under `tasks` the fields that a task sets otherwise, so that one file serves all tasks. Flags and overrides
win over both.

Dimension letters: B examples of equal size, S tokens of an example, prompt and response, I position IDs
that they need.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from sparsity_length.cli import InputError, folder_path, positive_int
from sparsity_length.measuring.rules import CONTROLS, RULES
from sparsity_length.settings import Settings, setting, switch
from sparsity_length.synthetic.tasks import COUPLED_SCHEMES, TASKS, TEST_STREAM, Example
from sparsity_length.training.positions import POSITION_SCHEMES
from sparsity_length.training.settings import (
    read_overrides,
    read_yaml,
    require,
    require_name,
    require_positive,
    settings_of,
)

UNROTATED = ("nope", "alibi", "dape_nope", "dape_alibi")
"""Schemes of attention (schemes.py) under which nothing is rotated."""
ATTENTION_SCHEMES = (*UNROTATED, "sparse")
Cell = tuple[int, int | None]
"""A test size, and k for tasks that have it."""


@dataclass
class TaskModelConfig:
    """The trunk."""

    architecture: str = "gpt_neox"
    """`gpt_neox`, the paper's, or `olmo`."""
    width: int = 128
    num_layers: int = 2
    num_heads: int = 4
    rotary_fraction: float = 0.25
    """The fraction of each head that RoPE rotates, for `gpt_neox` only; `olmo` rotates all of it."""
    num_keys: int | None = None
    """For `sparse` positions: how many keys a row attends to in each head; None for all others."""


@dataclass
class TaskConfig:
    """One run."""

    task: str
    """A name of sparsity_length/synthetic/tasks.py."""
    positions: str
    """`contiguous`, `pose`, `randomized`, `coupled` or `predicted` (PPC); or with contiguous IDs in another
    attention (schemes.py): `nope`, `alibi`, `dape_nope`, `dape_alibi`, `sparse`."""
    seed: int = 0
    """Seed of the initial weights and of all examples."""

    smallest_size: int = 2
    """Least size of training examples, in the task's own unit: letters, bits, digits, assignments, prompt
    tokens."""
    largest_size: int = 10
    """Training sizes are all that the task has from the smallest to this."""
    largest_sparsity: int | None = None
    """K_train: in training k is uniform on 1 to this, or to what a smaller size has room for. None if the
    task has no k."""
    spread_of_coupled_ids: str = "contiguous"
    """How coupled IDs lie in training, before their random start: `contiguous`, or `pose`: parted by a random
    skip, so that a short example shows large differences of IDs too. In testing always contiguous. Only for
    `coupled` and `predicted` positions."""
    num_position_ids: int = 256
    """Position IDs are below it, in training and testing: what PoSE and random starts draw from. A test
    example that needs more is refused."""

    model: TaskModelConfig = field(default_factory=TaskModelConfig)

    batch_size: int = 64
    """Examples of a step."""
    sizes_per_step: int = 2
    """Number of sizes in a step, each with an equal part of the batch."""
    num_steps: int = 2000
    learning_rate: float = 5e-5
    """Peak learning rate, after a linear warm-up; it then falls linearly to 0 at the last step."""
    warm_up_steps: int = 300
    weight_decay: float = 0.1
    """AdamW's."""
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    """AdamW's."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm; .inf: they are not."""

    save_interval: int = 500
    """Steps between checkpoints."""
    eval_interval: int = 250
    """Steps between measurements of the accuracy in distribution."""
    eval_num_examples: int = 256
    """Least number of examples of such a measurement; every size has as many. They are the same each time,
    but others decide once these would end a run."""
    stop_at_excess_loss: float | None = None
    """Training ends once two measurements find so little excess loss in distribution, nats, so that models
    are compared that know their task alike. Only for tasks whose best loss is known. None: all steps."""
    stop_at_accuracy: float | None = None
    """Training ends once two measurements find this share of exact matches in distribution, and a model below
    it has not learned its task. None: all steps, and 0.99 counts as learned."""

    @property
    def stops_when_learnt(self) -> bool:
        """Whether training ends once the task is known."""
        return self.stop_at_excess_loss is not None or self.stop_at_accuracy is not None

    @property
    def sizes(self) -> range:
        """Sizes of training examples."""
        # Stepping as the task does: of marked bits, with a mark each, only even sizes exist.
        return range(self.smallest_size, self.largest_size + 1, TASKS[self.task].step)

    def draw(self, size: int, num_examples: int, generator: np.random.Generator) -> list[Example]:
        """Training examples of a size; each has a sparsity of its own, if the task has one.

        If the response grows with k, all have the same sparsity, without which they would not stack.
        """
        task = TASKS[self.task]
        if self.largest_sparsity is None:
            return task.draw(size, [None] * num_examples, generator)
        # Of 2l = 10 tokens no more than five bits can be marked, whatever K_train is.
        largest = min(self.largest_sparsity, task.largest_sparsity(size))
        num_draws = 1 if task.response_grows_with_k else num_examples
        sparsities = generator.integers(1, largest, num_draws, endpoint=True)
        return task.draw(size, np.broadcast_to(sparsities, num_examples).tolist(), generator)

    def ids_of(
        self, examples: list[Example], generator: np.random.Generator, *, in_testing: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Token IDs and position IDs of examples, int64 [B, S]; InputError if they need too many of these.

        PoSE and randomized positions draw from all position IDs. In testing PoSE is contiguous, and coupled
        IDs are not spread; randomized positions are random there too (Ruoss et al. 2023).

        Coupled IDs begin at random, as in position coupling (Cho et al. 2024, arXiv 2405.20671, section 4):
        examples shorter than the table would leave the rows of large IDs untrained, so the start is uniform
        over all that fit. With IDs 1 2 0 1 2 and 5 position IDs it is 0, 1 or 2; from 2 they are 3 4 2 3 4.
        In testing, too: a fixed start would test a part of the table only.

        A start alone leaves every difference of IDs beyond a short example's span untrained. Spread by pose,
        coupled ID c becomes the c-th position ID that PoSE draws, so that one skip parts them, of tokens that
        belong together alike. (The paper combines its synthetic experiments with PoSE; how in those with
        coupled IDs our sources do not say.)
        """
        token_ids_BS = np.stack([example.token_ids_S for example in examples])
        is_coupled = self.positions in COUPLED_SCHEMES
        places_S = np.arange(token_ids_BS.shape[1])
        ids_BS = np.array([example.coupled_ids_S if is_coupled else places_S for example in examples])
        num_needed = int(ids_BS.max()) + 1
        require(
            num_needed <= self.num_position_ids,
            f"examples of this size need {num_needed} or more position IDs, but num_position_ids is"
            f" {self.num_position_ids}; choose a smaller size, or train with more position IDs",
        )
        name = self.spread_of_coupled_ids if is_coupled else self.positions
        # Skips are a way to train on large IDs; a test example has the IDs of its own length.
        if name in ATTENTION_SCHEMES or (in_testing and (is_coupled or name == "pose")):
            name = "contiguous"
        # Ascending IDs, of which coupled ID c becomes the c-th: tokens that share an ID go on sharing one.
        drawn_BI = POSITION_SCHEMES[name](len(examples), num_needed, self.num_position_ids, generator)
        ids_BS = np.take_along_axis(drawn_BI, ids_BS, axis=1)
        if is_coupled:
            ids_BS += generator.integers(0, self.num_position_ids - ids_BS.max(axis=1, keepdims=True))
        return token_ids_BS, ids_BS


def load_task_config(path: Path, overrides: list[str], *, task: str, positions: str) -> TaskConfig:
    """The configuration of one run, complete and checked; InputError names a field and what would be right.

    The overrides (`field=value`) win over the file. Refused is what would train another model than was meant,
    or fail later.
    """
    given = read_yaml(path)
    of_tasks = given.pop("tasks", None) or {}  # no field of `TaskConfig`
    for name in (task, *of_tasks):
        require_name("task", name, TASKS)
    config: TaskConfig = settings_of(
        path,
        OmegaConf.structured(TaskConfig),
        given,
        of_tasks.get(task) or {},
        read_overrides(overrides),
        OmegaConf.create({"task": task, "positions": positions}),  # last, and so above an override
    )
    of_task = TASKS[task]
    # Most tasks with k have no coupled IDs; those of cues cannot be predicted.
    known = (*POSITION_SCHEMES, *ATTENTION_SCHEMES, *of_task.coupled_schemes)
    require(
        positions not in COUPLED_SCHEMES or positions in of_task.coupled_schemes,
        f"{task} has no {positions} position IDs; it can be trained with positions {', '.join(known)}",
    )
    require_name("positions", positions, known)
    require(
        (positions == "sparse") == bool(config.model.num_keys),
        f"model.num_keys is {config.model.num_keys}; positions sparse need one, at least 1, and others none",
    )
    require_name("spread_of_coupled_ids", config.spread_of_coupled_ids, ("contiguous", "pose"))
    require_name("model.architecture", config.model.architecture, ("gpt_neox", "olmo"))
    require_positive(
        config,
        "smallest_size largest_sparsity num_position_ids model.rotary_fraction batch_size"
        " sizes_per_step num_steps learning_rate max_grad_norm save_interval eval_interval eval_num_examples",
    )
    require(
        config.stop_at_excess_loss is None or task.startswith("cues_"),
        f"stop_at_excess_loss is {config.stop_at_excess_loss}, but the best loss of task {task} is not known",
    )
    require(
        config.stop_at_accuracy is None
        or (0 < config.stop_at_accuracy <= 1 and not task.startswith("cues_")),
        f"stop_at_accuracy is {config.stop_at_accuracy}; it must be above 0 and at most 1, and tasks cues_*"
        " have stop_at_excess_loss instead",
    )
    require(
        config.batch_size % config.sizes_per_step == 0,
        f"batch_size {config.batch_size} is not divisible by sizes_per_step {config.sizes_per_step}",
    )
    require(
        config.smallest_size <= config.largest_size,
        f"largest_size is {config.largest_size}; it must be at least smallest_size, {config.smallest_size}",
    )
    most = of_task.largest_sparsity(config.largest_size)
    require(
        min(most, 1) <= (config.largest_sparsity or 0) <= most,
        f"largest_sparsity is {config.largest_sparsity}; task {task} has k up to {most}, by largest_size (0:"
        " it has no k, and largest_sparsity is null)",
    )
    # The task itself knows best which sizes it has, so examples are drawn: the smallest and the largest, with
    # the largest k, which may need most IDs.
    generator = np.random.default_rng(0)
    for size in (config.sizes[0], config.sizes[-1]):
        k = config.largest_sparsity and min(config.largest_sparsity, of_task.largest_sparsity(size))
        config.ids_of(of_task.draw(size, [k], generator), generator)
    return config


def config_of(arguments: argparse.Namespace, needed: Sequence[Any] = ()) -> TaskConfig:
    """The configuration that a command line of train_synthetic.py asks for."""
    return load_task_config(
        arguments.config, arguments.overrides, task=arguments.task, positions=arguments.positions
    )


@dataclass(frozen=True, kw_only=True)
class Testing(Settings):
    """Which models of a task are tested, at which sizes, by their accuracy or by what decides answers."""

    task: str = setting(
        str, "name of the task; run folders of other tasks are refused", choices=TASKS, metavar="TASK"
    )
    checkpoints: tuple[Path, ...] = setting(
        folder_path, "run folders of train_synthetic", many="+", metavar="RUN"
    )
    results: Path = setting(folder_path, "results folder to write to; complete shards in it are kept")
    sizes: tuple[int, ...] = setting(
        positive_int,
        "sizes of the test examples, in the task's own unit: letters, bits, digits, assignments, or prompt"
        " tokens",
        many="+",
    )
    sparsities: tuple[int, ...] | None = setting(
        positive_int,
        "values of k of the test examples, for tasks with k; a size too small for a k is skipped",
        None,
        many="+",
    )
    num_examples: int = setting(positive_int, "number of test examples for each size and k", 1000)
    dependencies: bool = switch("measure which tokens decide the answers, instead of the accuracy")
    rules: tuple[str, ...] = setting(
        str,
        f"selection rules for --dependencies, from: {', '.join(RULES)}",
        (
            "attention_rollout",
            "leave_one_out",
            "leave_one_out_divergence",
            "add_one_in",
            "greedy",
            *CONTROLS,
        ),
        many="+",
        choices=RULES,
        metavar="RULE",
    )
    largest_k: int = setting(
        positive_int, "number of tokens that each rule selects; at least as many as truly decide", 8
    )

    def resolve(self) -> dict[str, Any]:
        """Each size and k once, ascending; InputError of k that the task does not have."""
        sizes = tuple(sorted({*self.sizes}))
        ks = tuple(sorted({*(self.sparsities or ())}))
        most = TASKS[self.task].largest_sparsity(sizes[-1])
        if bool(ks) != bool(most) or max(ks, default=0) > most:
            raise InputError(
                f"--sparsities: task {self.task} has k up to {most} at --sizes {sizes[-1]} (0: it has none,"
                " and the flag is left out)"
            )
        return {"sizes": sizes, "sparsities": ks or None}

    @property
    def cells(self) -> list[Cell]:
        """Every size with every k that the task has room for."""
        most = TASKS[self.task].largest_sparsity
        return [(size, k) for size in self.sizes for k in self.sparsities or [None] if (k or 0) <= most(size)]

    def check(self, configs: Sequence[TaskConfig]) -> None:
        """InputError for what a model that was trained so has no room or no use for."""
        if self.dependencies and any(config.positions.startswith("dape") for config in configs):
            raise InputError(
                "--dependencies: DAPE mixes scores of neighbors, so that a masked token is not one left out"
            )
        # One example a cell is enough, as the position IDs needed follow from the size.
        generator = np.random.default_rng(0)
        for config, (size, k) in product(configs, self.cells):
            config.ids_of(TASKS[self.task].draw(size, [k], generator), generator, in_testing=True)

    @property
    def as_metadata(self) -> dict[str, Any]:
        """What decides the results of a model; sizes and k are those of the cells."""
        settings = {
            "task": self.task,
            "sizes": sorted({size for size, _ in self.cells}),
            "sparsities": sorted({k for _, k in self.cells if k is not None}),
            "num_examples": self.num_examples,
            "test_stream": TEST_STREAM,
        }
        if self.dependencies:
            rules = [rule for rule in RULES if rule in self.rules]
            settings |= {"rules": rules, "largest_k": self.largest_k}
        return settings
