"""The one mechanism for files that are whole: tokens, results and checkpoints.

A file is written to a temporary name, fsynced and renamed (`whole_or_absent`); what is no regular file, such
as a device, is written into. A record, JSON beside the files and written last, has the size and SHA-256 of
each (`describe_files`, `read_record`, `damage`); `differences` compares the settings that made them with
those of now. `Task` splits work into tasks. Whoever writes a folder locks it (`folder_lock`): a second
program is refused.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparsity_length.cli import InputError, Item, logger

MANIFEST = "exported.json"
LOCK_FILE = ".lock"
_POINTER = b"version https://git-lfs.github.com/spec/"
"""What begins a file that Git LFS has not fetched."""


@contextmanager
def whole_or_absent(path: Path, part: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path; on leaving, fsync what was written there and rename it to `path`.

    A reader, and a run resumed after a kill, sees the old file or the new one, never a part. That is `part`,
    on the same file system, or lies beside `path`. A stream (`stream_of`) stays what it is, and gets the
    whole at the end.
    """
    if (stream := stream_of(path)) is not None:
        with tempfile.TemporaryDirectory() as folder:
            yield (temporary := Path(folder, "part"))
            print(end="", flush=True)  # noqa: T201 (what was printed before comes first)
            # Never O_CREAT: a device that is gone is no file to be made.
            descriptor = os.dup(stream) if isinstance(stream, int) else os.open(stream, os.O_WRONLY)
            with os.fdopen(descriptor, "wb") as output, temporary.open("rb") as content:
                shutil.copyfileobj(content, output)
        return
    # Renaming onto a link would replace the link itself.
    path = Path(os.path.realpath(path))  # Path's own fails of links in a circle
    path.parent.mkdir(parents=True, exist_ok=True)
    # Always the same name: what a killed writer left is overwritten by the next one.
    temporary = part or path.with_name(f".{path.name}.part")
    temporary.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        # Before the rename: after a power loss the new name must not stand over an empty file.
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)  # the rename itself must survive a power loss


def stream_of(path: Path) -> Path | int | None:
    """What is written into and never replaced: a device, a FIFO, or an open file of ours by its descriptor.

    - is standard output, 1. None: a file, or one that can be made.
    """
    if path == Path("-"):
        return 1
    # /dev/stdout is a link to /proc/self/fd/1, whatever that is: a file that is opened anew would be written
    # over from its start. Links in a circle do not exist.
    descriptors = os.path.realpath("/proc/self/fd")
    while os.path.realpath(path.parent) != descriptors and path.is_symlink() and path.exists():
        path = path.parent / path.readlink()
    if os.path.realpath(path.parent) == descriptors and path.name.isdecimal():
        try:
            os.write(int(path.name), b"")
        except OSError as error:  # now, and not after the work
            raise InputError(f"{path} is not open for writing") from error
        return int(path.name)
    if path.is_socket():
        raise InputError(f"{path} is a socket, which no output can be written into; name a file")
    return path if path.exists() and not (path.is_file() or path.is_dir()) else None


def refuse_outputs(outputs: Mapping[str, Path | None]) -> None:
    """Refuse outputs, by their flags, that cannot be written, before the work: InputError.

    Of two, one would replace the other or go into the same stream; or what would be the folder is none, or
    may not be written into.
    """
    seen: dict[object, str] = {}
    for flag, path in outputs.items():
        stream = None if path is None else stream_of(path)
        # A stream is its device and inode, whatever it is called.
        place = path and os.path.realpath(path) if stream is None else os.stat(stream)[1:3]  # noqa: PTH116 (or open)
        # What is thrown away may be anything.
        if path not in (None, Path(os.devnull)) and (other := seen.setdefault(place, flag)) != flag:
            raise InputError(f"{other} and {flag} are both {path}; give each its own")
        if path is not None and stream is None:
            folders = Path(os.path.realpath(path)).parents
            folder = next(folder for folder in folders if folder.exists())
            if not (folder.is_dir() and os.access(folder, os.W_OK)):
                raise InputError(f"{flag} {path}: nothing can be written into {folder}; name another place")


def sync(path: Path) -> None:
    """Hand a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, content: bytes | bytearray) -> None:
    """Write a file, atomically."""
    with whole_or_absent(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` as indented JSON, atomically."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def refuse_replacing(outputs: Iterable[Path], inputs: Iterable[Path | None]) -> None:
    """Refuse outputs that are inputs, or replace a file in an input folder that is no page or table."""
    given = [Path(os.path.realpath(path)) for path in inputs if path is not None]
    for output in (path for path in outputs if stream_of(path) is None):
        whole = Path(os.path.realpath(output))
        # A page or table that was made from a folder may lie in it, and is made anew.
        is_within = whole.is_file() and whole.suffix not in (".html", ".csv")
        if whole in given or (is_within and any(folder in given for folder in whole.parents)):
            raise InputError(f"{output} is an input, which the output would replace; choose another place")


def refuse_pointers(*paths: Path) -> None:
    """Refuse files of which only a pointer of Git LFS is there."""
    for path in filter(Path.is_file, paths):  # from a stream nothing is taken
        with path.open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise InputError(f"{path} is a Git LFS pointer, not the file: run git lfs pull in its folder")


def table_of(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Columns as of `schemas.Columns` with the types, order and metadata of `schema`; null if not given."""
    rows = {
        name: np.ravel(values) if isinstance(values, np.ndarray) else values
        for name, values in columns.items()
        if isinstance(values, list | np.ndarray)
    }
    num_rows = len(next(iter(rows.values()), ()))
    arrays = [
        pa.array(rows[field.name], field.type, from_pandas=True)
        if field.name in rows
        else pa.repeat(pa.scalar(columns.get(field.name), field.type), num_rows)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a table as zstd Parquet."""
    pq.write_table(table, path, compression="zstd", write_page_checksum=True)


@dataclass(frozen=True)
class Task:
    """Task `index` of `num_tasks`, counted from 0, among those that share some work."""

    index: int = 0
    num_tasks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.num_tasks:
            raise InputError(
                f"--task-index {self.index} is not a task of --num-tasks {self.num_tasks}, which go from 0 to"
                f" {self.num_tasks - 1}"
            )

    @property
    def is_whole(self) -> bool:
        """Whether this one task is everything."""
        return self.num_tasks == 1

    def run_of(self, items: Sequence[Item]) -> Sequence[Item]:
        """Adjacent items, so that tasks one after another are all: of five in two tasks 0, 1 and 2, 3, 4."""
        start, end = (len(items) * index // self.num_tasks for index in (self.index, self.index + 1))
        return items[start:end]


WHOLE = Task()
"""One task that does everything."""


LAUNCHED = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
"""What torchrun and `accelerate launch` number processes by, and its values without them."""


def launched_process() -> Task:
    """Which of how many processes this is, by the variables of torchrun and accelerate; WHOLE without them.

    InputError if they do not fit together, as those that another launcher left over.
    """
    given = [os.environ.get(name, default) for name, default in LAUNCHED.items()]
    # -1 fits nowhere.
    index, count, local = (int(value) if value.isdecimal() else -1 for value in given)
    if not 0 <= local <= index < count or (count > 1 and "RANK" not in os.environ):
        raise InputError(
            f"{' '.join(f'{name}={os.environ[name]}' for name in LAUNCHED if name in os.environ)} in the"
            " environment numbers no process of a launcher: unset it, or start the program with torchrun"
        )
    return Task(index, count)


@contextmanager
def folder_lock(folder: Path, flag: str, task: Task = WHOLE) -> Iterator[None]:
    """Lock a folder, which `flag` names: a second program that asks for it is refused.

    Tasks of one array job share a folder: a task with the same number is refused, and so is the whole work
    beside any task. The kernel holds the lock, so it ends with its holder, SIGKILL and power loss included.
    A file system without locks is only warned of: files are whole all the same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The file is never removed: who had opened it before would then lock one that nobody else can find.
    with (folder / LOCK_FILE).open("a") as file:
        try:
            # A task locks the byte of its number; a length of 0 is all bytes from there on.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 0 if task.is_whole else 1, task.index)
        except (BlockingIOError, PermissionError):  # POSIX allows either
            raise InputError(
                f"{folder} is in use by another program; wait for it, or choose another {flag}"
            ) from None
        except OSError as error:  # as of Lustre, if it is mounted without locks
            logger.warning("%s cannot be locked (%s): start no second program on it", folder, error)
        yield


def sha256_of_files(*paths: Path) -> str:
    """SHA-256, in hex, over the contents of `paths` in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            # A function that returns the digest begun: the files are hashed as one.
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def describe_files(folder: Path, paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of files, by their names in `folder`: the `files` of a record."""
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_of_files(path)}
        for path in paths
    }


def read_record(path: Path) -> dict[str, Any] | None:
    """A record, which has `files`; None if there is none, an InputError if it is damaged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {**record, "files": dict(record["files"])}
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is damaged; remove it, and run again what wrote {path.parent}") from error


def damage(path: Path, expected: Mapping[str, Any], *, verify: bool = True) -> str | None:
    """Fault of a file, by its record; None if it has none.

    With `verify` by its SHA-256 too. A file that did not change since this process read it is not read again.
    """
    if not path.is_file():
        return f"{path} is missing"
    # What another program wrote has no record: that it is there must do.
    if (size := path.stat().st_size) != expected.get("bytes", size):
        return f"{path} has {size} bytes, not {expected['bytes']}"
    if verify and _sha256(path, path.stat().st_ino, size, path.stat().st_mtime_ns) != expected["sha256"]:
        return f"{path} has not the SHA-256 of its manifest: it is damaged, or another file"
    return None


@lru_cache(maxsize=100_000)
def _sha256(path: Path, *state: int) -> str:
    # `state`, inode, size and time of change, is only the cache's: a file that was replaced is read again.
    return sha256_of_files(path)


def refuse_damage(
    path: Path, record: Mapping[str, Any], files: Mapping[str, Any], *, verify: bool = False
) -> None:
    """Refuse a folder whose `files` are not what its record, `path`, says: InputError names the first."""
    for name, expected in files.items():
        if fault := damage(path.parent / name, expected, verify=verify):
            raise InputError(
                f"{fault}; remove {path}, and run sparsity {record['stage']} again as it was run for this"
                " folder"
            )


def differences(earlier: Mapping[str, Any], now: Mapping[str, Any], above: str = "") -> list[str]:
    """One phrase for every leaf in which two nested mappings differ; a null setting is an absent one."""
    changes = []
    for key in sorted(earlier.keys() | now.keys()):
        # A setting that is newer than a record, and off, must not make it another one.
        old = earlier.get(key)
        new = now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changes += differences(old, new, f"{above}{key}.")
        elif old != new:
            changes.append(f"{above}{key} was {old!r}, now {new!r}")
    return changes


def refuse_changes(what: str, earlier: Mapping[str, Any], now: Mapping[str, Any], flag: str) -> None:
    """Refuse to go on in a folder that holds what was made with other settings or inputs; names them."""
    if changes := differences(earlier, now):
        raise InputError(
            f"{what} made with other settings: {'; '.join(changes)}; choose another {flag}, or repeat the"
            " earlier settings (inputs by SHA-256)"
        )
