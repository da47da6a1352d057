"""What a running study shows: what it starts and what ends, and on a terminal a live line a running command.

Without a terminal, on one that cannot move its cursor, or on a very narrow one, there are plain lines: what
each running command says, once a minute.
"""

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

_NARROWEST = 40
_SECONDS_BETWEEN_DRAWINGS = 0.5
_SECONDS_BETWEEN_PLAIN_LINES = 60


class Line(NamedTuple):
    """One running command."""

    name: str
    seconds: float
    """Since it was started."""
    said: str
    """The last that it wrote."""

    def __str__(self) -> str:
        return f"{self.name}  {duration(self.seconds)}  {self.said}"


class LiveLines:
    """Entered, it draws; what is said in the meantime stands above what is drawn."""

    def __init__(self, console: Console | None = None) -> None:
        """Draw on `console`, standard error if not given."""
        self._console = console or Console(stderr=True)
        can_draw = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live = None
        if can_draw and self._console.width >= _NARROWEST:
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True,
                redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def draw(self, lines: Sequence[Line], state: str) -> None:
        """Show the running commands, and how far the study is; not more often than a reader can follow."""
        pause = _SECONDS_BETWEEN_DRAWINGS if self._live else _SECONDS_BETWEEN_PLAIN_LINES
        if time.monotonic() - self._last < pause:
            return
        self._last = time.monotonic()
        if self._live:
            width = max((len(line.name) for line in lines), default=0)
            texts = [f"{line.name:{width}}  {duration(line.seconds):>7}  {line.said}" for line in lines]
            self._live.update(self._text([*texts, state]), refresh=True)
        else:
            for line in lines:
                self.say(str(line))

    def _text(self, lines: Sequence[str]) -> Text:
        """Each on one line, cut where the terminal ends, in letters that it knows."""
        encoding = self._console.encoding
        known = (line.encode(encoding, "replace").decode(encoding) for line in lines)
        return Text("\n".join(known), no_wrap=True, overflow="crop")

    def say(self, line: str) -> None:
        """Print a line to standard error, above what is drawn."""
        self._print(f"study: {line}\n", sys.stderr)

    def output(self, text: str) -> None:
        """Print to standard output, above what is drawn."""
        self._print(text, sys.stdout)

    def _print(self, text: str, stream: TextIO) -> None:
        if self._live:
            self._live.update(Text(""), refresh=True)
            self._live.stop()
        stream.write(text)
        stream.flush()
        if self._live:
            self._live.start()


def duration(seconds: float) -> str:
    """1:02:03, or 2:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
