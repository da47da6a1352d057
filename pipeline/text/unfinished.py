"""What an interrupted run of tokenize_c4 has written, from which the same command goes on.

Going on, the text is read from its start once more, for what trains depends on all that came before; but only
documents that evaluate, and those behind the last whole training file, are encoded.
"""

import json
import logging
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import InputError
from pipeline.results.files import remove_leftovers, write_json
from pipeline.results.provenance import describe_files
from pipeline.text.manifest import (
    EVALUATION_FILE,
    MANIFEST_FILE,
    TOKEN_COUNTS_FILE,
    TOKENIZER_FILE,
    TRAIN_FOLDER,
    c4_revision_of,
    changed_settings,
)
from pipeline.text.manifest_checks import damages

UNFINISHED_FILE = "unfinished.json"
logger = logging.getLogger("pipeline")


@dataclass
class Unfinished:
    """How far a run has come: what stands behind the last whole training file."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The tokenizer and the whole training files, in order: size and SHA-256."""
    num_records: int = 0
    """So many of the source's first records are in these files, evaluate, or are left out."""
    num_train_documents: int = 0
    """In these files."""
    num_empty: int = 0
    """Further documents that would train but have no tokens."""

    @property
    def part_names(self) -> list[str]:
        """The whole training files."""
        return [name for name in self.files if name != TOKENIZER_FILE]

    @property
    def num_taken(self) -> int:
        """Documents of the training part up to here."""
        return self.num_train_documents + self.num_empty

    def describe(self, folder: Path, *names: str) -> None:
        """Take in files that have become whole."""
        new = [folder / name for name in names if name not in self.files]
        self.files |= describe_files(folder, new)

    def write(self, folder: Path, configuration: Mapping[str, Any]) -> None:
        """Leave it for the next run."""
        made_by = {**configuration, "c4_revision": c4_revision_of(configuration)}
        write_json(folder / UNFINISHED_FILE, made_by | {"written": asdict(self)})


def _read_unfinished(folder: Path, configuration: Mapping[str, Any]) -> Unfinished | None:
    """How far the run of this configuration has come in `folder`; None where it must start at the beginning.

    Raises:
        InputError: the folder holds the unfinished data of another configuration.
    """
    earlier = read_made_by(folder)
    if earlier is None:
        return None
    changes = changed_settings(earlier, configuration)
    if earlier.get("c4_revision") != c4_revision_of(configuration):
        changes.append("C4 has another revision on the hub")
    if changes:
        raise InputError(
            f"{folder} holds unfinished data made otherwise: {'; '.join(changes)}; repeat the earlier command"
            f" to finish it, choose another --out folder, or remove {folder} to start over"
        )
    unfinished = Unfinished(**earlier["written"])
    lost = next(damages(folder, unfinished.files, verify=True), None)
    if lost is not None:
        logger.warning("%s; starting at the beginning", lost)
        return None
    return unfinished


def begin_or_go_on(folder: Path, configuration: Mapping[str, Any]) -> Unfinished:
    """What is there of this configuration, alone in `folder`: all that is not part of it is removed.

    Raises:
        InputError: the folder holds unfinished data of another configuration, or a tokenizer that no run of
            tokenize_c4 left there, as a model of Hugging Face has one.
    """
    unfinished = _read_unfinished(folder, configuration)
    is_ours = any((folder / name).exists() for name in (UNFINISHED_FILE, MANIFEST_FILE, EVALUATION_FILE))
    if not is_ours and (folder / TOKENIZER_FILE).exists():
        raise InputError(
            f"{folder} holds a {TOKENIZER_FILE} that is not of tokenized data, as a model's folder does;"
            " choose another --out folder"
        )
    if unfinished is None:
        remove_outputs(folder)
        unfinished = Unfinished()
        unfinished.write(folder, configuration)
    (folder / MANIFEST_FILE).unlink(missing_ok=True)  # of data that was damaged since
    _remove_except(folder, {UNFINISHED_FILE, *unfinished.files})
    return unfinished


def remove_outputs(folder: Path) -> None:
    """Remove all that a run writes, what a killed one left under temporary names too."""
    (folder / MANIFEST_FILE).unlink(missing_ok=True)  # first: what it names is not whole from now on
    _remove_except(folder, set())


def _remove_except(folder: Path, names: Set[str]) -> None:
    patterns = (
        f"{TRAIN_FOLDER}/part-?????.npy", EVALUATION_FILE, TOKENIZER_FILE, TOKEN_COUNTS_FILE, UNFINISHED_FILE,
    )  # fmt: skip
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        if path.relative_to(folder).as_posix() not in names:
            path.unlink()
    for below in (folder, (folder / EVALUATION_FILE).parent, folder / TRAIN_FOLDER):
        remove_leftovers(below)


def read_made_by(folder: Path) -> dict[str, Any] | None:
    """What unfinished data is made by and how far it is; None where there is none that can be read."""
    path = folder / UNFINISHED_FILE
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        Unfinished(**content["written"])
        return content if content["settings"] and content["inputs"] else None
    except (ValueError, TypeError, KeyError):
        logger.warning("%s cannot be read; starting at the beginning", path)
        return None
