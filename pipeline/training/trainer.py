"""The training of a language model: OLMo's model, optimizer and scheduler on accelerate, at the position IDs
of a scheme.

ai2-olmo 0.6's own Trainer runs on CUDA only and knows no position IDs; this is its loop without what this
project does not use. Dimension letters: B sequences, S = train_context_length tokens, V vocabulary.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from pipeline.models.rope import use_position_ids
from pipeline.results.provenance import git_commit, package_versions
from pipeline.training.assembly import (
    build_model,
    distribute,
    make_accelerator,
    make_optimizer,
    refusing_failed_compilation,
)
from pipeline.training.batches import TrainingBatches
from pipeline.training.checkpoints import (
    METRICS_FILE,
    drop_old_checkpoints,
    newest_state,
    refusing_another_state,
    save_checkpoint,
)
from pipeline.training.configuration import PretrainConfig
from pipeline.training.held_out_loss import HeldOutLoss
from pipeline.training.loop import Metrics, TrainingLoop
from pipeline.training.metrics import MetricsLog, NoMetrics
from pipeline.training.next_token import next_token_loss
from pipeline.training.prefetch import Prefetch
from pipeline.training.random_streams import restore_stream, seed_stream, stream_states
from pipeline.training.schedule import Schedule
from pipeline.training.sharding import gather, load_optimizer, load_weights, whole
from pipeline.training.stop_request import StopRequest
from pipeline.training.throughput import Throughput
from pipeline.training.trackers import start_trackers


class Trainer(TrainingLoop):
    """One pretraining run: the model and its optimizer at `step` finished steps."""

    learning_rate_field = "optimizer.learning_rate"

    def __init__(
        self,
        config: PretrainConfig,
        batches: TrainingBatches,
        schedule: Schedule,
        held_out_loss: HeldOutLoss | None = None,
        stop_request: StopRequest | None = None,
        question_ids: Sequence[int] = (),
    ) -> None:
        """Build model and optimizer, at the run's newest checkpoint where it has one.

        Args:
            config: the run's configuration.
            batches: what each step trains on.
            schedule: how long, and how fast.
            held_out_loss: measured every eval_interval steps and at the end; None: never.
            stop_request: asked after each step; None: the run goes to its end.
            question_ids: tokens that planted answers stand behind, for `answer_loss_weight`.

        Raises:
            InputError: the batch does not divide over the ranks, the model does not fit the memory, or the
                checkpoint is damaged or was trained in another precision.
        """
        super().__init__(config, Path(config.save_folder), schedule.num_steps, stop_request or StopRequest())
        self._config, self._schedule = config, schedule
        self._batch_of = Prefetch(batches.batch)
        self._held_out_loss = held_out_loss
        self._answer_weight = config.answer_loss_weight
        saved = newest_state(self._run_folder)
        self._accelerator = make_accelerator(
            config, None if saved is None else saved["train"].get("mixed_precision")
        )
        self._num_positions = config.position_target_length or config.sequence_length
        self._micro_batch_size = config.micro_batch_size(self._accelerator.num_processes)
        self._olmo = build_model(config)
        self._rotary = use_position_ids(self._olmo)
        self._model = distribute(self._olmo, config, self._accelerator)
        self._optimizer = make_optimizer(config, self._olmo)
        dtype = torch.bfloat16 if self._accelerator.mixed_precision == "bf16" else torch.float32
        self._throughput = Throughput(
            config, self._accelerator.num_processes, self._accelerator.device, dtype
        )
        self._question_ids = torch.tensor(question_ids, dtype=torch.long, device=self._accelerator.device)
        seed_stream(config.seed, self._accelerator.process_index)
        if saved is not None:
            self._go_on_from(saved)

    @contextmanager
    def _open_metrics(self) -> Iterator[Metrics]:
        start_trackers(self._accelerator, self._config)
        if self._accelerator.is_main_process:
            path, interval = self._run_folder / METRICS_FILE, self._config.console_log_interval
            with MetricsLog(
                path,
                step=self.step,
                num_steps=self._num_steps,
                flush_interval=interval,
                track=self._accelerator.log,
            ) as log:
                yield log
        else:
            yield NoMetrics()
        self._accelerator.end_training()

    def _train_step(self, step: int) -> tuple[dict[str, float], bool]:
        """One optimizer step; its metrics, and whether any rank was asked to stop."""
        started = time.perf_counter()
        with refusing_failed_compilation(self._config):
            rank_loss, rank_answer_loss = self._accumulate_gradients(step)
        # With the loss, so that all ranks stop after the same step at no further cost.
        is_asked = torch.full_like(rank_loss, self._stop_request.signal_name is not None)
        loss, answer_loss, share_asked = self._accelerator.reduce(
            torch.stack((rank_loss, rank_answer_loss, is_asked)), reduction="mean"
        )
        gradient_norm = self._clip_gradients(step)
        loss_nats, learning_rate = float(loss), self._schedule.learning_rate(step)
        self._update_weights(self._optimizer, step, learning_rate, loss_nats, gradient_norm)
        is_stopping = float(share_asked) > 0
        tokens_per_second = self._config.tokens_per_step / (time.perf_counter() - started)
        metrics = {
            "step": step,
            "tokens": step * self._config.tokens_per_step,
            "loss_nats": loss_nats,
            **({} if self._answer_weight is None else {"answer_loss_nats": float(answer_loss)}),
            "learning_rate": learning_rate,
            "gradient_norm": gradient_norm,
            "tokens_per_second": tokens_per_second,
            "model_flops_utilization": self._throughput.utilization(tokens_per_second),
        }
        return metrics, is_stopping

    def _clip_gradients(self, step: int) -> float:
        """Scale the gradients down to the step's threshold; their norm before, over all ranks."""
        max_norm = self._schedule.max_grad_norm(step)
        norm = self._accelerator.clip_grad_norm_(
            self._model.parameters(), math.inf if max_norm is None else max_norm
        )
        return float(whole(norm))

    def _accumulate_gradients(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Forward and backward over this rank's micro-batches of the step.

        Returns:
            The mean loss of all tokens and that of planted answers, in nats; 0 where these have no weight of
            their own.

        Micro-batches are of one size, so the mean of their losses, and of their gradients, over all ranks is
        that of the whole batch.
        """
        micro_batches = list(self._micro_batches(step))
        total, of_answers = (torch.zeros((), device=self._accelerator.device) for _ in range(2))
        for index, (token_ids_BS, position_ids_BS) in enumerate(micro_batches):
            is_last = index == len(micro_batches) - 1
            with nullcontext() if is_last else self._accelerator.no_sync(self._model):
                self._rotary.set_position_ids(position_ids_BS, self._num_positions)
                logits_BSV = self._model(token_ids_BS).logits
                loss = objective = next_token_loss(logits_BSV, token_ids_BS) / len(micro_batches)
                if self._answer_weight is not None:
                    answers = next_token_loss(logits_BSV, token_ids_BS, behind=self._question_ids)
                    answers = answers / len(micro_batches)
                    objective = loss + self._answer_weight * answers
                    of_answers += answers.detach()
                self._accelerator.backward(objective)
            total += loss.detach()
        return total, of_answers

    @torch.no_grad()
    def held_out_losses(self) -> dict[str, float]:
        """The held-out loss at each context length, in the run's precision, without dropout.

        Every rank measures the same: sharded models need all ranks, and it is little beside the training.
        """
        assert self._held_out_loss is not None

        def logits_at(token_ids_WS: torch.Tensor, position_ids_1S: torch.Tensor) -> torch.Tensor:
            self._rotary.set_position_ids(position_ids_1S, position_ids_1S.shape[1])
            return self._model(token_ids_WS).logits

        self._model.eval()
        # Other lengths than training's would have the blocks compiled again.
        eagerly = torch.compiler.set_stance("force_eager") if self._config.compile else nullcontext()
        with eagerly:
            losses = self._held_out_loss(logits_at, self._accelerator.device)
        self._model.train()
        return losses

    def _micro_batches(self, step: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(token_ids_BS, position_ids_BS) of every micro-batch in this rank's share of the step."""
        rank, device = self._accelerator.process_index, self._accelerator.device
        share = self._config.global_train_batch_size // self._accelerator.num_processes
        token_ids_BS, position_ids_BS = (torch.from_numpy(array) for array in self._batch_of(step))
        for first in range(rank * share, (rank + 1) * share, self._micro_batch_size):
            rows = slice(first, first + self._micro_batch_size)
            yield token_ids_BS[rows].to(device), position_ids_BS[rows].to(device)

    def _measure(self) -> dict[str, float]:
        return {} if self._held_out_loss is None else self.held_out_losses()

    def _save(self) -> None:
        is_main = self._accelerator.is_main_process
        state = {
            "model": gather(self._olmo.state_dict(), is_main),
            "optim": gather(self._optimizer.state_dict(), is_main),
            "train": self._train_state(),
        }
        if is_main:
            save_checkpoint(self._run_folder, self.step, self._config, state)
            if self._config.save_num_unsharded_checkpoints_to_keep > 0:
                drop_old_checkpoints(self._run_folder, self._config.save_num_unsharded_checkpoints_to_keep)
        self._accelerator.wait_for_everyone()

    def _train_state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "tokens": self.step * self._config.tokens_per_step,
            "random_states": stream_states(self._accelerator),
            "train_data_sha256": self._config.train_data_sha256,
            "mixed_precision": self._accelerator.mixed_precision,
            "num_ranks": self._accelerator.num_processes,
            "git_commit": git_commit(),
            "packages": package_versions(),
        }

    def _go_on_from(self, saved: dict[str, dict[str, Any]]) -> None:
        with refusing_another_state(self._run_folder):
            self.step = saved["train"]["step"]
            load_weights(self._olmo, saved["model"])
            load_optimizer(self._optimizer, saved["optim"])
            restore_stream(self._accelerator, saved["train"], self._config.model, self._config.seed)
