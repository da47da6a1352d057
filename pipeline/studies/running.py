"""Running a study's commands: several at once, each a process of its own with a log file of its own.

The first that fails stops the rest. Whoever asks to stop (Ctrl-C, SIGTERM, SIGUSR1) is answered by all:
trainings save what they have, the others end at once, and the same again goes on. No child outlives the
study, however the study ends.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.studies.child import Child
from pipeline.studies.command import Command, Training
from pipeline.studies.finished import Finished
from pipeline.studies.live_lines import Line, LiveLines, duration
from pipeline.studies.schedule import Schedule, Share
from pipeline.studies.slots import GIBIBYTE, Slots, free_bytes

EXIT_STOPPED = 75  # as pretrain.py's: run the same again to go on
_KILLED = 128 + signal.SIGKILL
_ASKING_TO_STOP = (signal.SIGTERM, signal.SIGUSR1)
_PATIENCE_SECONDS = 1.5
"""That a command has to end, once it was told; a training has as long as its saving takes."""
_SECONDS_BETWEEN_LOOKS = 0.05
_LAST_LINES = 15


@dataclass
class _Running:
    share: Share
    slot: int
    child: Child


def run_all(
    commands: Sequence[Command],
    finished: Finished,
    slots: Slots,
    logs: Path,
    refuse: Callable[[Command], None] = lambda command: None,
) -> int:
    """Run those that have not finished; stop at the first that fails.

    Args:
        commands: of a study.
        finished: which have finished before; those that finish now are added.
        slots: how many at once.
        logs: folder of the log files, one a process.
        refuse: called before a command starts; an InputError of it stops the rest too.

    Returns:
        The exit code of the one that failed; 0 if none did; EXIT_STOPPED after SIGTERM or SIGUSR1.

    Raises:
        KeyboardInterrupt: once no child is left.
        InputError: of `refuse`, likewise.
    """
    before = [command.name for command in commands if command in finished]
    with LiveLines() as lines:
        if before:
            lines.say(f"finished before: {', '.join(before)}")
        return _Runner(Schedule(commands, before, slots.number), finished, slots, logs, refuse, lines).run()


class _Runner:
    """A study while it runs."""

    def __init__(
        self,
        schedule: Schedule,
        finished: Finished,
        slots: Slots,
        logs: Path,
        refuse: Callable[[Command], None],
        lines: LiveLines,
    ) -> None:
        self._schedule, self._finished, self._slots = schedule, finished, slots
        self._logs, self._refuse, self._lines = logs, refuse, lines
        self._running: list[_Running] = []
        self._reads: dict[str, dict[str, str]] = {}
        """Command -> what it read, as it was when it began."""
        self._started: dict[str, float] = {}
        self._asked_to_stop: signal.Signals | None = None
        self._is_stopping = False
        self._waits_no_more = False

    def run(self) -> int:
        """As `run_all`."""
        with self._listening():
            try:
                return self._run()
            except BaseException:
                self._stop(signal.SIGINT)
                raise

    def _run(self) -> int:
        while True:
            if self._asked_to_stop:
                self._stop(self._asked_to_stop)
                self._lines.say("stopped by a signal; run the same again to go on")
                return EXIT_STOPPED
            self._start()
            if not self._running:
                return 0
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            for one in self._ended():
                if one.child.code:
                    return self._failed(one)
                self._take_note(one.share, one.child)
            self._draw()

    def _start(self) -> None:
        """Fill the places that are free."""
        while len(self._running) < self._slots.number and (share := self._schedule.next()):
            command = share.command
            if command.name not in self._started:
                self._refuse(command)
                self._reads[command.name] = self._finished.reads(command)
                self._started[command.name] = time.monotonic()
                self._lines.output(f"{command}\n")
            slot = min(set(range(self._slots.number)) - {one.slot for one in self._running})
            child = Child(
                [sys.executable, *command.words()],
                self._slots.environment(slot) | share.environment,
                self._logs / f"{share.name}.log",
            )
            self._running.append(_Running(share, slot, child))

    def _ended(self) -> list[_Running]:
        """Those that have ended since the last look; they run no more."""
        ended = [one for one in self._running if one.child.has_ended()]
        self._running = [one for one in self._running if one not in ended]
        return ended

    def _take_note(self, share: Share, child: Child) -> None:
        """Of a process that has ended well."""
        command = share.command
        if self._schedule.ended(share):
            if command.writes:
                self._finished.add(command, self._reads[command.name])
            self._lines.say(
                f"{command.name} finished in {duration(time.monotonic() - self._started[command.name])}"
            )
        if child.output:
            self._lines.output(child.output.decode(errors="replace"))

    def _failed(self, one: _Running) -> int:
        """Stop the others, and say what is known of it; its exit code."""
        self._stop(signal.SIGTERM)
        child, name = one.child, one.share.name
        assert child.code is not None
        if child.code == _KILLED:
            self._lines.say(
                f"{name} was killed, as the kernel does where memory runs out: it had"
                f" {child.peak_bytes / GIBIBYTE:.2f} GiB, and {free_bytes() / GIBIBYTE:.2f} GiB are free now;"
                " with fewer --jobs each has more"
            )
        self._lines.say(f"the last lines of {child.log}:")
        for line in child.last_lines(_LAST_LINES):
            self._lines.say(f"  {line}")
        self._lines.say(f"{name} ended with exit code {child.code}; run the same again to go on")
        return child.code

    def _stop(self, number: signal.Signals) -> None:
        """Tell all that run to stop, and wait until none does; `number` is for those that save nothing."""
        self._is_stopping = True
        for one in self._running:
            is_training = isinstance(one.share.command.about, Training)
            one.child.tell(signal.SIGTERM if is_training else number)
        deadline, is_told = time.monotonic() + _PATIENCE_SECONDS, False
        while self._running:
            self._ended()
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            if time.monotonic() < deadline and not self._waits_no_more:
                continue
            trainings = [one for one in self._running if isinstance(one.share.command.about, Training)]
            saving = [] if self._waits_no_more else trainings
            for one in self._running:
                if one not in saving:
                    one.child.tell(signal.SIGKILL)
            if saving and not is_told:
                names = ", ".join(one.share.name for one in saving)
                self._lines.say(f"waiting until {names} has saved; Ctrl-C ends it without")
                is_told = True

    def _draw(self) -> None:
        lines = [
            Line(one.share.name, one.child.seconds, "".join(one.child.last_lines(1))) for one in self._running
        ]
        schedule = self._schedule
        self._lines.draw(lines, f"{schedule.num_finished} of {schedule.num_commands} commands have finished")

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Inside, a request to stop is taken note of, and a second Ctrl-C does not disturb the first."""

        def note(number: int, frame: object) -> None:
            if number != signal.SIGINT:
                self._asked_to_stop = signal.Signals(number)
            elif self._is_stopping:
                self._waits_no_more = True
            else:
                raise KeyboardInterrupt

        earlier = {number: signal.signal(number, note) for number in (signal.SIGINT, *_ASKING_TO_STOP)}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)
