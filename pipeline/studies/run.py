"""Running a study's commands on this machine: several at once, each a process with a log file of its own.

The first that fails stops the rest. A request to stop (Ctrl-C, SIGTERM, SIGUSR1) is passed on to all:
trainings save what they have, the others end at once, and the same again goes on. No process outlives the
study, however the study ends. The documents of a measuring stage are shared by as many processes as run.

A command has `threads` threads, which the study says and not the machine, as the last bits of its numbers
depend on them; there are as many commands as cores for them, or as GPUs. Small networks gain 1.1 times from a
second thread, and twice from a second process (analysis/LOG.md).
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pipeline.studies.commands import Command

EXIT_STOPPED = 75  # as pretrain.py's: run the same again to go on
TRAINING = ("pretrain", "train_synthetic")
"""Programs that save what they have before they stop."""
_SECONDS_BETWEEN_LOOKS = 0.05
_LAST_LINES = 15
_HEADING = "--- "
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
_prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Workers:
    """Places for running processes."""

    number: int
    threads: int = 1
    gpus: tuple[str, ...] = ()
    """GPUs as CUDA_VISIBLE_DEVICES names them; a process has one."""

    def environment(self, place: int) -> dict[str, str]:
        """Variables of a process in this place, 0 to number - 1."""
        threads = str(self.threads)
        gpu = {"CUDA_VISIBLE_DEVICES": self.gpus[place % len(self.gpus)]} if self.gpus else {}
        return {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **gpu}

    def number_for(self, command: Command) -> int:
        """How many processes share a command: all places the documents of a measuring stage."""
        return self.number if command.is_measuring else 1


def workers(asked: int | None, threads: int, gpus: Sequence[str] = ()) -> Workers:
    """Places, as many as --jobs asks for, or one a GPU, or one for `threads` cores."""
    from joblib import cpu_count  # late: it takes a second

    return Workers(asked or len(gpus) or max(1, cpu_count() // threads), threads, tuple(gpus))


def gpus_here() -> tuple[str, ...]:
    """The GPUs of this machine, as CUDA_VISIBLE_DEVICES names them."""
    import torch  # late: it takes seconds, and is needed only where something is left to be run

    number = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return tuple(named if len(named) == number and named[0] else map(str, range(number)))


class Process:
    """Number `rank`, from 0, of the processes that share a command; in a group of its own."""

    def __init__(self, command: Command, rank: int, place: int, workers: Workers, logs: Path) -> None:
        """Start it, out of the terminal's reach. What it writes on standard error goes to its log."""
        self.command = command
        self.name = command.name
        self.place = place
        self.started = time.time()
        environment = workers.environment(place)
        if (number := workers.number_for(command)) > 1:
            self.name = f"{command.name}-{rank + 1}-of-{number}"
            # As torchrun says it. Not --task-index: with another number of jobs the study would be refused.
            environment |= {"RANK": str(rank), "WORLD_SIZE": str(number)}
        self.log = logs / f"{self.name}.log"
        words = [sys.executable, *command.words()]
        study = os.getpid()

        def before_it_begins() -> None:
            """End the new process with the study, even with one that SIGKILL ends."""
            if _prctl is not None:
                _prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
                if os.getppid() != study:
                    os._exit(1)  # it died before this line

        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{_HEADING}{time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(words)}\n")
            file.flush()
            self._process = subprocess.Popen(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
                preexec_fn=before_it_begins,
            )

    def code(self) -> int | None:
        """Its exit code, as a shell reports it; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        self.tell(signal.SIGKILL)  # what it started and left behind
        return code if code >= 0 else 128 - code

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to it and to all that it has started in its group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def last_lines(self) -> list[str]:
        """The last lines that it wrote, of a progress bar its last state."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        lines = [line.rstrip().split("\r")[-1] for line in text.split("\n")]
        return [line for line in lines if line and not line.startswith(_HEADING)][-_LAST_LINES:]


def run_all(commands: Sequence[Command], finished: Collection[str], workers: Workers, logs: Path) -> int:
    """Run the commands of a study, but for those that are named in `finished`; stop at the first that fails.

    Returns its exit code, 0 if none failed, EXIT_STOPPED after SIGTERM or SIGUSR1. KeyboardInterrupt is
    raised once no process is left.
    """
    logs.mkdir(parents=True, exist_ok=True)
    signals: list[int] = []

    def note(number: int, frame: object) -> None:
        signals.append(number)

    earlier = {
        number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    }
    running: list[Process] = []
    try:
        code = _run(commands, set(finished), workers, logs, running, signals)
    finally:
        _stop(running, signals)
        for number, handler in earlier.items():
            signal.signal(number, handler)
    if signal.SIGINT in signals[:1]:
        raise KeyboardInterrupt
    return code


def _run(
    commands: Sequence[Command],
    finished: set[str],
    workers: Workers,
    logs: Path,
    running: list[Process],
    signals: Sequence[int],
) -> int:
    """Do the work of `run_all` until the first of the `signals`; an error may leave processes `running`."""
    if finished:
        _say(f"finished before: {', '.join(one.name for one in commands if one.name in finished)}")
    waiting = [
        (command, rank)
        for command in commands
        if command.name not in finished
        for rank in range(workers.number_for(command))
    ]
    while not signals:
        while len(running) < workers.number:
            if (ready := next((one for one in waiting if finished.issuperset(one[0].needs)), None)) is None:
                break
            waiting.remove(ready)
            command, rank = ready
            if rank == 0:
                sys.stdout.write(f"{command}\n")
                sys.stdout.flush()
            place = min(set(range(workers.number)) - {one.place for one in running})
            running.append(Process(command, rank, place, workers, logs))
        if not running:
            return 0
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        for process in [one for one in running if one.code() is not None]:
            running.remove(process)
            if code := process.code():
                _stop(running, signals)
                _say(f"the last lines of {process.log}:")
                for line in process.last_lines():
                    _say(f"  {line}")
                _say(f"{process.name} ended with exit code {code}; run the same again to go on")
                return code
            name = process.command.name
            if name not in [one.command.name for one in running] + [one.name for one, _ in waiting]:
                finished.add(name)
                _say(f"{name} finished in {timedelta(seconds=round(time.time() - process.started))}")
    _stop(running, signals)
    if signals[0] != signal.SIGINT:
        _say("stopped by a signal; run the same again to go on")
    return EXIT_STOPPED


def _stop(running: list[Process], signals: Sequence[int]) -> None:
    """End all that run, and wait until none does; a training saves first, unless Ctrl-C comes again."""
    num_signals = len(signals)
    for one in running:
        one.tell(signal.SIGTERM)
    if saving := [one.name for one in running if one.command.stage in TRAINING]:
        _say(f"waiting until {', '.join(saving)} has saved; Ctrl-C ends it without")
    while running:
        if signal.SIGINT in signals[num_signals:]:
            for one in running:
                one.tell(signal.SIGKILL)
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        running[:] = [one for one in running if one.code() is None]


def _say(line: str) -> None:
    sys.stderr.write(f"study: {line}\n")
    sys.stderr.flush()
