"""Running a study's commands, on this machine or as Slurm jobs.

On this machine several commands run at once, each as a process with its own log file. The first that fails
stops the rest. A request to stop (Ctrl-C, SIGTERM, SIGUSR1, SIGHUP) is passed on to all: trainings save what
they have, the others end at once, and running the study again resumes. All processes share the documents of a
measuring program.

The study sets the number of threads of each command, not the machine, since the last bits of numbers depend
on it. As many commands run as there are GPUs or, without GPUs, groups of that many cores. Small networks run
1.1 times as fast with a second thread, and two processes twice as fast as one (analysis/LOG.md).

Under Slurm each command is a job, submitted as slurm/<stage>.sh, which waits for those it needs. The script
requests what the stage needs and passes on the arguments; the tasks of an array share a stage. Tokenizing in
several tasks becomes two jobs, the array and the merge.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from sparsity_length.cli import InputError, logger, stage_of, unknown_name
from sparsity_length.studies.commands import ANALYSING, MEASURING, Command, commands_of
from sparsity_length.studies.file import Study, load_study
from sparsity_length.training.loop import EXIT_STOPPED


def in_cluster(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of Slurm with the variables of slurm/cluster.env; what the file prints is no output."""
    code = 'source slurm/cluster.env >&2; exec "$@"'
    return subprocess.run(["bash", "-c", code, "bash", *words], capture_output=True, text=True)


def cpu_options(script: str) -> list[str]:
    """Options of sbatch for a job without a GPU: CPU_PARTITION and CPU_ACCOUNT of cluster.env, if set.

    InputError if there is no such script here.
    """
    try:
        asks_for_gpu = "\n#SBATCH --gpus" in Path(script).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(f"there is no {script} here: jobs are submitted from a clone's folder") from error
    if asks_for_gpu:
        return []
    options = {"partition": "CPU_PARTITION", "account": "CPU_ACCOUNT"}
    found = {option: in_cluster("printenv", variable).stdout.strip() for option, variable in options.items()}
    return [f"--{option}={value}" for option, value in found.items() if value]


def places(asked: int | None, threads: int) -> list[dict[str, str]]:
    """Environment variables of each process that runs at once.

    There are as many as --jobs asks for, or one per GPU, or one per `threads` cores.
    """
    import torch  # late: both take seconds
    from joblib import cpu_count

    # Of what this process may see: under Slurm that is some of the node's, by their own numbers.
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    number = torch.cuda.device_count()
    gpus = named.split(",")[:number] if named else [str(index) for index in range(number)]
    of_all = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    by_gpu = [of_all | {"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus] or [of_all]
    count = asked or len(gpus) or max(1, cpu_count() // threads)
    return [by_gpu[index % len(by_gpu)] for index in range(count)]


def _parts_of(command: Command, number: int) -> list[Command]:
    """A command for each process that shares it: all places share the documents of a measuring stage."""
    if command.stage not in MEASURING or number == 1:
        return [command]
    return [
        replace(
            command,
            part=f"-{index + 1}-of-{number}",
            arguments=(*command.arguments, "--task-index", str(index), "--num-tasks", str(number)),
        )
        for index in range(number)
    ]


def _start(command: Command, environment: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("a", encoding="utf-8") as file:
        file.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {command}\n")
        file.flush()
        return subprocess.Popen(
            [sys.executable, *command.words()],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stderr=file,
            # A group of its own: the terminal's Ctrl-C reaches the study alone, which passes it on.
            start_new_session=True,
        )


def run_all(commands: Sequence[Command], places: Sequence[Mapping[str, str]], logs: Path) -> int:
    """Run the commands of a study, one in each of `places`; stop at the first that fails.

    What a command needs and is not among them has finished before. Returns the exit code of the one that
    failed, 0 if none did, EXIT_STOPPED after a request to stop.
    """
    logs.mkdir(parents=True, exist_ok=True)
    # Exit codes of all that asks to stop. The first request lets trainings save, the second one does not.
    stops: list[int] = []

    def note(number: int, frame: object) -> None:
        # Slurm sends SIGTERM to all of a job, once and again; only a user means it the second time.
        if not stops or number == signal.SIGINT:
            how = "ended without saving" if stops else "stopped by a signal, trainings once they have saved"
            stops.append(EXIT_STOPPED)
            logger.info("%s; run the same command again to resume", how)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has SIGHUP
            signal.signal(number, note)
    waiting = [part for command in commands for part in _parts_of(command, len(places))]
    running: dict[int, tuple[Command, subprocess.Popen[bytes], float]] = {}
    """Place -> what runs there, and since when."""
    num_told = 0
    while running or (waiting and not stops):
        if not stops:
            begun = [command for command, *_ in running.values()]
            unfinished = {command.name for command in (*waiting, *begun)}
            ready = [command for command in waiting if unfinished.isdisjoint(command.needs)]
            free = [place for place in range(len(places)) if place not in running]
            for command, place in zip(ready, free, strict=False):
                waiting.remove(command)
                sys.stdout.write(f"{command}\n")
                sys.stdout.flush()  # before the command's own output
                process = _start(command, places[place], command.log_in(logs))
                running[place] = (command, process, time.time())
        time.sleep(0.05)
        if len(stops) > num_told:
            for _, process, _ in running.values():
                # To all that it has started, too, which is in its group.
                os.killpg(process.pid, signal.SIGTERM if num_told == 0 else signal.SIGKILL)
            num_told += 1
        for place, (command, process, started) in list(running.items()):
            if (code := process.poll()) is None:
                continue
            del running[place]
            log = command.log_in(logs)
            if code == 0:
                logger.info("%s finished in %s", log.stem, timedelta(seconds=round(time.time() - started)))
            elif not stops:
                stops.append(code if code > 0 else 128 - code)  # as a shell reports a signal
                logger.info(
                    "%s ended with exit code %d; run the same command again to resume", log.stem, stops[0]
                )
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                logger.info("the last lines of %s:\n%s", log, "\n".join(lines[-15:]))
    return stops[0] if stops else 0


def submit_chain(commands: Sequence[Command], study: Study, *, is_plan: bool = False) -> None:
    """Submit one job per command, in order, with the IDs of those it needs, and print it.

    Of a plan they are only printed, and a job's name stands for its ID.
    """
    job_ids: dict[str, str] = {}
    for job in jobs_of(commands):
        in_log = "%j" if job.num_tasks is None else "%A_%a"
        words = ["--parsable", "--kill-on-invalid-dep=yes", f"--job-name={job.name}"]
        words.append(f"--output={study.logs / f'{job.name}-{in_log}.log'}")
        if job.num_tasks is not None:
            words.append(f"--array=0-{job.num_tasks - 1}")
        if job.needs:
            ids = [job_ids[name] for name in job.needs]
            words.append(f"--dependency=afterok:{':'.join(ids)}")
        words += [*cpu_options(job.program), job.program, *job.arguments]
        job_ids[job.name] = job.name
        if not is_plan:
            study.logs.mkdir(parents=True, exist_ok=True)  # Slurm opens the logs, and makes no folder
            done = in_cluster("sbatch", *words)
            if done.returncode:
                raise InputError(
                    f"sbatch refused the job {job.name}: {done.stderr.strip()}; jobs that were submitted"
                    " before it stay in the queue (scancel ends them)"
                )
            job_ids[job.name] = done.stdout.strip().partition(";")[0]  # of a federation: ID;cluster
        label = "" if is_plan else f"job {job_ids[job.name]}: "
        sys.stdout.write(f"{label}sbatch {shlex.join(words)}\n")


def arguments_of(commands: Sequence[Command], name: str) -> list[str]:
    """The arguments of the job of this name, or of the first one that is submitted as slurm/<name>.sh."""
    jobs = jobs_of(commands)
    # Names first: the job tokenize_c4 is the merge, if tasks run tokenize_c4.sh before it.
    found = [job for job in jobs if job.name == name] or [job for job in jobs if job.stage == name]
    if not found:
        raise unknown_name("job", name, [job.name for job in jobs])
    arguments = list(found[0].arguments)
    from sparsity_length.text.folder import TokenizedData  # late: it takes a second

    # Submitted alone before its text is there, it would say so in a log that nobody looks for.
    if "--data" in arguments:
        try:
            TokenizedData.open(Path(arguments[arguments.index("--data") + 1]))
        except InputError as error:
            message = f"{found[0].name}: {error}; slurm/submit_all.sh submits all jobs in order"
            raise InputError(message) from error
    return arguments


def jobs_of(commands: Sequence[Command]) -> list[Command]:
    """A script of slurm/ a command; for a text that is tokenized in tasks two, the second needs the first."""
    jobs = []
    for command in commands:
        # Programs of minutes share a script, which is given their name.
        is_short = command.stage in (*ANALYSING, "plant_needles")
        program = [command.program] if is_short else []
        # For a task's index each script reads its own SLURM_ARRAY_TASK_ID.
        tasks = [] if command.num_tasks is None else ["--num-tasks", str(command.num_tasks)]
        job = replace(
            command,
            program="slurm/analysis.sh" if is_short else f"slurm/{command.stage}.sh",
            arguments=(*program, *tasks, *command.arguments),
        )
        if command.stage == "tokenize_c4" and command.num_tasks != 1:
            jobs.append(replace(job, name=f"{job.name}-tasks"))
            # Only --out and its folder: all else the tasks have recorded.
            job = Command(job.name, "slurm/merge_c4.sh", command.arguments[:2], (f"{job.name}-tasks",))
        jobs.append(job)
    return jobs


def study(arguments: argparse.Namespace) -> None:
    """Run, print or submit a study; exits with the code of the first command that failed."""
    study = load_study(arguments.study, arguments.overrides)
    commands = commands_of(study)
    if arguments.job is not None:
        # A line each: slurm/job.sh reads them into an array.
        sys.stdout.writelines(f"{word}\n" for word in [study.logs, *arguments_of(commands, arguments.job)])
        return
    left, settings, lacking = checked(commands, is_plan=arguments.dry_run)
    if arguments.check:
        from sparsity_length.studies.cluster import check  # late, as torch takes seconds

        check(commands, settings, lacking)
    elif lacking:
        raise InputError("; ".join(lacking))
    elif arguments.slurm:
        submit_chain(commands, study, is_plan=arguments.dry_run)
    elif arguments.dry_run:
        sys.stdout.writelines(f"{command}\n" for command in left)
    else:
        sys.exit(run_all(left, places(arguments.jobs, study.threads), study.logs))


def checked(commands: Sequence[Command], *, is_plan: bool) -> tuple[list[Command], dict[str, Any], list[str]]:
    """The commands that have something left to do, what each asks for, and what text they lack, in sentences.

    InputError for what a program would refuse hours later, such as a model trained with other settings. For a
    plan, the text need not be there.
    """
    finished: set[str] = set()
    lacking: list[str] = []
    settings: dict[str, Any] = {}
    """Name of a command -> what it asks for."""
    for command in commands:
        stage = stage_of(command.stage)
        try:
            arguments = stage.parse(command.arguments)
            settings[command.name] = stage.settings(arguments, [settings[name] for name in command.needs])
            # Only behind finished ones: what it starts from may still change.
            is_next = finished.issuperset(command.needs)
            if is_next and not stage.left(arguments):
                finished.add(command.name)
            elif not is_plan:
                lacking += _refusal(command, partial(stage.check_input, arguments, is_next))
            # The checkpoint would be missing once the model is trained, and to have it, it is trained anew.
            trained = [name for name in command.needs if hasattr(settings[name], "save_interval")]
            for step, name in product(command.steps, trained):
                last = settings[name].num_steps
                interval = settings[name].save_interval or last
                if step != last and (step > last or step % interval):
                    raise InputError(
                        f"step {step} is to be measured, but {name} is saved every {interval} steps"
                        f" (save_interval) up to step {last}"
                    )
        except InputError as error:
            raise InputError(f"{command.name}: {error}") from error
    return [command for command in commands if command.name not in finished], settings, lacking


def _refusal(command: Command, check_input: Callable[[], object]) -> list[str]:
    """Why a command cannot begin, if it cannot, and how a study does without it."""
    try:
        check_input()
    except InputError as error:
        _, _, further = command.name.partition("-")
        place = "evaluation.data" if further == "evaluation" else f"further_evaluations.{further}"
        remedy = f" ({place}=null leaves it out)" if further else ""
        return [f"{command.name}: {error}{remedy}"]
    return []
