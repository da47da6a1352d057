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
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TextIO

from pipeline.studies.commands import Command

EXIT_STOPPED = 75  # as pretrain.py's: run the same again to go on
_SECONDS_BETWEEN_LOOKS = 0.05
_LAST_LINES = 15
TRAINING = ("pretrain", "train_synthetic")
"""Programs that save what they have before they stop."""
_HEADING = "--- "
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
_prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Workers:
    """Places for running processes."""

    number: int
    threads: int = 1
    gpus: tuple[str, ...] = ()
    """As CUDA_VISIBLE_DEVICES names them; a process has one."""

    def environment(self, place: int) -> dict[str, str]:
        """Of a process in this place, 0 to number - 1."""
        threads = str(self.threads)
        gpu = {"CUDA_VISIBLE_DEVICES": self.gpus[place % len(self.gpus)]} if self.gpus else {}
        return {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **gpu}


def workers(asked: int | None, threads: int, gpus: Sequence[str] = ()) -> Workers:
    """As many as --jobs asks for, or one a GPU, or one for `threads` cores."""
    from joblib import cpu_count  # late: it takes a second

    return Workers(asked or len(gpus) or max(1, cpu_count() // threads), threads, tuple(gpus))


def gpus_here() -> tuple[str, ...]:
    """Those of this machine, as CUDA_VISIBLE_DEVICES names them."""
    import torch  # late: it takes seconds, and is needed only where something is left to be run

    number = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return tuple(named if len(named) == number and named[0] else map(str, range(number)))


class Process:
    """Number `index`, from 0, of the `number` processes that share a command; in a group of its own."""

    def __init__(
        self, command: Command, index: int, number: int, place: int, workers: Workers, logs: Path
    ) -> None:
        """Start it, out of the terminal's reach. What it says goes to its log."""
        logs.mkdir(parents=True, exist_ok=True)
        self.command = command
        self.place = place
        self.name = command.name if number == 1 else f"{command.name}-{index + 1}-of-{number}"
        self.log = logs / f"{self.name}.log"
        self.output = b""
        """Its standard output, once it has ended."""
        self._starter = os.getpid()
        words = [sys.executable, *command.words()]
        # As torchrun says it. Not --task-index: with another number of jobs the study would be refused.
        shared = {} if number == 1 else {"RANK": str(index), "WORLD_SIZE": str(number)}
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed when it has ended)
        with self.log.open("ab") as file:
            file.write(f"{_HEADING}{time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(words)}\n".encode())
            file.flush()
            self._process = subprocess.Popen(
                words,
                env={**workers.environment(place), **shared},
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=file,
                start_new_session=True,
                preexec_fn=self._before_it_begins,
            )

    def _before_it_begins(self) -> None:
        """In the new process: end with its starter, even one that SIGKILL ends."""
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
            if os.getppid() != self._starter:
                os._exit(1)  # it died before this line

    def code(self) -> int | None:
        """Its exit code, as a shell reports it; None while it runs."""
        code = self._process.poll()
        if code is not None and not self._output.closed:
            self.tell(signal.SIGKILL)  # what it started and left behind
            self._output.seek(0)
            self.output = self._output.read()
            self._output.close()
            with self.log.open("ab") as file:
                file.write(self.output)
        return code if code is None or code >= 0 else 128 - code

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to it and to all that it has started in its group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def last_lines(self, number: int) -> list[str]:
        """The last lines that it wrote, of a progress bar its last state."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        lines = [line.rstrip().split("\r")[-1] for line in text.split("\n")]
        return [line for line in lines if line and not line.startswith(_HEADING)][-number:]


def run_all(commands: Sequence[Command], finished: Collection[str], workers: Workers, logs: Path) -> int:
    """Run the commands of a study, but for those that are named in `finished`; stop at the first that fails.

    Returns its exit code, 0 if none failed, EXIT_STOPPED after SIGTERM or SIGUSR1. KeyboardInterrupt is
    raised once no process is left.
    """
    run = _Run(commands, finished, workers, logs)
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1
    earlier = {number: signal.signal(number, run.note) for number in numbers}
    try:
        return run.to_its_end()
    finally:
        run.stop()
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _print(text: str, stream: TextIO) -> None:
    stream.write(text)
    stream.flush()


def _say(line: str) -> None:
    _print(f"study: {line}\n", sys.stderr)


class _Run:
    """A study while it runs."""

    def __init__(
        self, commands: Sequence[Command], finished: Collection[str], workers: Workers, logs: Path
    ) -> None:
        self._workers = workers
        self._logs = logs
        self._finished = {command.name for command in commands if command.name in finished}
        self._waiting = [command for command in commands if command.name not in finished]
        self._ready: list[tuple[Command, int, int]] = []
        """Of the command started last, the processes that wait for a place: index and number."""
        self._running: list[Process] = []
        self._started: dict[str, float] = {}
        self._signal: int | None = None
        self._is_stopping = False
        self._waits_no_more = False
        if self._finished:
            _say(f"finished before: {', '.join(one.name for one in commands if one.name in finished)}")

    def note(self, number: int, frame: object) -> None:
        """Note a request to stop; a second Ctrl-C does not disturb the first."""
        if number != signal.SIGINT:
            self._signal = number
        elif self._is_stopping:
            self._waits_no_more = True
        else:
            raise KeyboardInterrupt

    def to_its_end(self) -> int:
        """As `run_all`."""
        while not self._signal:
            self._start()
            if not self._running:
                return 0
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            for process in [one for one in self._running if one.code() is not None]:
                self._running.remove(process)
                if code := process.code():
                    return self._failed(process, code)
                command = process.command
                left = [one.command for one in self._running] + [one[0] for one in self._ready]
                if command not in left:
                    self._finished.add(command.name)
                    seconds = round(time.time() - self._started[command.name])
                    _say(f"{command.name} finished in {timedelta(seconds=seconds)}")
                _print(process.output.decode(errors="replace"), sys.stdout)
        _say("stopped by a signal; run the same again to go on")
        return EXIT_STOPPED

    def _start(self) -> None:
        """Fill the places that are free with what does not wait for what runs."""
        while len(self._running) < self._workers.number:
            if not self._ready:
                command = next((one for one in self._waiting if self._finished.issuperset(one.needs)), None)
                if command is None:
                    return
                self._waiting.remove(command)
                number = 1
                if command.is_measuring:
                    number = min(self._workers.number, command.num_shards or self._workers.number)
                self._ready = [(command, index, number) for index in range(number)]
                self._started[command.name] = time.time()
                _print(f"{command}\n", sys.stdout)
            place = min(set(range(self._workers.number)) - {one.place for one in self._running})
            self._running.append(Process(*self._ready.pop(0), place, self._workers, self._logs))

    def _failed(self, process: Process, code: int) -> int:
        """Stop the others, and say what is known of it; its exit code."""
        self.stop()
        name = process.name
        _say(f"the last lines of {process.log}:")
        for line in process.last_lines(_LAST_LINES):
            _say(f"  {line}")
        _say(f"{name} ended with exit code {code}; run the same again to go on")
        return code

    def stop(self) -> None:
        """End all that run, and wait until none does; a training saves first, unless Ctrl-C comes again."""
        self._is_stopping = True
        for one in self._running:
            one.tell(signal.SIGTERM)
        if saving := [one.name for one in self._running if one.command.stage in TRAINING]:
            _say(f"waiting until {', '.join(saving)} has saved; Ctrl-C ends it without")
        while self._running:
            for one in self._running if self._waits_no_more else ():
                one.tell(signal.SIGKILL)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            self._running = [one for one in self._running if one.code() is None]
