"""Memory: what is free, what was taken at the peak, and whether an error says that there is none left."""

import resource

import psutil
import torch

GIBIBYTE = 1 << 30


def free_bytes(device: torch.device) -> int:
    """What could be allocated on the device now, what torch keeps for reuse there included."""
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reserved
    return int(psutil.virtual_memory().available)


def peak_bytes(device: torch.device) -> int:
    """The most that this process has held on the device so far; on a CPU not by tensors alone."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: on an accelerator, in torch's CPU allocator, or in NumPy."""
    is_torch_out_of_memory = isinstance(error, torch.OutOfMemoryError)
    return is_torch_out_of_memory or isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error)
