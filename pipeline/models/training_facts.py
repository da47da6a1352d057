"""What a checkpoint's own configuration says of how it was trained; results carry it beside their numbers."""

import re
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

FACTS = ("train_step", "train_context_length", "position_scheme", "seed")


def training_facts(folder: Path, is_olmo: bool) -> dict[str, Any]:
    """`FACTS` of a checkpoint; those that it does not tell, and all of a Hugging Face model's, are None.

    Args:
        folder: the checkpoint's, with its config.yaml where it is OLMo's.
        is_olmo: whether it is.

    Returns:
        train_step (of the folder's name step<N>-unsharded), train_context_length (tokens), position_scheme,
        seed.
    """
    if not is_olmo:
        return dict.fromkeys(FACTS)
    config = OmegaConf.load(folder / "config.yaml")
    step = re.fullmatch(r"step(\d+)(-unsharded)?", folder.resolve().name)
    length = OmegaConf.select(config, "train_context_length")
    if length is None:
        length = OmegaConf.select(config, "model.max_sequence_length")
    return {
        "train_step": int(step[1]) if step else None,
        "train_context_length": length,
        "position_scheme": OmegaConf.select(config, "position_scheme"),
        "seed": OmegaConf.select(config, "seed"),
    }
