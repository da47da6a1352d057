"""The machine that a benchmark runs on, as its JSON states it."""

import os
import platform
from pathlib import Path

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MATRIX_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")
"""What decides the speed of matrix products, by the names that Linux gives it."""


def use_threads(threads: int | None) -> None:
    """Compute with so many threads; None: one a core that this process may use."""
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))


def machine(device: torch.device) -> dict[str, object]:
    """CPU, cores, threads, instructions, versions."""
    fields = _cpu_fields()
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return {
        "cpu": fields.get("model name", platform.processor() or platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "instructions": [name for name in MATRIX_INSTRUCTIONS if name in flags],
        "torch": torch.__version__,
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }


def _cpu_fields() -> dict[str, str]:
    """/proc/cpuinfo of the first core."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    lines = path.read_text().split("\n\n")[0].splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
