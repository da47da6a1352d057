"""Model and optimizer of a run, put together as its configuration asks, on this rank's device."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import ProjectConfiguration, broadcast_object_list
from olmo.config import DistributedStrategy, OptimizerType
from olmo.model import OLMo
from olmo.optim import build_optimizer
from torch.optim import Optimizer

from pipeline.errors import InputError, is_out_of_memory
from pipeline.models.devices import best_device_type, refuse_beyond_memory, usable_device
from pipeline.models.rope import blocks_of
from pipeline.training.configuration import PretrainConfig
from pipeline.training.precision import mixed_precision_of
from pipeline.training.sharding import shard
from pipeline.training.short_attention import compose_short_attention
from pipeline.training.trackers import FOLDER

_BYTES_PER_WEIGHT = 16
"""Itself, its gradient and AdamW's two moments, in float32; activations come on top."""


def make_accelerator(config: PretrainConfig, saved_precision: str | None) -> Accelerator:
    """Accelerate's view of ranks, devices and precision.

    Args:
        config: the run's configuration.
        saved_precision: what the checkpoint that the run goes on from was trained in; None: it starts.

    Raises:
        InputError: that is another precision than the configuration asks for, or the GPU cannot be used.
    """
    # Said outright: several CPU processes would otherwise not be taken for the ranks of one run.
    on_cpu = not torch.accelerator.is_available()
    if best_device_type() == "cuda":
        usable_device("cuda", "CUDA_VISIBLE_DEVICES= trains on the CPU")
    ranks = PartialState(cpu=on_cpu)
    # One rank's measurement decides for all.
    chosen = broadcast_object_list([mixed_precision_of(config.precision, ranks.device, saved_precision)])
    folder = str(Path(config.save_folder) / FOLDER)
    return Accelerator(
        mixed_precision=chosen[0],
        cpu=on_cpu,
        log_with=config.trackers,
        project_config=ProjectConfiguration(folder, logging_dir=folder),
    )


def build_model(config: PretrainConfig) -> OLMo:
    """OLMo with its initial weights, on the CPU.

    Raises:
        InputError: it does not fit the memory.
    """
    # OLMo draws its initial weights from the global generator.
    torch.manual_seed(config.seed)
    try:
        model = OLMo(config.model)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            f"the model does not fit the memory (model.d_model {config.model.d_model}, n_layers"
            f" {config.model.n_layers}, vocab_size {config.model.vocab_size}); make it smaller"
        ) from error
    model.set_activation_checkpointing(config.activation_checkpointing)
    compose_short_attention(model)
    return model.train()


def distribute(model: OLMo, config: PretrainConfig, accelerator: Accelerator) -> torch.nn.Module:
    """`model` on this rank's device: compiled where asked, sharded or replicated over the ranks.

    The parameters keep their names, so checkpoints stay OLMo's.

    Raises:
        InputError: what training keeps of each weight is more than the device has free, or blocks could not
            be compiled.
    """
    is_sharded = accelerator.num_processes > 1 and config.distributed_strategy == DistributedStrategy.fsdp
    num_weights = sum(weight.numel() for weight in model.parameters())
    refuse_beyond_memory(
        _BYTES_PER_WEIGHT * num_weights / (accelerator.num_processes if is_sharded else 1),
        accelerator.device,
        f"training {num_weights / 1e6:,.1f} M parameters",
        "choose a smaller model, more GPUs with distributed_strategy=fsdp, or one with more memory",
    )
    if config.compile is not None:
        # Blocks have one code, so one compilation serves all: seconds, where the whole model takes minutes.
        with refusing_failed_compilation(config):
            for block in blocks_of(model):
                block.compile(**config.compile.asdict())
    if not is_sharded:
        return accelerator.prepare_model(model)
    model.to(accelerator.device)
    shard(model, accelerator.device, accelerator.num_processes, accelerator.mixed_precision)
    # What is left for accelerate is to compute in the run's precision: a second wrapper would replicate.
    return accelerator.prepare_model(model, evaluation_mode=True)


@contextmanager
def refusing_failed_compilation(config: PretrainConfig) -> Iterator[None]:
    """Turn the failure of torch.compile, which may show only in the first step, into a sentence.

    Raises:
        InputError: blocks could not be compiled.
    """
    if config.compile is None:
        yield
        return
    from torch._dynamo.exc import TorchDynamoException  # late: slow to import

    try:
        yield
    except TorchDynamoException as error:
        reason = " ".join(str(error).split("\n")[:2])  # torch's message goes on for pages
        raise InputError(f"compile: torch.compile failed ({reason}); set compile to null") from error


def make_optimizer(config: PretrainConfig, model: OLMo) -> Optimizer:
    """OLMo's optimizer over the parameters of a model that has been distributed.

    AdamW's step is one fused kernel a device, where OLMo's own variants (which record or mask the update) are
    not asked for.
    """
    optimizer = build_optimizer(config, model)
    settings = config.optimizer
    own_step = settings.selective_updates or settings.record_update_metrics
    if settings.name == OptimizerType.adamw and not own_step:
        for group in optimizer.param_groups:
            group["fused"] = True
    return optimizer
