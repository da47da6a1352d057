"""Memory: what is free, what was taken at the peak, whether there is none left; and keeping what is freed."""

import ctypes
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from pipeline.errors import InputError, is_out_of_memory

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
