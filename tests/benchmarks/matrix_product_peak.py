"""What this machine's matrix products reach: the measured peak that benchmarks take fractions of.

The peak is the best of several products, each timed several times: square ones, and those of the measured
model if its shapes are given. A data sheet's figure would be no yardstick on a shared or virtual machine.

  python tests/benchmarks/matrix_product_peak.py
  python tests/benchmarks/matrix_product_peak.py --threads 1 2 --dtypes float32 --rows 512 2048
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from machine import DTYPES, use_threads

from pipeline.cli import positive_int, progress, stage_parser

Shape = tuple[int, int, int]
"""(M, K, N): a product of [M, K] and [K, N], 2 M K N floating-point operations."""
SQUARES: tuple[Shape, ...] = ((1024, 1024, 1024), (2048, 2048, 2048))
MIN_SECONDS = 0.2


@dataclass(frozen=True)
class Peak:
    """The fastest product that was found."""

    dtype: str
    threads: int
    flops_per_second: float
    shape: Shape


def synchronize(device: torch.device) -> None:
    """Wait for a GPU to have finished; on a CPU nothing is pending."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Wall-clock seconds of one call, to its last kernel."""
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def product_flops_per_second(shape: Shape, dtype: torch.dtype, device: torch.device) -> float:
    """Operations a second of one product: the best of at least three calls and `MIN_SECONDS`."""
    rows, inner, columns = shape
    left = torch.randn(rows, inner, dtype=dtype, device=device)
    # As a linear layer has it: the weight is [N, K], its transpose a view.
    weight = torch.randn(columns, inner, dtype=dtype, device=device)

    def multiply() -> torch.Tensor:
        return torch.nn.functional.linear(left, weight)

    with torch.inference_mode():
        seconds = [seconds_of(multiply, device)]  # the first call packs and compiles: never the best
        while len(seconds) < 4 or sum(seconds) < MIN_SECONDS:
            seconds.append(seconds_of(multiply, device))
    return 2 * rows * inner * columns / min(seconds)


def matrix_product_peak(dtype_name: str, device: torch.device, shapes: Sequence[Shape] = SQUARES) -> Peak:
    """The best of `shapes` with the threads that torch has now."""
    rates = {shape: product_flops_per_second(shape, DTYPES[dtype_name], device) for shape in shapes}
    best = max(rates, key=rates.__getitem__)
    return Peak(dtype_name, torch.get_num_threads(), rates[best], best)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    script = stage_parser(__doc__)
    add = script.add_argument
    add(
        "--threads",
        nargs="+",
        type=positive_int,
        help="numbers of threads, one after another; all cores if not given",
    )
    add("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES), help="dtypes, one after another")
    add(
        "--rows",
        nargs="+",
        type=positive_int,
        default=[],
        help="also products of so many rows by [512, 2048]",
    )
    add("--device", default="cpu", help="torch device")
    add("--out", type=Path, help="write the numbers here too, as JSON")
    return script


def main(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    shapes = (*SQUARES, *((rows, 512, 2048) for rows in arguments.rows))
    device = torch.device(arguments.device)
    cases = [(threads, name) for threads in arguments.threads or [None] for name in arguments.dtypes]
    peaks = []
    for threads, name in progress(cases, "matrix products", "case"):
        use_threads(threads)
        peaks.append(matrix_product_peak(name, device, shapes))
    for peak in peaks:
        print(
            f"{peak.dtype:9}{peak.threads:4} threads"
            f"{peak.flops_per_second / 1e9:11.1f} GFLOP/s at {peak.shape}"
        )
    if arguments.out:
        arguments.out.write_text(json.dumps([asdict(peak) for peak in peaks], indent=1) + "\n")


if __name__ == "__main__":
    main(parser().parse_args())
