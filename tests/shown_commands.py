"""The commands that a page shows: its indented code, read as a shell would, and code in its sentences.

Indented code is commands of a shell. What is not (Python, a drawing) stands between fences, with its
language behind the first.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparsity_length.cli import MODULES

ROOT = Path(__file__).resolve().parents[1]
UNMARKED = ("CHANGELOG.md", "LOG.md")
"""Pages that tell what was typed then, and not what to type now."""
FOLDERS = {"programs": "pipeline", "analysis": "analysis"}
"""Package of programs, below sparsity_length -> its folder."""
_PROGRAM = re.compile(r"(?<!\S)((?:pipeline|analysis|slurm|tests)/[\w/]+\.(?:py|sh))\b")
_INSTALLED = re.compile(r"(?<!\S)sparsity (\w+)(?= )")
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = r"(?<!\S)\#[^\n]*"
_LINE = re.compile(
    rf"""(?:{_COMMENT}|\\.|"(?:\\.|[^"\\])*"|'[^']*'|[^\\\n"'])++""", re.DOTALL | re.VERBOSE
)  # what a shell takes as one line: a backslash or a quote lets it go on
_PART = re.compile(rf"""({_COMMENT})|\\\n[ ]*|\\.|"(?:\\.|[^"\\])*"|'[^']*'|.""", re.DOTALL | re.VERBOSE)
_IN_A_SENTENCE = re.compile(r"`([^`]*)`")
_A_COMMAND = re.compile(
    r"([A-Z][A-Z0-9_]*=\S+ )*"
    r"(python|make|sbatch|bash|torchrun|pip|hf|sparsity|source|cp|\. \.venv|slurm/submit_all)\S* \S"
)


@dataclass(frozen=True)
class Shown:
    """One command of a page."""

    text: str
    """As it is typed: without comment, continued lines joined."""

    @property
    def program(self) -> str | None:
        """The file of this repository that it runs, below the root; None where it names none."""
        if found := _INSTALLED.search(self.text):
            module = MODULES.get(found[1], f"sparsity_length.programs.{found[1]}")
            _, package, *names = module.split(".")
            return "/".join([FOLDERS[package], *names]) + ".py"
        found = _PROGRAM.search(self.text)
        return found and found[1]

    @property
    def arguments(self) -> list[str]:
        """The words after the program's name."""
        found = _INSTALLED.search(self.text) or _PROGRAM.search(self.text)
        assert found is not None
        return shlex.split(self.text[found.end() :])


def code_of(page: Path, heading: str | None = None) -> str:
    """The indented lines of a page, or of one section of it, four blanks less."""
    lines = [
        line.removeprefix("    ") if line.startswith("    ") else ""
        for line in _unfenced(page, heading).splitlines()
    ]
    return "\n".join(lines)


def python_of(page: Path) -> list[str]:
    """The Python code that a page shows."""
    return [code for language, code in _FENCED.findall(page.read_text("utf-8")) if language == "python"]


def commands_of(page: Path, heading: str | None = None) -> list[Shown]:
    """All commands that a page or its section shows, in their order; those in sentences last."""
    shown = list(_read(code_of(page, heading)))
    prose = "\n".join(line for line in _unfenced(page, heading).splitlines() if not line.startswith("    "))
    for found in _IN_A_SENTENCE.finditer(prose):
        text = " ".join(found[1].split())
        if _A_COMMAND.match(text) and not any(text in one.text for one in shown):
            shown.append(Shown(text))
    return shown


def _unfenced(page: Path, heading: str | None) -> str:
    text = page.read_text(encoding="utf-8")
    if heading is not None:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return _FENCED.sub("", text)


def _read(code: str) -> Iterator[Shown]:
    for line in _LINE.findall(code):
        text = _PART.sub(lambda part: "" if part[1] or part[0].startswith("\\\n") else part[0], line).strip()
        if text:
            yield Shown(text)
