"""What the code of a program says, so that two versions of it can be told apart.

The code is the program's file and all modules of this repository that it imports, late imports included.
Comments, docstrings and layout say nothing to the machine, and do not count.

What a word of a command line stands for on disk, as one fingerprint of its content.

A file is hashed once: its SHA-256 is kept with its size and its times of change, and counts as long as they
are the same. Data folders are known by the hashes that their manifest holds. So asking again is quick,
however large the files are.

Which commands of a run folder have finished, and on what: their arguments, what they read, their code.

Each stage knows by itself what is complete, and refuses what does not fit it. But asking a dozen of them
costs half a minute of imports, so a mark in <run>/.finished remembers the answer. It counts as long as

    the arguments  are the same words; if not, the stage is asked again,
    what it wrote  is there, by name and size; if not, the stage is asked again,
    what it read   has the same content: configuration, text, tokens, checkpoints; if not, that is said, and
                   nothing is overwritten: `changed_reads`.

Code does not count: a training of hours is not thrown away for it. Where the code says something else than
it did (comments and layout say nothing), `changed_code` names the files, and the reader decides. Notebooks
and tables are not marked at all: they see by themselves, code included, whether they must be made anew.

Refusing a study whose parts would no longer fit together, before anything of it runs.

How many commands a machine runs at once, and on which of its processors.

Measured on two cores (analysis/LOG.md): the networks of a laptop's study gain 1.1 times from a second thread,
and twice from a second process. So a command has `threads` threads, which the study says and not the machine,
as the last bits of its numbers depend on them; and there are as many commands as cores for them, or as GPUs.

One running command: a process group of its own, with a log file, that does not outlive who started it.

What a running study shows: what it starts and what ends, and on a terminal a live line a running command.

Without a terminal, on one that cannot move its cursor, or on a very narrow one, there are plain lines: what
each running command says, once a minute.

The order of a study's commands: each after those it needs, measuring dealt to several processes.

Running a study's commands: several at once, each a process of its own with a log file of its own.

The first that fails stops the rest. Whoever asks to stop (Ctrl-C, SIGTERM, SIGUSR1) is answered by all:
trainings save what they have, the others end at once, and the same again goes on. No child outlives the
study, however the study ends.

Running a study on this machine: one at a time in a folder, and none on something that has changed.
"""

import ast
import ctypes
import json
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from glob import glob, has_magic
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO

import psutil
from rich.console import Console
from rich.live import Live
from rich.text import Text

from pipeline.cli import InputError
from pipeline.results.files import FolderLock, write_json
from pipeline.results.versions import sha256_of_files
from pipeline.studies.commands import Command, Measuring, Training
from pipeline.studies.file import Study
from pipeline.studies.slurm import logs_of

if TYPE_CHECKING:
    from pipeline.studies.costs import Forecast


_ROOT = Path(__file__).resolve().parents[2]
HOUSES = ("pipeline", "analysis")
"""The packages of this repository."""


@cache
def code_of(program: str) -> dict[str, str]:
    """File, from the repository's root -> hash of what it says, for all that a program runs of this house.

    Args:
        program: its file, from the repository's root; of one that is elsewhere, nothing is known.
    """
    start = _ROOT / program
    found: dict[str, str] = {}
    waiting = [start] if start.is_file() else []
    while waiting:
        path = waiting.pop()
        name = path.relative_to(_ROOT).as_posix()
        if name not in found:
            found[name], imported = _read(path)
            waiting += imported
    return found


@cache
def _read(path: Path) -> tuple[str, tuple[Path, ...]]:
    """The hash of what a module says, and the modules of this house that it imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    ours = (name for name in _imported(nodes) if name.partition(".")[0] in HOUSES)
    imported = tuple({file for name in ours for file in files_of(name)})
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [line for line in node.body if not _is_only_words(line)]
    return sha256(ast.dump(tree).encode()).hexdigest()[:16], imported


def _is_only_words(line: ast.stmt) -> bool:
    return (
        isinstance(line, ast.Expr)
        and isinstance(line.value, ast.Constant)
        and isinstance(line.value.value, str)
    )


@cache
def imported_names(source: str) -> frozenset[str]:
    """Dotted names of what is imported, in functions too; `from a import b` gives a.b, a module or not."""
    return frozenset(_imported(ast.walk(ast.parse(source))))


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def files_of(name: str) -> frozenset[Path]:
    """The module of a dotted name, or of what it is a name in, and the packages it lies in."""
    parts = name.split(".")
    modules = [_ROOT.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)]
    candidates = [path for module in modules for path in (module.with_suffix(".py"), module / "__init__.py")]
    return frozenset(path for path in candidates if path.is_file())


class Contents:
    """Fingerprints by path or glob, remembered in a file."""

    def __init__(self, memory: Path) -> None:
        """Remember in `memory`, a JSON file; one that cannot be read is begun anew."""
        self._memory = memory
        self._hashes: dict[str, list[Any]] = {}
        try:
            remembered = json.loads(memory.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if isinstance(remembered, dict):
            self._hashes = remembered

    def save(self) -> None:
        """Write what is remembered."""
        write_json(self._memory, self._hashes)

    def of_words(self, words: Iterable[str]) -> dict[str, str]:
        """The fingerprint of each word, but for those that name nothing on disk, such as `embedded`."""
        found = {word: self._of(word) for word in words}
        return {word: fingerprint for word, fingerprint in found.items() if fingerprint is not None}

    def _of(self, word: str) -> str | None:
        path = Path(word)
        if (path / "manifest.json").is_file():
            return _of_manifest(path / "manifest.json")
        files = _files(word)
        return _together(map(self._of_file, files)) if files else None

    def _of_file(self, path: Path) -> str:
        """SHA-256 of one file; read only if it is not as it was when it was read last."""
        stat, name = path.stat(), str(path.resolve())
        # ctime too: a tool may set mtime back (cp -p, tar), but never ctime.
        state = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
        if self._hashes.get(name, [None])[:-1] != state:
            self._hashes[name] = [*state, sha256_of_files(path)]
        return str(self._hashes[name][-1])


def _files(word: str) -> list[Path]:
    """The files that a word means: itself, a glob's, or those of a checkpoint or a tokenizer."""
    path = Path(word)
    if path.is_file():
        return [path]
    if path.is_dir():
        newest = _newest_checkpoint(path)
        names = "config.yaml", "model.pt", "tokenizer.json"
        return [file for name in names if (file := newest / name).is_file()]
    found = sorted(glob(word, recursive=True)) if has_magic(word) else []  # noqa: PTH207
    return [file for name in found if (file := Path(name)).is_file()]


def _newest_checkpoint(folder: Path) -> Path:
    """The last step of a training's folder; any other folder itself."""
    steps = {
        int(number): step
        for step in folder.glob("step*-unsharded")
        if (number := step.name.removeprefix("step").removesuffix("-unsharded")).isdecimal()
        and (step / "model.pt").is_file()
    }
    return steps[max(steps)] if steps else folder


def _of_manifest(path: Path) -> str | None:
    """Of all that a data folder holds, by the hashes in its manifest; not of when or by what it was made."""
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        return _together(f"{name} {files[name]['sha256']}" for name in sorted(files))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # the stage that reads it says what is wrong


def _together(fingerprints: Iterable[str]) -> str:
    return sha256("\n".join(fingerprints).encode()).hexdigest()


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


logger = logging.getLogger("pipeline")
TrainingChanges = Callable[[Training], list[str]]
"""The settings in which a training, as it would run now, differs from the one that its folder holds."""
_MOST_NAMED = 4  # files in one sentence


def refuse_changes(
    asked: Iterable[Command], study: Sequence[Command], finished: Finished, training_changes: TrainingChanges
) -> None:
    """Refuse where a command finished on something else than it would read now.

    A configuration may be edited in what decides no number, such as a comment: then the mark is renewed.

    Args:
        asked: commands to look at; those that need one that has not finished are left for their turn.
        study: all of the study.
        finished: its marks.
        training_changes: how the training stage itself tells what decides its numbers.

    Raises:
        InputError: says what has changed, and which folders were made of what it was before.
    """
    changes: dict[str, list[str]] = {}
    by_name = {command.name: command for command in study}
    for command in asked:
        needs = [by_name[name] for name in command.needs]
        if any(need.writes and need not in finished for need in needs):
            continue
        phrases = _changes_of(command, finished, training_changes)
        if phrases:
            changes[command.name] = phrases
    if changes:
        folders = _made_of(changes, study)
        raise InputError(
            f"{_in_words(changes)}. Nothing was overwritten: choose another run folder, as in run=FOLDER, or"
            f" remove what was made before the change: rm -r {' '.join(map(str, folders))}"
        )


def _changes_of(command: Command, finished: Finished, training_changes: TrainingChanges) -> list[str]:
    words = finished.changed_reads(command)
    if isinstance(command.about, Training) and str(command.about.config) in words:
        settings = training_changes(command.about)
        words.remove(str(command.about.config))
        if not words and not settings:
            finished.add(command, finished.reads(command))
        return [*(f"{word} has changed" for word in words), *settings]
    return [f"{word} has changed" for word in words]


def _in_words(changes: dict[str, list[str]]) -> str:
    """What changed, each said once with the commands it is about."""
    about: dict[str, list[str]] = {}
    for name, phrases in changes.items():
        about.setdefault("; ".join(phrases), []).append(name)
    return "; ".join(f"since {', '.join(names)} finished, {phrase}" for phrase, names in about.items())


def _made_of(changed: Iterable[str], study: Sequence[Command]) -> list[Path]:
    """The folders that changed commands, and those that need them, have written."""
    names, folders = set(changed), []
    for command in study:
        if command.name in names or names & set(command.needs):
            names.add(command.name)
            folders += [folder for path in command.writes if (folder := _to_remove(path)).exists()]
    return list(dict.fromkeys(folders))


def _to_remove(path: Path) -> Path:
    """The whole folder that a path of `Command.writes` stands for."""
    if path.name == "manifest.json":
        return path.parent
    is_of_a_stage = len(path.parents) > 2 and path.parents[1].name == "_stages"
    return path.parents[2] if is_of_a_stage else path


def say_changed_code(commands: Sequence[Command], finished: Finished) -> None:
    """Name what was made by other code than there is now; it is kept."""
    files_of = [finished.changed_code(command) for command in commands]
    changed = [command for command, files in zip(commands, files_of, strict=True) if files]
    if changed:
        files = sorted({file for of_one in files_of for file in of_one})
        more = f" and {len(files) - _MOST_NAMED} more" if len(files) > _MOST_NAMED else ""
        folders = dict.fromkeys(_to_remove(path) for command in changed for path in command.writes)
        logger.warning(
            "the code has changed since %s finished (%s%s), and what they made is kept; to make it anew, run"
            " in another folder, as in run=FOLDER, or first: rm -r %s",
            ", ".join(command.name for command in changed), ", ".join(files[:_MOST_NAMED]), more,
            " ".join(map(str, folders)),
        )  # fmt: skip


class Inputs:
    """The study file, configurations and text as they were when the study began."""

    def __init__(self, study_file: Path, commands: Iterable[Command], finished: Finished) -> None:
        """Note them; what the study itself writes is not among them."""
        commands = list(commands)
        self._finished = finished
        self._study_file, self._study = study_file, study_file.read_bytes()
        written = [path for command in commands for path in command.writes]
        self._before = {
            word: fingerprint
            for command in commands
            for word, fingerprint in finished.reads(command).items()
            if not any(_is_one_below_the_other(Path(word), path) for path in written)
        }

    def refuse_edited(self, command: Command) -> None:
        """Refuse to start a command on something else than was there for the commands before it.

        Raises:
            InputError: says what was edited.
        """
        for word, now in self._finished.reads(command).items():
            if self._before.get(word, now) != now:
                raise InputError(
                    f"{word} was edited while the study ran, and {command.name} would be made of other input"
                    " than what has run since: undo the edit, or choose another run folder, as in run=FOLDER;"
                    " then run the same again"
                )

    def say_edited_study(self) -> None:
        """Say so where the study file was edited: what it said at the start is what has run."""
        try:
            is_edited = self._study_file.read_bytes() != self._study
        except OSError:
            is_edited = True
        if is_edited:
            logger.warning(
                "%s was edited or moved while this ran: what it said at the start has run; run the same again"
                " for what it says now",
                self._study_file,
            )


def _is_one_below_the_other(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


_CGROUP = Path("/sys/fs/cgroup")
GIBIBYTE = 1 << 30
PROCESS_BYTES = 0.6 * GIBIBYTE
"""Of a command on a small model: Python and torch take 0.4 GiB, batches the rest."""


@dataclass(frozen=True)
class Slots:
    """Places for running commands."""

    number: int
    threads: int = 1
    gpus: tuple[str, ...] = ()
    """As CUDA_VISIBLE_DEVICES names them; a command has one."""

    def environment(self, slot: int) -> dict[str, str]:
        """Of a command in this place, 0 to number - 1."""
        threads = str(self.threads)
        gpu = {"CUDA_VISIBLE_DEVICES": self.gpus[slot % len(self.gpus)]} if self.gpus else {}
        return {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **gpu}


def slots(
    asked: int | None, threads: int, bytes_of_a_command: float = PROCESS_BYTES, gpus: Sequence[str] = ()
) -> Slots:
    """As many as were asked for, or else as the machine serves best, and at most what its memory holds.

    Args:
        asked: --jobs; None: one a GPU, or as many as the cores have threads for.
        threads: of a command.
        bytes_of_a_command: what the largest will hold.
        gpus: as `gpus` finds them.
    """
    number = asked or len(gpus) or max(1, num_cores() // threads)
    fitting = max(1, int(free_bytes() // bytes_of_a_command))
    if fitting < number:
        logger.warning(
            "%d %s at once, not %d: %.1f GiB of memory are free, and a command takes about %.1f",
            fitting, "command" if fitting == 1 else "commands", number,
            free_bytes() / GIBIBYTE, bytes_of_a_command / GIBIBYTE,
        )  # fmt: skip
    return Slots(min(number, fitting), threads, tuple(gpus))


def num_cores() -> int:
    """Cores that this process may use, by its affinity and by its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup("cpu.max").split()
    if len(quota) == 2 and quota[0].isdecimal():
        cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return cores


def free_bytes() -> int:
    """Memory that could be taken, of the machine's and of the container's."""
    free = int(psutil.virtual_memory().available)
    limit, taken = _cgroup("memory.max"), _cgroup("memory.current")
    if limit.isdecimal() and taken.isdecimal():
        free = min(free, int(limit) - int(taken) + _cached_file_bytes())
    return free


def _cached_file_bytes() -> int:
    """Of files that were read and can be read again: they count as taken, but the kernel gives them up."""
    words = _cgroup("memory.stat").split()
    return int(words[words.index("inactive_file") + 1]) if "inactive_file" in words else 0


def _cgroup(name: str) -> str:
    try:
        return (_CGROUP / name).read_text().strip()
    except OSError:
        return ""


def gpus() -> tuple[str, ...]:
    """Those of this machine, as CUDA_VISIBLE_DEVICES names them."""
    import torch  # late: it takes seconds, and is needed only where something is left to be run

    number = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return tuple(named if len(named) == number and named[0] else map(str, range(number)))


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


@dataclass(frozen=True)
class Share:
    """What one process does of a command."""

    command: Command
    index: int = 0
    number: int = 1
    """Of shares, counted from 0: `index`."""

    @property
    def name(self) -> str:
        """Different from all others of the study."""
        return (
            self.command.name
            if self.number == 1
            else f"{self.command.name}-{self.index + 1}-of-{self.number}"
        )

    @property
    def environment(self) -> dict[str, str]:
        """What tells a measuring stage its share, as torchrun tells it (pipeline/measuring/flags.py).

        And not --task-index: a study that goes on with another number of jobs would be refused.
        """
        if self.number == 1:
            return {}
        return {"RANK": str(self.index), "WORLD_SIZE": str(self.number)}


class Schedule:
    """What is still to run."""

    def __init__(self, commands: Sequence[Command], finished: Collection[str], most_shares: int) -> None:
        """Of `commands` all but those named in `finished`; each in `most_shares` shares at most."""
        self._waiting = [command for command in commands if command.name not in finished]
        self._finished = set(finished)
        self._most_shares = most_shares
        self._ready: list[Share] = []
        self._unended: dict[str, int] = {}
        """Command -> shares of it that were handed out or are ready, and have not ended."""
        self.num_commands = len(commands)

    @property
    def num_finished(self) -> int:
        """Commands, those that had finished before included."""
        return len(self._finished)

    def next(self) -> Share | None:
        """The share to be started now; None where all that is left waits for what runs."""
        if not self._ready:
            command = next((one for one in self._waiting if self._finished.issuperset(one.needs)), None)
            if command is None:
                return None
            self._waiting.remove(command)
            number = num_shares(command, self._most_shares)
            self._ready = [Share(command, index, number) for index in range(number)]
            self._unended[command.name] = number
        return self._ready.pop(0)

    def ended(self, share: Share) -> bool:
        """Take note that a share has ended well; whether its command has thereby finished."""
        name = share.command.name
        self._unended[name] -= 1
        if not self._unended[name]:
            self._finished.add(name)
        return name in self._finished


def num_shares(command: Command, at_most: int) -> int:
    """How many processes a command is dealt to: of a measuring stage as many as have a shard to measure."""
    if not isinstance(command.about, Measuring) or at_most == 1:
        return 1
    # Imported late: seconds, which a study that has finished does not take.
    from pipeline.measuring.flags import DOCUMENTS_PER_SHARD
    from pipeline.text.folder import read_manifest

    manifest = read_manifest(command.about.data)
    num_documents = manifest["counts"]["evaluation_documents"] if manifest else 1
    num_documents = min(num_documents, command.about.evaluation.max_documents or num_documents)
    return max(1, min(at_most, math.ceil(num_documents / DOCUMENTS_PER_SHARD)))


EXIT_STOPPED = 75  # as pretrain.py's: run the same again to go on
_KILLED = 128 + signal.SIGKILL
_ASKING_TO_STOP = (signal.SIGTERM, signal.SIGUSR1)
_PATIENCE_SECONDS = 1.5
"""That a command has to end, once it was told; a training has as long as its saving takes."""
_SECONDS_BETWEEN_LOOKS = 0.05
_LAST_LINES = 15


@dataclass
class _Running:
    share: Share
    slot: int
    child: Child


def run_all(
    commands: Sequence[Command],
    finished: Finished,
    slots: Slots,
    logs: Path,
    refuse: Callable[[Command], None] = lambda command: None,
) -> int:
    """Run those that have not finished; stop at the first that fails.

    Args:
        commands: of a study.
        finished: which have finished before; those that finish now are added.
        slots: how many at once.
        logs: folder of the log files, one a process.
        refuse: called before a command starts; an InputError of it stops the rest too.

    Returns:
        The exit code of the one that failed; 0 if none did; EXIT_STOPPED after SIGTERM or SIGUSR1.

    Raises:
        KeyboardInterrupt: once no child is left.
        InputError: of `refuse`, likewise.
    """
    before = [command.name for command in commands if command in finished]
    with LiveLines() as lines:
        if before:
            lines.say(f"finished before: {', '.join(before)}")
        return _Runner(Schedule(commands, before, slots.number), finished, slots, logs, refuse, lines).run()


class _Runner:
    """A study while it runs."""

    def __init__(
        self,
        schedule: Schedule,
        finished: Finished,
        slots: Slots,
        logs: Path,
        refuse: Callable[[Command], None],
        lines: LiveLines,
    ) -> None:
        self._schedule, self._finished, self._slots = schedule, finished, slots
        self._logs, self._refuse, self._lines = logs, refuse, lines
        self._running: list[_Running] = []
        self._reads: dict[str, dict[str, str]] = {}
        """Command -> what it read, as it was when it began."""
        self._started: dict[str, float] = {}
        self._asked_to_stop: signal.Signals | None = None
        self._is_stopping = False
        self._waits_no_more = False

    def run(self) -> int:
        """As `run_all`."""
        with self._listening():
            try:
                return self._run()
            except BaseException:
                self._stop(signal.SIGINT)
                raise

    def _run(self) -> int:
        while True:
            if self._asked_to_stop:
                self._stop(self._asked_to_stop)
                self._lines.say("stopped by a signal; run the same again to go on")
                return EXIT_STOPPED
            self._start()
            if not self._running:
                return 0
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            for one in self._ended():
                if one.child.code:
                    return self._failed(one)
                self._take_note(one.share, one.child)
            self._draw()

    def _start(self) -> None:
        """Fill the places that are free."""
        while len(self._running) < self._slots.number and (share := self._schedule.next()):
            command = share.command
            if command.name not in self._started:
                self._refuse(command)
                self._reads[command.name] = self._finished.reads(command)
                self._started[command.name] = time.monotonic()
                self._lines.output(f"{command}\n")
            slot = min(set(range(self._slots.number)) - {one.slot for one in self._running})
            child = Child(
                [sys.executable, *command.words()],
                self._slots.environment(slot) | share.environment,
                self._logs / f"{share.name}.log",
            )
            self._running.append(_Running(share, slot, child))

    def _ended(self) -> list[_Running]:
        """Those that have ended since the last look; they run no more."""
        ended = [one for one in self._running if one.child.has_ended()]
        self._running = [one for one in self._running if one not in ended]
        return ended

    def _take_note(self, share: Share, child: Child) -> None:
        """Of a process that has ended well."""
        command = share.command
        if self._schedule.ended(share):
            if command.writes:
                self._finished.add(command, self._reads[command.name])
            self._lines.say(
                f"{command.name} finished in {duration(time.monotonic() - self._started[command.name])}"
            )
        if child.output:
            self._lines.output(child.output.decode(errors="replace"))

    def _failed(self, one: _Running) -> int:
        """Stop the others, and say what is known of it; its exit code."""
        self._stop(signal.SIGTERM)
        child, name = one.child, one.share.name
        assert child.code is not None
        if child.code == _KILLED:
            self._lines.say(
                f"{name} was killed, as the kernel does where memory runs out: it had"
                f" {child.peak_bytes / GIBIBYTE:.2f} GiB, and {free_bytes() / GIBIBYTE:.2f} GiB are free now;"
                " with fewer --jobs each has more"
            )
        self._lines.say(f"the last lines of {child.log}:")
        for line in child.last_lines(_LAST_LINES):
            self._lines.say(f"  {line}")
        self._lines.say(f"{name} ended with exit code {child.code}; run the same again to go on")
        return child.code

    def _stop(self, number: signal.Signals) -> None:
        """Tell all that run to stop, and wait until none does; `number` is for those that save nothing."""
        self._is_stopping = True
        for one in self._running:
            is_training = isinstance(one.share.command.about, Training)
            one.child.tell(signal.SIGTERM if is_training else number)
        deadline, is_told = time.monotonic() + _PATIENCE_SECONDS, False
        while self._running:
            self._ended()
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            if time.monotonic() < deadline and not self._waits_no_more:
                continue
            trainings = [one for one in self._running if isinstance(one.share.command.about, Training)]
            saving = [] if self._waits_no_more else trainings
            for one in self._running:
                if one not in saving:
                    one.child.tell(signal.SIGKILL)
            if saving and not is_told:
                names = ", ".join(one.share.name for one in saving)
                self._lines.say(f"waiting until {names} has saved; Ctrl-C ends it without")
                is_told = True

    def _draw(self) -> None:
        lines = [
            Line(one.share.name, one.child.seconds, "".join(one.child.last_lines(1))) for one in self._running
        ]
        schedule = self._schedule
        self._lines.draw(lines, f"{schedule.num_finished} of {schedule.num_commands} commands have finished")

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Inside, a request to stop is taken note of, and a second Ctrl-C does not disturb the first."""

        def note(number: int, frame: object) -> None:
            if number != signal.SIGINT:
                self._asked_to_stop = signal.Signals(number)
            elif self._is_stopping:
                self._waits_no_more = True
            else:
                raise KeyboardInterrupt

        earlier = {number: signal.signal(number, note) for number in (signal.SIGINT, *_ASKING_TO_STOP)}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)


def run_here(
    study: Study,
    study_file: Path,
    commands: Sequence[Command],
    forecast: "Forecast | None",
    asked: int | None,
) -> int:
    """Run what has not finished.

    Args:
        study: as it was read.
        study_file: what it was read from.
        commands: the study's.
        forecast: of what it will take; None where everything that is marked has finished.
        asked: commands at once; None: as many as the machine serves best.

    Returns:
        The exit code, as of `run_all`.

    Raises:
        InputError: another study runs in the folder, or something has changed since it ran.
    """

    def training_changes(training: Training) -> list[str]:
        from pipeline.training.checkpoints import changed_settings  # late: it imports torch

        assert forecast is not None, "a training is asked for only where something is left to run"
        return changed_settings(training.folder, forecast.configs[training.name])

    with FolderLock(Path(study.run), "run folder, as in run=FOLDER"):
        finished = Finished(Path(study.run))
        inputs = Inputs(study_file, commands, finished)
        refuse_changes(commands, commands, finished, training_changes)
        say_changed_code(commands, finished)

        def refuse(command: Command) -> None:
            inputs.refuse_edited(command)
            refuse_changes([command], commands, finished, training_changes)

        places = _slots(study.threads, commands, forecast, asked)
        code = run_all(commands, finished, places, logs_of(study), refuse)
        inputs.say_edited_study()
    return code


def _slots(
    threads: int, commands: Sequence[Command], forecast: "Forecast | None", asked: int | None
) -> Slots:
    """Places for commands, by what the largest training will hold."""
    if forecast is None:  # nothing is left but tables
        return slots(asked, threads)
    trainings = [command.about for command in commands if isinstance(command.about, Training)]
    largest = max(forecast.need_of(training).memory_bytes for training in trainings)
    return slots(asked, threads, PROCESS_BYTES + largest, gpus())
