"""Whether a manifest is one, and whether the files of a folder are those that it names."""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.results.provenance import sha256_of_files
from pipeline.results.schemas import SCHEMA_VERSION

TOKEN_DTYPES = ("uint16", "uint32")


def fault_of_manifest(manifest: Mapping[str, Any]) -> str | None:
    """What is wrong with a manifest, None where it says all that readers need."""
    version = manifest.get("schema_version", 1)
    if not _is_whole(version, 1):
        return f"schema_version is {version!r}, not a whole number of at least 1"
    if version > SCHEMA_VERSION:
        return f"schema_version is {version}, and this program reads up to {SCHEMA_VERSION}"
    if manifest.get("token_dtype") not in TOKEN_DTYPES:
        return f"token_dtype is {manifest.get('token_dtype')!r}, neither of {' and '.join(TOKEN_DTYPES)}"
    if not _is_whole(manifest.get("vocabulary_size"), 1):
        return f"vocabulary_size is {manifest.get('vocabulary_size')!r}, not a whole number of at least 1"
    eos_token_id = manifest.get("eos_token_id")
    if not _is_whole(eos_token_id, 0) or eos_token_id >= manifest["vocabulary_size"]:
        return f"eos_token_id is {eos_token_id!r}, not a token of {manifest['vocabulary_size']}"
    for name in ("settings", "inputs"):
        if not isinstance(manifest.get(name, {}), Mapping):
            return f"{name} is {manifest[name]!r}, not names and values"
    return _fault_of_counts(manifest.get("counts")) or _fault_of_files(manifest)


def _fault_of_counts(counts: object) -> str | None:
    if not isinstance(counts, Mapping):
        return f"counts is {counts!r}, not names and numbers"
    for name in ("train_tokens", *counts):
        if not _is_whole(counts.get(name), 0):
            return f"counts: {name} is {counts.get(name)!r}, not a whole number"
    return None


def _fault_of_files(manifest: Mapping[str, Any]) -> str | None:
    files = manifest.get("files")
    if not isinstance(files, Mapping):
        return f"files is {files!r}, not names with size and SHA-256"
    for name, described in files.items():
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or name.startswith("/"):
            return f"files: {name!r} is no file of this folder"
        if not isinstance(described, Mapping) or not _is_whole(described.get("bytes"), 0):
            return f"files: {name} has no size in bytes"
        digest = described.get("sha256")
        if not isinstance(digest, str) or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            return f"files: {name} has no SHA-256"
    num_bytes = sum(described["bytes"] for name, described in files.items() if name.endswith(".npy"))
    expected = manifest["counts"]["train_tokens"] * np.dtype(manifest["token_dtype"]).itemsize
    if num_bytes != expected:
        return f"its training files are to have {num_bytes} bytes, and its train_tokens take {expected}"
    return None


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def damages(folder: Path, files: Mapping[str, Mapping[str, Any]], *, verify: bool) -> Iterator[str]:
    """One phrase for every file that is not what the manifest's `files` say.

    Args:
        folder: where they lie.
        files: name -> `bytes` and `sha256`.
        verify: read each whole file and compare its SHA-256 too.
    """
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            yield f"{path} is {'no file' if path.exists() else 'missing'}"
            continue
        num_bytes = path.stat().st_size
        if num_bytes != expected["bytes"]:
            state = "it is cut off" if num_bytes < expected["bytes"] else "it is another file"
            yield f"{path} has {num_bytes} bytes, not {expected['bytes']}: {state}"
        elif verify and sha256_of_files(path) != expected["sha256"]:
            yield f"{path} has not the SHA-256 of its manifest: it is damaged, or another file"


def refuse_damage(folder: Path, manifest: Mapping[str, Any], *, verify: bool = False) -> None:
    """Refuse a folder whose files are not those of its manifest.

    Raises:
        InputError: the first such file, and how many more there are.
    """
    found = list(damages(folder, manifest["files"], verify=verify))
    if found:
        more = f" (and {len(found) - 1} more files)" if len(found) > 1 else ""
        raise InputError(
            f"{found[0]}{more}; run pipeline/{manifest['stage']}.py again as it was run for {folder}, which"
            " writes it anew"
        )
