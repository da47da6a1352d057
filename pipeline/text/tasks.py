"""A large corpus dealt to tasks: which files one task of an array tokenizes, and where it writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pipeline.errors import InputError
from pipeline.text.documents import Source

TASKS_FOLDER = "tasks"


@dataclass(frozen=True)
class TokenizationTask:
    """Task `index` of `num_tasks`, counted from 0."""

    index: int
    num_tasks: int

    def __post_init__(self) -> None:
        """Refuse an index that is out of range.

        Raises:
            InputError: it is.
        """
        if not 0 <= self.index < self.num_tasks:
            raise InputError(
                f"--task-index {self.index} is out of range; with --num-tasks {self.num_tasks} it goes"
                f" from 0 to {self.num_tasks - 1}"
            )

    @property
    def is_whole(self) -> bool:
        """Whether this one task is everything."""
        return self.num_tasks == 1

    def folder(self, out: Path) -> Path:
        """Where the task is written: `out` itself, where there is only one."""
        return out if self.is_whole else out / TASKS_FOLDER / f"{self.index:05d}-of-{self.num_tasks:05d}"

    def sources_of(self, sources: Sequence[Source]) -> list[Source]:
        """The files of this task: adjacent ones, so that tasks one after another are all files in order.

        Five files in two tasks are files 0, 1 and files 2, 3, 4.

        Raises:
            InputError: there are more tasks than files.
        """
        if self.num_tasks > len(sources):
            raise InputError(
                f"--num-tasks {self.num_tasks} is more than the {len(sources)} file(s) of --source;"
                " a task takes whole files"
            )
        start, end = self._range_of(len(sources))
        return list(sources[start:end])

    def share_of(self, limit: int | None) -> int | None:
        """The part of this task in a limit on the whole; all parts add up to it.

        Raises:
            InputError: nothing is left for this task.
        """
        if limit is None:
            return None
        start, end = self._range_of(limit)
        if start == end:
            raise InputError(f"a limit of {limit} cannot be shared by {self.num_tasks} tasks; raise it")
        return end - start

    def _range_of(self, count: int) -> tuple[int, int]:
        return count * self.index // self.num_tasks, count * (self.index + 1) // self.num_tasks


def task_folders(out: Path) -> dict[TokenizationTask, Path]:
    """The tasks in `out` that were begun, by their folders' names."""
    found = {}
    for folder in sorted((out / TASKS_FOLDER).glob("?????-of-?????")):
        index, _, num_tasks = folder.name.partition("-of-")
        found[TokenizationTask(int(index), int(num_tasks))] = folder
    return found


def name_files(sources: Sequence[Source]) -> str:
    """A short name for a list of files, by number and names, by which tasks know that they share it."""
    names = "\n".join(source.short_name for source in sources)
    return f"{len(sources)} files, {sha256(names.encode()).hexdigest()[:16]}"
