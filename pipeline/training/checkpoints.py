"""Checkpoints in OLMo's unsharded layout, whole or absent, and the settings that they are known by.

<run folder>/step1000-unsharded/
    config.yaml  model.pt     as OLMo writes them; OLMo.from_checkpoint loads the folder
    optim.pt                  the optimizer's state
    train.pt                  step, tokens, random states, and what made them
    complete.json             sizes and SHA-256 of these (pipeline.models.load)
"""

import shutil
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import OmegaConf

from pipeline.cli import InputError, logger
from pipeline.models.load import (
    newest_checkpoint,
    newest_whole,
    read_configuration,
    read_tensors,
    step_folders,
    write_mark,
)
from pipeline.results.files import differences, sync
from pipeline.training.settings import plain_values


def save_checkpoint(run_folder: Path, step: int, config: Any, state: dict[str, dict[str, Any]]) -> None:
    """Write the checkpoint of `step`; a kill at any moment leaves it whole or absent.

    `state` is file stem (`model`, `optim`, `train`) -> what that file holds.
    """
    folder = run_folder / f"step{step}-unsharded"
    temporary = run_folder / f".{folder.name}.part"
    # Of a killed save or removal; and the folder of this very step is made again.
    for leftover in (temporary, folder, *run_folder.glob(".step*-unsharded.old")):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir(parents=True)
    OmegaConf.save(config, temporary / "config.yaml")
    for stem, content in state.items():
        torch.save(content, temporary / f"{stem}.pt")
    write_mark(temporary)
    for path in (*temporary.iterdir(), temporary):
        sync(path)
    temporary.rename(folder)
    sync(run_folder)


def newest_state(run_folder: Path) -> dict[str, dict[str, Any]] | None:
    """The `state` given to `save_checkpoint`, of the newest whole checkpoint, on the CPU; None: no such."""
    newest = newest_whole(run_folder)
    if newest is None:
        return None
    logger.info("going on from %s", newest[1])
    return {stem: read_tensors(newest[1] / f"{stem}.pt") for stem in ("model", "optim", "train")}


def drop_old_checkpoints(run_folder: Path, num_kept: int) -> None:
    """Remove all but the newest `num_kept` checkpoints."""
    for folder in list(step_folders(run_folder).values())[:-num_kept]:
        # First out of sight, in one step: a kill must not leave half of one that looks whole.
        shutil.rmtree(folder.rename(folder.with_name(f".{folder.name}.old")))


# A run may be moved, renamed, watched, saved and spread over devices otherwise; all else decides its numbers.
_CHANGEABLE = {
    "save_folder",
    "run_name",
    "save_interval",
    "save_num_unsharded_checkpoints_to_keep",
    "console_log_interval",
    "eval_interval",
    "eval_context_lengths",
    "eval_num_documents",
    "device_train_microbatch_size",
    "device_train_microbatch_tokens",
    "distributed_strategy",
    "compile",
    "activation_checkpointing",
    "precision",  # train.pt says in which one the weights were trained; that is compared
}


def refuse_another_run(run_folder: Path, config: Any) -> None:
    """Refuse a folder whose newest checkpoint is of another configuration or data; names what changed."""
    newest = newest_checkpoint(run_folder)
    if newest is None:
        return
    earlier = read_configuration(newest[1])
    # A field that is newer than the record had what is its default now.
    complete = OmegaConf.to_container(OmegaConf.merge(plain_values(type(config)), earlier))
    then, now = (
        {name: value for name, value in settings.items() if name not in _CHANGEABLE}
        for settings in (cast(dict[str, Any], complete), plain_values(config))
    )
    if changes := differences(then, now):
        raise InputError(
            f"{run_folder} holds a run with other settings: {'; '.join(changes)};"
            " choose another --save-folder, or repeat the earlier settings"
        )
