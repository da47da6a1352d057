"""Several ranks: models and optimizers replicated (DDP) or sharded (torch's FSDP2), and saved whole.

A checkpoint is the same whatever wrote it, so a run may go on with other ranks or another strategy. Sharding
is called here and not through accelerate's plugin, which leaves it out on CPUs, where the tests run it. Each
rank has its own stream of random numbers: one for all would give one dropout mask to different sequences.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from olmo.config import ModelConfig
from olmo.model import OLMo
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim import Optimizer

from pipeline.cli import logger
from pipeline.models.olmo import blocks_of


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
    """Go on with this rank's stream where a checkpoint's train.pt, `saved`, left it.

    With other ranks, or on another kind of device, each rank begins one; the log says so of dropout.
    """
    states = saved["random_states"]
    rank = accelerator.process_index
    on_gpu = accelerator.device.type == "cuda"
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
            len(states),
            "cpu" if states[0]["cuda"] is None else "cuda",
            accelerator.num_processes,
            accelerator.device.type,
        )


def shard(model: OLMo, accelerator: Accelerator) -> None:
    """Shard the parameters of `model` over all ranks, in place; each block is gathered when it is needed.

    In bfloat16 runs weights are gathered in bfloat16; gradients are always summed in float32.
    """
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    precision = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if accelerator.mixed_precision == "bf16" else None,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,  # autocast decides, as without sharding
    )
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)


_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def whole_states(model: OLMo, optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """States of model and optimizer by parameter names, on the CPU of the first rank; every rank must ask."""
    return get_state_dict(model, optimizer, options=_WHOLE)


def load_whole(model: OLMo, optimizer: Optimizer, weights: dict[str, Any], moments: dict[str, Any]) -> None:
    """Load what `whole_states` returned, on every rank, which keeps its part of it."""
    states = {"model_state_dict": weights, "optim_state_dict": moments}
    set_state_dict(model, optimizer, **states, options=_WHOLE)
