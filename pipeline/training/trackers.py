"""TensorBoard and Weights & Biases beside metrics.jsonl, through accelerate; neither needs a network."""

import os
from importlib.util import find_spec
from pathlib import Path

from accelerate import Accelerator

from pipeline.errors import InputError
from pipeline.training.configuration import PretrainConfig

FOLDER = "trackers"  # below the run folder


def refuse_missing_trackers(config: PretrainConfig) -> None:
    """Refuse a tracker that is not installed.

    Raises:
        InputError: names it, and how it is installed.
    """
    for tracker in config.trackers or ():
        if find_spec(tracker) is None:
            raise InputError(f"trackers names {tracker}, which is not installed: pip install {tracker}")


def start_trackers(accelerator: Accelerator, config: PretrainConfig) -> None:
    """Open the run's trackers under `<run folder>/trackers`; every rank may call it."""
    if not config.trackers:
        return
    # `wandb sync` sends an offline run later; compute nodes often have no network.
    os.environ.setdefault("WANDB_MODE", "offline")
    folder = Path(config.save_folder)
    name = config.run_name or folder.resolve().name
    accelerator.init_trackers(name, init_kwargs={"wandb": {"dir": str(folder / FOLDER)}})
