"""The training of a model of a synthetic task on one device, and the run that it leaves.

Dimension letters: B examples, P tokens of a prompt, T of a response, S = P + T, D width.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from olmo.optim import LinearWithWarmup
from omegaconf import OmegaConf
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from pipeline.cli import InputError
from pipeline.models.load import (
    MODEL_FILES,
    newest_checkpoint,
    read_configuration,
    read_tensors,
    refuse_damaged,
)
from pipeline.synthetic.config import TaskConfig, TaskRun
from pipeline.synthetic.evaluation import accuracy
from pipeline.synthetic.models import TaskLM
from pipeline.training.data import prefetched
from pipeline.training.loop import TrainingLoop, last_metrics, newest_state, save_checkpoint
from pipeline.training.settings import settings_of


def of_training_step(seed: int, step: int) -> np.random.Generator:
    """The source of a step's examples, which seed and step alone decide: nothing else is needed to resume.

    Steps are counted from 1; of step 0 are the examples that a run measures itself by, the same each time.
    """
    return np.random.default_rng([seed, step])


def is_learnt(config: TaskConfig, metrics: Mapping[str, float]) -> bool:
    """Whether the last measurement (metric -> its last value) found the task learnt in distribution.

    At least 99 % exact matches; where `stop_at_excess_loss` is set, that excess loss or less.
    """
    if config.stop_at_excess_loss is None:
        return metrics.get("exact_match", 0.0) >= 0.99
    # Cues may mislead, so no model can always be right.
    return metrics.get("excess_loss", float("inf")) <= config.stop_at_excess_loss


def last_step(run_folder: Path, config: TaskConfig) -> int:
    """The step that ends a run: that of its newest checkpoint where the task was known then, or the last."""
    step, _ = newest_checkpoint(run_folder) or (0, None)
    has_ended = config.stop_at_excess_loss is not None and is_learnt(config, last_metrics(run_folder, step))
    return step if has_ended else config.num_steps


def find_task_run(folder: Path, task: str) -> TaskRun:
    """The newest checkpoint of a run folder of train_synthetic.

    InputError where there is none, it is damaged, or it was trained on another task than `task`.
    """
    step, newest = newest_checkpoint(folder) or (0, None)
    if newest is None:
        raise InputError(
            f"no checkpoint in {folder}: expected step<N>-unsharded there, as train_synthetic.py writes them"
        )
    refuse_damaged(newest, MODEL_FILES)
    config: TaskConfig = settings_of(newest, OmegaConf.structured(TaskConfig), read_configuration(newest))
    if config.task != task:
        raise InputError(
            f"{folder} was trained on the task {config.task}, not on {task}; test it with --task"
            f" {config.task}"
        )
    return TaskRun(folder.resolve().name, newest, config, is_learnt(config, last_metrics(folder, step)))


def load_task_lm(run: TaskRun, device: torch.device) -> TaskLM:
    """The model of a run, to be tested."""
    lm = TaskLM(run.config)
    lm.module.load_state_dict(read_tensors(run.folder / "model.pt"))
    lm.module.to(device)
    return lm


class TaskTrainer(TrainingLoop):
    """One run: model and optimizer at `step` finished steps."""

    _config: TaskConfig

    def __init__(self, config: TaskConfig, run_folder: Path, device: torch.device) -> None:
        """Build model and optimizer, at the run's newest checkpoint where it has one."""
        super().__init__(config, run_folder, config.num_steps)
        self._lm = TaskLM(config)
        self._module = self._lm.module.to(device).train().requires_grad_()
        self._optimizer = torch.optim.AdamW(
            self._module.parameters(),
            lr=config.learning_rate,
            betas=(config.betas[0], config.betas[1]),
            weight_decay=config.weight_decay,
        )
        self._schedule = LinearWithWarmup(
            grad_clip_warmup_steps=None,
            grad_clip_warmup_factor=None,
            warmup_min_lr=0.0,
            warmup_steps=config.warm_up_steps,
            alpha_f=0.0,
        )
        # Examples are drawn in Python, one by one: a step ahead, in a thread, while the device computes.
        self._parts_of = prefetched(self._draw)
        saved = newest_state(run_folder)
        if saved:
            self.step = saved["train"]["step"]
            self._module.load_state_dict(saved["model"])
            self._optimizer.load_state_dict(saved["optim"])

    def _measure(self) -> dict[str, float]:
        """Share of responses that are wholly right in distribution, each training size counting alike.

        And the mean excess loss, where the best loss is known. Neither architecture has dropout.
        """
        config = self._config
        generator = of_training_step(config.seed, 0)
        num_examples = -(-config.eval_num_examples // len(config.sizes))  # of a size, rounded up
        found = []
        # Size by size, as examples of two sizes do not stack.
        for size in config.sizes:
            examples = config.draw(size, num_examples, generator)
            found.append(accuracy(self._lm, examples, config, generator, num_examples)[1])
        table = pd.concat(found)
        metrics = {"exact_match": float(table["is_right"].mean())}
        if "excess_loss" in table:
            metrics["excess_loss"] = float(np.mean(table["excess_loss"].to_numpy()))
        if config.stop_at_excess_loss is not None and is_learnt(config, metrics):
            self._num_steps = self.step  # the run ends here
        return metrics

    def _train_step(self, step: int) -> tuple[dict[str, float], bool]:
        parts = self._parts_of(step)
        totals = torch.zeros(2 if self._config.positions == "predicted" else 1, device=self._lm.device)
        for part in parts:
            losses = self._losses(*part) / len(parts)
            losses.sum().backward()  # adds to the gradients of the parts before
            totals += losses.detach()
        token_loss, *position_id_loss = totals.tolist()
        gradient_norm = float(clip_grad_norm_(self._module.parameters(), self._config.max_grad_norm))
        learning_rate = self._schedule.get_lr(self._config.learning_rate, step, self._config.num_steps)
        self._update_weights(step, learning_rate, token_loss, gradient_norm)
        metrics = {
            "step": step,
            "loss": token_loss,
            "learning_rate": learning_rate,
            "gradient_norm": gradient_norm,
        }
        if position_id_loss:
            metrics["position_id_loss"] = position_id_loss[0]
        return metrics, self._is_asked_to_stop

    def _losses(
        self, token_ids: np.ndarray, num_prompt_tokens: int, position_ids: np.ndarray
    ) -> torch.Tensor:
        """Mean cross-entropy of the response's tokens and, if predicted, its position IDs, nats.

        PPC's loss is their sum. Tokens and IDs are given (teacher forcing); the token at place p is
        predicted, ID and all, from p - 1.
        """
        token_ids_BS = torch.from_numpy(token_ids).to(self._lm.device)
        position_ids_BS = torch.from_numpy(position_ids).to(self._lm.device)
        hidden_BSD, _ = self._lm._run(token_ids_BS[:, :-1], position_ids_BS[:, :-1], None, None)
        hidden_BTD = hidden_BSD[:, num_prompt_tokens - 1 :]
        heads = [(self._lm._project, token_ids_BS)]
        if self._config.positions == "predicted":
            heads.append((self._lm.position_logits, position_ids_BS))
        return torch.stack(
            [
                cross_entropy(head(hidden_BTD).flatten(0, 1), ids_BS[:, num_prompt_tokens:].flatten())
                for head, ids_BS in heads
            ]
        )

    def _draw(self, step: int) -> list[tuple[np.ndarray, int, np.ndarray]]:
        """A step's examples, a batch a size: tokens [B, S], P, and position IDs [B, S]."""
        config = self._config
        generator = of_training_step(config.seed, step)
        parts = []
        for _ in range(config.sizes_per_step):
            size = int(generator.choice(config.sizes))
            examples = config.draw(size, config.batch_size // config.sizes_per_step, generator)
            token_ids_BS = np.stack([example.token_ids_S for example in examples])
            position_ids_BS = config.position_ids(examples, generator)
            parts.append((token_ids_BS, examples[0].num_prompt_tokens, position_ids_BS))
        return parts

    def _save(self) -> None:
        save_checkpoint(
            self._run_folder,
            self.step,
            self._config,
            {
                "model": self._module.state_dict(),
                "optim": self._optimizer.state_dict(),
                # No random state: seed and step decide what is drawn.
                "train": {"step": self.step},
            },
        )
