"""What a word of a command line stands for on disk, as one fingerprint of its content.

A file is hashed once: its SHA-256 is kept with its size and its times of change, and counts as long as they
are the same. Data folders are known by the hashes that their manifest holds. So asking again is quick,
however large the files are.
"""

import json
from collections.abc import Iterable
from glob import glob, has_magic
from hashlib import sha256
from pathlib import Path
from typing import Any

from pipeline.results.files import write_json
from pipeline.results.provenance import sha256_of_files


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
