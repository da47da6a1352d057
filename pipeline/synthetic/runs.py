"""Models of synthetic tasks as runs: made from a configuration, found and loaded from a run folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.errors import InputError
from pipeline.models.checkpoint_files import MODEL_FILES, newest_with_model, read_tensors, refuse_damaged
from pipeline.results.provenance import sha256_of_files
from pipeline.synthetic.configuration import TaskConfig
from pipeline.synthetic.coupled_positions import COUPLED_SCHEMES
from pipeline.synthetic.given_configuration import read_task_config
from pipeline.synthetic.gpt_neox_trunk import GPTNeoXTrunk
from pipeline.synthetic.metrics import read_metrics
from pipeline.synthetic.olmo_trunk import OLMoTrunk, new_olmo
from pipeline.synthetic.task_model import PositionIDs, TaskModel
from pipeline.synthetic.tasks.registry import task_called
from pipeline.synthetic.trunk import Trunk

LEARNT = 0.99
"""Exact matches in distribution from which on a task counts as learnt."""


def new_task_model(config: TaskConfig) -> TaskModel:
    """The model with its initial weights, which `config.seed` decides, on the CPU."""
    torch.manual_seed(config.seed)
    trunk = _new_trunk(config)
    is_coupled = config.positions in COUPLED_SCHEMES
    return TaskModel(trunk, PositionIDs(config.num_position_ids, trunk.width) if is_coupled else None)


def _new_trunk(config: TaskConfig) -> Trunk:
    model = config.model
    sizes = {
        "vocabulary_size": len(task_called(config.task).vocabulary),
        "width": model.width,
        "num_layers": model.num_layers,
        "num_heads": model.num_heads,
        "num_position_ids": config.num_position_ids,
    }
    if model.architecture == "olmo":
        return OLMoTrunk(new_olmo(**sizes))
    return GPTNeoXTrunk(**sizes, rotary_fraction=model.rotary_fraction)


def load_weights(model: TaskModel, weights: dict[str, Any], path: Path) -> None:
    """Load what `path` holds into a model.

    Raises:
        InputError: these are another model's weights.
    """
    try:
        model.load_state_dict(weights)
    except (RuntimeError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path} is not the weights of its config.yaml: {reason}") from error


@dataclass(frozen=True)
class TaskRun:
    """A trained model of a task that has been found and not yet loaded."""

    name: str
    """The run folder's; results are filed under it."""
    step: int
    folder: Path
    """Of the checkpoint."""
    config: TaskConfig

    @property
    def sha256(self) -> str:
        """SHA-256 of what decides its numbers: configuration and weights."""
        return sha256_of_files(self.folder / "config.yaml", self.folder / "model.pt")

    @property
    def is_learnt(self) -> bool:
        """Whether the last measurement before the checkpoint found the task learnt in distribution."""
        measured = read_metrics(self.folder.parent, self.step)["exact_match"]
        found = [exact_match for exact_match in measured if exact_match is not None]
        return bool(found) and found[-1] >= LEARNT

    def load(self, device: torch.device) -> TaskModel:
        """The model, to be tested.

        Raises:
            InputError: the weights are damaged, or not of its configuration.
        """
        model, path = new_task_model(self.config), self.folder / "model.pt"
        load_weights(model, read_tensors(path), path)
        return model.to(device).eval().requires_grad_(False)


def find_task_run(folder: Path, task: str) -> TaskRun:
    """The newest checkpoint of a run folder of train_synthetic.

    Raises:
        InputError: there is none, it is damaged, or it was trained on another task than `task`.
    """
    found = newest_with_model(folder)
    if found is None:
        raise InputError(
            f"no checkpoint in {folder}: expected a folder step<N>-unsharded there, as"
            " pipeline/train_synthetic.py writes them"
        )
    step, newest = found
    refuse_damaged(newest, MODEL_FILES)
    config = read_task_config(newest / "config.yaml")
    if config.task != task:
        raise InputError(
            f"{folder} was trained on the task {config.task}, not on {task}; test it with --task"
            f" {config.task}"
        )
    return TaskRun(folder.resolve().name, step, newest, config)
