"""The training of a model of a synthetic task on one device, and the run that it leaves.

Dimension letters: B examples, P tokens of a prompt, T of a response, S = P + T, D width.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from olmo.optim import LinearWithWarmup
from torch.nn.functional import cross_entropy

from pipeline.cli import InputError
from pipeline.models.interface import CausalLM
from pipeline.models.load import MODEL_FILES, newest_checkpoint, read_tensors, refuse_damaged
from pipeline.models.olmo import OLMoCausalLM
from pipeline.results.versions import sha256_of_files
from pipeline.synthetic.accuracy import answers, excess_losses
from pipeline.synthetic.config import TaskConfig, read_task_config
from pipeline.synthetic.models import TaskModel, new_gpt_neox, new_olmo
from pipeline.synthetic.tasks import COUPLED_SCHEMES, ExampleBatch, task_called
from pipeline.training.checkpoints import newest_state, save_checkpoint
from pipeline.training.data import Prefetch
from pipeline.training.loop import TrainingLoop, last_metrics


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
    found = newest_checkpoint(run_folder)
    if found is not None and config.stop_at_excess_loss is not None:
        step, _ = found
        if is_learnt(config, last_metrics(run_folder, step)):
            return step
    return config.num_steps


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
    def sha256(self) -> str:
        """SHA-256 of what decides its numbers: configuration and weights."""
        return sha256_of_files(self.folder / "config.yaml", self.folder / "model.pt")

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
    config = read_task_config(newest)
    if config.task != task:
        raise InputError(
            f"{folder} was trained on the task {config.task}, not on {task}; test it with --task"
            f" {config.task}"
        )
    return TaskRun(folder.resolve().name, step, newest, config)


class TaskTrainer(TrainingLoop):
    """One run: model and optimizer at `step` finished steps."""

    shown = ("loss", "exact_match")
    _config: TaskConfig

    def __init__(
        self, config: TaskConfig, run_folder: Path, device: torch.device, stop_requests: Sequence[int]
    ) -> None:
        """Build model and optimizer, at the run's newest checkpoint where it has one."""
        super().__init__(config, run_folder, config.num_steps, stop_requests)
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
        self._parts_of = Prefetch(self._draw)
        saved = newest_state(run_folder)
        if saved is not None:
            self.step = saved["train"]["step"]
            self._model.load_state_dict(saved["model"])
            self._optimizer.load_state_dict(saved["optim"])
            self.metrics = last_metrics(run_folder, self.step)

    @property
    def outcome(self) -> str:
        """Whether the task was learnt, in words, with the numbers that tell it."""
        verdict = "learnt" if is_learnt(self._config, self.metrics) else "NOT learnt"
        for name in ("exact_match", "excess_loss"):
            if name in self.metrics:
                verdict += f"; {name} in distribution {self.metrics[name]:.3f}"
        return verdict

    @property
    def has_finished(self) -> bool:
        """Whether all steps are done, or the task is known as well as was asked for."""
        ends_early = self._config.stop_at_excess_loss is not None
        return super().has_finished or (ends_early and is_learnt(self._config, self.metrics))

    def _measure(self) -> dict[str, float]:
        """Share of responses that are wholly right in distribution, each training size counting alike.

        And the mean excess loss, where the best loss is known.
        """
        config = self._config
        generator = of_training_step(config.seed, 0)
        num_examples = -(-config.eval_num_examples // len(config.sizes))
        found: dict[str, list[np.ndarray]] = {"exact_match": [], "excess_loss": []}
        self._model.eval()
        for size in config.sizes:
            batch = config.draw(size, num_examples, generator)
            of_batch = (self._model, batch, config, generator, num_examples)
            found["exact_match"].append(answers(*of_batch).is_right_B)
            if batch.log_posterior_BV is not None:
                found["excess_loss"].append(excess_losses(*of_batch))
        self._model.train()
        return {name: float(np.concatenate(values).mean()) for name, values in found.items() if values}

    def _train_step(self, step: int) -> tuple[dict[str, float], bool]:
        parts = self._parts_of(step)
        totals = torch.zeros(2, device=self._device)
        for part in parts:
            losses = self._losses(*part)
            (losses.sum() / len(parts)).backward()
            totals += losses.detach() / len(parts)
        token_loss, position_id_loss = totals.tolist()
        max_norm = math.inf if self._config.max_grad_norm is None else self._config.max_grad_norm
        gradient_norm = float(torch.nn.utils.clip_grad_norm_(self._model.parameters(), max_norm))
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
        return metrics, bool(self._stop_requests)

    def _losses(self, batch: ExampleBatch, position_ids: np.ndarray) -> torch.Tensor:
        """Mean cross-entropy of the response's tokens and of its position IDs, nats; PPC's loss is their sum.

        Tokens and IDs are given (teacher forcing); the token at place p is predicted, ID and all, from p - 1.
        The second is 0 where IDs are not predicted.
        """
        first = batch.num_prompt_tokens  # of the response
        token_ids_BS = torch.from_numpy(batch.token_ids_BS).to(self._device)
        position_ids_BS = torch.from_numpy(position_ids).to(self._device)
        hidden_BSD, _ = self._model(token_ids_BS[:, :-1], position_ids_BS[:, :-1])
        hidden_BTD = hidden_BSD[:, first - 1 :]
        of_tokens = _mean_loss(self._model.token_logits(hidden_BTD), token_ids_BS[:, first:])
        of_ids = torch.zeros_like(of_tokens)
        if self._config.positions == "predicted":
            of_ids = _mean_loss(self._model.position_logits(hidden_BTD), position_ids_BS[:, first:])
        return torch.stack((of_tokens, of_ids))

    def _draw(self, step: int) -> list[tuple[ExampleBatch, np.ndarray]]:
        """The examples of a step, a batch a size, and their position IDs [B, S]."""
        config = self._config
        generator = of_training_step(config.seed, step)
        num_examples = config.batch_size // config.sizes_per_step
        parts = []
        for _ in range(config.sizes_per_step):
            batch = config.draw(int(generator.choice(config.sizes)), num_examples, generator)
            parts.append((batch, config.position_ids(batch, generator)))
        return parts

    def _save(self) -> None:
        state = {
            "model": self._model.state_dict(),
            "optim": self._optimizer.state_dict(),
            "train": {"step": self.step},
        }
        save_checkpoint(self._run_folder, self.step, self._config, state)
