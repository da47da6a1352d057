"""Which commands of a run folder have finished, and on what: their arguments, what they read, their code.

Each stage knows by itself what is complete, and refuses what does not fit it. But asking a dozen of them
costs half a minute of imports, so a mark in <run>/.finished remembers the answer. It counts as long as

    the arguments  are the same words; if not, the stage is asked again,
    what it wrote  is there, by name and size; if not, the stage is asked again,
    what it read   has the same content: configuration, text, tokens, checkpoints; if not, that is said, and
                   nothing is overwritten: `changed_reads`.

Code does not count: a training of hours is not thrown away for it. Where the code says something else than
it did (comments and layout say nothing), `changed_code` names the files, and the reader decides. Notebooks
and tables are not marked at all: they see by themselves, code included, whether they must be made anew.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.results.files import write_json
from pipeline.studies.code_version import code_of
from pipeline.studies.command import Command
from pipeline.studies.contents import Contents


@dataclass(frozen=True)
class _Mark:
    """What a command was when it finished."""

    words: list[str]
    reads: dict[str, str]
    """Word -> fingerprint of the content."""
    wrote: dict[str, int]
    """File -> bytes."""
    code: dict[str, str]
    """File of the repository -> hash of what it says."""


class Finished:
    """The marks of a run folder."""

    def __init__(self, run: Path) -> None:
        self._folder = run / ".finished"
        self._contents = Contents(self._folder / "contents.json")

    def __contains__(self, command: Command) -> bool:
        """Whether it has finished, on what it would read now, and what it wrote is still there."""
        return self._is_made(command) and not self.changed_reads(command)

    def _is_made(self, command: Command) -> bool:
        mark = self._mark(command)
        if (
            not command.writes
            or mark is None
            or mark.words != _words(command)
            or not all(path.exists() for path in command.writes)
        ):
            return False
        return all(_size(Path(name)) == size for name, size in mark.wrote.items())

    def changed_reads(self, command: Command) -> list[str]:
        """Of what was made by these very arguments and is there: words that stand for something else now.

        What is no longer there does not count: text may be put away once it has been tokenized.
        """
        mark = self._mark(command)
        if mark is None or not self._is_made(command):
            return []
        now = self.reads(command)
        return [word for word, before in mark.reads.items() if now.get(word, before) != before]

    def changed_code(self, command: Command) -> list[str]:
        """Files that said something else when this command finished; empty where it has not."""
        mark = self._mark(command)
        if mark is None or not self._is_made(command):
            return []
        now = code_of(command.program)
        return sorted(name for name in mark.code.keys() | now.keys() if mark.code.get(name) != now.get(name))

    def reads(self, command: Command) -> dict[str, str]:
        """Word -> fingerprint of what it stands for now, of all that a command reads."""
        return self._contents.of_words(command.reads)

    def add(self, command: Command, reads: Mapping[str, str]) -> None:
        """Remember that it has finished, and what it read, as it was when it began."""
        mark = _Mark(_words(command), dict(reads), _wrote(command), code_of(command.program))
        write_json(self._path(command), asdict(mark))
        self._contents.save()

    def _path(self, command: Command) -> Path:
        return self._folder / f"{command.name}.json"

    def _mark(self, command: Command) -> _Mark | None:
        try:
            content: Any = json.loads(self._path(command).read_text(encoding="utf-8"))
            lists = dict(content["reads"]), dict(content["wrote"]), dict(content["code"])
            return _Mark(list(content["words"]), *lists)
        except (OSError, ValueError, KeyError, TypeError):
            return None  # damaged, or none: the stage is asked again


def _words(command: Command) -> list[str]:
    return [command.program, *command.arguments]


def _wrote(command: Command) -> dict[str, int]:
    """Bytes of all files that a command left."""
    files = {
        file: _size(file)
        for path in command.writes
        for file in ([path] if path.is_file() else (*path.rglob("*"), *_shards_beside(path)))
        if file.is_file() and not file.name.startswith((".", "lock"))
    }
    return {str(file): size for file, size in files.items() if size is not None}


def _shards_beside(marks: Path) -> list[Path]:
    """Of <results>/_stages/<stage>/model=<model>: the Parquet files of this model's results."""
    is_of_a_stage = len(marks.parents) > 2 and marks.parents[1].name == "_stages"
    return list(marks.parents[2].glob(f"*/{marks.name}/*.parquet")) if is_of_a_stage else []


def _size(path: Path) -> int | None:
    """None where there is no such file."""
    try:
        return path.stat().st_size
    except OSError:
        return None
