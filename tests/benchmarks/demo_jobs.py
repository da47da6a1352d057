"""The demo's study from nothing, with one job at a time and with two: seconds, cores busy, and their ratio.

    python tests/benchmarks/demo_jobs.py                        # some 20 minutes on two free cores
    python tests/benchmarks/demo_jobs.py sizes.demo.max_duration=80 evaluation.max_documents=8     # quicker

Each run is `study.py STUDY --jobs N` in a temporary folder that is removed at the end; installation is not in
it. The runs follow each other, so nothing else should use the machine. Every row that they measured must be
the same, or nothing is said of their time. Words of the form field=value are the study's overrides.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[2]


class Run(NamedTuple):
    """A whole study: how long it took, its processes' time on processors, and what it measured."""

    wall_seconds: float
    processor_seconds: float
    results: dict[str, pa.Table]
    """Parquet file -> its rows; its metadata tells the folder that the models were trained in."""


def run(study: Path, overrides: list[str], num_jobs: int, folder: Path) -> Run:
    """The study from nothing, in an empty folder."""
    program = [sys.executable, str(ROOT / "pipeline" / "study.py"), str(study), *overrides]
    started, before = time.perf_counter(), _processor_seconds()
    subprocess.run([*program, f"run={folder}", "--jobs", str(num_jobs)], cwd=ROOT, check=True)
    wall_seconds = time.perf_counter() - started
    results = {
        str(path.relative_to(folder)): pq.read_table(path, partitioning=None)
        for path in (folder / "results").rglob("*.parquet")
    }
    return Run(wall_seconds, _processor_seconds() - before, results)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(arguments: argparse.Namespace) -> None:
    """Run, compare, tell, remove."""
    runs = {}
    for num_jobs in arguments.jobs:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            runs[num_jobs] = run(arguments.study, arguments.overrides, num_jobs, Path(folder) / "run")
    first, *others = runs.values()
    assert first.results
    for other in others:
        assert other.results.keys() == first.results.keys(), "results depend on the number of jobs"
        for name, rows in first.results.items():
            assert rows.equals(other.results[name]), f"{name} depends on the number of jobs"
    for num_jobs, one in runs.items():
        busy = one.processor_seconds / one.wall_seconds
        print(
            f"--jobs {num_jobs}  {one.wall_seconds:7.1f} s  {busy:5.2f} cores busy"
            f"  {first.wall_seconds / one.wall_seconds:5.2f} times as fast as --jobs {arguments.jobs[0]}"
        )


def parser() -> argparse.ArgumentParser:
    """The command line of the benchmark."""
    described = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = described.add_argument
    add("overrides", nargs="*", metavar="field=value", help="fields of the study to set otherwise")
    add("--study", type=Path, default=ROOT / "olmo_configs" / "studies" / "demo.yaml", help="its file")
    add("--jobs", type=int, nargs="+", default=[1, 2], help="numbers of jobs, in this order")
    add("--folder", type=Path, help="where the temporary folders are made; the system's if absent")
    return described


if __name__ == "__main__":
    main(parser().parse_args())
