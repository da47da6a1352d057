"""How fast a training is: model-FLOPs utilization, and the precision that is faster.

    utilization = tokens a second * FLOPs of a token / (peak FLOPs a second of a device * devices)

FLOPs of a token are those a forward and a backward pass need, after Chowdhery et al. 2022 (PaLM, appendix
B): 6 N + 12 L D S, with N the weights that multiply (a table that is only looked up does not count, one
tied to the vocabulary projection does), L layers, D width and S tokens of a sequence. The second term is
attention's, counted over all S keys though half of them are hidden, as usual; what activation checkpointing
computes twice is not counted twice. A multiplication and an addition are two FLOPs.
"""

import time
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from pipeline.cli import InputError, logger
from pipeline.models.devices import supports_bfloat16

if TYPE_CHECKING:
    from olmo.config import ModelConfig

    from pipeline.training.config import PretrainConfig

_CPU_MATRIX_SIZES = (256, 512, 1024)
_GPU_MATRIX_SIZES = (1024, 4096, 8192)
_NUM_REPETITIONS = 5
_LONG_PRODUCT_SECONDS = 0.1


def utilization_of_a_token(
    config: "PretrainConfig", num_devices: int, device: torch.device, dtype: torch.dtype
) -> float:
    """Model-FLOPs utilization, a fraction, at one token a second over all `num_devices`, each like `device`.

    Where `config.peak_flops` is not given, what `device` can do in products of `dtype` is measured.
    """
    peak_flops = config.peak_flops or measured_peak_flops(device, dtype)
    return flops_per_token(config.model, config.sequence_length) / (peak_flops * num_devices)


def flops_per_token(config: "ModelConfig", context_length: int) -> int:
    """FLOPs of training on one token of a sequence of `context_length`; see the module's docstring."""
    # Late: stages that measure import this module, and ai2-olmo need not be installed for them.
    from pipeline.training.config import model_without_weights

    num_weights = sum(parameter.numel() for parameter in model_without_weights(config).parameters())
    if not config.weight_tying:
        num_weights -= (config.embedding_size or config.vocab_size) * config.d_model
    return 6 * num_weights + 12 * config.n_layers * config.d_model * context_length


def measured_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOPs a second of a square matrix product, the best of a few: what this device does at most.

    The products grow until one takes a tenth of a second: in emulated bfloat16 the largest take seconds.
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
    wait = torch.cuda.synchronize if first.device.type == "cuda" else lambda device: None
    wait(first.device)
    started = time.perf_counter()
    torch.matmul(first, second)
    wait(first.device)
    return time.perf_counter() - started


@lru_cache
def bfloat16_speedup(device: torch.device) -> float:
    """How many times as fast as in float32 a large matrix product is in bfloat16, measured in a second.

    Below 1 where the hardware has no such products and they are emulated: 0.2 on processors with AVX2 only.
    """
    return measured_peak_flops(device, torch.bfloat16) / measured_peak_flops(device, torch.float32)


def faster_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where its matrix products are faster than float32's, else float32."""
    is_faster = supports_bfloat16(device) and bfloat16_speedup(device) > 1
    return torch.bfloat16 if is_faster else torch.float32


def warn_where_bfloat16_is_slow(device: torch.device, recommended: str) -> None:
    """Say so where bfloat16 costs time; `recommended` asks for float32, such as "precision=fp32"."""
    speedup = bfloat16_speedup(device)
    if speedup < 1:
        logger.warning(
            "bfloat16 is %.1f times slower than float32 on this %s; %s is recommended",
            1 / speedup,
            device.type,
            recommended,
        )


def mixed_precision_of(precision: str | None, device: torch.device, saved: str | None = None) -> str:
    """Accelerate's name for OLMo's `precision`: "bf16" or "no" (float32 throughout, as where it is None).

    `amp_bf16` keeps parameters and optimizer in float32 and computes matrix products in bfloat16; `auto` is
    that where it is faster on the device. `saved` is what the checkpoint that the run goes on from was
    trained in, which it keeps; an InputError where `precision` is another.
    """
    if precision == "auto":
        chosen = saved or ("bf16" if faster_dtype(device) == torch.bfloat16 else "no")
    else:
        chosen = "bf16" if precision == "amp_bf16" else "no"
    if chosen == "bf16" and not supports_bfloat16(device):
        logger.warning("%s has no bfloat16; training in float32", torch.cuda.get_device_name(device))
        chosen = "no"
    if saved is not None and chosen != saved:
        in_words, giving = ("bfloat16", "amp_bf16") if saved == "bf16" else ("float32", "fp32")
        raise InputError(
            f"precision is {precision}, but the checkpoint was trained in {in_words}; go on with"
            f" precision={giving}, or choose another --save-folder"
        )
    if chosen == "bf16":
        warn_where_bfloat16_is_slow(device, "precision=fp32" if saved is None else "another machine")
    elif precision == "auto":
        logger.info("precision auto: training in float32")
    return chosen
