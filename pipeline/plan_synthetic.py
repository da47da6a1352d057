"""Plan a grid of synthetic runs, tasks x positions x K_train x seeds, and print or run its jobs.

Pairs that cannot be (coupled IDs of a task that has none) are left out. Every job is checked as
train_synthetic.py would check it. A run folder below --models is <task>[-k<K_train>]-<positions>-seed<seed>.

on a laptop, one after the other; what is finished is not trained again:
  python pipeline/plan_synthetic.py olmo_configs/synthetic/small.yaml --tasks variable_assignment \\
      --positions pose coupled predicted --seeds 0 1 2 --models runs/demo/synthetic | sh

two at a time, on two cores with one thread each: export OMP_NUM_THREADS=1, and instead of | sh
  … | xargs -d '\\n' -n 1 -P 2 sh -c

on a cluster, one array of jobs:
  python pipeline/plan_synthetic.py olmo_configs/synthetic/paper.yaml --tasks sparse_parity \\
      --positions pose --largest-sparsities 4 6 8 10 12 --seeds 0 1 2 --models runs/synthetic --slurm | sh
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.start import start

    start(__file__)

import argparse
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.errors import InputError
from pipeline.stage import file_path, folder_path, positive_int, random_seed, stage_parser, whole_number
from pipeline.synthetic.coupled_positions import COUPLED_SCHEMES
from pipeline.synthetic.tasks.registry import task_called

_STAGE = "pipeline/train_synthetic.py"


@dataclass(frozen=True)
class Job:
    """One run of the grid."""

    task: str
    positions: str
    overrides: tuple[str, ...]
    name: str

    def words(self, config: Path, models: Path) -> list[str]:
        """What stands behind `python pipeline/train_synthetic.py`."""
        flags = ["--task", self.task, "--positions", self.positions, "--save-folder", str(models / self.name)]
        return [str(config), *flags, *self.overrides]


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add("config", type=file_path, help="a YAML file such as olmo_configs/synthetic/small.yaml")
    add("--tasks", nargs="+", required=True, help="names of tasks")
    add("--positions", nargs="+", required=True, help="names of position schemes")
    add("--largest-sparsities", type=positive_int, nargs="+", metavar="K_TRAIN",
        help="K_train of tasks with k; the configuration's if not given")  # fmt: skip
    add("--seeds", type=random_seed, nargs="+", default=[0], help="seeds of every run")
    add("--models", type=folder_path, required=True, help="folder for the run folders")
    add(
        "--overrides",
        nargs="+",
        default=[],
        metavar="field=value",
        help="fields to set otherwise in every run",
    )
    add("--slurm", action="store_true", help="print one sbatch command, an array with a task a job")
    add(
        "--run",
        type=whole_number(0),
        metavar="I",
        help="print nothing: run job I, counted from 0, in this process",
    )
    return program


def main(arguments: argparse.Namespace) -> None:
    """Print the jobs, or the array of them, or run one."""
    # Imported late, for a --help at once.
    from pipeline.synthetic.configuration import load_task_config

    jobs = list(grid(arguments))
    if not jobs:
        raise InputError("the grid is empty: coupled and predicted positions need a task with coupled IDs")
    for job in jobs:
        load_task_config(arguments.config, job.overrides, task=job.task, positions=job.positions)
    if arguments.run is not None:
        _run(jobs, arguments)
    commands = [_array_command(len(jobs))] if arguments.slurm else [_command(job, arguments) for job in jobs]
    sys.stdout.writelines(f"{shlex.join(command)}\n" for command in commands)


def grid(arguments: argparse.Namespace) -> Iterator[Job]:
    """Every job, those of one task together."""
    for name in arguments.tasks:
        task = task_called(name)
        sparsities = (arguments.largest_sparsities if task.has_sparsity else None) or [None]
        for positions in arguments.positions:
            if positions in COUPLED_SCHEMES and not task.has_coupled_ids:
                continue
            for sparsity in sparsities:
                for seed in arguments.seeds:
                    yield _job(name, positions, sparsity, seed, arguments.overrides)


def _job(task: str, positions: str, sparsity: int | None, seed: int, overrides: Sequence[str]) -> Job:
    of_k = [] if sparsity is None else [f"largest_sparsity={sparsity}"]
    k_in_name = "" if sparsity is None else f"-k{sparsity}"
    name = f"{task}{k_in_name}-{positions}-seed{seed}"
    return Job(task, positions, (*overrides, *of_k, f"seed={seed}"), name)


def _command(job: Job, arguments: argparse.Namespace) -> list[str]:
    return ["python", _STAGE, *job.words(arguments.config, arguments.models)]


def _array_command(num_jobs: int) -> list[str]:
    given = [word for word in sys.argv[1:] if word != "--slurm"]
    return ["sbatch", f"--array=0-{num_jobs - 1}", "slurm/train_synthetic.sh", *given]


def _run(jobs: Sequence[Job], arguments: argparse.Namespace) -> None:
    """Become the job's process, so that a scheduler's signals reach it."""
    if not 0 <= arguments.run < len(jobs):
        raise InputError(f"--run {arguments.run}: the grid has the jobs 0 to {len(jobs) - 1}")
    script = Path(__file__).resolve().parent.parent / _STAGE
    words = jobs[arguments.run].words(arguments.config, arguments.models)
    os.execv(sys.executable, [sys.executable, str(script), *words])
