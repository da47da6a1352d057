"""What says that files of a results folder are whole: a stage's completion marks, or an export's manifest.

<results>/_stages/<stage>/model=<model>/00003-of-00008.done    name, rows, bytes and SHA-256 of its files
<results>/exported.json                                        the same of all files of an export

Marks that an older version wrote tell rows only; so much is checked of their files.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.errors import InputError
from pipeline.results.files import write_json
from pipeline.results.parquet import read_footer
from pipeline.results.provenance import sha256_of_files

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
