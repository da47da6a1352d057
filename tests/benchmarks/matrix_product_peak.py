"""What this machine's matrix products reach: the measured peak that benchmarks take fractions of.

The peak is the best of several products, each timed several times. A data sheet's figure would be no
yardstick on a shared or virtual machine.

  python tests/benchmarks/matrix_product_peak.py
  python tests/benchmarks/matrix_product_peak.py --threads 1 2 --dtypes float32
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pipeline.cli import positive_int, progress, stage_parser

Shape = tuple[int, int, int]
"""(M, K, N): a product of [M, K] and [K, N], 2 M K N floating-point operations."""
SQUARES: tuple[Shape, ...] = ((1024, 1024, 1024), (2048, 2048, 2048))
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MIN_SECONDS = 0.2
MATRIX_INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")
"""What decides the speed of matrix products, by the names that Linux gives it."""


def use_threads(threads: int | None) -> None:
    """Compute with so many threads; None: one a core that this process may use."""
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))


def machine(device: torch.device) -> dict[str, object]:
    """The machine that a benchmark runs on, as its JSON states it."""
    cpuinfo = Path("/proc/cpuinfo")
    first_core = cpuinfo.read_text().split("\n\n")[0].splitlines() if cpuinfo.exists() else []
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first_core)}
    flags = fields.get("flags", fields.get("Features", "")).split()
    return {
        "cpu": fields.get("model name", platform.processor() or platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "instructions": [name for name in MATRIX_INSTRUCTIONS if name in flags],
        "torch": torch.__version__,
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "load_average": os.getloadavg()[0],
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Wall-clock seconds of one call, to its last kernel."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def product_flops_per_second(shape: Shape, dtype: torch.dtype, device: torch.device) -> float:
    """Operations a second of one product: the best of at least three calls and `MIN_SECONDS`."""
    rows, inner, columns = shape
    left = torch.randn(rows, inner, dtype=dtype, device=device)
    # As a linear layer has it: the weight is [N, K], its transpose a view.
    weight = torch.randn(columns, inner, dtype=dtype, device=device)
    with torch.inference_mode():
        seconds: list[float] = []  # the first call packs and compiles: never the best
        while len(seconds) < 4 or sum(seconds) < MIN_SECONDS:
            seconds.append(seconds_of(lambda: torch.nn.functional.linear(left, weight), device))
    return 2 * rows * inner * columns / min(seconds)


def peak_flops(dtype: str, device: torch.device, shapes: Sequence[Shape] = SQUARES) -> float:
    """The best of `shapes` with the threads that torch has now, in FLOPs a second."""
    return max(product_flops_per_second(shape, DTYPES[dtype], device) for shape in shapes)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    script = stage_parser(__doc__)
    add = script.add_argument
    add("--threads", nargs="+", type=positive_int, help="numbers of threads; all cores if not given")
    add("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), help="dtypes, one after another")
    add("--device", default="cpu", help="torch device")
    return script


def main(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    device = torch.device(arguments.device)
    lines = []
    for threads in progress(arguments.threads or [None], "matrix products", "number of threads"):
        use_threads(threads)
        lines += [
            f"{dtype:9}{torch.get_num_threads():4} threads{peak_flops(dtype, device) / 1e9:11.1f} GFLOP/s"
            for dtype in arguments.dtypes
        ]
    print("\n".join(lines))


if __name__ == "__main__":
    main(parser().parse_args())
