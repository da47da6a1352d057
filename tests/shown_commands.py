"""The commands of programs that a page shows in its code: read as a shell would, without running anything."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PROGRAM = re.compile(r"(?<!\S)((?:pipeline|analysis|slurm|tests)/[\w/]+\.(?:py|sh))\b")
ENDS = "\n;|>"
"""What ends a command where it stands outside of quotes."""


@dataclass(frozen=True)
class Shown:
    """One command of a page."""

    program: str
    """Its file, below the repository's root."""
    text: str
    """As it stands on the page, from the file to its end."""

    @property
    def arguments(self) -> list[str]:
        """The words after the program's name."""
        return shlex.split(self.text)[1:]


def code_of(page: Path, heading: str | None = None) -> str:
    """The indented lines of a page, or of one section of it, four blanks less and without comments."""
    text = page.read_text(encoding="utf-8")
    if heading is not None:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines = [line.removeprefix("    ") if line.startswith("    ") else "" for line in text.splitlines()]
    return "\n".join(re.sub(r"(^|\s+)#\s.*", "", line) for line in lines)


def commands_of(page: Path, heading: str | None = None) -> list[Shown]:
    """All commands of this repository's programs that a page or its section shows, but those with a `…`."""
    shown = _read(code_of(page, heading))
    return [command for command in shown if "…" not in command.text]


def _read(code: str) -> Iterator[Shown]:
    place = 0
    while found := _PROGRAM.search(code, place):
        place = _end(code, found.end())
        yield Shown(found[1], code[found.start(1) : place].replace("\\\n", " ").strip())


def _end(code: str, place: int) -> int:
    """Where the command ends that goes on at `place`."""
    quote = None
    while place < len(code):
        letter = code[place]
        if letter == "\\" and quote != "'":
            place += 1
        elif quote is not None:
            quote = None if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in ENDS:
            return place
        place += 1
    return place
