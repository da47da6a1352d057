"""Memory that is freed and needed again in the next step."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of <malloc.h>


def keep_freed_memory() -> None:
    """Let this process keep the memory it frees, for the rest of its life, where malloc is glibc's.

    glibc gives every large block back to the kernel when it is freed, and a training step frees the same
    logits and activations each time: fetched anew, zeroed and faulted in page by page, they cost a CPU run up
    to a third of its time (tests/benchmarks/training.py --give-memory-back). The peak grows little, as blocks
    of a step have the sizes of the step before. On a GPU torch keeps the device's memory itself.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)
