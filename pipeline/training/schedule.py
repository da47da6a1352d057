"""How many steps a run has, and the learning rate and clipping threshold of each, by OLMo's scheduler."""

import math

from olmo.config import SchedulerType, SchedulerUnits
from olmo.optim import build_scheduler

from pipeline.errors import InputError
from pipeline.training.configuration import PretrainConfig


def counts_epochs(max_duration: int | str) -> bool:
    """Whether only the data tells how long that is."""
    return str(max_duration).strip().endswith("ep")


def num_training_steps(max_duration: int | str, tokens_per_step: int, steps_per_epoch: int) -> int:
    """OLMo's `max_duration` in optimizer steps: 1000 steps, "2e6T" tokens (rounded up), "2ep" epochs.

    Raises:
        InputError: it is none of these, or less than one step.
    """
    text = str(max_duration).strip()
    try:
        if counts_epochs(text):
            num_steps = int(text[:-2]) * steps_per_epoch
        elif text.endswith("T"):
            num_steps = math.ceil(float(text[:-1]) / tokens_per_step)
        else:
            num_steps = int(float(text))
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"max_duration '{max_duration}' is not steps (1000), tokens ('2e6T') or epochs ('2ep')"
        ) from error
    if num_steps < 1:
        raise InputError(f"max_duration '{max_duration}' is less than one step")
    return num_steps


class Schedule:
    """Steps are counted from 1, as OLMo's trainer does: step n uses the rate at n."""

    def __init__(self, config: PretrainConfig, steps_per_epoch: int) -> None:
        """Build the schedule of a run.

        Args:
            config: the run's configuration.
            steps_per_epoch: optimizer steps that see every training sequence once.

        Raises:
            InputError: the duration is not understood, or the warm-up is longer than it.
        """
        self.num_steps = num_training_steps(config.max_duration, config.tokens_per_step, steps_per_epoch)
        self._config = config
        self._scheduler = build_scheduler(config)
        in_tokens = config.scheduler.units == SchedulerUnits.tokens
        self._unit = config.tokens_per_step if in_tokens else 1
        warms_up = config.scheduler.name != SchedulerType.constant
        if warms_up and config.scheduler.t_warmup > self.num_steps * self._unit:
            raise InputError(
                f"scheduler.t_warmup is {config.scheduler.t_warmup} {config.scheduler.units}, longer than"
                f" max_duration '{config.max_duration}' ({self.num_steps} steps of"
                f" {config.tokens_per_step} tokens)"
            )

    def learning_rate(self, step: int) -> float:
        """The learning rate of `step`."""
        return self._scheduler.get_lr(
            self._config.optimizer.learning_rate, step * self._unit, self.num_steps * self._unit
        )

    def max_grad_norm(self, step: int) -> float | None:
        """The norm to which the gradient of `step` is clipped; None: it is not clipped."""
        return self._scheduler.get_max_grad_norm(
            self._config.max_grad_norm, step * self._unit, self.num_steps * self._unit
        )
