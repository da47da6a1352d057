"""A request to stop: SIGTERM or SIGUSR1, which a scheduler sends some time before it kills a job."""

import logging
import signal
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

EXIT_STOPPED = 75
"""Exit code of a run that was asked to stop, saved, and is to be resumed: EX_TEMPFAIL of sysexits.h."""

logger = logging.getLogger("pipeline")
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """While entered, the signals end nothing; they only make `signal_name` known."""

    def __init__(self) -> None:
        self.signal_name: str | None = None
        """The signal that came, such as "SIGUSR1"; None as long as none did."""
        self._handlers_before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._handlers_before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal_name = signal.Signals(number).name


def train_or_exit(train: Callable[[StopRequest], bool]) -> None:
    """Call `train`, which says whether it came to its end, under a request to stop.

    Raises:
        SystemExit: it stopped before its end; with EXIT_STOPPED.
    """
    with StopRequest() as stop_request:
        is_finished = train(stop_request)
    if not is_finished:
        logger.info("stopped by a signal; run the same command again to go on")
        sys.exit(EXIT_STOPPED)
