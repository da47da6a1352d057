"""The commands of a study as Slurm jobs: each after those it needs, stages shared by the tasks of arrays.

A command is submitted as slurm/<stage>.sh, which asks Slurm for what the stage needs and hands on the
arguments. Tokenizing in several tasks becomes two jobs, the array and the merge.
"""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.cli import InputError, unknown_name
from pipeline.studies.commands import Command
from pipeline.studies.file import Study

_ENVIRONMENT = Path("slurm/cluster.env")


class _Job(NamedTuple):
    name: str
    script: str
    arguments: Sequence[str]
    num_tasks: int | None = None
    """Of an array; None: no array."""


def submit_chain(commands: Sequence[Command], study: Study, *, is_plan: bool = False) -> None:
    """Submit a job a command, in order, with the IDs of those it needs, and print it.

    Of a plan they are only printed, and a job's name stands for its ID.
    """
    if not is_plan:
        if not _ENVIRONMENT.is_file():
            raise InputError(
                f"{_ENVIRONMENT} is missing here: in the repository's root, cp slurm/cluster.env.example"
                f" {_ENVIRONMENT}, edit it, and type the command there"
            )
        study.logs.mkdir(parents=True, exist_ok=True)  # Slurm opens the logs, and makes no folder
    job_ids: dict[str, str] = {}
    for command in commands:
        needed = [job_ids[name] for name in command.needs]
        for job in _jobs_of(command):
            in_log = "%j" if job.num_tasks is None else "%A_%a"
            words = [
                *("--parsable", "--kill-on-invalid-dep=yes", f"--job-name={job.name}"),
                f"--output={study.logs / f'{job.name}-{in_log}.log'}",
                *([] if job.num_tasks is None else [f"--array=0-{job.num_tasks - 1}"]),
                *([f"--dependency=afterok:{':'.join(needed)}"] if needed else []),
                f"slurm/{job.script}.sh",
                *job.arguments,
            ]
            job_id = job_ids[job.name] = job.name if is_plan else _submitted(job.name, words)
            sys.stdout.write(f"{'' if is_plan else f'job {job_id}: '}sbatch {shlex.join(words)}\n")
            sys.stdout.flush()
            needed = [job_id]


def _submitted(name: str, words: Sequence[str]) -> str:
    """Submit a job, with the variables of slurm/cluster.env; its ID."""
    sourced = f'source {_ENVIRONMENT} && exec sbatch "$@"'
    done = subprocess.run(["bash", "-c", sourced, "sbatch", *words], capture_output=True, text=True)
    if done.returncode:
        raise InputError(
            f"sbatch refused the job {name}: {done.stderr.strip()}; jobs that were submitted before it"
            " stay in the queue (scancel ends them)"
        )
    return done.stdout.strip().partition(";")[0]  # of a federation: ID;cluster


def arguments_of(commands: Sequence[Command], name: str) -> list[str]:
    """The arguments of the job of this name, or of the first one that is submitted as slurm/<name>.sh."""
    jobs = [job for command in commands for job in _jobs_of(command)]
    for job in (*jobs, *(job._replace(name=job.script) for job in jobs)):
        if job.name == name:
            return list(job.arguments)
    raise unknown_name("job", name, [job.name for job in jobs])


def _jobs_of(command: Command) -> list[_Job]:
    """One job, or for a text that is tokenized in tasks two, the second of which needs the first."""
    name = command.name
    arguments = command.arguments
    num_tasks = command.num_tasks
    if not command.is_stage:
        return [_Job(name, "analysis", [command.program, *arguments])]
    if num_tasks is None:
        return [_Job(name, command.stage, arguments)]
    of_tasks = ["--num-tasks", str(num_tasks), *arguments]
    if command.stage == "tokenize_c4" and num_tasks > 1:
        merge = _Job(name, "merge_c4", arguments[:2])  # --out and its folder
        return [_Job(f"{name}-tasks", "tokenize_c4", of_tasks, num_tasks), merge]
    return [_Job(name, command.stage, of_tasks, num_tasks)]
