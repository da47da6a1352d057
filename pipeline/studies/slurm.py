"""The commands of a study as Slurm jobs: each after those it needs, stages shared by the tasks of arrays.

A command is submitted as slurm/<stage>.sh, which asks Slurm for what the stage needs and hands on the
arguments. Tokenizing in several tasks becomes two jobs, the array and the merge.
"""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.cli import InputError, unknown_name
from pipeline.studies.commands import Command
from pipeline.studies.file import Study

_ENVIRONMENT = Path("slurm/cluster.env")


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
    for job in _jobs_of(commands):
        in_log = "%j" if job.num_tasks is None else "%A_%a"
        needed = ":".join(job_ids[name] for name in job.needs)
        words = [
            *("--parsable", "--kill-on-invalid-dep=yes", f"--job-name={job.name}"),
            f"--output={study.logs / f'{job.name}-{in_log}.log'}",
            *([] if job.num_tasks is None else [f"--array=0-{job.num_tasks - 1}"]),
            *([f"--dependency=afterok:{needed}"] if needed else []),
            job.program,
            *job.arguments,
        ]
        job_ids[job.name] = job.name if is_plan else _submitted(job.name, words)
        sys.stdout.write(f"{'' if is_plan else f'job {job_ids[job.name]}: '}sbatch {shlex.join(words)}\n")
        sys.stdout.flush()


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
    jobs = _jobs_of(commands)
    of_names = {**{job.stage: job for job in reversed(jobs)}, **{job.name: job for job in jobs}}
    if name not in of_names:
        raise unknown_name("job", name, of_names)
    return list(of_names[name].arguments)


def _jobs_of(commands: Sequence[Command]) -> list[Command]:
    """A script of slurm/ a command; for a text that is tokenized in tasks two, the second needs the first."""
    jobs = []
    for command in commands:
        script = f"slurm/{command.stage}.sh"
        arguments = command.arguments
        if not command.is_stage:
            script = "slurm/analysis.sh"
            arguments = (command.program, *arguments)
        if command.num_tasks is not None:
            arguments = ("--num-tasks", str(command.num_tasks), *arguments)
        job = replace(command, program=script, arguments=arguments)
        if command.stage == "tokenize_c4" and command.num_tasks != 1:
            jobs.append(replace(job, name=f"{command.name}-tasks"))
            merge = command.arguments[:2]  # --out and its folder
            job = Command(command.name, "slurm/merge_c4.sh", merge, (jobs[-1].name,))
        jobs.append(job)
    return jobs
