"""The training of a model of a synthetic task: one device, examples drawn step by step.

Dimension letters: B examples, S tokens of an example.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from olmo.optim import LinearWithWarmup

from pipeline.synthetic.accuracy import answers
from pipeline.synthetic.configuration import TaskConfig
from pipeline.synthetic.coupled_positions import example_position_ids
from pipeline.synthetic.memory import refuse_beyond_memory
from pipeline.synthetic.metrics import TaskMetrics
from pipeline.synthetic.random_streams import of_measuring_in_training, of_training_step
from pipeline.synthetic.response_loss import response_losses
from pipeline.synthetic.runs import load_weights, new_task_model
from pipeline.synthetic.tasks.example_batch import ExampleBatch
from pipeline.training.checkpoints import newest_state, refusing_another_state, save_checkpoint
from pipeline.training.loop import TrainingLoop
from pipeline.training.prefetch import Prefetch
from pipeline.training.stop_request import StopRequest

Part = tuple[ExampleBatch, np.ndarray]
"""Examples of one size, and their position IDs [B, S]."""


class TaskTrainer(TrainingLoop):
    """One run: model and optimizer at `step` finished steps."""

    learning_rate_field = "learning_rate"

    def __init__(
        self, config: TaskConfig, run_folder: Path, device: torch.device, stop_request: StopRequest
    ) -> None:
        """Build model and optimizer, at the run's newest checkpoint where it has one.

        Raises:
            InputError: the model does not fit the memory, or the checkpoint or the metrics are damaged.
        """
        refuse_beyond_memory(config)
        super().__init__(config, run_folder, config.num_steps, stop_request)
        self._config, self._device = config, device
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
        saved = newest_state(run_folder)
        if saved is not None:
            self._go_on_from(saved)
        self._metrics = TaskMetrics(run_folder, step=self.step, num_steps=config.num_steps)

    @property
    def final_exact_match(self) -> float:
        """Exact matches in distribution at the end of the run."""
        assert self._metrics.exact_match is not None, "it is measured at the end"
        return self._metrics.exact_match

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

    def _open_metrics(self) -> TaskMetrics:
        return self._metrics

    def _train_step(self, step: int) -> tuple[dict[str, float], bool]:
        token_loss, position_id_loss = self._accumulate_gradients(step)
        max_norm = math.inf if self._config.max_grad_norm is None else self._config.max_grad_norm
        gradient_norm = float(torch.nn.utils.clip_grad_norm_(self._model.parameters(), max_norm))
        learning_rate = self._schedule.get_lr(self._config.learning_rate, step, self._config.num_steps)
        self._update_weights(self._optimizer, step, learning_rate, token_loss, gradient_norm)
        metrics = {
            "step": step, "loss": token_loss, "learning_rate": learning_rate, "gradient_norm": gradient_norm,
        }  # fmt: skip
        if self._config.positions == "predicted":
            metrics["position_id_loss"] = position_id_loss
        return metrics, self._stop_request.signal_name is not None

    def _measure(self) -> dict[str, float]:
        return {"exact_match": self.exact_match()}

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

    def _save(self) -> None:
        state = {
            "model": self._model.state_dict(),
            "optim": self._optimizer.state_dict(),
            "train": {"step": self.step},
        }
        save_checkpoint(self._run_folder, self.step, self._config, state)

    def _go_on_from(self, saved: dict[str, dict[str, Any]]) -> None:
        with refusing_another_state(self._run_folder):
            self.step = saved["train"]["step"]
            load_weights(self._model, saved["model"], self.checkpoint / "model.pt")
            self._optimizer.load_state_dict(saved["optim"])
