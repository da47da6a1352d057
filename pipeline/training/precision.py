"""The precision a run asks for, the one that is faster here, and the one its checkpoint was trained in."""

import logging
from functools import lru_cache

import torch

from pipeline.errors import InputError
from pipeline.models.devices import supports_bfloat16
from pipeline.training.throughput import measured_peak_flops

_IN_WORDS = {"bf16": "bfloat16", "no": "float32"}
_GIVING = {"bf16": "amp_bf16", "no": "fp32"}

logger = logging.getLogger("pipeline")


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
    """Say so where bfloat16 costs time and saves none.

    Args:
        device: that computes in bfloat16.
        recommended: the setting that asks for float32, such as "precision=fp32".
    """
    speedup = bfloat16_speedup(device)
    if speedup < 1:
        logger.warning(
            "bfloat16 is %.1f times slower than float32 on this %s; %s is recommended",
            1 / speedup, device.type, recommended,
        )  # fmt: skip


def mixed_precision_of(precision: str | None, device: torch.device, saved: str | None = None) -> str:
    """Accelerate's name for OLMo's `precision`: "bf16" or "no" (float32 throughout).

    `amp_bf16` keeps parameters and optimizer in float32 and computes matrix products in bfloat16. `auto` is
    `amp_bf16` where that is faster on the device and `fp32` elsewhere; a run that goes on keeps what it had.
    None is `fp32`, and so is `amp_bf16` on a GPU without bfloat16, which is said.

    Args:
        precision: of `configuration.PRECISIONS`, or None.
        device: where the run trains.
        saved: what the checkpoint that it goes on from was trained in; None: it starts.

    Raises:
        InputError: the checkpoint was trained in another precision than the one asked for, or than this
            device has.
    """
    if precision == "auto":
        given = saved or ("bf16" if faster_dtype(device) == torch.bfloat16 else "no")
    else:
        given = "bf16" if precision == "amp_bf16" else "no"
    if given == "bf16" and not supports_bfloat16(device):
        given = _without_bfloat16(device, saved)
    if saved is not None and given != saved:
        raise InputError(
            f"precision is {precision}, but the checkpoint was trained in {_IN_WORDS[saved]}; go on with"
            f" precision={_GIVING[saved]}, or choose another --save-folder"
        )
    if given == "bf16":
        warn_where_bfloat16_is_slow(device, "precision=fp32" if saved is None else "another machine")
    elif precision == "auto":
        logger.info("precision auto: training in float32")
    return given


def _without_bfloat16(device: torch.device, saved: str | None) -> str:
    """float32, where no checkpoint was trained otherwise."""
    name = torch.cuda.get_device_name(device)
    if saved == "bf16":
        raise InputError(
            f"the checkpoint was trained in bfloat16, which {name} has not; go on with it on a newer GPU, or"
            " choose another --save-folder"
        )
    logger.warning("%s has no bfloat16; training in float32", name)
    return "no"
