"""What one command of a study is: the line as it would be typed, and what a plan needs to know of it."""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from pipeline.studies.study_fields import Evaluation, Text
from pipeline.studies.study_file import ROOT
from pipeline.studies.synthetic_fields import TaskTest


@dataclass(frozen=True)
class Training:
    """A model to train, as pretrain.py is told."""

    name: str
    config: Path
    overrides: tuple[str, ...]
    folder: Path


@dataclass(frozen=True)
class TaskTraining(Training):
    """A model of a synthetic task to train, as train_synthetic.py is told."""

    task: str
    positions: str


@dataclass(frozen=True)
class Tokenizing:
    """A text to tokenize."""

    text: Text


@dataclass(frozen=True)
class Measuring:
    """A measuring stage on some checkpoints."""

    stage: str
    evaluation: Evaluation
    data: Path
    trainings: tuple[Training, ...]
    """What trained each checkpoint, one a checkpoint."""


@dataclass(frozen=True)
class TaskMeasuring:
    """A stage that tests models of a synthetic task."""

    stage: str
    task: str
    test: TaskTest
    trainings: tuple[TaskTraining, ...]


@dataclass(frozen=True)
class Command:
    """One command line, and what a plan needs to know of it."""

    name: str
    """Different from all others of the study; names its Slurm job."""
    program: str
    """The file, from the repository's root."""
    arguments: tuple[str, ...]
    needs: tuple[str, ...]
    """Names of commands that must have finished before."""
    reads: tuple[str, ...]
    """Words of the arguments whose content decides what is written: files, globs, data, models."""
    writes: tuple[Path, ...]
    """What is there once it has finished; empty for a command that always runs."""
    about: Tokenizing | Training | Measuring | TaskMeasuring | None = None
    """What it is checked by before it runs, and what its cost is estimated from."""
    num_tasks: int | None = None
    """Of its Slurm array, to which its work is dealt. None: it is one job, and takes no --num-tasks."""

    @property
    def stage(self) -> str:
        """The program's name."""
        return Path(self.program).stem

    def words(self) -> list[str]:
        """Program and arguments; the program by its whole path where one is elsewhere than in the root."""
        is_in_root = Path.cwd() == ROOT or Path(self.program).is_file()
        return [self.program if is_in_root else str(ROOT / self.program), *self.arguments]

    def __str__(self) -> str:
        """As it would be typed."""
        return shlex.join(["python", *self.words()])


def flags(settings: object, names: Sequence[str] | None = None, leave_out: Collection[str] = ()) -> list[str]:
    """`--name value …` of every field that is not None, or of those of `names`; `--name` where it is true."""
    words = []
    for name in names or [known.name for known in fields(settings)]:  # type: ignore[arg-type]
        value = getattr(settings, name)
        if value is not None and value is not False and name not in leave_out:
            values = value if isinstance(value, list) else [value] if value is not True else []
            words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return words
