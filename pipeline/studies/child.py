"""One running command: a process group of its own, with a log file, that does not outlive who started it."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
_prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None
_TAIL_BYTES = 8192
_HEADING = "--- "


class Child:
    """A command that was started."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start it. Standard error goes to the end of `log`; standard output too, once it has ended.

        The terminal's Ctrl-C does not reach it; whoever started it decides what it is told.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self.started = time.monotonic()
        self.peak_bytes = 0
        """The most memory that it held; known once it has ended."""
        self.code: int | None = None
        """Its exit code, as a shell reports it; None while it runs."""
        self._starter = os.getpid()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `_end`)
        with log.open("ab") as file:
            file.write(f"{_HEADING}{time.strftime('%Y-%m-%d %H:%M:%S')} {' '.join(words)}\n".encode())
            file.flush()
            self._process = subprocess.Popen(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=file,
                start_new_session=True,
                preexec_fn=self._before_it_begins,
            )
        self.output = b""
        """What it wrote to standard output; known once it has ended."""

    def _before_it_begins(self) -> None:
        """In the new process: die with the one that started it, and listen to an interrupt."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a shell's `&` has switched off
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
            if os.getppid() != self._starter:
                os._exit(1)  # it died before this line

    def has_ended(self) -> bool:
        """Whether it has; then `code`, `output` and `peak_bytes` are known."""
        if self.code is None:
            # os.wait4 and not poll(), for it tells the peak of this very process.
            pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
            if pid:
                self._end(os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024)  # Linux counts in KiB
        return self.code is not None

    def _end(self, code: int, peak_bytes: int) -> None:
        self._process.returncode = code
        self.code = code if code >= 0 else 128 - code
        self.peak_bytes = peak_bytes
        self.tell(signal.SIGKILL)  # what it started and left behind
        self._output.seek(0)
        self.output = self._output.read()
        self._output.close()
        with self.log.open("ab") as file:
            file.write(self.output)

    def tell(self, number: signal.Signals) -> None:
        """Send a signal to it and to all that it has started in its group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self.started

    def last_lines(self, number: int) -> list[str]:
        """The last lines that it wrote, of a progress bar its last state."""
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
        lines = [line.split("\r")[-1].rstrip() or line.rstrip().split("\r")[-1] for line in text.split("\n")]
        return [line for line in lines if line and not line.startswith(_HEADING)][-number:]
