"""How much of what a device could compute the training uses: model-FLOPs utilization.

    utilization = tokens a second * FLOPs of a token / (peak FLOPs a second of a device * devices)

FLOPs of a token are those a forward and a backward pass of the model need, after Chowdhery et al. 2022
(PaLM, appendix B): 6 N + 12 L D S, with N the weights that multiply (a table that is only looked up does not
count, one tied to the vocabulary projection does), L layers, D width and S tokens of a sequence. The second
term is attention's, counted over all S keys though half of them are hidden, as usual; what activation
checkpointing computes twice is not counted twice. A multiplication and an addition are two FLOPs.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from olmo.config import ModelConfig
from olmo.model import OLMo
from torch import nn
from torch.overrides import TorchFunctionMode

from pipeline.training.configuration import PretrainConfig

_CPU_MATRIX_SIZES, _GPU_MATRIX_SIZES = (256, 512, 1024), (1024, 4096, 8192)
_NUM_REPETITIONS = 5
_LONG_PRODUCT_SECONDS = 0.1


class Throughput:
    """Turns tokens a second into model-FLOPs utilization, for one run on one kind of device."""

    def __init__(
        self, config: PretrainConfig, num_devices: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Count the model's FLOPs and, where `config.peak_flops` is not given, measure the device's.

        Args:
            config: the run's configuration.
            num_devices: that train together; all as fast as this one.
            device: where the measurement runs.
            dtype: of the run's matrix products.
        """
        peak_flops = config.peak_flops or measured_peak_flops(device, dtype)
        self._flops_per_token = flops_per_token(config.model, config.sequence_length)
        self._peak_flops_of_all = peak_flops * num_devices

    def utilization(self, tokens_per_second: float) -> float:
        """Model-FLOPs utilization, a fraction, at so many tokens a second over all devices."""
        return tokens_per_second * self._flops_per_token / self._peak_flops_of_all


def num_multiplying_weights(model: nn.Module, config: ModelConfig) -> int:
    """N: all parameters, without the embedding where it is not the vocabulary projection too."""
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    if config.weight_tying:
        return num_parameters
    return num_parameters - (config.embedding_size or config.vocab_size) * config.d_model


def flops_per_token(config: ModelConfig, context_length: int) -> int:
    """FLOPs of training on one token of a sequence of `context_length`; see the module's docstring."""
    model = model_without_weights(config)
    attention = 12 * config.n_layers * config.d_model * context_length
    return 6 * num_multiplying_weights(model, config) + attention


class _WithoutInitialValues(TorchFunctionMode):
    """Leaves out drawing values for weights that have none: on "meta" that alone imports torch's compiler."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs.get("tensor", args[0] if args else None)
        return func(*args, **kwargs)


def model_without_weights(config: ModelConfig) -> OLMo:
    """The model's modules and shapes, which take no memory."""
    shapes_only = ModelConfig(**{**config.asdict(), "init_device": "meta"})
    with _WithoutInitialValues():
        return OLMo(shapes_only, init_params=False)


def measured_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOPs a second of a square matrix product, the best of a few: what this device does at most.

    The products grow until one takes a tenth of a second: a processor that emulates bfloat16 would need
    seconds for each of the largest, and does no more FLOPs a second in them.
    """
    peak_flops = 0.0
    for size in _GPU_MATRIX_SIZES if device.type == "cuda" else _CPU_MATRIX_SIZES:
        first, second = torch.ones(2, size, size, device=device, dtype=dtype)
        _seconds_of_product(first, second)  # the first one also sets the library up
        fastest = min(_seconds_of_product(first, second) for _ in range(_NUM_REPETITIONS))
        peak_flops = max(peak_flops, 2 * size**3 / fastest)
        if fastest > _LONG_PRODUCT_SECONDS:
            break
    return peak_flops


def _seconds_of_product(first: torch.Tensor, second: torch.Tensor) -> float:
    _wait_for(first.device)
    started = time.perf_counter()
    torch.matmul(first, second)
    _wait_for(first.device)
    return time.perf_counter() - started


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
