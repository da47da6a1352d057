"""Checkpoints in OLMo's unsharded layout, whole or absent, and the settings that they are known by.

<run folder>/step1000-unsharded/
    config.yaml  model.pt     as OLMo writes them; OLMo.from_checkpoint loads the folder
    optim.pt                  the optimizer's state
    train.pt                  step, tokens, and what made them
    complete.json             sizes and SHA-256 of these (pipeline.models.load)
"""

import shutil
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import OmegaConf

from pipeline.cli import logger
from pipeline.models.load import (
    newest_checkpoint,
    read_configuration,
    read_tensors,
    refuse_damaged,
    step_folders,
    whole_model,
)
from pipeline.results.files import refuse_changes
from pipeline.training.settings import plain_values

STATE = ("model", "optim", "train")
"""Stems of the files that a run goes on from."""


def save_checkpoint(run_folder: Path, step: int, config: Any, state: dict[str, dict[str, Any]]) -> None:
    """Write the checkpoint of `step`; `state` is file stem, of `STATE` -> what that file holds."""
    with whole_model(run_folder / f"step{step}-unsharded") as folder:
        OmegaConf.save(config, folder / "config.yaml")
        for stem, content in state.items():
            torch.save(content, folder / f"{stem}.pt")


def newest_state(run_folder: Path) -> dict[str, dict[str, Any]] | None:
    """The `state` given to `save_checkpoint`, of the newest checkpoint, on the CPU; None if the run has none.

    A damaged one is refused. Once its folder is removed the run goes on from the one before it, to the same
    weights, as data depend on the step alone.
    """
    newest = newest_checkpoint(run_folder)
    if newest is None:
        return None
    _, folder = newest
    refuse_damaged(folder, ["config.yaml", *(f"{stem}.pt" for stem in STATE)])
    logger.info("going on from %s", folder)
    return {stem: read_tensors(folder / f"{stem}.pt") for stem in STATE}


def drop_old_checkpoints(run_folder: Path, num_kept: int) -> None:
    """Remove all but the newest `num_kept` checkpoints."""
    for folder in list(step_folders(run_folder).values())[:-num_kept]:
        # First out of sight, in one step: a kill must not leave half of one that looks whole.
        folder.rename(folder.with_name(f".{folder.name}.old"))
    for left in run_folder.glob(".step*-unsharded.old"):
        shutil.rmtree(left)


# A run may be moved, renamed, watched, saved and spread over devices otherwise; all else decides its numbers.
_CHANGEABLE = {
    "save_folder",
    "run_name",
    "save_interval",
    "save_num_unsharded_checkpoints_to_keep",
    "console_log_interval",  # of earlier versions
    "eval_interval",
    "eval_context_lengths",
    "eval_num_documents",
    "device_train_microbatch_size",
    "device_train_microbatch_tokens",
    "distributed_strategy",
    "compile",
    "activation_checkpointing",
}


def refuse_another_run(run_folder: Path, config: Any) -> None:
    """Refuse a folder whose newest checkpoint is of another configuration or data; names what changed."""
    # Damaged or not: what is compared is the same in all checkpoints of a run.
    newest = newest_checkpoint(run_folder)
    if newest is None:
        return
    # A field that is newer than the record had what is its default now.
    complete = OmegaConf.merge(plain_values(type(config)), read_configuration(newest[1]))
    then, now = (
        {name: value for name, value in settings.items() if name not in _CHANGEABLE}
        for settings in (cast(dict[str, Any], OmegaConf.to_container(complete)), plain_values(config))
    )
    refuse_changes(f"{run_folder} holds a run", then, now, "--save-folder")
