"""Models and optimizers over several ranks: replicated (DDP) or sharded (torch's FSDP2), saved whole.

A checkpoint is the same whatever wrote it, so a run may go on with other ranks or another strategy. Sharding
is called here and not through accelerate's plugin, which leaves it out on CPUs, where the tests run it.
"""

from typing import Any

import torch
from olmo.model import OLMo
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from pipeline.models.rope import blocks_of


def shard(model: OLMo, device: torch.device, num_ranks: int, mixed_precision: str) -> None:
    """Shard the parameters of `model` over all ranks, in place; each block is gathered when it is needed.

    Args:
        device: the kind of device decides how ranks talk: nccl or gloo.
        num_ranks: of the run.
        mixed_precision: "bf16" gathers weights in bfloat16; gradients are always summed in float32.
    """
    mesh = init_device_mesh(device.type, (num_ranks,))
    precision = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if mixed_precision == "bf16" else None,
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
    """A state dict with its tensors whole and on the CPU; where they are sharded every rank must ask.

    Args:
        state: nested dicts and lists.
        is_kept: whether this rank will write it; the others get None for each tensor, and spend no memory.
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
