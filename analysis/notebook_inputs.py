"""What decides what a notebook or a program shows: its text, code, what it reads, parameters, versions."""

import hashlib
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

from pipeline.studies.code_version import HOUSES, files_of, imported_names

ROOT = Path(__file__).resolve().parents[1]
_READS_TEXT = ROOT / "pipeline" / "text"


def fingerprint(results: Path, source: Path, parameters: Mapping[str, Any], figures: Path) -> str:
    """SHA-256 of all that decides what a notebook or a program shows.

    Code, settings, marks and manifests enter by their content; Parquet and token files by name, size and
    time, as reading gigabytes to learn that nothing is to be done would defeat the purpose.

    Args:
        results: the results folder.
        source: its file, a notebook or a module.
        parameters: those that it gets.
        figures: where what it makes goes, which is no input even if it lies in a folder that is.
    """
    code, libraries = code_used_by(source)
    folders = [results, *map(Path, parameters.get("also_results", ()))]
    folders += [Path(parameters["needles"])] if "needles" in parameters else []
    if any(_READS_TEXT in path.parents for path in code):
        folders.append(Path(parameters.get("data") or results.parent / "data"))
    digest = hashlib.sha256(repr(sorted(parameters.items())).encode())
    for part in (*_code_states(source, code), *_versions(libraries), *_folder_states(folders, figures)):
        digest.update(part + b"\0")
    return digest.hexdigest()


def code_used_by(source: Path) -> tuple[list[Path], list[str]]:
    """The files of this repository that a file imports, directly or through others; all libraries."""
    names = {name for text in _texts_of_code(source) for name in imported_names(text)}
    files: set[Path] = set()
    libraries: set[str] = set()
    while names:
        name = names.pop()
        house = name.partition(".")[0]
        if house not in HOUSES:
            libraries.add(house)
            continue
        for file in files_of(name) - files:
            files.add(file)
            names |= imported_names(file.read_text(encoding="utf-8"))
    return sorted(files), sorted(libraries - sys.stdlib_module_names)


def _texts_of_code(source: Path) -> list[str]:
    """The code cells of a notebook; a module's whole text."""
    if source.suffix != ".ipynb":
        return [source.read_text(encoding="utf-8")]
    import nbformat  # late, as a program needs none of it

    cells = nbformat.read(source, as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "code"]


def _code_states(source: Path, code: list[Path]) -> Iterator[bytes]:
    yield source.read_bytes()
    for path in code:
        yield f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes()


def _versions(libraries: list[str]) -> Iterator[bytes]:
    yield f"python {sys.version}".encode()
    for library in libraries:
        for distribution in sorted(_distributions().get(library, ())):  # none where it is not installed
            yield f"{distribution} {_version(distribution)}".encode()


@cache
def _version(distribution: str) -> str:
    return version(distribution)


@cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


def _folder_states(folders: list[Path], figures: Path) -> Iterator[bytes]:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            is_temporary = path.name.startswith((".", "lock"))
            if is_temporary or not path.is_file() or figures.resolve() in path.resolve().parents:
                continue
            name = f"{path.relative_to(folder)}".encode()
            if path.suffix in (".parquet", ".npy"):
                stat = path.stat()
                yield name + f" {stat.st_size} {stat.st_mtime_ns}".encode()
            else:
                yield name + b"\n" + path.read_bytes()
