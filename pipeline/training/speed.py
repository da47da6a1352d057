"""How fast a training is and will be: model-FLOPs utilization, the precision that is faster, an estimate.

    utilization = tokens a second * FLOPs of a token / (peak FLOPs a second of a device * devices)

FLOPs of a token are those a forward and a backward pass need, after Chowdhery et al. 2022 (PaLM, appendix
B): 6 N + 12 L D S, with N the weights that multiply (a table that is only looked up does not count, one
tied to the vocabulary projection does), L layers, D width and S tokens of a sequence. The second term is
attention's, counted over all S keys though half of them are hidden, as usual; what activation checkpointing
computes twice is not counted twice. A multiplication and an addition are two FLOPs.
"""

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from olmo.config import ModelConfig
from olmo.model import OLMo
from torch.nn.functional import cross_entropy

from pipeline.cli import InputError, logger
from pipeline.models.devices import supports_bfloat16
from pipeline.training.config import PretrainConfig, counts_epochs, model_without_weights, num_training_steps

_CPU_MATRIX_SIZES, _GPU_MATRIX_SIZES = (256, 512, 1024), (1024, 4096, 8192)
_NUM_REPETITIONS = 5
_LONG_PRODUCT_SECONDS = 0.1


def utilization_of_a_token(
    config: PretrainConfig, num_devices: int, device: torch.device, dtype: torch.dtype
) -> float:
    """Model-FLOPs utilization, a fraction, at one token a second over all `num_devices`, each like `device`.

    Where `config.peak_flops` is not given, what `device` can do in products of `dtype` is measured.
    """
    peak_flops = config.peak_flops or measured_peak_flops(device, dtype)
    return flops_per_token(config.model, config.sequence_length) / (peak_flops * num_devices)


def flops_per_token(config: ModelConfig, context_length: int) -> int:
    """FLOPs of training on one token of a sequence of `context_length`; see the module's docstring."""
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
            1 / speedup, device.type, recommended,
        )  # fmt: skip


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


def seconds_per_trained_token(config: PretrainConfig, device: torch.device) -> float:
    """Of forward and backward passes over a micro-batch of the model, timed for a second; no weight moves."""
    model = OLMo(ModelConfig(**{**config.model.asdict(), "init_device": str(device)}))
    is_bfloat16 = mixed_precision_of(config.precision, device) == "bf16"
    shape = config.micro_batch_size(num_ranks=1), config.sequence_length
    ids_BS = torch.zeros(shape, dtype=torch.long, device=device)
    started, num_run = 0.0, -1  # the first is slower
    while num_run < 1 or time.perf_counter() - started < 1:
        with torch.autocast(device.type, torch.bfloat16, enabled=is_bfloat16):
            logits_BSV = model(ids_BS).logits
        cross_entropy(logits_BSV.flatten(0, 1).float(), ids_BS.flatten()).backward()
        float(logits_BSV.detach()[0, 0, 0])  # waits for a GPU
        num_run += 1
        started = started or time.perf_counter()
    return (time.perf_counter() - started) / num_run / ids_BS.numel()


_BYTES_PER_PARAMETER = 18
"""float32 weights and gradients, AdamW's two moments, the bfloat16 copy that autocast keeps."""
_BYTES_PER_LOGIT = 10


class GPUPeaks(NamedTuple):
    """Multiplications and additions a second by NVIDIA's data sheet for the SXM board, without sparsity."""

    bfloat16: float
    float32: float
    """Whole products; TF32, which rounds them, is off here."""


_HOPPER = GPUPeaks(989e12, 67e12)
GPUS = {"a100": GPUPeaks(312e12, 19.5e12), "h100": _HOPPER, "h200": _HOPPER}


@dataclass(frozen=True)
class Estimate:
    """What one run needs on one device."""

    num_parameters: int
    num_tokens: int
    """That the run sees, by its max_duration."""
    num_steps: int
    memory_bytes: int
    flops: int
    seconds: float


def estimate(
    config: PretrainConfig,
    flops_per_second: float = 0.4 * _HOPPER.bfloat16,
    num_train_tokens: int | None = None,
) -> Estimate:
    """What the run of `config` needs on one device, which does so many FLOPs a second: an H100 if not given.

    Memory is what the parameters take and, for each token of a micro-batch, what a backward pass keeps:
    attention fused, nothing checkpointed.
    """
    if counts_epochs(config.max_duration) and num_train_tokens is None:
        raise InputError(
            f"max_duration '{config.max_duration}' counts epochs, and there is no data yet to count them of;"
            " give steps (1000) or tokens ('2e6T')"
        )
    model = model_without_weights(config.model)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    steps_per_epoch = (num_train_tokens or 0) // config.tokens_per_step
    num_steps = num_training_steps(config.max_duration, config.tokens_per_step, steps_per_epoch)
    num_tokens = num_steps * config.tokens_per_step
    flops = num_tokens * flops_per_token(config.model, config.sequence_length)
    micro_batch_tokens = config.micro_batch_size(num_ranks=1) * config.sequence_length
    bytes_of_logits = _BYTES_PER_LOGIT * (config.model.embedding_size or config.model.vocab_size)
    activation_bytes = micro_batch_tokens * (layer_bytes_per_token(config) + bytes_of_logits)
    memory_bytes = _BYTES_PER_PARAMETER * num_parameters + activation_bytes
    return Estimate(num_parameters, num_tokens, num_steps, memory_bytes, flops, flops / flops_per_second)


def layer_bytes_per_token(config: PretrainConfig) -> int:
    """What the backward pass keeps of one token in all layers, under bfloat16 autocast."""
    model = config.model
    feed_forward_width = model.mlp_hidden_size or model.mlp_ratio * model.d_model
    # Two float32 inputs of norms; in bfloat16 two of projections, the queries, keys and values before and
    # after RoPE, attention's output twice; of the feed-forward layer its input, gate and product.
    return model.n_layers * (26 * model.d_model + 4 * feed_forward_width)
