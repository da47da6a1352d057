"""The training of a model of a synthetic task on one device, and the run that it leaves.

Dimension letters: B examples, P tokens of a prompt, T of a response, S = P + T, D width.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from olmo.optim import LinearWithWarmup
from omegaconf import OmegaConf
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from pipeline.cli import InputError
from pipeline.models.interface import CausalLM
from pipeline.models.load import (
    MODEL_FILES,
    newest_checkpoint,
    read_configuration,
    read_tensors,
    refuse_damaged,
)
from pipeline.models.olmo import OLMoCausalLM
from pipeline.synthetic.accuracy import answers
from pipeline.synthetic.config import TaskConfig
from pipeline.synthetic.models import TaskModel, new_gpt_neox, new_olmo
from pipeline.synthetic.tasks import COUPLED_SCHEMES, task_called
from pipeline.training.checkpoints import newest_state, save_checkpoint
from pipeline.training.data import prefetched
from pipeline.training.loop import TrainingLoop, last_metrics
from pipeline.training.settings import settings_of


def of_training_step(seed: int, step: int) -> np.random.Generator:
    """The source of a step's examples, which seed and step alone decide: nothing else is needed to resume.

    Steps are counted from 1; of step 0 are the examples that a run measures itself by, the same each time.
    """
    return np.random.default_rng([seed, step])


def _mean_loss(logits_BTC: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits_BTC.float().flatten(0, 1), targets_BT.flatten())


LEARNT = 0.99
"""Exact matches in distribution from which on a task counts as learnt."""


def is_learnt(config: TaskConfig, metrics: Mapping[str, float]) -> bool:
    """Whether the last measurement (metric -> its last value) found the task learnt in distribution.

    Where `stop_at_excess_loss` is set, by the excess loss: cues may mislead, so no model can always be right.
    """
    if config.stop_at_excess_loss is None:
        return metrics.get("exact_match", 0.0) >= LEARNT
    return metrics.get("excess_loss", math.inf) <= config.stop_at_excess_loss


def last_step(run_folder: Path, config: TaskConfig) -> int:
    """The step that ends a run: that of its newest checkpoint where the task was known then, or the last."""
    step, _ = newest_checkpoint(run_folder) or (0, None)
    has_ended = config.stop_at_excess_loss is not None and is_learnt(config, last_metrics(run_folder, step))
    return step if has_ended else config.num_steps


def new_task_model(config: TaskConfig) -> TaskModel:
    """The model with its initial weights, which `config.seed` decides, on the CPU."""
    torch.manual_seed(config.seed)
    model = config.model
    task = task_called(config.task)
    sizes = {
        "vocabulary_size": len(task.vocabulary),
        "width": model.width,
        "num_layers": model.num_layers,
        "num_heads": model.num_heads,
        "num_position_ids": config.num_position_ids,
    }
    lm: CausalLM
    if model.architecture == "olmo":
        lm = OLMoCausalLM(new_olmo(**sizes))
    else:
        lm = new_gpt_neox(**sizes, rotary_fraction=model.rotary_fraction)
    has_table = config.positions in COUPLED_SCHEMES and task.embeds_coupled_ids
    return TaskModel(lm, (config.num_position_ids, model.width) if has_table else None)


@dataclass(frozen=True)
class TaskRun:
    """A trained model of a task that has been found and not yet loaded."""

    name: str
    """The run folder's; results are filed under it."""
    step: int
    folder: Path
    """The checkpoint's."""
    config: TaskConfig

    @property
    def is_learnt(self) -> bool:
        """See `is_learnt`; by the last measurement before the checkpoint."""
        return is_learnt(self.config, last_metrics(self.folder.parent, self.step))

    def load(self, device: torch.device) -> TaskModel:
        """The model, to be tested."""
        model = new_task_model(self.config)
        model.load_state_dict(read_tensors(self.folder / "model.pt"))
        return model.to(device).eval().requires_grad_(False)


def find_task_run(folder: Path, task: str) -> TaskRun:
    """The newest checkpoint of a run folder of train_synthetic.

    InputError where there is none, it is damaged, or it was trained on another task than `task`.
    """
    found = newest_checkpoint(folder)
    if found is None:
        raise InputError(
            f"no checkpoint in {folder}: expected step<N>-unsharded there, as train_synthetic.py writes them"
        )
    step, newest = found
    refuse_damaged(newest, MODEL_FILES)
    config: TaskConfig = settings_of(newest, OmegaConf.structured(TaskConfig), read_configuration(newest))
    if config.task != task:
        raise InputError(
            f"{folder} was trained on the task {config.task}, not on {task}; test it with --task"
            f" {config.task}"
        )
    return TaskRun(folder.resolve().name, step, newest, config)


class TaskTrainer(TrainingLoop):
    """One run: model and optimizer at `step` finished steps."""

    _config: TaskConfig

    def __init__(self, config: TaskConfig, run_folder: Path, device: torch.device) -> None:
        """Build model and optimizer, at the run's newest checkpoint where it has one."""
        super().__init__(config, run_folder, config.num_steps)
        self._device = device
        self._model = new_task_model(config).to(device)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
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
        self._parts_of = prefetched(self._draw)
        saved = newest_state(run_folder)
        if saved is not None:
            self.step = saved["train"]["step"]
            self._model.load_state_dict(saved["model"])
            self._optimizer.load_state_dict(saved["optim"])

    @property
    def outcome(self) -> str:
        """Whether the task was learnt, in words, with the last metrics."""
        metrics = last_metrics(self._run_folder, self.step)
        verdict = "learnt" if is_learnt(self._config, metrics) else "NOT learnt"
        return f"{verdict} in distribution: {metrics}"

    def _measure(self) -> dict[str, float]:
        """Share of responses that are wholly right in distribution, each training size counting alike.

        And the mean excess loss, where the best loss is known. Neither architecture has dropout.
        """
        config = self._config
        generator = of_training_step(config.seed, 0)
        num_examples = -(-config.eval_num_examples // len(config.sizes))
        found = []
        for size in config.sizes:
            examples = config.draw(size, num_examples, generator)
            found.append(answers(self._model, examples, config, generator, num_examples))
        metrics = {"exact_match": float(np.mean([of_size.is_right_B for of_size in found]))}
        excess_losses = [of_size.excess_losses_B for of_size in found if of_size.excess_losses_B is not None]
        if excess_losses:
            metrics["excess_loss"] = float(np.mean(excess_losses))
        if config.stop_at_excess_loss is not None and is_learnt(config, metrics):
            self._num_steps = self.step  # the run ends here
        return metrics

    def _train_step(self, step: int) -> tuple[dict[str, float], bool]:
        parts = self._parts_of(step)
        totals = torch.zeros(2, device=self._device)
        for part in parts:
            losses = self._losses(*part)
            (losses.sum() / len(parts)).backward()
            totals += losses.detach() / len(parts)
        token_loss, position_id_loss = totals.tolist()
        gradient_norm = float(clip_grad_norm_(self._model.parameters(), self._config.max_grad_norm))
        learning_rate = self._schedule.get_lr(self._config.learning_rate, step, self._config.num_steps)
        self._update_weights(step, learning_rate, token_loss, gradient_norm)
        metrics = {
            "step": step,
            "loss": token_loss,
            "learning_rate": learning_rate,
            "gradient_norm": gradient_norm,
        }
        if self._config.positions == "predicted":
            metrics["position_id_loss"] = position_id_loss
        return metrics, self._is_asked_to_stop

    def _losses(
        self, token_ids: np.ndarray, num_prompt_tokens: int, position_ids: np.ndarray
    ) -> torch.Tensor:
        """Mean cross-entropy of the response's tokens and of its position IDs, nats; PPC's loss is their sum.

        Tokens and IDs are given (teacher forcing); the token at place p is predicted, ID and all, from p - 1.
        The second is 0 where IDs are not predicted.
        """
        token_ids_BS = torch.from_numpy(token_ids).to(self._device)
        position_ids_BS = torch.from_numpy(position_ids).to(self._device)
        hidden_BSD, _ = self._model(token_ids_BS[:, :-1], position_ids_BS[:, :-1])
        hidden_BTD = hidden_BSD[:, num_prompt_tokens - 1 :]
        of_tokens = _mean_loss(self._model.token_logits(hidden_BTD), token_ids_BS[:, num_prompt_tokens:])
        of_ids = torch.zeros_like(of_tokens)
        if self._config.positions == "predicted":
            logits_BTI = self._model.position_logits(hidden_BTD)
            of_ids = _mean_loss(logits_BTI, position_ids_BS[:, num_prompt_tokens:])
        return torch.stack((of_tokens, of_ids))

    def _draw(self, step: int) -> list[tuple[np.ndarray, int, np.ndarray]]:
        """A step's examples, a batch a size: tokens [B, S], P, and position IDs [B, S]."""
        config = self._config
        generator = of_training_step(config.seed, step)
        parts = []
        for _ in range(config.sizes_per_step):
            size = int(generator.choice(config.sizes))
            examples = config.draw(size, config.batch_size // config.sizes_per_step, generator)
            position_ids_BS = config.position_ids(examples, generator)
            token_ids_BS = np.stack([example.token_ids_S for example in examples])
            parts.append((token_ids_BS, examples[0].num_prompt_tokens, position_ids_BS))
        return parts

    def _save(self) -> None:
        save_checkpoint(
            self._run_folder,
            self.step,
            self._config,
            {
                "model": self._model.state_dict(),
                "optim": self._optimizer.state_dict(),
                "train": {"step": self.step},
            },
        )
