"""Files that are whole or absent, and what says that those of a results folder are whole.

A file is written to a temporary name, fsynced and renamed. A shard of results is whole once its completion
mark stands (results/write.py), an export once its manifest does; both hold the SHA-256 of their files.
Whoever writes a folder holds its lock, `lock.json`: a second program is refused.
"""

import errno
import json
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from glob import escape
from itertools import groupby
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout
from psutil import pid_exists

from pipeline.cli import InputError
from pipeline.results.versions import sha256_of_files

MANIFEST = "exported.json"
LOCK_FILE = "lock.json"
_TEMPORARY = ".part"
_DOOR = ".lock"  # held for a moment by whoever begins, or puts a shard in place
_PATIENCE_SECONDS = 600.0  # for the door
logger = logging.getLogger("pipeline.results")


@contextmanager
def whole_or_absent(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on leaving, fsync what was written there and rename it to `path`.

    A reader, and a run resumed after a kill, sees the old file or the new one, never a part. The temporary
    file is removed when writing fails (no space left, say), and by the next writer where this one is killed.
    A link is followed.
    """
    path = path.resolve() if path.is_symlink() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    host = socket.gethostname()
    for leftover in path.parent.glob(f".{escape(path.name)}.{escape(host)}.*{_TEMPORARY}"):
        if not pid_exists(int(leftover.name.split(".")[-3])):
            leftover.unlink(missing_ok=True)
    temporary = path.with_name(f".{path.name}.{host}.{os.getpid()}.{uuid4().hex[:8]}{_TEMPORARY}")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)  # the rename itself must survive a power loss


def sync(path: Path) -> None:
    """Hand a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Remove what killed writers of files called `name`, a pattern, left half-written in a folder.

    Only for whoever holds the folder's lock, or that of these files: another writer's are not leftovers.
    """
    for path in folder.glob(f".{name}{_TEMPORARY}"):
        if path.is_dir():
            shutil.rmtree(path)  # a checkpoint, say
        else:
            path.unlink(missing_ok=True)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` on a temporary path that becomes `path` once it is whole."""
    with whole_or_absent(path) as temporary:
        write(temporary)


def refuse_replacing(outputs: Iterable[Path], inputs: Iterable[Path | None]) -> None:
    """Refuse outputs that are inputs, or replace a file in an input folder that is no page or table."""
    given = [path.resolve() for path in inputs if path is not None]
    for output in outputs:
        whole = output.resolve()
        is_within = whole.is_file() and whole.suffix not in (".html", ".csv")
        if whole in given or (is_within and any(folder in given for folder in whole.parents)):
            raise InputError(f"{output} is an input, which the output would replace; choose another place")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` as indented JSON, atomically."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_parquet(
    path: Path, columns: Mapping[str, Sequence[Any]], schema: pa.Schema, page_checksums: bool = True
) -> None:
    """Write column -> values as zstd Parquet, atomically; types, order and metadata are those of `schema`."""
    table = pa.Table.from_pydict(dict(columns), schema=schema)
    with whole_or_absent(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=page_checksums)


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The named columns, or all, of one Parquet file; an InputError where it is damaged, or lacks one."""
    with _opened(path) as file:
        present = file.schema_arrow.names
        for name in columns or ():
            if name not in present:
                raise InputError(f"{path} lacks the column {name}: it is another file, or of another version")
        return file.read(columns or None).select(list(columns or present))


def read_metadata(path: Path) -> dict[str, str]:
    """The metadata of one Parquet file; an InputError where it is not Parquet, or not whole."""
    with _opened(path) as file:
        return {key.decode(): value.decode() for key, value in (file.schema_arrow.metadata or {}).items()}


def is_lfs_pointer(path: Path) -> bool:
    """Whether Git LFS has left its pointer in the place of a file that was not fetched."""
    pointer = b"version https://git-lfs.github.com/spec/"
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(pointer)) == pointer


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    if not path.is_file():
        raise InputError(f"{path} is no file")
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
    except (pa.ArrowException, OSError, ValueError) as error:
        if getattr(error, "errno", None) is not None:  # what the system refuses, no damage has caused
            raise
        if is_lfs_pointer(path):
            raise InputError(f"{path} is a Git LFS pointer; run `git lfs pull` in its repository") from error
        raise InputError(f"{path} is damaged: it is no whole Parquet file") from error


@contextmanager
def folder_lock(folder: Path, flag: str, part: str | None = None) -> Iterator[None]:
    """Held inside; a second program that asks for the same folder, which `flag` names, is refused.

    A lock of the kernel's on `<folder>/lock.json`, which says for the refusal who holds it, and since when.
    It ends with its holder, SIGKILL and power loss included: the file's presence or content decides nothing.
    A file system without such locks, as Lustre may be mounted, leaves the folder unguarded, and the log says
    it: files are whole or absent all the same. A folder that was made for the lock, and is empty, goes again.

    Tasks of one array job share a folder, each with a `part` such as "task-1-of-4": the same part is refused,
    parts of another division are, and so is the whole folder (None) beside any part.
    """
    own = LOCK_FILE if part is None else f"lock-{part}.json"
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with ExitStack() as held:
            with door(folder, flag):
                for path in sorted(folder.glob("lock*.json")):
                    # Task 1 of 3 overlaps task 0 of 2.
                    divisions = {re.sub(r"\d+(?=-of-)", "", name) for name in (path.name, own)}
                    if part is None or len(divisions) > 1:
                        with _held(path, flag):
                            pass  # its holder has died
                held.enter_context(_held(folder / own, flag))
                if part is None:  # and removes what killed writers left
                    remove_leftovers(folder)
            yield
    finally:
        with suppress(OSError):  # not empty: then it stays
            for path in made:
                path.rmdir()


def door(folder: Path, flag: str) -> AbstractContextManager[None]:
    """For a moment, keep waiting whoever shares the folder, or begins."""
    return _held(folder / _DOOR, flag, _PATIENCE_SECONDS)


@contextmanager
def _held(path: Path, flag: str, patience_seconds: float = 0) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=patience_seconds, poll_interval=0.02, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(
            f"{path.parent} is in use by {_holder(path)}; wait for it, or choose another {flag}"
        ) from None
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
            raise
        if path.name != _DOOR:
            logger.warning("%s cannot be locked (%s): start no second program on it", path, error)
    try:
        job = f", Slurm job {os.environ['SLURM_JOB_ID']}" if "SLURM_JOB_ID" in os.environ else ""
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        holder = f"process {os.getpid()} on {socket.gethostname()}{job}, since {since}"
        with suppress(OSError):  # on a full disk, say: it is for refusals only
            path.write_text(json.dumps({"holder": holder}))
        yield
    finally:
        with suppress(OSError):  # while it is held: whoever waits for it sees that it is gone
            path.unlink()
        lock.release()


def _holder(path: Path) -> str:
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["holder"])
    except (OSError, ValueError, TypeError, KeyError):  # it is gone, empty or garbage
        return "another program"


@dataclass(frozen=True)
class Mark:
    """A completion mark: one shard of a stage's results is whole, in all its artefacts."""

    stage: str
    place: str
    """The model, or model/evaluator=<name> where another tried what it chose."""
    shard_index: int
    num_shards: int
    files: Mapping[str, Mapping[str, Any]]
    """Artefact -> what `file_record` says of its file."""
    num_tasks: int | None
    """Of the run that wrote it; None where it took whatever was missing."""
    words: Mapping[str, str]
    """Input that is a model -> what the command line called it; of an older version nothing."""

    @property
    def model(self) -> str:
        """Whose results these are; of what another tried, who chose it."""
        return self.place.partition("/")[0]

    def path(self, results: Path, artefact: str) -> Path:
        """The file of an artefact."""
        return shard_path(results, artefact, self.place, self.shard_index, self.num_shards)


def shard_path(results: Path, artefact: str, place: str, shard_index: int, num_shards: int) -> Path:
    """Where the rows of one shard are."""
    return results / artefact / f"model={place}" / f"{shard_index:05d}-of-{num_shards:05d}.parquet"


def file_record(path: Path, num_rows: int) -> dict[str, Any]:
    """What a mark or a manifest says of a file."""
    return {"rows": num_rows, "bytes": path.stat().st_size, "sha256": sha256_of_files(path)}


def _records(files: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Name -> record of a mark or manifest; a KeyError or the like where it is damaged."""
    return {name: {"sha256": record["sha256"], **record} for name, record in files.items()}


def read_marks(results: Path, stage: str = "*", place: str | None = None) -> list[Mark]:
    """The completion marks of a results folder, in order, without those that are damaged."""
    marks = [_read_mark(path, _state(path)) for path in _mark_paths(results, stage, place)]
    return [mark for mark in marks if mark is not None]


def _mark_paths(results: Path, stage: str = "*", place: str | None = None) -> list[Path]:
    """Those of models, then those of evaluators."""
    folders = ("model=*", "model=*/evaluator=*") if place is None else (f"model={escape(place)}",)
    patterns = [f"{stage}/{folder}/*.done" for folder in folders]
    return [path for pattern in patterns for path in sorted((results / "_stages").glob(pattern))]


def refuse_damaged_marks(results: Path) -> None:
    """InputError for a completion mark that cannot be read: its shard would be left out as unmeasured."""
    for path in _mark_paths(results):
        if _read_mark(path, _state(path)) is None:
            stage = path.relative_to(results / "_stages").parts[0]
            raise InputError(f"{path} is damaged; run {stage} again, which measures anew")


def _state(path: Path) -> tuple[int, ...]:
    """What changes when a file does."""
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=100_000)
def _read_mark(path: Path, state: tuple[int, ...]) -> Mark | None:
    shard = re.fullmatch(r"(\d{5,})-of-(\d{5,})", path.stem)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        files = {
            artefact: {"sha256": record["sha256"], **record} for artefact, record in content["files"].items()
        }
        num_tasks = content.get("num_tasks")
        words = content.get("words") or {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    if shard is None or not int(shard[1]) < int(shard[2]):
        return None
    folders = path.parts[path.parts.index("_stages") + 1 : -1]
    place = "/".join(folders[1:]).removeprefix("model=")
    return Mark(folders[0], place, int(shard[1]), int(shard[2]), files, num_tasks, words)


def damage(path: Path, expected: Mapping[str, Any], *, verify: bool = True) -> str | None:
    """What is wrong with a file, as the record in its mark or manifest says; None where nothing is.

    With `verify` by its SHA-256 too. A file that did not change since this process read it is not read again.
    """
    if not path.is_file():
        return f"{path} is missing"
    if (size := path.stat().st_size) != expected.get("bytes", size):
        return f"{path} has {size} bytes, not {expected['bytes']}"
    if verify and _sha256(path, _state(path)) != expected["sha256"]:
        return f"{path} has not the SHA-256 of its manifest: it is damaged, or another file"
    return None


def damages(folder: Path, files: Mapping[str, Mapping[str, Any]], *, verify: bool = True) -> Iterator[str]:
    """One phrase for every file of a folder, by name, that is not what its record says."""
    return filter(None, (damage(folder / name, expected, verify=verify) for name, expected in files.items()))


@lru_cache(maxsize=100_000)
def _sha256(path: Path, state: tuple[int, ...]) -> str:
    return sha256_of_files(path)


def read_manifest(results: Path) -> dict[str, dict[str, Any]]:
    """File -> record in an exported folder, none where it is no export; an InputError of a damaged one."""
    path = results / MANIFEST
    if not path.exists():
        return {}
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        return _records(files)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is damaged; copy the exported folder again") from error


def made_by_of(metadata: Mapping[str, str]) -> dict[str, Any]:
    """What a shard's metadata says made it: "schema_version", "stage", "settings", "inputs" (SHA-256)."""
    content = {name: json.loads(metadata[name]) for name in ("schema_version", "settings", "inputs")}
    return {**content, "stage": metadata["stage"]}


def as_ranges(indices: Iterable[int]) -> str:
    """[9, 3, 7, 8] as "3,7-9", which sbatch --array takes as it stands."""
    runs = []
    for _, run in groupby(enumerate(sorted(indices)), lambda pair: pair[1] - pair[0]):
        members = [index for _, index in run]
        runs.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(runs)
