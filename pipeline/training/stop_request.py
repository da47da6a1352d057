"""A request to stop: SIGTERM or SIGUSR1, which a scheduler sends some time before it kills a job."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self

EXIT_STOPPED = 75
"""Exit code of a run that was asked to stop, saved, and is to be resumed: EX_TEMPFAIL of sysexits.h."""

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
