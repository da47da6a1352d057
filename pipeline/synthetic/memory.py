"""About how large a model of a synthetic task is, and what training it takes, by its configuration alone."""

import torch

from pipeline.errors import InputError
from pipeline.models.memory import GIBIBYTE, free_bytes
from pipeline.synthetic.configuration import TaskConfig

BYTES_PER_PARAMETER = 16
"""In training: weight, gradient and AdamW's two moments, in float32."""


def about_num_parameters(config: TaskConfig) -> int:
    """Of the layers and the tables of position IDs; vocabularies are small."""
    model = config.model
    return 12 * model.num_layers * model.width**2 + config.num_position_ids * model.width


def refuse_beyond_memory(config: TaskConfig) -> None:
    """Before the kernel ends a process that fills its memory, without a word.

    Raises:
        InputError: says how much the model takes, and how much is free.
    """
    needed, free = BYTES_PER_PARAMETER * about_num_parameters(config), free_bytes(torch.device("cpu"))
    if needed > free:
        raise InputError(
            f"model.width {config.model.width} and model.num_layers {config.model.num_layers} take"
            f" {needed / GIBIBYTE:,.0f} GiB to train, {free / GIBIBYTE:,.0f} are free; choose a smaller model"
        )
