"""Checkpoints in OLMo's unsharded layout, whole or absent.

<run folder>/config.yaml    the run's settings, from its start on
<run folder>/step1000-unsharded/
    config.yaml  model.pt     as OLMo writes them; OLMo.from_checkpoint loads the folder
    optim.pt                  the optimizer's state
    train.pt                  step, tokens, random states, and what made them
    complete.json             sizes and SHA-256 of these (pipeline.models.checkpoint_files)
"""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from pipeline.errors import InputError, is_out_of_memory
from pipeline.models.checkpoint_files import (
    RUN_FILES,
    damage_of,
    newest_whole,
    read_tensors,
    step_folders,
    write_mark,
)

logger = logging.getLogger("pipeline")


class RunConfig(Protocol):
    """The settings of a run, whichever stage's: a dataclass of OmegaConf's kind."""

    def save(self, path: Path) -> None:
        """Write them as YAML."""


CONFIG_FILE, METRICS_FILE = "config.yaml", "metrics.jsonl"


def checkpoint_folder(run_folder: Path, step: int) -> Path:
    """Where the checkpoint of `step` stands."""
    return run_folder / f"step{step}-unsharded"


def checkpoints_of(run_folder: Path) -> dict[int, Path]:
    """Step -> folder of every checkpoint that is whole by the sizes of its files, ascending."""
    folders = step_folders(run_folder)
    return {
        step: folder
        for step, folder in folders.items()
        if damage_of(folder, RUN_FILES, reads_all=False) is None
    }


def save_checkpoint(run_folder: Path, step: int, config: RunConfig, state: dict[str, dict[str, Any]]) -> None:
    """Write the checkpoint of `step`; a kill at any moment leaves it whole or absent.

    Args:
        run_folder: the run's folder.
        step: finished steps.
        config: written beside the weights.
        state: file stem (`model`, `optim`, `train`) -> what that file holds.
    """
    folder = checkpoint_folder(run_folder, step)
    temporary = run_folder / f".{folder.name}.part"
    # Of a killed save or removal; and a folder of this very step is made again.
    for leftover in (temporary, folder, *run_folder.glob(".step*-unsharded.old")):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        config.save(temporary / CONFIG_FILE)
        for stem, content in state.items():
            _save(content, temporary / f"{stem}.pt")
        write_mark(temporary)
        for path in temporary.iterdir():
            _sync(path)
        _sync(temporary)
        temporary.rename(folder)
        _sync(run_folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _save(content: dict[str, Any], path: Path) -> None:
    """`torch.save`, where a full disk is the OSError that it is."""
    try:
        with path.open("wb") as file:
            torch.save(content, file)
    except RuntimeError as error:
        # torch buries what the file said under a complaint about positions in its archive
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load_state(folder: Path) -> dict[str, dict[str, Any]]:
    """The `state` given to `save_checkpoint`, its tensors on the CPU.

    Raises:
        InputError: a file is damaged, or holds something else than tensors and plain values.
    """
    return {stem: read_tensors(folder / f"{stem}.pt") for stem in ("model", "optim", "train")}


def newest_state(run_folder: Path) -> dict[str, dict[str, Any]] | None:
    """The state of the newest whole checkpoint, to go on from; None where the run has none.

    Raises:
        InputError: a file of it is damaged.
    """
    newest = newest_whole(run_folder)
    if newest is None:
        return None
    logger.info("going on from %s", newest[1])
    return load_state(newest[1])


@contextmanager
def refusing_another_state(run_folder: Path) -> Iterator[None]:
    """Inside, a state that does not fit model or optimizer ends in a sentence.

    Raises:
        InputError: the newest checkpoint is not one of this run.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"the newest checkpoint of {run_folder} does not hold the state of this run ({reason});"
            " put back what was saved, or remove it to go on from the one before"
        ) from error


def drop_old_checkpoints(run_folder: Path, num_kept: int) -> None:
    """Remove all but the newest `num_kept` checkpoints."""
    for folder in list(checkpoints_of(run_folder).values())[:-num_kept]:
        # First out of sight, in one step: a kill must not leave half of one that looks whole.
        shutil.rmtree(folder.rename(folder.with_name(f".{folder.name}.old")))
