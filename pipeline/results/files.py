"""Files that are whole or absent: written to a temporary name, fsynced, renamed.

Tables as Parquet files, each whole or absent, with a checksum a page.

One writer a folder: a lock of the kernel's, so that it ends with whoever holds it, however that ends.

What says that files of a results folder are whole: a stage's completion marks, or an export's manifest.

<results>/_stages/<stage>/model=<model>/00003-of-00008.done    name, rows, bytes and SHA-256 of its files
<results>/exported.json                                        the same of all files of an export

Marks that an older version wrote tell rows only; so much is checked of their files.

What made a stage's results of one model: its settings.json, checked by the marks beside it.

Whether this process may read results that are not complete, and what it then has to say of them.

One switch a process, --allow-partial of the programs that join results: what is read lies many calls below.

Which of many numbered things are missing, in few words.
"""

import argparse
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.cli import InputError
from pipeline.results.versions import sha256_of_files

_TEMPORARY = ".part"


@contextmanager
def whole_or_absent(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on leaving, fsync what was written there and rename it to `path`.

    A reader, and a run resumed after a kill, sees the old file or the new one, never a part. The
    temporary file is removed when writing fails (no space left, say); its name is no other writer's.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:12]}{_TEMPORARY}")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):  # on a read-only file system: what raised is to be told, not this
            temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:  # the rename itself must survive a power loss
        os.fsync(folder)
    finally:
        os.close(folder)


def refuse_folder(path: Path) -> None:
    """Refuse to write a file where a folder is, which `whole_or_absent` would notice only in the end.

    Raises:
        IsADirectoryError: there is one.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


def remove_leftovers(folder: Path, *patterns: str) -> None:
    """Remove what killed writers left in a folder, not below it: half-written files, or those of `patterns`.

    Only for whoever holds the folder's lock, or that of the files named: another writer's are not leftovers.
    """
    for pattern in patterns or (f".*{_TEMPORARY}",):
        for path in folder.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)  # a checkpoint, say
            else:
                path.unlink(missing_ok=True)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` on a temporary path that becomes `path` once it is whole."""
    with whole_or_absent(path) as temporary:
        write(temporary)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` as indented JSON, atomically."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


@dataclass(frozen=True)
class Footer:
    """What a Parquet file says of itself at its end; no row is read for it."""

    schema: pa.Schema
    num_rows: int

    @property
    def metadata(self) -> Mapping[bytes, bytes]:
        """What the writer left beside the schema."""
        return self.schema.metadata or {}


def write_parquet(path: Path, table: pa.Table, page_checksums: bool = True) -> None:
    """Write `table` as zstd Parquet, atomically."""
    write_atomically(
        path,
        lambda temporary: pq.write_table(
            table, temporary, compression="zstd", write_page_checksum=page_checksums
        ),
    )


def write_small_parquet(path: Path, table: pa.Table) -> None:
    """Write `table` as `write_parquet` does, in two thirds of the bytes or fewer: for version control.

    It is slower to write and as fast to read. Fields lose their metadata; that of the table is kept.
    """
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    others = [name for name in table.schema.names if name not in floats]

    def write(temporary: Path) -> None:
        with pq.ParquetWriter(
            temporary, table.schema, compression="zstd", compression_level=19, write_page_checksum=True,
            use_byte_stream_split=floats, use_dictionary=others, store_schema=False,
        ) as writer:  # fmt: skip
            writer.write_table(table)
            writer.add_key_value_metadata(table.schema.metadata or {})

    write_atomically(path, write)


def make_table(columns: Mapping[str, Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """The table of column -> values, typed and ordered by `schema`, whose metadata it carries."""
    return pa.Table.from_pydict(dict(columns), schema=schema)


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The named columns, or all, of one Parquet file, its pages checked where they have checksums.

    Raises:
        InputError: it is not Parquet, not all of it, damaged inside, or lacks a column.
    """
    present = read_footer(path).schema.names
    missing = [name for name in columns or () if name not in present]
    if missing:
        raise InputError(f"{path} lacks the column {missing[0]}: it is another file, or of another version")
    with _damage_in_words(path):
        return pq.read_table(path, columns=list(columns or present), page_checksum_verification=True)


@contextmanager
def _damage_in_words(path: Path) -> Iterator[None]:
    """Turn what Arrow raises where it cannot read `path` into a sentence.

    Raises:
        InputError: the file is damaged.
    """
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        # What the system refuses, memory or the file, no damage has caused.
        if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
            raise
        raise _damaged(path) from error


def read_footer(path: Path) -> Footer:
    """The footer of one Parquet file.

    Raises:
        InputError: it is not Parquet, or not all of it.
    """
    if not path.is_file():
        raise InputError(f"{path} is no file")
    try:
        with _damage_in_words(path), pq.ParquetFile(path) as file:
            return Footer(file.schema_arrow, file.metadata.num_rows)
    except MemoryError as error:  # a footer is small, unless a damaged one says otherwise
        raise _damaged(path) from error


def _damaged(path: Path) -> InputError:
    return InputError(f"{path} is damaged: it is no whole Parquet file")


LOCK_FILE = "lock.json"
_PATIENCE_SECONDS = 0.5  # a file is held for a moment by whoever takes it away, or has not said yet who it is
logger = logging.getLogger("pipeline.results")


class FolderLock:
    """Held while entered; a second program that enters it for the same folder is refused.

    flock(2) on `<folder>/lock.json`, which says for the refusal who holds it, and since when. The kernel
    takes the lock back when its holder dies, SIGKILL and power loss included: nothing is ever stale, and
    the file's presence or content decides nothing. On NFS the lock reaches over all hosts. A file system
    without flock, such as Lustre mounted so, leaves the folder unguarded, and the log says it: refusing to
    work there would help nobody, for files are whole or absent all the same.

    Several programs may share a folder where each writes a part that it names, as the tasks of one
    array job do: then one part is refused twice, and the whole folder beside any part.
    """

    def __init__(self, folder: Path, flag: str, part: str | None = None) -> None:
        """Name what is to be held.

        Args:
            folder: made where it is absent, and taken away again where nothing is written.
            flag: what the refused user may give otherwise, such as "--save-folder".
            part: of the folder, such as "task-1-of-4", beside which others of 4 may be held; None for all of
                the folder.
        """
        self._folder, self._flag, self._part = folder, flag, part
        self._held: list[tuple[Path, int]] = []  # path, file descriptor
        self._made: list[Path] = []

    def __enter__(self) -> Self:
        """Take the lock, and remove what killed writers left in the folder itself.

        Raises:
            InputError: another program holds it, or this one does already.
        """
        self._made = [path for path in (self._folder, *self._folder.parents) if not path.exists()]
        try:
            if self._part is None:
                self._hold(LOCK_FILE, fcntl.LOCK_EX)
            else:
                self._hold(LOCK_FILE, fcntl.LOCK_SH)
                self._hold(f"lock-{self._part}.json", fcntl.LOCK_EX)
                self._refuse_another_division()
        except BaseException:
            self._give_back()
            raise
        if self._part is None:
            remove_leftovers(self._folder, "lock-*.json", ".lock.json.*", "settings-*.json")
            remove_leftovers(self._folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_back()

    def _hold(self, name: str, operation: int) -> None:
        path = self._folder / name
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            except FileNotFoundError:
                continue  # its last holder removed the folder, for it had left nothing there
            try:
                fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                if time.monotonic() > deadline:
                    raise self._refusal(path) from None
                time.sleep(0.02)
                continue
            except OSError as error:
                logger.warning("%s cannot be locked (%s): start no second program on it", path, error)
            if _is_still(path, descriptor):
                break
            os.close(descriptor)  # its last holder removed it between the two lines
        self._held.append((path, descriptor))
        if operation == fcntl.LOCK_EX:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(_this_process()).encode(), 0)

    def _refuse_another_division(self) -> None:
        """Raise where somebody holds task 1 of 3 and this is task 0 of 2: those overlap."""
        own = _division(self._held[-1][0])
        for path in sorted(self._folder.glob("lock-*.json")):
            if _division(path) != own and _is_held(path):
                raise self._refusal(path)

    def _give_back(self) -> None:
        while self._held:
            path, descriptor = self._held.pop()
            with suppress(OSError):  # held by other parts too: the last of them removes it
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_still(path, descriptor):
                    path.unlink()
            with suppress(OSError):  # not by closing alone: a child may have the file open still
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)
        with suppress(OSError):  # not empty: then it stays
            for folder in self._made:
                folder.rmdir()

    def _refusal(self, path: Path) -> InputError:
        if path.name == LOCK_FILE and self._part is None:
            parts = [part for part in self._folder.glob("lock-*.json") if _is_held(part)]
            path = next(iter(sorted(parts)), path)
        who = _holder(path)
        holder = "another program"
        if who:
            job = f", Slurm job {who['slurm_job_id']}" if who.get("slurm_job_id") else ""
            since = f", since {who['since']}" if who.get("since") else ""
            holder = f"process {who.get('pid')} on {who.get('host')}{job}{since}"
        return InputError(
            f"{self._folder} is in use by {holder}; wait for it, or choose another {self._flag}"
        )


def _division(path: Path) -> str:
    return re.sub(r"\d+(?=-of-)", "", path.name)


def _this_process() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether `path` is the open file; a file that was removed is another one's no longer."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _holder(path: Path) -> dict[str, Any]:
    """What the file says of its holder; empty where it is gone, empty or garbage."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


MANIFEST = "exported.json"
_SHARD = re.compile(r"(\d{5,})-of-(\d{5,})")


@dataclass(frozen=True)
class FileRecord:
    """What a mark says of one file; None where it was written before marks said so."""

    num_rows: int | None
    num_bytes: int | None = None
    sha256: str | None = None

    @classmethod
    def of(cls, path: Path, num_rows: int | None = None) -> "FileRecord":
        """The record of a file as it lies there."""
        return cls(num_rows, path.stat().st_size, sha256_of_files(path))

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "FileRecord":
        """Of what `as_json` returned."""
        return cls(told.get("rows"), told.get("bytes"), told.get("sha256"))

    def as_json(self) -> dict[str, Any]:
        """Rows, bytes and SHA-256 as JSON values."""
        return {"rows": self.num_rows, "bytes": self.num_bytes, "sha256": self.sha256}


@dataclass(frozen=True)
class Mark:
    """A completion mark: one shard of a stage's results is whole, in all its artefacts."""

    stage: str
    shard_index: int
    num_shards: int
    files: Mapping[str, FileRecord]
    """Artefact -> its file of this shard."""
    settings_sha256: str | None = None

    def write(self, path: Path) -> None:
        """Write it, last of all files of the shard."""
        files = {artefact: {"name": f"{path.stem}.parquet", **record.as_json()}
                 for artefact, record in self.files.items()}  # fmt: skip
        write_json(path, signed({"files": files, "settings_sha256": self.settings_sha256}))


def signed(told: Mapping[str, Any]) -> dict[str, Any]:
    """`told` with the SHA-256 of itself: a mark that is damaged must say nothing, not something else."""
    return {**told, "sha256": _sha256(told)}


def _sha256(told: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _unsigned(told: dict[str, Any]) -> dict[str, Any]:
    """What was signed.

    Raises:
        ValueError: it is not what was signed.
    """
    sha256 = told.pop("sha256", None)
    if sha256 != _sha256(told):
        raise ValueError("damaged")
    return told


def shard_name(shard_index: int, num_shards: int) -> str:
    """What the files and the mark of a shard are called, without suffix."""
    return f"{shard_index:05d}-of-{num_shards:05d}"


def shard_of_name(stem: str) -> tuple[int, int] | None:
    """Index and number of shards that `shard_name` made a name of; None of another name."""
    match = _SHARD.fullmatch(stem)
    if match is None or not int(match[1]) < int(match[2]):
        return None
    return int(match[1]), int(match[2])


def read_marks(folder: Path) -> list[Mark]:
    """The completion marks of one stage and model; one that is damaged says nothing, so it is left out.

    Args:
        folder: <results>/_stages/<stage>/model=<model>.
    """
    marks = []
    for path in sorted(folder.glob("*.done")):
        stat = path.stat()
        marks.append(_read_mark(path, (stat.st_ino, stat.st_size, stat.st_mtime_ns)))
    return [mark for mark in marks if mark is not None]


@lru_cache(maxsize=100_000)
def _read_mark(path: Path, state: tuple[int, ...]) -> Mark | None:
    shard = shard_of_name(path.stem)
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if "rows" not in told:
            told = _unsigned(told)
            files = {artefact: FileRecord.from_json(of_file) for artefact, of_file in told["files"].items()}
        else:
            files = {artefact: FileRecord(int(num_rows)) for artefact, num_rows in told["rows"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    if shard is None:
        return None
    return Mark(path.parent.parent.name, *shard, files, told.get("settings_sha256"))


def damage(path: Path, record: FileRecord) -> str | None:
    """What is wrong with a file, as its mark tells it: missing, or damaged; None where nothing is.

    A file that did not change since it was found whole by this process is not read again.
    """
    if not path.exists():
        return f"{path} is missing, though marked as complete"
    if not path.is_file():
        return f"{path} is no file"
    stat = path.stat()
    if record.num_bytes is not None and stat.st_size != record.num_bytes:
        return f"{path} is damaged: it has {stat.st_size:,} bytes, its mark says {record.num_bytes:,}"
    return _damage_inside(path, record, (stat.st_ino, stat.st_size, stat.st_mtime_ns))


@lru_cache(maxsize=100_000)
def _damage_inside(path: Path, record: FileRecord, state: tuple[int, ...]) -> str | None:
    if record.sha256 is not None:
        if sha256_of_files(path) != record.sha256:
            return f"{path} is damaged, or not the file that was marked: its SHA-256 differs"
        return None
    try:
        num_rows = read_footer(path).num_rows
    except InputError as error:
        return str(error)
    if record.num_rows is not None and num_rows != record.num_rows:
        return f"{path} is damaged: it has {num_rows:,} rows, its mark says {record.num_rows:,}"
    return None


def exported_name(artefact: str) -> str:
    """What an export calls the one file that holds all models' rows of an artefact."""
    return f"{artefact}.parquet"


def read_manifest(results: Path) -> dict[str, FileRecord]:
    """Path below `results` -> record of each file of an exported folder; empty where there is no manifest.

    Raises:
        InputError: the manifest is damaged.
    """
    path = results / MANIFEST
    if not path.exists():
        return {}
    try:
        told = _unsigned(json.loads(path.read_text(encoding="utf-8")))
        return {name: FileRecord.from_json(record) for name, record in told["files"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is damaged; copy the exported folder again") from error


SETTINGS_FILE = "settings.json"


def read_settings_file(folder: Path) -> dict[str, Any]:
    """What made the results of one stage and model: "settings", "inputs", "schema_version", "stage".

    Args:
        folder: <results>/_stages/<stage>/model=<model>.

    Raises:
        InputError: the file is missing or damaged.
    """
    path, stage = folder / SETTINGS_FILE, folder.parent.name
    mend = f"run python pipeline/{stage}.py again with the flags it was run with, which mends it"
    if not path.exists():
        raise InputError(f"{path} is missing; {mend}")
    try:
        made_by = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is damaged: it is no JSON; {mend}") from error
    parts = [made_by.get(name) for name in ("settings", "inputs")] if isinstance(made_by, dict) else [None]
    if not all(isinstance(part, dict) for part in parts):
        raise InputError(f"{path} is damaged: it does not tell settings and inputs; {mend}")
    marked = {mark.settings_sha256 for mark in read_marks(folder)} - {None}
    if marked and sha256_of_settings(made_by) not in marked:
        raise InputError(f"{path} is damaged: it is not what the shards were marked with; {mend}")
    if wrong := _damage_by_manifest(path):
        raise InputError(f"{wrong}; copy the folder again")
    return made_by


def _damage_by_manifest(path: Path) -> str | None:
    results = path.parents[3]
    record: FileRecord | None = read_manifest(results).get(path.relative_to(results).as_posix())
    return None if record is None else damage(path, record)


def sha256_of_settings(made_by: Mapping[str, Any]) -> str:
    """SHA-256 of the content of a settings file, however ordered; a null setting is an absent one."""
    return hashlib.sha256(json.dumps(_without_nulls(made_by), sort_keys=True).encode()).hexdigest()


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(entry) for key, entry in value.items() if entry is not None}
    return value


def made_by_of(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    """What the metadata of a shard says made it, as its settings file would.

    Raises:
        InputError: it does not say.
    """
    try:
        told = {name: metadata[name.encode()].decode() for name in ("stage", "settings", "inputs")}
        settings, inputs = json.loads(told["settings"]), json.loads(told["inputs"])
        version = json.loads(metadata[b"schema_version"])
    except (KeyError, ValueError) as error:
        raise InputError("a shard does not say what made it") from error
    return {"schema_version": version, "stage": told["stage"], "settings": settings, "inputs": inputs}


def why_foreign(path: Path, made_by: Mapping[str, Any]) -> str | None:
    """How a shard says that it was made otherwise than `made_by`; None where it does not, or says nothing."""
    try:
        return "; ".join(differences(made_by_of(read_footer(path).metadata), made_by)) or None
    except InputError:
        return None


def differences(earlier: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """One phrase for every leaf in which two nested mappings differ."""
    changes = []
    for key in sorted(earlier.keys() | now.keys()):
        old, new = earlier.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changes += differences(old, new, f"{key} " if prefix == "" and key == "inputs" else prefix)
        elif old != new:
            name = f"{prefix}{key}"
            changes.append(f"{name} differs" if prefix else f"{name} was {old!r}, now {new!r}")
    return changes


_allowed = False
_notes: dict[str, None] = {}
ADVICE = "or say --allow-partial"


def allow_partial(is_allowed: bool = True) -> None:
    """Read, from now on, the complete shards of results that are not complete; forget what was read."""
    global _allowed
    _allowed = is_allowed
    _notes.clear()


def add_partial_flag(parser: argparse.ArgumentParser) -> None:
    """The flag of every program that reads results: --allow-partial."""
    parser.add_argument(
        "--allow-partial",
        action="store_true",
        help="read what is complete of results that are not, and say so with all that is made of it",
    )


def is_allowed() -> bool:
    """Whether results that are not complete are read."""
    return _allowed


def add_note(note: str) -> None:
    """Remember what was read in part, such as "3 of 4 shards of loss_differences of model 'a'"."""
    _notes[note] = None


def partial_note() -> str:
    """What stands with every table and figure: "partial: 3 of 4 shards …"; "" where all that was read is."""
    return f"partial: {'; '.join(_notes)}" if _notes else ""


def as_ranges(indices: Iterable[int]) -> str:
    """[9, 3, 7, 8] as "3,7-9", which sbatch --array takes as it stands."""
    runs = []
    for _, run in groupby(enumerate(sorted(indices)), lambda pair: pair[1] - pair[0]):
        members = [index for _, index in run]
        runs.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(runs)
