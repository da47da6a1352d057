"""Carrying out a study's commands: on this machine, or as Slurm jobs.

Here several run at once, each a process with a log file of its own.

The first that fails stops the rest. A request to stop (Ctrl-C, SIGTERM, SIGUSR1) is passed on to all:
trainings save what they have, the others end at once, and the same again goes on. No process outlives the
study, however the study ends. The documents of a measuring stage are shared by as many processes as run.

A command has `threads` threads, which the study says and not the machine, as the last bits of its numbers
depend on them; there are as many commands as cores for them, or as GPUs. Small networks gain 1.1 times from a
second thread, and twice from a second process (analysis/LOG.md).

Under Slurm each is a job after those it needs, submitted as slurm/<stage>.sh, which asks for what the stage
needs and hands on the arguments; stages are shared by the tasks of arrays. Tokenizing in several tasks
becomes two jobs, the array and the merge.
"""

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from pipeline.cli import InputError, logger, unknown_name
from pipeline.studies.commands import ANALYSING, MEASURING, Command
from pipeline.studies.file import Study
from pipeline.training.loop import EXIT_STOPPED

_SBATCH = ("bash", "-c", 'source slurm/cluster.env && exec sbatch "$@"', "sbatch")
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Workers:
    """Places for running processes."""

    number: int
    threads: int = 1
    gpus: Sequence[str] = ()
    """GPUs as CUDA_VISIBLE_DEVICES names them; a process has one."""

    def parts_of(self, command: Command) -> list[Command]:
        """A command for each process that shares it: all places share the documents of a measuring stage."""
        if command.stage not in MEASURING or self.number == 1:
            return [command]
        return [
            replace(
                command,
                name=f"{command.name}-{index + 1}-of-{self.number}",
                arguments=(*command.arguments, "--task-index", str(index), "--num-tasks", str(self.number)),
            )
            for index in range(self.number)
        ]


def workers(asked: int | None, threads: int) -> Workers:
    """Places, as many as --jobs asks for, or one a GPU, or one for `threads` cores."""
    import torch  # late: both take seconds
    from joblib import cpu_count

    # Of what this process may see: under Slurm that is some of the node's, by their own numbers.
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    number = torch.cuda.device_count()
    gpus = named.split(",")[:number] if named else [str(index) for index in range(number)]
    return Workers(asked or len(gpus) or max(1, cpu_count() // threads), threads, gpus)


@dataclass(frozen=True)
class _Running:
    """A process that does a command, or its part of one."""

    command: str
    """The name of the whole command."""
    place: int
    log: Path
    started: float
    process: "subprocess.Popen[bytes]"

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to it and to all that it has started, which is in its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def _start(name: str, part: Command, place: int, workers: Workers, log: Path) -> _Running:
    """Start a command, or a part of the one of this name."""
    environment = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(workers.threads))
    if workers.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = workers.gpus[place % len(workers.gpus)]
    with log.open("a", encoding="utf-8") as file:
        file.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {part}\n")
        file.flush()
        process = subprocess.Popen(
            [sys.executable, *part.words()],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stderr=file,
            # A group of its own: the terminal's Ctrl-C reaches the study alone, which passes it on.
            start_new_session=True,
            preexec_fn=_end_with_the_study if sys.platform == "linux" else None,
        )
    return _Running(name, place, log, time.time(), process)


def _end_with_the_study() -> None:
    """Have Linux end the new process when the study ends, were it by SIGKILL."""
    _LIBC.prctl(1, int(signal.SIGTERM))  # PR_SET_PDEATHSIG of <sys/prctl.h>


def run_all(commands: Sequence[Command], finished: Collection[str], workers: Workers, logs: Path) -> int:
    """Run the commands of a study, but for those that are named in `finished`; stop at the first that fails.

    Returns its exit code, 0 if none failed, EXIT_STOPPED after a request to stop.
    """
    logs.mkdir(parents=True, exist_ok=True)
    # Exit codes of all that asks to stop. The first request lets trainings save, the second one does not.
    stops: list[int] = []

    def note(number: int, frame: object) -> None:
        # Slurm sends SIGTERM to all of a job, once and again; only a user means it the second time.
        if not stops or number == signal.SIGINT:
            stops.append(EXIT_STOPPED)
            logger.info("stopped by a signal, trainings once they have saved; run the same again to go on")

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, note)
    if finished:
        logger.info("finished before: %s", ", ".join(one.name for one in commands if one.name in finished))
    left = [one for one in commands if one.name not in finished]
    waiting = [(one, part) for one in left for part in workers.parts_of(one)]
    running: list[_Running] = []
    num_told = 0
    while running or (waiting and not stops):
        if not stops:
            unfinished = {one.name for one, _ in waiting} | {one.command for one in running}
            ready = [(one, part) for one, part in waiting if unfinished.isdisjoint(one.needs)]
            places = sorted(set(range(workers.number)) - {one.place for one in running})
            for (command, part), place in zip(ready, places, strict=False):
                waiting.remove((command, part))
                sys.stdout.write(f"{part}\n")
                sys.stdout.flush()  # before the command's own output
                running.append(_start(command.name, part, place, workers, logs / f"{part.name}.log"))
        time.sleep(0.05)
        if len(stops) > num_told:
            for one in running:
                one.tell(signal.SIGTERM if num_told == 0 else signal.SIGKILL)
            num_told += 1
        for one in list(running):
            if (code := one.process.poll()) is None:
                continue
            running.remove(one)
            one.tell(signal.SIGKILL)  # what it started and left behind
            if code == 0:
                took = timedelta(seconds=round(time.time() - one.started))
                logger.info("%s finished in %s", one.log.stem, took)
            elif not stops:
                stops.append(code if code > 0 else 128 - code)  # as a shell reports a signal
                lines = one.log.read_text(encoding="utf-8", errors="replace").splitlines()
                logger.info("the last lines of %s:\n%s", one.log, "\n".join(lines[-15:]))
                logger.info("%s ended with exit code %d; run the same again to go on", one.log.stem, stops[0])
    return stops[0] if stops else 0


def submit_chain(commands: Sequence[Command], study: Study, *, is_plan: bool = False) -> None:
    """Submit a job a command, in order, with the IDs of those it needs, and print it.

    Of a plan they are only printed, and a job's name stands for its ID.
    """
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
        job_ids[job.name] = job.name
        if not is_plan:
            study.logs.mkdir(parents=True, exist_ok=True)  # Slurm opens the logs, and makes no folder
            done = subprocess.run([*_SBATCH, *words], capture_output=True, text=True)
            if done.returncode:
                raise InputError(
                    f"sbatch refused the job {job.name}: {done.stderr.strip()}; jobs that were submitted"
                    " before it stay in the queue (scancel ends them)"
                )
            job_ids[job.name] = done.stdout.strip().partition(";")[0]  # of a federation: ID;cluster
        sys.stdout.write(f"{'' if is_plan else f'job {job_ids[job.name]}: '}sbatch {shlex.join(words)}\n")
        sys.stdout.flush()


def arguments_of(commands: Sequence[Command], name: str) -> list[str]:
    """The arguments of the job of this name, or of the first one that is submitted as slurm/<name>.sh."""
    jobs = _jobs_of(commands)
    # Names first: the job tokenize_c4 is the merge, if tasks run tokenize_c4.sh before it.
    found = [job for job in jobs if job.name == name] or [job for job in jobs if job.stage == name]
    if not found:
        raise unknown_name("job", name, [job.name for job in jobs])
    return list(found[0].arguments)


def _jobs_of(commands: Sequence[Command]) -> list[Command]:
    """A script of slurm/ a command; for a text that is tokenized in tasks two, the second needs the first."""
    jobs = []
    for command in commands:
        job = replace(command, program=f"slurm/{command.stage}.sh")
        if command.stage in ANALYSING:
            job = replace(job, program="slurm/analysis.sh", arguments=(command.program, *command.arguments))
        if command.num_tasks is not None:
            # For a task's index each script reads its own SLURM_ARRAY_TASK_ID.
            job = replace(job, arguments=("--num-tasks", str(command.num_tasks), *command.arguments))
        if command.stage == "tokenize_c4" and command.num_tasks != 1:
            tasks = replace(job, name=f"{command.name}-tasks")
            jobs.append(tasks)
            # Only --out and its folder: all else the tasks have recorded.
            job = Command(command.name, "slurm/merge_c4.sh", command.arguments[:2], (tasks.name,))
        jobs.append(job)
    return jobs
