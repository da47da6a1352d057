"""The manifest of tokenized data: what made it, what belongs to it, and that it is complete."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import InputError

TRAIN_FOLDER = "train"
EVALUATION_FILE = "evaluation_documents/00000-of-00001.parquet"
TOKENIZER_FILE = "tokenizer.json"
MANIFEST_FILE = "manifest.json"


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a complete folder; None where there is none.

    Raises:
        InputError: a manifest.json of some other program.
    """
    path = folder / MANIFEST_FILE
    if not path.exists():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("stage") != "tokenize_c4":
        raise InputError(f"{path} is not a manifest that tokenize_c4 wrote")
    return manifest


def check_sizes(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a folder whose files are not those that its manifest counts.

    Raises:
        InputError: a file is missing, or has another size.
    """
    for name, expected in manifest["files"].items():
        path = folder / name
        found = path.stat().st_size if path.exists() else None
        if found != expected["bytes"]:
            state = "is missing" if found is None else f"has {found} bytes, not {expected['bytes']}"
            raise InputError(f"{path} {state}; delete {folder} and run pipeline/tokenize_c4.py again")


def changed_settings(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One phrase for every difference between two manifests in `settings` and `inputs`."""
    before, after = earlier["settings"], now["settings"]
    changes = [
        f"{name} was {before.get(name)!r}, now {after.get(name)!r}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
    for role, inputs in now["inputs"].items():
        changes += _changed_inputs(role, earlier["inputs"].get(role, []), inputs)
    return changes


def _changed_inputs(
    role: str, before: Sequence[Mapping[str, str | None]], after: Sequence[Mapping[str, str | None]]
) -> list[str]:
    """The phrase, if any, for another list of inputs; contents count, not where the files lie."""
    # The hub's C4 has no SHA-256: its name stands for it.
    known = [entry["sha256"] or entry["file"] for entry in before]
    if known == [entry["sha256"] or entry["file"] for entry in after]:
        return []
    new = [str(entry["file"]) for entry in after if (entry["sha256"] or entry["file"]) not in known]
    if not new:
        return [f"{role} has fewer files, or another order of them"]
    more = f" and {len(new) - 1} more" if len(new) > 1 else ""
    return [f"{role} {new[0]}{more} is new or has changed"]
