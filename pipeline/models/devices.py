"""Memory: what is free, what was taken at the peak, whether there is none left; and keeping what is freed.

The device that is computed on: found, tried, and what it cannot do said in a sentence.

A GPU may be there and of no use: its driver too old for the installed torch, torch too new for the GPU or
built without CUDA, its memory taken by others. torch says so in pages, in a warning, or not at all.
"""

import ctypes
import logging
import os
import resource
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import psutil
import torch

from pipeline.cli import InputError, is_out_of_memory

GIBIBYTE = 1 << 30
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of <malloc.h>


def free_bytes(device: torch.device) -> int:
    """What could be allocated on the device now, what torch keeps for reuse there included."""
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reserved
    return int(psutil.virtual_memory().available)


def total_bytes(device: torch.device) -> int:
    """What the device has, free or not: a property of the kind of machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return int(psutil.virtual_memory().total)


def peak_bytes(device: torch.device) -> int:
    """The most that this process has held on the device so far; on a CPU not by tensors alone."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


@contextmanager
def out_of_memory_in_words(remedy: str) -> Iterator[None]:
    """Turn an allocation that fails into a sentence.

    Args:
        remedy: what the user may do.

    Raises:
        InputError: what is inside does not fit the memory.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(f"the memory does not suffice; {remedy}") from error


def keep_freed_memory() -> None:
    """Let this process keep the memory it frees, for the rest of its life, where malloc is glibc's.

    glibc gives every large block back to the kernel when it is freed, and a training step, or a pass over a
    chunk, frees the same logits and activations each time: fetched anew, zeroed and faulted in page by page,
    they cost a CPU run up to a third of its time (tests/benchmarks/training.py --give-memory-back). The peak
    grows little, as a step's blocks have the sizes of the step before. On a GPU torch does this by itself.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)


_DRIVER = Path("/proc/driver/nvidia/version")
_LONGEST_REASON = 200
_HELD_BY_OTHERS = 0.1
"""Of a GPU's memory; less is the driver's own, and this process'."""
logger = logging.getLogger("pipeline")


def usable_device(asked: str | None, remedy: str = "leave it out, or say cpu") -> torch.device:
    """The device that is asked for, or the best one here: a GPU, of several each process' own, or the CPU.

    What computes is said, where that is a GPU, and where one is here and cannot be used.

    Args:
        asked: as --device takes it; None: the best one.
        remedy: what the user may do where it cannot be used.

    Raises:
        InputError: it cannot be computed on.
    """
    name = asked or best_device_type()
    try:
        one = torch.ones(1, device=device_of_this_process(name))
        one.item()  # of `meta`, whose tensors have no numbers, this is refused
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built with CUDA
        what = f"--device {name}" if asked else "the GPU"
        raise InputError(f"{what} cannot be used here ({shortened(error)}); {remedy}") from None
    if one.device.type == "cuda":
        # Products of rounded numbers, which some set-ups turn on, would move losses by 0.001.
        torch.set_float32_matmul_precision("highest")
        _say(one.device)
    return one.device


@lru_cache
def best_device_type() -> str:
    """`cuda` or `cpu`; where a GPU is here that torch cannot use, that is said."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return "cuda"
    reason = next((shortened(warning.message) for warning in said), None)
    if reason is None and _DRIVER.exists() and torch.version.cuda is None and torch.version.hip is None:
        reason = f"torch {torch.__version__} is built without CUDA"
    if reason is not None:
        logger.warning("a GPU is here that cannot be used (%s); computing on the CPU", reason)
    return "cpu"


def device_of_this_process(name: str) -> str:
    """`name`, where it is `cuda` the process' own GPU: that of its LOCAL_RANK under a launcher.

    Raises:
        InputError: there are fewer GPUs than processes.
    """
    if name != "cuda" or "LOCAL_RANK" not in os.environ:
        return name
    rank, num_gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if rank >= num_gpus > 0:
        raise InputError(
            f"process {rank}, counted from 0, has no GPU of its own: {num_gpus} can be used here; start one"
            f" process a GPU (torchrun --nproc-per-node {num_gpus})"
        )
    return f"cuda:{rank}"


def supports_bfloat16(device: torch.device) -> bool:
    """Whether the hardware multiplies in bfloat16; a CPU that does not emulates it, slowly."""
    return device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)


def refuse_beyond_memory(needed_bytes: float, device: torch.device, what: str, remedy: str) -> None:
    """Before a GPU is filled with the part of a model that fits.

    Args:
        needed_bytes: of what is to lie there.
        what: what that is, such as "the model of runs/x".
        remedy: what the user may do.

    Raises:
        InputError: it does not fit; says how much it takes, and how much is free.
    """
    if device.type == "cpu":
        return  # which may swap, and whose failed allocations are told where they happen
    free = free_bytes(device)
    if needed_bytes > free:
        raise InputError(
            f"{what} takes {needed_bytes / GIBIBYTE:,.2f} GiB, and {free / GIBIBYTE:,.2f} of"
            f" {total_bytes(device) / GIBIBYTE:,.2f} are free on {device}{_others(device)}; {remedy}"
        )


def refuse_model_beyond_memory(model: torch.nn.Module, device: torch.device, name: str) -> None:
    """`refuse_beyond_memory`, of a model's weights as they are."""
    needed_bytes = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    remedy = "choose --dtype bfloat16, a smaller model, or a device with more memory"
    refuse_beyond_memory(needed_bytes, device, f"the model of {name}", remedy)


def shortened(message: BaseException | Warning | str) -> str:
    """Torch's own words, of which the first sentence is about what is wrong."""
    lines = str(message).strip().splitlines() or [type(message).__name__]
    sentence = lines[0].partition(". ")[0].removesuffix(".")
    return sentence.removeprefix("CUDA initialization: ")[:_LONGEST_REASON]


def held_by_others(device: torch.device) -> int:
    """Bytes of a GPU that other processes hold, and its driver."""
    return max(0, total_bytes(device) - free_bytes(device) - torch.cuda.memory_allocated(device))


def _others(device: torch.device) -> str:
    held = held_by_others(device)
    is_much = held > _HELD_BY_OTHERS * total_bytes(device)
    return f" (other processes hold {held / GIBIBYTE:,.2f})" if is_much else ""


@lru_cache
def _say(device: torch.device) -> None:
    """Once a process: which GPU, and whether others compute on it."""
    logger.info(
        "computing on %s: %s, %.1f GiB%s; products of float32 are not rounded to TF32",
        device, torch.cuda.get_device_name(device), total_bytes(device) / GIBIBYTE, _others(device),
    )  # fmt: skip
    if _others(device):
        logger.warning(
            "other processes hold %.2f GiB of %s: two on one GPU are slower than one after the other, and may"
            " run out of memory", held_by_others(device) / GIBIBYTE, device,
        )  # fmt: skip
