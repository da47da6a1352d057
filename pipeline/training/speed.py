"""The precision that is faster on a device, and what a run's `precision` comes to."""

import time
from functools import lru_cache

import torch

from pipeline.cli import InputError, logger
from pipeline.models.devices import supports_bfloat16

_MATRIX_SIZE = {"cpu": 512, "cuda": 4096}
_NUM_REPETITIONS = 5


def _seconds_of_product(device: torch.device, dtype: torch.dtype) -> float:
    """The best of a few products of square matrices; the first one also sets the library up."""
    size = _MATRIX_SIZE[device.type]
    first, second = torch.ones(2, size, size, device=device, dtype=dtype)
    times = []
    for _ in range(1 + _NUM_REPETITIONS):
        started = time.perf_counter()
        float(torch.matmul(first, second)[0, 0])  # which waits for the device
        times.append(time.perf_counter() - started)
    return min(times[1:])


@lru_cache
def bfloat16_speedup(device: torch.device) -> float:
    """How many times as fast as in float32 a large matrix product is in bfloat16, measured in a second.

    Below 1 if the hardware has no such products and they are emulated: 0.2 on processors with AVX2 only.
    """
    return _seconds_of_product(device, torch.float32) / _seconds_of_product(device, torch.bfloat16)


def faster_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 if its matrix products are faster than float32's, else float32."""
    is_faster = supports_bfloat16(device) and bfloat16_speedup(device) > 1
    return torch.bfloat16 if is_faster else torch.float32


def warn_where_bfloat16_is_slow(device: torch.device, recommended: str) -> None:
    """Say so if bfloat16 costs time; `recommended` asks for float32, such as "precision=fp32"."""
    speedup = bfloat16_speedup(device)
    if speedup < 1:
        logger.warning("bfloat16 is %.1f times slower than float32 here; use %s", 1 / speedup, recommended)


def mixed_precision_of(precision: str | None, device: torch.device, saved: str | None = None) -> str:
    """Accelerate's name for OLMo's `precision`: "bf16" or "no" (float32 throughout, as if it is None).

    `amp_bf16` keeps parameters and optimizer in float32 and computes matrix products in bfloat16; `auto` is
    that if it is faster on the device. `saved` is what the checkpoint that the run goes on from was
    trained in, which it keeps; an InputError if `precision` is another.
    """
    chosen = "bf16" if precision == "amp_bf16" else "no"
    if precision == "auto":
        chosen = saved or ("bf16" if faster_dtype(device) == torch.bfloat16 else "no")
    if chosen == "bf16" and not supports_bfloat16(device):
        logger.warning("%s has no bfloat16; training in float32", torch.cuda.get_device_name(device))
        chosen = "no"
    if saved is not None and chosen != saved:
        giving = "amp_bf16" if saved == "bf16" else "fp32"
        raise InputError(
            f"precision is {precision}, but the checkpoint was trained in another; go on with"
            f" precision={giving}, or choose another --save-folder"
        )
    if chosen == "bf16":
        warn_where_bfloat16_is_slow(device, "precision=fp32")
    return chosen
