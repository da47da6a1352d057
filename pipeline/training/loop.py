"""The training loop: OLMo's model, optimizer and scheduler on accelerate, at the position IDs of a scheme.

ai2-olmo 0.6's own Trainer runs on CUDA only and knows no position IDs; this is its loop without what this
project does not use. Dimension letters: B sequences, S = train_context_length tokens, V vocabulary.
"""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from olmo.exceptions import OLMoConfigurationError
from olmo.model import OLMo
from olmo.optim import build_optimizer
from torch.nn.functional import cross_entropy

from pipeline.errors import InputError
from pipeline.models.rope import use_position_ids
from pipeline.results.provenance import git_commit, package_versions
from pipeline.training.batches import TrainingBatches
from pipeline.training.checkpoints import (
    checkpoint_folder,
    checkpoints_of,
    drop_old_checkpoints,
    load_state,
    save_checkpoint,
)
from pipeline.training.configuration import PretrainConfig
from pipeline.training.metrics import MetricsLog
from pipeline.training.precision import mixed_precision_of
from pipeline.training.schedule import Schedule

logger = logging.getLogger("pipeline")


def next_token_loss(logits_BSV: torch.Tensor, token_ids_BS: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats of each sequence's tokens but the first, computed in float32.

    EOS tokens are targets like any other, as in OLMo; so are the tokens after one, in the same sequence.
    """
    return cross_entropy(logits_BSV[:, :-1].float().flatten(0, 1), token_ids_BS[:, 1:].flatten())


class Trainer:
    """One pretraining run: the model and its optimizer at `step` finished steps."""

    def __init__(self, config: PretrainConfig, batches: TrainingBatches, schedule: Schedule) -> None:
        """Build model and optimizer, at the run's newest checkpoint where it has one.

        Args:
            config: the run's configuration.
            batches: what each step trains on.
            schedule: how long, and how fast.

        Raises:
            InputError: the batch does not divide over the ranks, or OLMo refuses the model.
        """
        self._config, self._batches, self._schedule = config, batches, schedule
        self._run_folder = Path(config.save_folder)
        self._mixed_precision = mixed_precision_of(config.precision)
        # Said outright: several CPU processes would otherwise not be taken for the ranks of one run.
        on_cpu = not torch.accelerator.is_available()
        self._accelerator = Accelerator(mixed_precision=self._mixed_precision, cpu=on_cpu)
        self._micro_batch_size = config.micro_batch_size(self._accelerator.num_processes)
        # OLMo draws its initial weights, and dropout, from the global generator.
        torch.manual_seed(config.seed)
        try:
            model = OLMo(config.model)
        except OLMoConfigurationError as error:
            raise InputError(f"model: {error}") from error
        self._rotary = use_position_ids(model)
        optimizer = build_optimizer(config, model)
        self._model, self._optimizer = self._accelerator.prepare(model.train(), optimizer)
        self.step = 0
        self._load_newest_checkpoint()

    def run(self) -> Path:
        """Train to the end, saving as the configuration says.

        Returns:
            The folder of the last checkpoint.

        Raises:
            InputError: the loss or the gradient stopped being finite; names the step.
        """
        self._run_folder.mkdir(parents=True, exist_ok=True)
        with self._metrics_log() or nullcontext() as log:
            while self.step < self._schedule.num_steps:
                metrics = self._train_step(self.step + 1)
                self.step += 1
                if log is not None:
                    log.write(metrics)
                if self._is_saved(self.step):
                    if log is not None:
                        log.flush()  # a checkpoint never stands ahead of the metrics that lead to it
                    self._save()
        return checkpoint_folder(self._run_folder, self.step)

    def _metrics_log(self) -> MetricsLog | None:
        if not self._accelerator.is_main_process:
            return None
        return MetricsLog(
            self._run_folder / "metrics.jsonl",
            step=self.step,
            num_steps=self._schedule.num_steps,
            flush_interval=self._config.console_log_interval,
        )

    def _train_step(self, step: int) -> dict[str, float]:
        """One optimizer step; its metrics."""
        started = time.perf_counter()
        loss = self._accumulate_gradients(step)
        max_norm = self._schedule.max_grad_norm(step)
        gradient_norm = self._accelerator.clip_grad_norm_(
            self._model.parameters(), math.inf if max_norm is None else max_norm
        )
        loss_nats, gradient_norm = float(loss), float(gradient_norm)
        # Asked before the optimizer's step, so that no checkpoint ever holds what is not a number.
        if not (math.isfinite(loss_nats) and math.isfinite(gradient_norm)):
            raise InputError(
                f"step {step}: loss {loss_nats} nats, gradient norm {gradient_norm}; stopped, the last"
                " checkpoint is kept. Lower optimizer.learning_rate, in another --save-folder"
            )
        learning_rate = self._schedule.learning_rate(step)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        return {
            "step": step,
            "tokens": step * self._config.tokens_per_step,
            "loss_nats": loss_nats,
            "learning_rate": learning_rate,
            "gradient_norm": gradient_norm,
            "tokens_per_second": self._config.tokens_per_step / (time.perf_counter() - started),
        }

    def _accumulate_gradients(self, step: int) -> torch.Tensor:
        """Forward and backward over the step's micro-batches; the mean loss over all ranks, in nats.

        Micro-batches are of one size, so the mean of their losses, and of their gradients, is that of the
        whole batch.
        """
        micro_batches = list(self._micro_batches(step))
        total = torch.zeros((), device=self._accelerator.device)
        for index, (token_ids_BS, position_ids_BS) in enumerate(micro_batches):
            is_last = index == len(micro_batches) - 1
            with nullcontext() if is_last else self._accelerator.no_sync(self._model):
                self._rotary.set_position_ids(position_ids_BS)
                loss = next_token_loss(self._model(token_ids_BS).logits, token_ids_BS) / len(micro_batches)
                self._accelerator.backward(loss)
            total += loss.detach()
        return self._accelerator.reduce(total, reduction="mean")

    def _micro_batches(self, step: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(token_ids_BS, position_ids_BS) of every micro-batch in this rank's share of the step."""
        rank, device = self._accelerator.process_index, self._accelerator.device
        share = self._config.global_train_batch_size // self._accelerator.num_processes
        token_ids_BS, position_ids_BS = (torch.from_numpy(array) for array in self._batches.batch(step))
        for first in range(rank * share, (rank + 1) * share, self._micro_batch_size):
            rows = slice(first, first + self._micro_batch_size)
            yield token_ids_BS[rows].to(device), position_ids_BS[rows].to(device)

    def _is_saved(self, step: int) -> bool:
        interval = self._config.save_interval
        return step == self._schedule.num_steps or (interval is not None and step % interval == 0)

    def _save(self) -> None:
        state = {
            "model": self._accelerator.get_state_dict(self._model),
            "optim": self._optimizer.state_dict(),
            "train": self._train_state(),
        }
        if self._accelerator.is_main_process:
            save_checkpoint(self._run_folder, self.step, self._config, state)
            if self._config.save_num_unsharded_checkpoints_to_keep > 0:
                drop_old_checkpoints(self._run_folder, self._config.save_num_unsharded_checkpoints_to_keep)
        self._accelerator.wait_for_everyone()

    def _train_state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "tokens": self.step * self._config.tokens_per_step,
            "cpu_random_state": torch.get_rng_state(),
            "cuda_random_state": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
            "train_data_sha256": self._config.train_data_sha256,
            "mixed_precision": self._mixed_precision,
            "num_ranks": self._accelerator.num_processes,
            "git_commit": git_commit(),
            "packages": package_versions(),
        }

    def _load_newest_checkpoint(self) -> None:
        checkpoints = checkpoints_of(self._run_folder)
        if not checkpoints:
            return
        self.step, folder = max(checkpoints.items())
        state = load_state(folder)
        self._accelerator.unwrap_model(self._model).load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optim"])
        torch.set_rng_state(state["train"]["cpu_random_state"])
        if torch.cuda.is_available() and state["train"]["cuda_random_state"] is not None:
            torch.cuda.set_rng_state(state["train"]["cuda_random_state"])
        logger.info("going on from %s", folder)
