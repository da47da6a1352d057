"""The training of a model of a synthetic task on one device, and the run that it leaves.

Dimension letters: B examples, P tokens of a prompt, T of a response, S = P + T, D width.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from olmo.optim import LinearWithWarmup
from omegaconf import OmegaConf
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from sparsity_length.cli import logger
from sparsity_length.models.checkpoints import (
    MODEL_FILES,
    find_checkpoint,
    newest_checkpoint,
    read_configuration,
    read_tensors,
    refuse_damaged,
)
from sparsity_length.models.devices import usable_device
from sparsity_length.synthetic.config import TaskConfig, config_of
from sparsity_length.synthetic.evaluation import accuracy
from sparsity_length.synthetic.models import TaskLM
from sparsity_length.synthetic.tasks import TASKS
from sparsity_length.training.data import prefetched
from sparsity_length.training.loop import (
    TrainingLoop,
    has_finished,
    last_metrics,
    newest_state,
    save_checkpoint,
    train,
)
from sparsity_length.training.settings import require, settings_of


def of_training_step(seed: int, step: int) -> np.random.Generator:
    """The source of a step's examples, which seed and step alone decide: nothing else is needed to resume.

    Steps are counted from 1; of step 0 are the examples that a run measures itself by, the same each time,
    and of steps beyond the last those that decide whether it may end.
    """
    return np.random.default_rng([seed, step])


def knows_task(config: TaskConfig, metrics: dict[str, float]) -> bool:
    """Whether a measurement found the task learned in distribution.

    At least 99 % exact matches, or the share `stop_at_accuracy`; if `stop_at_excess_loss` is set, that
    excess loss or less.
    """
    if config.stop_at_excess_loss is None:
        return metrics.get("exact_match", 0.0) >= (config.stop_at_accuracy or 0.99)
    # Cues may mislead, so no model can always be right.
    return metrics.get("excess_loss", float("inf")) <= config.stop_at_excess_loss


def is_learnt(checkpoint: Path, config: TaskConfig) -> bool:
    """Whether the last measurement before a run's checkpoint found the task learned in distribution."""
    step = read_tensors(checkpoint / "train.pt")["step"]
    return knows_task(config, last_metrics(checkpoint.parent, step))


def is_finished(run_folder: Path, config: TaskConfig) -> bool:
    """Whether a run has come to its end, at the last step or once its task was known.

    The log then says so. A folder that holds another run is refused.
    """
    newest = newest_checkpoint(run_folder)
    last_step = config.num_steps
    if newest is not None and config.stops_when_learnt and is_learnt(newest[1], config):
        last_step = newest[0]
    return has_finished(run_folder, config, last_step)


def find_task_run(folder: Path, task: str) -> tuple[Path, TaskConfig]:
    """The newest checkpoint of a run folder of train_synthetic, and the run's configuration.

    InputError if there is none, it is damaged, or it was trained on another task than `task`.
    """
    checkpoint = find_checkpoint(folder.resolve())
    refuse_damaged(checkpoint, MODEL_FILES)
    config: TaskConfig = settings_of(
        checkpoint, OmegaConf.structured(TaskConfig), read_configuration(checkpoint)
    )
    require(
        config.task == task,
        f"{folder} was trained on the task {config.task}, not on {task}; test it with --task {config.task}",
    )
    return checkpoint, config


def load_task_lm(checkpoint: Path, config: TaskConfig, device: torch.device) -> TaskLM:
    """The model of a run's checkpoint, to be tested."""
    lm = TaskLM(config)
    lm._model.load_state_dict(read_tensors(checkpoint / "model.pt"))
    lm._model.to(device)
    return lm


class TaskTrainer(TrainingLoop):
    """One run: model and optimizer at `step` finished steps."""

    _config: TaskConfig

    def __init__(self, config: TaskConfig, run_folder: Path, device: torch.device) -> None:
        """Build model and optimizer, at the run's newest checkpoint if it has one."""
        super().__init__(config, run_folder, config.num_steps)
        self._lm = TaskLM(config)
        self._module = self._lm._model.to(device).train().requires_grad_()
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
        """Measure in distribution; the run ends here if it is to end once the task is learned, and it is."""
        metrics = self._measured(0)
        if self._config.stops_when_learnt and knows_task(self._config, metrics):
            # The best of many measurements on the same examples may be luck: others decide.
            metrics = self._measured(self._config.num_steps + self.step)
            if knows_task(self._config, metrics):
                self._num_steps = self.step
        return metrics

    def _measured(self, drawn_as: int) -> dict[str, float]:
        """Share of responses that are wholly right in distribution, each training size counting alike.

        And the mean excess loss, if the best loss is known. Examples are drawn as of a step. Neither
        architecture has dropout.
        """
        config = self._config
        generator = of_training_step(config.seed, drawn_as)
        # A draw has one k if responses grow with it.
        sizes = [*config.sizes] * (16 if TASKS[config.task].response_grows_with_k else 1)
        num_examples = -(-config.eval_num_examples // len(sizes))  # of a size, rounded up
        # Size by size, as examples of two sizes do not stack.
        table = pd.concat(
            [
                accuracy(self._lm, config.draw(size, num_examples, generator), generator, num_examples)[
                    "synthetic_examples"
                ]
                for size in sizes
            ]
        )
        metrics = {"exact_match": float(table["is_right"].mean())}
        if "excess_loss" in table:
            metrics["excess_loss"] = float(np.mean(table["excess_loss"].to_numpy()))
        return metrics

    def _train_step(self, step: int) -> tuple[dict[str, float], bool]:
        """Train on the mean cross-entropy of the response's tokens and, if predicted, its position IDs, nats.

        PPC's loss is their sum. Tokens and IDs are given (teacher forcing); the token at place p is
        predicted, ID and all, from p - 1.
        """
        config = self._config
        parts = self._parts_of(step)
        totals = torch.zeros((), device=self._lm.device)
        for num_prompt_tokens, token_ids_BS, position_ids_BS in parts:
            hidden_BSD, _ = self._lm._run(token_ids_BS[:, :-1], position_ids_BS[:, :-1], None, None)
            hidden_BTD = hidden_BSD[:, num_prompt_tokens - 1 :]
            heads = [(self._lm.logits, token_ids_BS)]
            if config.positions == "predicted":
                heads.append((self._lm.position_logits, position_ids_BS))
            of_part = torch.stack(
                [
                    cross_entropy(head(hidden_BTD).flatten(0, 1), ids_BS[:, num_prompt_tokens:].flatten())
                    / len(parts)
                    for head, ids_BS in heads
                ]
            )
            of_part.sum().backward()  # adds to the gradients of the parts before
            totals = totals + of_part.detach()
        losses = dict(zip(("loss", "position_id_loss"), totals.tolist(), strict=False))
        gradient_norm = float(clip_grad_norm_(self._module.parameters(), config.max_grad_norm))
        learning_rate = self._schedule.get_lr(config.learning_rate, step, config.num_steps)
        self._update_weights(step, learning_rate, losses["loss"], gradient_norm)
        metrics = {"step": step, **losses, "learning_rate": learning_rate, "gradient_norm": gradient_norm}
        return metrics, self._is_asked_to_stop

    def _draw(self, step: int) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
        """A step's examples, one batch per size: P, tokens and position IDs [B, S]."""
        config = self._config
        generator = of_training_step(config.seed, step)
        parts = []
        for _ in range(config.sizes_per_step):
            size = int(generator.choice(config.sizes))
            examples = config.draw(size, config.batch_size // config.sizes_per_step, generator)
            token_ids_BS, position_ids_BS = config.ids_of(examples, generator)
            parts.append(
                (
                    examples[0].num_prompt_tokens,
                    torch.as_tensor(token_ids_BS, device=self._lm.device),
                    torch.as_tensor(position_ids_BS, device=self._lm.device),
                )
            )
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


def left(arguments: argparse.Namespace) -> list[str]:
    """What a command line of train_synthetic.py has still to train; another run's folder is refused."""
    done = is_finished(arguments.save_folder, config_of(arguments))
    return [] if done else [f"the training of {arguments.save_folder}"]


def train_on_task(arguments: argparse.Namespace) -> None:
    """Train, resume training, or say that the run is finished."""
    if not left(arguments):
        return
    config = config_of(arguments)
    folder = arguments.save_folder
    device = usable_device(None, "CUDA_VISIBLE_DEVICES= computes on the CPU")
    train(folder, lambda: TaskTrainer(config, folder, device))
    run = find_task_run(folder, arguments.task)
    logger.info("%s in distribution", "learned" if is_learnt(*run) else "NOT learned")
