"""What one run of train_synthetic is: the task, its training distribution, the model and the optimizer.

A YAML file has the fields of `TaskConfig`, and under `tasks` the fields that a task sets otherwise, so that
one file serves all tasks. Flags and overrides win over both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.errors import InputError, omegaconf_sentence, unknown_name
from pipeline.synthetic.coupled_positions import COUPLED_SCHEMES, EXAMPLE_SCHEMES, example_position_ids
from pipeline.synthetic.tasks.example_batch import TrainingDistribution, draw_batch
from pipeline.synthetic.tasks.registry import TASKS, Task, task_called
from pipeline.training.given_settings import read_yaml, refuse_unknown_fields

ARCHITECTURES = ("gpt_neox", "olmo")
_SPREADS = ("contiguous", "pose")


@dataclass
class TaskModelConfig:
    """The trunk."""

    architecture: str = "gpt_neox"
    """`gpt_neox`, the paper's, or `olmo`."""
    width: int = 128
    num_layers: int = 2
    num_heads: int = 4
    rotary_fraction: float = 0.25
    """The share of each head that RoPE rotates; of `gpt_neox` only, `olmo` rotates all of it."""


@dataclass
class TaskConfig:
    """One run."""

    task: str
    """A name of pipeline/synthetic/tasks/registry.py."""
    positions: str
    """`contiguous`, `pose`, `randomized`, `coupled` or `predicted` (PPC)."""
    seed: int = 0
    """Of the initial weights and of all examples."""

    smallest_size: int = 2
    """Of training examples, in the task's own unit: letters, bits, digits, assignments, prompt tokens."""
    largest_size: int = 10
    size_step: int = 1
    """Training sizes are the smallest, and this much more, up to the largest."""
    largest_sparsity: int | None = None
    """K_train: in training k is uniform on 1 to this, or to what a smaller size has room for. None where the
    task has no k."""
    spread_of_coupled_ids: str = "contiguous"
    """How coupled IDs lie in training, before their random start: `contiguous`, or `pose`: parted by a random
    skip, so that a short example shows large differences of IDs too. In testing always contiguous; of
    `coupled` and `predicted` positions only."""
    num_position_ids: int = 256
    """Position IDs are below it, in training and testing: what PoSE and random starts draw from. A test
    example that needs more is refused."""

    model: TaskModelConfig = field(default_factory=TaskModelConfig)

    batch_size: int = 64
    """Examples of a step."""
    sizes_per_step: int = 2
    """A step's examples are of so many sizes, a share of the batch each."""
    num_steps: int = 2000
    learning_rate: float = 5e-5
    """At its highest: linear warm-up, then linearly down to 0 at the last step."""
    warm_up_steps: int = 300
    weight_decay: float = 0.1
    """AdamW's."""
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    """AdamW's."""
    max_grad_norm: float | None = 1.0
    """Gradients are clipped to this norm. None: they are not."""

    save_interval: int = 500
    """Steps between checkpoints."""
    eval_interval: int = 250
    """Steps between measurements of the accuracy in distribution."""
    eval_num_examples: int = 256
    """Examples of such a measurement, the same each time; at least, as every size has as many."""

    @property
    def distribution(self) -> TrainingDistribution:
        """What the model is trained on.

        Raises:
            InputError: there is no such task.
        """
        return TrainingDistribution(
            task_called(self.task),
            self.smallest_size,
            self.largest_size,
            self.size_step,
            self.largest_sparsity,
        )

    def save(self, path: Path) -> None:
        """Write the fields as YAML."""
        OmegaConf.save(OmegaConf.structured(self), path)

    def validate(self) -> None:
        """Refuse values that could only fail later, or do nothing.

        Raises:
            InputError: names the field, its value and what would be right.
        """
        task = task_called(self.task)
        if self.positions not in EXAMPLE_SCHEMES:
            raise unknown_name("positions", self.positions, EXAMPLE_SCHEMES)
        if self.positions in COUPLED_SCHEMES:
            task.require_coupled_ids(self.positions)
        if self.spread_of_coupled_ids not in _SPREADS:
            raise unknown_name("spread_of_coupled_ids", self.spread_of_coupled_ids, _SPREADS)
        self._validate_model()
        self._validate_numbers()
        self._validate_sizes(task)

    def _validate_model(self) -> None:
        model = self.model
        if model.architecture not in ARCHITECTURES:
            raise unknown_name("model.architecture", model.architecture, ARCHITECTURES)
        if model.width % (2 * model.num_heads):
            raise InputError(
                f"model.width {model.width} is not a multiple of {2 * model.num_heads}, twice"
                " model.num_heads: RoPE rotates pairs within a head"
            )
        if not 0 < model.rotary_fraction <= 1:
            raise InputError(
                f"model.rotary_fraction is {model.rotary_fraction}; it must be above 0, at most 1"
            )
        rotated = model.width // model.num_heads * model.rotary_fraction
        if rotated != int(rotated) or rotated % 2:
            raise InputError(
                f"model.rotary_fraction {model.rotary_fraction} rotates {rotated} numbers of a head;"
                " that must be an even number"
            )

    def _validate_numbers(self) -> None:
        least_of = {"seed": 0, "warm_up_steps": 0} | dict.fromkeys(
            ("smallest_size", "size_step", "batch_size", "sizes_per_step", "num_steps", "save_interval",
             "eval_interval", "eval_num_examples"), 1)  # fmt: skip
        for name, least in least_of.items():
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if self.learning_rate <= 0:
            raise InputError(f"learning_rate is {self.learning_rate}; it must be above 0")
        if self.warm_up_steps >= self.num_steps:
            raise InputError(
                f"warm_up_steps is {self.warm_up_steps}; it must be below num_steps, {self.num_steps}"
            )
        if self.batch_size % self.sizes_per_step:
            raise InputError(
                f"batch_size {self.batch_size} is not divisible by sizes_per_step {self.sizes_per_step}"
            )

    def _validate_sizes(self, task: Task) -> None:
        if self.largest_size < self.smallest_size:
            raise InputError(
                f"largest_size is {self.largest_size}; it must be at least smallest_size,"
                f" {self.smallest_size}"
            )
        self._validate_sparsity(task)
        # By drawing one of each size: the task itself knows best which sizes it has.
        for size in self.distribution.sizes:
            generator = np.random.default_rng(0)
            batch = draw_batch(task, size, [1 if task.has_sparsity else None], generator)
            example_position_ids(
                self.positions,
                batch.token_ids_BS.shape,
                batch.coupled_ids_BS,
                self.num_position_ids,
                generator,
            )

    def _validate_sparsity(self, task: Task) -> None:
        if task.has_sparsity != (self.largest_sparsity is not None):
            needs = "needs largest_sparsity, K_train" if task.has_sparsity else "has no k; leave it out"
            raise InputError(f"largest_sparsity is {self.largest_sparsity}, but task {task.name} {needs}")
        if self.largest_sparsity is None:
            return
        most = task.largest_sparsity(self.largest_size)
        if not 1 <= self.largest_sparsity <= most:
            raise InputError(
                f"largest_sparsity is {self.largest_sparsity}; with largest_size {self.largest_size} k is 1"
                f" to {most}"
            )


def load_task_config(path: Path, overrides: Sequence[str], *, task: str, positions: str) -> TaskConfig:
    """The configuration of one run, complete and checked.

    Args:
        path: a YAML file of `TaskConfig`'s fields, with `tasks`.
        overrides: field=value; they win over the file.
        task: the task's name.
        positions: the scheme's.

    Raises:
        InputError: one sentence naming the field and what would be right.
    """
    given = read_yaml(path)
    of_tasks = given.pop("tasks", None) or {}
    for name in of_tasks:
        if name not in TASKS:
            raise unknown_name(f"task in {path}", name, TASKS)
    task_called(task)
    own = of_tasks.get(task) or {}
    chosen = OmegaConf.from_dotlist(_checked(overrides))
    flags = {"task": task, "positions": positions}
    if positions not in COUPLED_SCHEMES:  # one file serves all schemes; what does nothing is not recorded
        given.pop("spread_of_coupled_ids", None)
    return _complete(path, OmegaConf.merge(given, own, chosen, flags))


def _checked(overrides: Sequence[str]) -> list[str]:
    for override in overrides:
        if "=" not in override:
            raise InputError(f"override '{override}' has no '='; write it as field=value, such as seed=1")
        if override.startswith(("task=", "positions=")):
            raise InputError(f"'{override}': give it as --{override.replace('=', ' ')}")
    return list(overrides)


def read_task_config(path: Path) -> TaskConfig:
    """The configuration that a run has written.

    Raises:
        InputError: it is not there, or is none.
    """
    return _complete(path, read_yaml(path))


def _complete(path: Path, given: Any) -> TaskConfig:
    schema: DictConfig = OmegaConf.structured(TaskConfig)
    try:
        refuse_unknown_fields(cast(dict[str, Any], OmegaConf.to_container(given)), schema)
        config = OmegaConf.to_object(OmegaConf.merge(schema, given))
    except OmegaConfBaseException as error:
        raise InputError(f"{path}: {omegaconf_sentence(error)}") from error
    assert isinstance(config, TaskConfig)
    config.validate()
    return config
