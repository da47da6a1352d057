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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
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


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` itself, or all of it where it is sharded; then every rank must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gather(state: Any, is_kept: bool) -> Any:
    """Nested dicts and lists with their tensors whole and on the CPU, or None where not `is_kept`.

    Where they are sharded, every rank must ask.
    """
    if isinstance(state, torch.Tensor):
        tensor = whole(state.detach())
        return tensor.cpu() if is_kept else None
    if isinstance(state, dict):
        return {name: gather(value, is_kept) for name, value in state.items()}
    return [gather(value, is_kept) for value in state] if isinstance(state, list) else state


def load_weights(model: OLMo, weights: dict[str, torch.Tensor]) -> None:
    """Load whole weights into a model, sharded or not."""
    parts = model.state_dict()
    model.load_state_dict({name: _as_part(weight, parts.get(name)) for name, weight in weights.items()})


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load a whole state into an optimizer whose parameters are sharded or not."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    of_parameters = {
        index: {
            # Moments are of the parameter's shape; the count of steps is one number.
            name: _as_part(value, parameters[index]) if value.shape == parameters[index].shape else value
            for name, value in moments.items()
        }
        for index, moments in state["state"].items()
    }
    # The step is computed as this machine can (fused or not), whatever the one before did.
    groups = [
        saved | {"fused": ours.get("fused")}
        for saved, ours in zip(state["param_groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({"state": of_parameters, "param_groups": groups})


def _as_part(tensor: torch.Tensor, like: torch.Tensor | None) -> torch.Tensor:
    """The rank's part of `tensor`, cut as `like` is; every rank has all of it, so nothing is sent."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
