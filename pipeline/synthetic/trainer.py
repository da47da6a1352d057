"""The training loop of a synthetic task: one device, examples drawn step by step, resumed to the same bytes.

Dimension letters: B examples, S tokens of an example.
"""

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from olmo.optim import LinearWithWarmup

from pipeline.errors import InputError
from pipeline.models.checkpoint_files import newest_whole
from pipeline.results.parquet import make_table, write_parquet
from pipeline.results.schemas import SCHEMAS
from pipeline.stage import progress_bar
from pipeline.synthetic.accuracy import answers
from pipeline.synthetic.configuration import TaskConfig
from pipeline.synthetic.coupled_positions import example_position_ids
from pipeline.synthetic.memory import refuse_beyond_memory
from pipeline.synthetic.random_streams import of_measuring_in_training, of_training_step
from pipeline.synthetic.response_loss import response_losses
from pipeline.synthetic.runs import METRICS_FILE, load_weights, new_task_model, read_metrics
from pipeline.synthetic.tasks.example_batch import ExampleBatch
from pipeline.training.checkpoints import checkpoint_folder, load_state, save_checkpoint
from pipeline.training.prefetch import Prefetch
from pipeline.training.stop_request import StopRequest

logger = logging.getLogger("pipeline")

Part = tuple[ExampleBatch, np.ndarray]
"""Examples of one size, and their position IDs [B, S]."""


class TaskTrainer:
    """One run: model and optimizer at `step` finished steps."""

    def __init__(
        self, config: TaskConfig, run_folder: Path, device: torch.device, stop_request: StopRequest
    ) -> None:
        """Build model and optimizer, at the run's newest checkpoint where it has one.

        Raises:
            InputError: the model does not fit the memory, or the checkpoint or the metrics are damaged.
        """
        refuse_beyond_memory(config)
        self._config, self._run_folder, self._device = config, run_folder, device
        self._stop_request = stop_request
        self._model = new_task_model(config).to(device)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=config.learning_rate,
            betas=(config.betas[0], config.betas[1]),
            weight_decay=config.weight_decay,
        )
        self._schedule = LinearWithWarmup(
            grad_clip_warmup_steps=None, grad_clip_warmup_factor=None, warmup_min_lr=0.0,
            warmup_steps=config.warm_up_steps, alpha_f=0.0,
        )  # fmt: skip
        self._parts_of = Prefetch(self._draw)
        self._metrics: dict[str, list[Any]] = {name: [] for name in SCHEMAS["synthetic_training"].names}
        self.step = 0
        self._load_newest_checkpoint()

    def run(self) -> Path:
        """Train to the end, or until a stop is requested, saving as the configuration says and then.

        Returns:
            The folder of the last checkpoint. `step` says whether it is the end.

        Raises:
            InputError: the loss or the gradient stopped being finite; names the step.
        """
        num_steps = self._config.num_steps
        with progress_bar(None, "train_synthetic", "steps", num_steps, self.step) as bar:
            while self.step < num_steps and self._stop_request.signal_name is None:
                metrics = self._train_step(self.step + 1)
                self.step += 1
                is_end = self.step == num_steps
                if is_end or self.step % self._config.eval_interval == 0:
                    metrics["exact_match"] = self.exact_match()
                for name, values in self._metrics.items():
                    values.append(metrics.get(name))
                if is_end or self.step % self._config.save_interval == 0:
                    self._save()
                bar.set_postfix_str(self._latest(), refresh=False)
                bar.update()
        if not checkpoint_folder(self._run_folder, self.step).exists():
            self._save()  # a stop was requested between two checkpoints
        return checkpoint_folder(self._run_folder, self.step)

    @property
    def final_exact_match(self) -> float:
        """Exact matches in distribution at the end of the run."""
        return float(self._metrics["exact_match"][-1])

    def exact_match(self) -> float:
        """Share of responses that are wholly right in distribution, each training size counting alike."""
        self._model.eval()
        config = self._config
        generator = of_measuring_in_training(config.seed)
        sizes = config.distribution.sizes
        num_examples = -(-config.eval_num_examples // len(sizes))
        is_right = [
            answers(
                self._model,
                config.distribution.draw_of_size(size, num_examples, generator),
                config,
                generator,
                examples_per_batch=num_examples,
            ).is_right_B
            for size in sizes
        ]
        self._model.train()
        return float(np.concatenate(is_right).mean())

    def _train_step(self, step: int) -> dict[str, float]:
        token_loss, position_id_loss = self._accumulate_gradients(step)
        max_norm = math.inf if self._config.max_grad_norm is None else self._config.max_grad_norm
        gradient_norm = float(torch.nn.utils.clip_grad_norm_(self._model.parameters(), max_norm))
        # Asked before the optimizer's step, so that no checkpoint ever holds what is not a number.
        if not math.isfinite(token_loss + gradient_norm):
            raise InputError(
                f"step {step}: loss {token_loss} nats, gradient norm {gradient_norm}; stopped, the last"
                " checkpoint is kept. Lower learning_rate, in another --save-folder"
            )
        learning_rate = self._schedule.get_lr(self._config.learning_rate, step, self._config.num_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        metrics = {"step": step, "loss": token_loss, "learning_rate": learning_rate}
        if self._config.positions == "predicted":
            metrics["position_id_loss"] = position_id_loss
        return metrics | {"gradient_norm": gradient_norm}

    def _accumulate_gradients(self, step: int) -> tuple[float, float]:
        """Backward over the step's examples; their mean losses of tokens and position IDs, nats."""
        parts = self._parts_of(step)
        totals = torch.zeros(2, device=self._device)
        for batch, position_ids_BS in parts:
            token_loss, position_id_loss = response_losses(
                self._model,
                torch.from_numpy(batch.token_ids_BS).to(self._device),
                torch.from_numpy(position_ids_BS).to(self._device),
                batch.num_prompt_tokens,
                with_position_ids=self._config.positions == "predicted",
            )
            if position_id_loss is None:
                position_id_loss = torch.zeros_like(token_loss)
            ((token_loss + position_id_loss) / len(parts)).backward()
            totals += torch.stack((token_loss, position_id_loss)).detach() / len(parts)
        token_loss_nats, position_id_loss_nats = totals.tolist()
        return token_loss_nats, position_id_loss_nats

    def _draw(self, step: int) -> list[Part]:
        return list(self._draw_parts(of_training_step(self._config.seed, step)))

    def _draw_parts(self, generator: np.random.Generator) -> Iterator[Part]:
        config = self._config
        for _ in range(config.sizes_per_step):
            batch = config.distribution.draw(config.batch_size // config.sizes_per_step, generator)
            shape = batch.token_ids_BS.shape
            yield (
                batch,
                example_position_ids(
                    config.positions,
                    shape,
                    batch.coupled_ids_BS,
                    config.num_position_ids,
                    generator,
                    config.spread_of_coupled_ids,
                ),  # fmt: skip
            )

    def _latest(self) -> str:
        measured = [value for value in self._metrics["exact_match"] if value is not None]
        exact_match = f", exact match {measured[-1]:.3f}" if measured else ""
        return f"loss {self._metrics['loss'][-1]:.3f} nats{exact_match}"

    def _save(self) -> None:
        # Metrics first: a checkpoint never stands ahead of those that lead to it.
        self._run_folder.mkdir(parents=True, exist_ok=True)
        table = make_table(self._metrics, SCHEMAS["synthetic_training"])
        write_parquet(self._run_folder / METRICS_FILE, table)
        state = {
            "model": self._model.state_dict(),
            "optim": self._optimizer.state_dict(),
            "train": {"step": self.step},
        }
        save_checkpoint(self._run_folder, self.step, self._config, state)

    def _load_newest_checkpoint(self) -> None:
        newest = newest_whole(self._run_folder)
        if newest is None:
            return
        self.step, folder = newest
        state = load_state(folder)
        load_weights(self._model, state["model"], folder / "model.pt")
        try:
            self._optimizer.load_state_dict(state["optim"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{folder / 'optim.pt'} is not the state of this run's optimizer") from error
        self._metrics = read_metrics(self._run_folder, self.step)
        logger.info("going on from %s", folder)
