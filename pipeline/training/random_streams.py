"""Each rank's own stream of random numbers, which dropout draws from: seeded, saved and restored.

Ranks hold different sequences of one batch. With one stream for all, the sequences at the same place of each
rank's share would get one mask.
"""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from olmo.config import ModelConfig

logger = logging.getLogger("pipeline")


def seed_stream(seed: int, rank: int, step: int = 0) -> None:
    """Begin the stream of `rank`; that of a run which goes on after `step` is another one than its first."""
    sequence = np.random.SeedSequence(seed, spawn_key=(rank, step))
    torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))


def stream_states(accelerator: Accelerator) -> list[dict[str, torch.Tensor | None]]:
    """Where the stream of each rank stands, in their order; every rank must ask."""
    on_gpu = accelerator.device.type == "cuda"
    ours = {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state() if on_gpu else None}
    return list(gather_object([ours]))


def restore_stream(accelerator: Accelerator, saved: Mapping[str, Any], model: ModelConfig, seed: int) -> None:
    """Go on with this rank's stream where a checkpoint left it.

    With other ranks, or on another kind of device, there is no such stream: each rank begins one, and where
    the model has dropout that is said, for the run then departs from the one it goes on from.

    Args:
        accelerator: of this rank.
        saved: a checkpoint's train.pt.
        model: whose dropout draws from the stream.
        seed: of the run.
    """
    states = saved.get("random_states") or [
        # Earlier checkpoints have the first rank's alone.
        {"cpu": saved["cpu_random_state"], "cuda": saved["cuda_random_state"]}
    ]
    rank, on_gpu = accelerator.process_index, accelerator.device.type == "cuda"
    if len(states) == accelerator.num_processes and (states[0]["cuda"] is not None) == on_gpu:
        torch.set_rng_state(states[rank]["cpu"])
        if on_gpu:
            torch.cuda.set_rng_state(states[rank]["cuda"])
        return
    seed_stream(seed, rank, saved["step"])
    has_dropout = max(model.attention_dropout, model.residual_dropout, model.embedding_dropout) > 0
    if has_dropout and rank == 0:
        logger.warning(
            "the dropout of this checkpoint was drawn by %d ranks on a %s, and is drawn from here on by %d on"
            " a %s: masks, and so weights, will be others than the run would have had",
            len(states), "cpu" if states[0]["cuda"] is None else "cuda", accelerator.num_processes,
            accelerator.device.type,
        )  # fmt: skip
