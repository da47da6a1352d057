"""Running commands one after another, each a process of its own, and remembering which have finished.

Each stage knows by itself what is complete. But asking a dozen of them costs half a minute of imports, so a
mark in <run>/.finished says that this very command has finished; it counts as long as what was written is
there.
"""

import hashlib
import logging
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.studies.commands import Command

_PASSED_ON = (signal.SIGTERM, signal.SIGUSR1)
logger = logging.getLogger("pipeline")


class Finished:
    """Which commands of a run folder have finished."""

    def __init__(self, run: Path) -> None:
        self._folder = run / ".finished"

    def __contains__(self, command: Command) -> bool:
        """Whether it has finished, and what it wrote is still there."""
        is_there = all(path.exists() for path in command.writes)
        return bool(command.writes) and is_there and self._mark(command).exists()

    def add(self, command: Command) -> None:
        """Remember it; its text stands in the mark, for whoever looks."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._mark(command).write_text(f"{command}\n", encoding="utf-8")

    def _mark(self, command: Command) -> Path:
        digest = hashlib.sha256("\0".join([command.program, *command.arguments]).encode())
        return self._folder / f"{command.name}-{digest.hexdigest()[:12]}"


def run_all(commands: Sequence[Command], finished: Finished) -> int:
    """Run those that have not finished; stop at the first that fails.

    Returns:
        The exit code of the one that failed; 0 if none did.
    """
    for command in commands:
        if command in finished:
            logger.info("finished before: %s", command)
            continue
        sys.stdout.write(f"\n{command}\n")
        sys.stdout.flush()
        code = _run([sys.executable, *command.words()])
        if code:
            logger.error("%s ended with exit code %d; run the same again to go on", command.name, code)
            return code
        if command.writes:
            finished.add(command)
    return 0


def _run(words: Sequence[str]) -> int:
    """The exit code of a process, which gets the signals that ask to stop."""
    with subprocess.Popen(words) as child:
        earlier = {
            number: signal.signal(number, lambda received, _: child.send_signal(received))
            for number in _PASSED_ON
        }
        try:
            code = child.wait()
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)
    return code if code >= 0 else 128 - code  # as a shell reports a signal
