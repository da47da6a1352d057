"""The device that is computed on: found and tried; its memory, free and taken; and keeping what is freed."""

import ctypes
import os
import sys

import torch

from sparsity_length.cli import InputError, cause_of, logger

GIBIBYTE = 1 << 30
# Names and numbers of <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def usable_device(name: str | None, remedy: str = "--device cpu computes without it") -> torch.device:
    """The device that is asked for, or the best one here: a GPU, of several each process' own, or the CPU.

    InputError if it cannot be computed on, with the `remedy`: what the user may do.
    """
    what = f"--device {name}" if name else "the GPU"
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        one = torch.ones(1, device=device_of_this_process(name))
        # A GPU may be listed and still fail at its first kernel, for whose result `item` waits.
        one.item()  # of `meta`, whose tensors have no numbers, this is refused
    except (RuntimeError, AssertionError, TypeError) as error:  # torch asserts that it was built with CUDA
        raise InputError(f"{what} cannot be used here ({cause_of(error)}); {remedy}") from error
    if one.device.type == "cuda":
        # Products of rounded numbers, which some set-ups turn on, would move losses by 0.001.
        torch.set_float32_matmul_precision("highest")
        logger.info(
            "computing on %s: %s, %.1f GiB; products of float32 are not rounded to TF32",
            one.device,
            torch.cuda.get_device_name(one.device),
            torch.cuda.get_device_properties(one.device).total_memory / GIBIBYTE,
        )
    return one.device


def device_of_this_process(name: str) -> str:
    """`name`, or if it is `cuda` the process' own GPU: that of its LOCAL_RANK under a launcher."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if name == "cuda" and "LOCAL_RANK" in os.environ else name


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the hardware does, and so is faster in it than in float32; a CPU that does not emulates it.

    Emulated on processors with AVX2 only, it takes five times as long.
    """
    if device.type == "cuda":
        # By default torch says yes of GPUs that emulate it, too.
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported()


def warn_of_slow_bfloat16(device: torch.device, recommended: str) -> None:
    """Warn if bfloat16 costs time; `recommended` asks for float32, such as "precision=fp32"."""
    if not multiplies_bfloat16(device):
        logger.warning(
            "bfloat16 is emulated, and slower than float32, on this %s; use %s", device.type, recommended
        )


def keep_freed_memory() -> None:
    """Let this process keep the memory it frees, for the rest of its life, if malloc is glibc's.

    glibc gives every large block back to the kernel. A step frees the same logits and activations each time;
    faulted in anew they cost a CPU run up to a third of its time (tests/benchmarks/training.py
    --give-memory-back). The peak grows little. On a GPU torch does this by itself.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is not None:  # musl has none
        # No block by mmap, as free() would unmap it; and the heap's free top, however large, is kept.
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)
