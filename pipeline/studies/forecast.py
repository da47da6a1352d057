"""What a study's commands will take, told before they run: by text_forecast.py and by task_forecast.py."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from pipeline.studies.command import Command, Training
from pipeline.studies.cost import Cost
from pipeline.studies.machine import Machine
from pipeline.training.checkpoints import RunConfig


class Need(NamedTuple):
    """What a training holds; a measuring of the same model holds less."""

    num_parameters: int
    memory_bytes: float
    text_passes: float | None = None
    """How often it reads the training text; None: that is not known, or there is none."""


class Forecast(Protocol):
    """Of one study, whose commands were checked."""

    @property
    def configs(self) -> Mapping[str, RunConfig]:
        """The name of a training -> its configuration, complete and checked."""

    def cost_of(self, command: Command, machine: Machine) -> Cost:
        """Of one command; nothing for those that neither train nor measure."""

    def need_of(self, training: Training) -> Need:
        """Of one training."""
