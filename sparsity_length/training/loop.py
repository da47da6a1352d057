"""The training loop, whatever is trained: steps, metrics, checkpoints, resuming, and stopping when asked.

A subclass says what a step does and a checkpoint holds: trainer.py and sparsity_length/synthetic/train.py.
Checkpoints are in OLMo's unsharded layout, whole or absent, and known by the settings of their run:

<run folder>/step1000-unsharded/
    config.yaml  model.pt     as OLMo writes them; OLMo.from_checkpoint loads the folder
    optim.pt                  the optimizer's state
    train.pt                  step, tokens, and what made them
    complete.json             sizes and SHA-256 of these (sparsity_length.models.checkpoints)
"""

import json
import math
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from sparsity_length.cli import InputError, logger, progress
from sparsity_length.models.checkpoints import (
    newest_checkpoint,
    read_configuration,
    read_tensors,
    refuse_damaged,
    whole_model,
)
from sparsity_length.models.devices import keep_freed_memory
from sparsity_length.results.files import (
    folder_lock,
    launched_process,
    refuse_changes,
    write_text,
)

EXIT_STOPPED = 75
"""Exit code of a run that was asked to stop, saved, and is to be resumed: EX_TEMPFAIL of sysexits.h."""
_SEVERAL = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Where accelerate looks for the number of processes."""
METRICS_FILE = "metrics.jsonl"
"""JSON lines in the run folder: an object per step, of whatever was measured then."""
STATE = ("model", "optim", "train")
"""Stems of the files that a run resumes from."""


def is_first_rank() -> bool:
    """Tell the one process that does what is for all, by the numbers that torchrun and accelerate give."""
    return launched_process().index == 0


def _lines_of_metrics(run_folder: Path, step: int) -> list[str]:
    path = run_folder / METRICS_FILE
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    # The first may be of a later step than 1, where a run goes on without the file of its beginning; the last
    # may be cut.
    return [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]


def last_metrics(run_folder: Path, step: int) -> dict[str, Any]:
    """The last value of each metric in the first steps of a run, up to `step`; some are not of every step."""
    values: dict[str, Any] = {}
    for line in _lines_of_metrics(run_folder, step):
        values |= json.loads(line)
    return values


def save_checkpoint(run_folder: Path, step: int, config: Any, state: dict[str, dict[str, Any]]) -> None:
    """Write the checkpoint of `step`; `state` is file stem, of `STATE` -> what that file holds."""
    with whole_model(run_folder / f"step{step}-unsharded") as folder:
        OmegaConf.save(config, folder / "config.yaml")
        for stem, content in state.items():
            torch.save(content, folder / f"{stem}.pt")


def newest_state(run_folder: Path) -> dict[str, dict[str, Any]]:
    """The `state` given to `save_checkpoint`, of the newest checkpoint, on the CPU; {} if the run has none.

    A damaged one is refused. Once its folder is removed, the run resumes from the one before it, to the same
    weights, as data depend on the step alone.
    """
    newest = newest_checkpoint(run_folder)
    if newest is None:
        return {}
    _, folder = newest
    refuse_damaged(folder, ["config.yaml", *(f"{stem}.pt" for stem in STATE)])
    logger.info("resuming from %s", folder)
    return {stem: read_tensors(folder / f"{stem}.pt") for stem in STATE}


# A run may be moved, renamed, watched, saved and spread over devices otherwise; all else decides its numbers.
_CHANGEABLE = {
    "save_folder",
    "run_name",
    "save_interval",
    "save_num_unsharded_checkpoints_to_keep",
    "console_log_interval",  # of earlier versions
    "eval_interval",
    "eval_context_lengths",
    "eval_num_documents",
    "device_train_microbatch_size",
    "device_train_microbatch_tokens",
    "distributed_strategy",
    "compile",
    "activation_checkpointing",
}


def has_finished(run_folder: Path, config: Any, num_steps: int) -> bool:
    """Whether a run has come to its end before; the log then says so.

    A folder whose newest checkpoint is of another configuration or data is refused, by what changed.
    """
    # Damaged or not: what is compared is the same in all checkpoints of a run.
    if newest := newest_checkpoint(run_folder):
        # Through YAML: a config in memory has tuples and enums, one that was read back has not.
        now: Any = OmegaConf.create(OmegaConf.to_yaml(config))
        # When a run is measured may decide when it ends.
        decisive = {"eval_interval"} if getattr(config, "stops_when_learnt", False) else set()
        then: Any = OmegaConf.merge(
            # A field that is newer than the record had what is its default now.
            OmegaConf.create(OmegaConf.to_yaml(type(config))),
            read_configuration(newest[1]),
            {name: now[name] for name in (_CHANGEABLE - decisive) & now.keys()},
        )
        refuse_changes(f"{run_folder} holds a run", then, now, "--save-folder")
    last = run_folder / f"step{num_steps}-unsharded"
    if last.exists():
        logger.info("already finished: %s", last)
    return last.exists()


class TrainingLoop(ABC):
    """One run, at `step` finished steps of `num_steps`."""

    _optimizer: torch.optim.Optimizer

    def __init__(self, config: Any, run_folder: Path, num_steps: int) -> None:
        """A `config` has `eval_interval` and `save_interval`, in steps; None: at the end only."""
        self.step = 0
        self._config = config
        self._run_folder = run_folder
        self._num_steps = num_steps
        self._is_asked_to_stop = False

    def ask_to_stop(self, *_: Any) -> None:
        """Have the run save and stop after the step in hand; a signal handler."""
        # Only noted, for it may come in the midst of an update.
        self._is_asked_to_stop = True

    def run(self) -> Path:
        """Train to the end or a requested stop, saving every `save_interval` steps too; the last folder."""
        with ExitStack() as stack:
            for number in (signal.SIGTERM, signal.SIGUSR1):  # which schedulers send before a kill
                stack.callback(signal.signal, number, signal.signal(number, self.ask_to_stop))
            if is_first_rank():
                path = self._run_folder / METRICS_FILE
                # Without the lines of later steps, which run again.
                write_text(path, "".join(_lines_of_metrics(self._run_folder, self.step)))
                # Buffered by lines: whoever watches the file sees whole steps.
                file = stack.enter_context(path.open("a", buffering=1, encoding="utf-8"))
                bar = stack.enter_context(progress(None, "train", "steps", self._num_steps, self.step))
            is_stopping = False
            while not self.has_finished and not is_stopping:
                metrics, is_stopping = self._train_step(self.step + 1)
                self.step += 1
                if self._is_due(self._config.eval_interval):
                    # On every rank, as sharded weights are gathered from all.
                    metrics |= self._measure()
                if is_first_rank():
                    file.write(json.dumps(metrics) + "\n")
                    shown = ("loss", "loss_nats", "tokens_per_second")
                    bar.set_postfix({name: metrics[name] for name in shown if name in metrics}, refresh=False)
                    bar.update()
                if is_stopping or self._is_due(self._config.save_interval):
                    if is_first_rank():  # the metrics that lead to a checkpoint are on the disk before it
                        os.fsync(file.fileno())
                    # On every rank, too: gathering the state is collective.
                    self._save()
        return self._run_folder / f"step{self.step}-unsharded"

    @property
    def has_finished(self) -> bool:
        """Whether the run is at its end."""
        return self.step == self._num_steps

    def _is_due(self, interval: int | None) -> bool:
        return self.has_finished or (interval is not None and self.step % interval == 0)

    def _update_weights(
        self, step: int, learning_rate: float, loss_nats: float, gradient_norm: float
    ) -> None:
        """Take the optimizer's step, unless loss or gradient are not finite: no checkpoint has that."""
        if not (math.isfinite(loss_nats) and math.isfinite(gradient_norm)):
            raise InputError(
                f"step {step}: loss {loss_nats} nats, gradient norm {gradient_norm}; stopped, the last"
                " checkpoint is kept. Lower the learning rate, in another --save-folder"
            )
        # Set before each step, so a resumed run needs no scheduler state.
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad()

    @abstractmethod
    def _train_step(self, step: int) -> tuple[dict[str, Any], bool]:
        """Train one step; its metrics, and whether a stop was requested."""

    @abstractmethod
    def _measure(self) -> dict[str, Any]:
        """Further metrics, every `eval_interval` steps and at the end."""

    @abstractmethod
    def _save(self) -> None:
        """Write the checkpoint of `step`."""


def train(run_folder: Path, make: Callable[[], TrainingLoop]) -> TrainingLoop:
    """Make a training and run it to its end; refused if another runs in its folder.

    The process ends with EXIT_STOPPED if a stop was requested before the end.
    """
    # Without an address those that train together, also those of an MPI, would wait for one another for ever.
    several = [name for name in _SEVERAL if os.environ.get(name, "1") != "1"]
    if (several or "LOCAL_RANK" in os.environ) and not os.environ.get("MASTER_ADDR"):
        raise InputError(
            f"{' and '.join(several or ['LOCAL_RANK'])} in the environment speaks of processes that train"
            " together, but not MASTER_ADDR, where they meet: unset the former, or use torchrun"
        )
    # Ranks of one run would refuse one another.
    with folder_lock(run_folder, "--save-folder") if is_first_rank() else nullcontext():
        keep_freed_memory()
        # Once a model has learned a little, products of small probabilities fall below 1e-38: nothing to what
        # they are added to, but a processor takes long for each (analysis/LOG.md, 2026-11-23). Set before
        # torch starts its threads, which take it over.
        torch.set_flush_denormal(True)
        training = make()
        checkpoint = training.run()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    if not training.has_finished:
        logger.info("stopped by a signal; %s is saved: run the same command again", checkpoint)
        sys.exit(EXIT_STOPPED)
    logger.info("finished: %s", checkpoint)
    return training
