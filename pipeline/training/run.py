"""What the training stages do alike around a run: ask whether it has finished; hold and record its folder."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch

from pipeline.models.memory import keep_freed_memory, out_of_memory_in_words
from pipeline.results.folder_lock import FolderLock
from pipeline.training.checkpoints import RunConfig, checkpoints_of
from pipeline.training.loop import TrainingLoop
from pipeline.training.run_records import recorded_run, refuse_another_run

logger = logging.getLogger("pipeline")
_Loop = TypeVar("_Loop", bound=TrainingLoop)


def has_finished(run_folder: Path, config: RunConfig, num_steps: int) -> bool:
    """Whether a run has come to its end before, which is then said.

    Raises:
        InputError: the folder holds another run.
    """
    refuse_another_run(run_folder, config)
    last = checkpoints_of(run_folder).get(num_steps)
    if last is not None:
        logger.info("already finished: %s", last)
    return last is not None


def train(run_folder: Path, config: RunConfig, less_memory: str, make: Callable[[], _Loop]) -> _Loop:
    """Make a training and run it to its end, or to a request to stop, alone in its folder.

    Args:
        run_folder: made where it is absent.
        config: the run's, written into the folder at the start.
        less_memory: what the user may do where memory does not suffice.
        make: the training, at the newest checkpoint of the folder.

    Returns:
        The training, which has saved its last step.

    Raises:
        InputError: another program trains in the folder, or what `make` or the training refuses.
    """
    with _alone(run_folder, config), out_of_memory_in_words(less_memory):
        keep_freed_memory()
        # Once a model has learnt a little, products of small probabilities fall below 1e-38: nothing to what
        # they are added to, but a processor takes long for each (tests/benchmarks/denormals.py). Set before
        # torch starts its threads, which take it over.
        torch.set_flush_denormal(True)
        training = make()
        training.run()
    return training


@contextmanager
def _alone(run_folder: Path, config: RunConfig) -> Iterator[None]:
    """Hold and record the run folder; of processes that train together, the first does it for all."""
    if os.environ.get("RANK", "0") != "0":  # torchrun and accelerate both number them so
        yield
        return
    with FolderLock(run_folder, "--save-folder"), recorded_run(run_folder, config):
        yield
