"""What made a stage's results of one model: its settings.json, checked by the marks beside it."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import InputError
from pipeline.results.marks import FileRecord, damage, read_manifest, read_marks
from pipeline.results.parquet import read_footer

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
