"""The training loop: steps, metrics, checkpoints, going on and stopping, whatever is trained.

What a step does, what is measured along the way and what a checkpoint holds is a subclass's: language models
(pipeline/training/trainer.py) and models of synthetic tasks (pipeline/synthetic/trainer.py).
"""

import math
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch

from pipeline.errors import InputError
from pipeline.training.checkpoints import checkpoint_folder
from pipeline.training.stop_request import StopRequest


class LoopConfig(Protocol):
    """What the loop asks of a run's settings."""

    @property
    def eval_interval(self) -> int:
        """Steps between measurements."""

    @property
    def save_interval(self) -> int | None:
        """Steps between checkpoints. None: at the end only."""

    def save(self, path: Path) -> None:
        """Write them as YAML."""


class Metrics(Protocol):
    """Where the metrics of steps go; each trainer has its own kind of file."""

    def write(self, metrics: dict[str, Any]) -> None:
        """Add those of one step, and show them."""

    def sync(self) -> None:
        """Hand all of them to the disk, for what is saved next to stand on."""


class TrainingLoop(ABC):
    """One run, at `step` finished steps."""

    learning_rate_field: str
    """Of the configuration; named where training diverges."""

    def __init__(
        self, config: LoopConfig, run_folder: Path, num_steps: int, stop_request: StopRequest
    ) -> None:
        """A run at its very start.

        Args:
            config: the run's.
            run_folder: where its checkpoints and metrics are.
            num_steps: of the whole run.
            stop_request: asked in each step.
        """
        self.step = 0
        self._loop_config, self._run_folder = config, run_folder
        self._num_steps, self._stop_request = num_steps, stop_request

    def run(self) -> Path:
        """Train to the end, or until a stop is requested, saving as the configuration says and then.

        Returns:
            The folder of the last checkpoint. `step` says whether it is the end.

        Raises:
            InputError: the loss or the gradient stopped being finite; names the step.
        """
        self._run_folder.mkdir(parents=True, exist_ok=True)
        with self._open_metrics() as log:
            is_stopping = False
            while self.step < self._num_steps and not is_stopping:
                metrics, is_stopping = self._train_step(self.step + 1)
                self.step += 1
                if self._is_due(self._loop_config.eval_interval):
                    metrics |= self._measure()
                log.write(metrics)
                if is_stopping or self._is_due(self._loop_config.save_interval):
                    log.sync()  # a checkpoint never stands ahead of the metrics that lead to it
                    self._save()
        return self.checkpoint

    @property
    def checkpoint(self) -> Path:
        """The folder of the checkpoint of `step`, which is there once `run` has returned."""
        return checkpoint_folder(self._run_folder, self.step)

    @property
    def has_finished(self) -> bool:
        """Whether all steps of the run are done."""
        return self.step == self._num_steps

    def _is_due(self, interval: int | None) -> bool:
        """At the end, and every so many steps."""
        return self.has_finished or (interval is not None and self.step % interval == 0)

    def _update_weights(
        self,
        optimizer: torch.optim.Optimizer,
        step: int,
        learning_rate: float,
        loss_nats: float,
        gradient_norm: float,
    ) -> None:
        """The optimizer's step on the gradients that there are, which are spent by it.

        Raises:
            InputError: loss or gradient are not finite.
        """
        # Asked before the optimizer's step, so that no checkpoint ever holds what is not a number.
        if not (math.isfinite(loss_nats) and math.isfinite(gradient_norm)):
            raise InputError(
                f"step {step}: loss {loss_nats} nats, gradient norm {gradient_norm}; stopped, the last"
                f" checkpoint is kept. Lower {self.learning_rate_field}, in another --save-folder"
            )
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()
        optimizer.zero_grad()

    @abstractmethod
    def _open_metrics(self) -> AbstractContextManager[Metrics]:
        """The metrics of the finished steps, to be gone on with."""

    @abstractmethod
    def _train_step(self, step: int) -> tuple[dict[str, Any], bool]:
        """Train one step; its metrics, and whether a stop was requested."""

    @abstractmethod
    def _measure(self) -> dict[str, Any]:
        """What is measured every `eval_interval` steps and at the end: further metrics of that step."""

    @abstractmethod
    def _save(self) -> None:
        """Write the checkpoint of `step`."""
