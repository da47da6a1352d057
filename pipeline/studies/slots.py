"""How many commands a machine runs at once, and on which of its processors.

Measured on two cores (analysis/LOG.md): the networks of a laptop's study gain 1.1 times from a second thread,
and twice from a second process. So a command has `threads` threads, which the study says and not the machine,
as the last bits of its numbers depend on them; and there are as many commands as cores for them, or as GPUs.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
GIBIBYTE = 1 << 30
PROCESS_BYTES = 0.6 * GIBIBYTE
"""Of a command on a small model: Python and torch take 0.4 GiB, batches the rest."""
logger = logging.getLogger("pipeline")


@dataclass(frozen=True)
class Slots:
    """Places for running commands."""

    number: int
    threads: int = 1
    gpus: tuple[str, ...] = ()
    """As CUDA_VISIBLE_DEVICES names them; a command has one."""

    def environment(self, slot: int) -> dict[str, str]:
        """Of a command in this place, 0 to number - 1."""
        threads = str(self.threads)
        gpu = {"CUDA_VISIBLE_DEVICES": self.gpus[slot % len(self.gpus)]} if self.gpus else {}
        return {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **gpu}


def slots(
    asked: int | None, threads: int, bytes_of_a_command: float = PROCESS_BYTES, gpus: Sequence[str] = ()
) -> Slots:
    """As many as were asked for, or else as the machine serves best, and at most what its memory holds.

    Args:
        asked: --jobs; None: one a GPU, or as many as the cores have threads for.
        threads: of a command.
        bytes_of_a_command: what the largest will hold.
        gpus: as `gpus` finds them.
    """
    number = asked or len(gpus) or max(1, num_cores() // threads)
    fitting = max(1, int(free_bytes() // bytes_of_a_command))
    if fitting < number:
        logger.warning(
            "%d %s at once, not %d: %.1f GiB of memory are free, and a command takes about %.1f",
            fitting, "command" if fitting == 1 else "commands", number,
            free_bytes() / GIBIBYTE, bytes_of_a_command / GIBIBYTE,
        )  # fmt: skip
    return Slots(min(number, fitting), threads, tuple(gpus))


def num_cores() -> int:
    """Cores that this process may use, by its affinity and by its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup("cpu.max").split()
    if len(quota) == 2 and quota[0].isdecimal():
        cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return cores


def free_bytes() -> int:
    """Memory that could be taken, of the machine's and of the container's."""
    free = int(psutil.virtual_memory().available)
    limit, taken = _cgroup("memory.max"), _cgroup("memory.current")
    if limit.isdecimal() and taken.isdecimal():
        free = min(free, int(limit) - int(taken) + _cached_file_bytes())
    return free


def _cached_file_bytes() -> int:
    """Of files that were read and can be read again: they count as taken, but the kernel gives them up."""
    words = _cgroup("memory.stat").split()
    return int(words[words.index("inactive_file") + 1]) if "inactive_file" in words else 0


def _cgroup(name: str) -> str:
    try:
        return (_CGROUP / name).read_text().strip()
    except OSError:
        return ""


def gpus() -> tuple[str, ...]:
    """Those of this machine, as CUDA_VISIBLE_DEVICES names them."""
    import torch  # late: it takes seconds, and is needed only where something is left to be run

    number = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return tuple(named if len(named) == number and named[0] else map(str, range(number)))
