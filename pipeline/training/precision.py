"""The precision a run asks for, and the one this machine can give."""

import logging

import torch

logger = logging.getLogger("pipeline")


def has_fast_bfloat16() -> bool:
    """Whether matrix products in bfloat16 are done by the hardware; emulated ones are slower than float32."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def mixed_precision_of(precision: str | None) -> str:
    """Accelerate's name for OLMo's `precision`: "bf16" or "no" (float32 throughout).

    `amp_bf16` keeps parameters and optimizer in float32 and computes matrix products in bfloat16, where
    the hardware has them; elsewhere it falls back to float32, with a line in the log. None is `fp32`.
    """
    if precision != "amp_bf16":
        return "no"
    if has_fast_bfloat16():
        return "bf16"
    logger.info("precision amp_bf16: this machine has no bfloat16 matrix products, training in float32")
    return "no"
