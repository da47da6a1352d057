"""The files of a checkpoint: a completion mark that names them, what is damaged, and reading tensors only.

<checkpoint>/complete.json    {"files": {"model.pt": {"bytes": 1234, "sha256": "…"}, …}}, written last
"""

import json
import logging
import pickle
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline.cli import InputError, is_out_of_memory
from pipeline.results.files import write_json
from pipeline.results.versions import describe_files, sha256_of_files

MARK_FILE = "complete.json"
MODEL_FILES = ("config.yaml", "model.pt")
"""What a model is loaded from."""
RUN_FILES = (*MODEL_FILES, "optim.pt", "train.pt")
"""What a run goes on from."""
_FOLDER_NAME = re.compile(r"step(\d+)-unsharded")
_HINT = "put back the file that was saved, or take another checkpoint"

logger = logging.getLogger("pipeline")


def step_folders(run_folder: Path) -> dict[int, Path]:
    """Step -> `step<N>-unsharded` of a run folder, ascending, whatever is in them."""
    folders = run_folder.iterdir() if run_folder.is_dir() else ()
    found = [
        (int(match[1]), folder)
        for folder in folders
        if (match := _FOLDER_NAME.fullmatch(folder.name)) and folder.is_dir()
    ]
    return dict(sorted(found))


def write_mark(folder: Path) -> None:
    """Mark a checkpoint whose files are all written as complete."""
    write_json(folder / MARK_FILE, {"files": describe_files(folder, sorted(folder.iterdir()))})


def damage_of(folder: Path, names: Sequence[str], *, reads_all: bool) -> str | None:
    """What is wrong with the named files of a checkpoint, as a phrase; None where nothing shows.

    Args:
        folder: the checkpoint's.
        names: files it must have.
        reads_all: compare SHA-256 with the mark, not sizes alone. A checkpoint of another program, or of an
            earlier version of this one, has no mark; then its files must be there, and not empty.
    """
    for name in names:
        if not (folder / name).is_file():
            return f"it has no {name}"
        if (folder / name).stat().st_size == 0:
            return f"{name} is empty"
    if not (folder / MARK_FILE).exists():
        return None
    marked = _read_mark(folder / MARK_FILE)
    if marked is None or not set(names) <= marked.keys():
        return f"{MARK_FILE} is not the mark of a complete checkpoint"
    for name in names:
        path, (num_bytes, sha256) = folder / name, marked[name]
        if path.stat().st_size != num_bytes:
            return f"{name} has {path.stat().st_size} bytes, not the {num_bytes} that were saved"
        if reads_all and sha256_of_files(path) != sha256:
            return f"{name} is not what was saved: its SHA-256 differs"
    return None


def refuse_damaged(folder: Path, names: Sequence[str]) -> None:
    """Refuse a checkpoint of which something is damaged, by size and content.

    Raises:
        InputError: names the file.
    """
    damage = damage_of(folder, names, reads_all=True)
    if damage is not None:
        raise InputError(f"the checkpoint {folder} is damaged: {damage}; {_HINT}")


def newest_whole(run_folder: Path) -> tuple[int, Path] | None:
    """Step and folder of the newest checkpoint that a run can go on from, saying which were passed over.

    None where the run has no checkpoint. Every file is read and compared with its mark.

    Raises:
        InputError: it has some, all of them damaged.
    """
    folders = step_folders(run_folder)
    damages: list[str] = []
    for step, folder in reversed(folders.items()):
        damage = damage_of(folder, RUN_FILES, reads_all=True)
        if damage is None:
            for passed_over in damages:
                logger.warning(
                    "passed over a damaged checkpoint, %s; going on from step %d", passed_over, step
                )
            return step, folder
        damages.append(f"{folder}: {damage}")
    if damages:
        raise InputError(
            f"no checkpoint of {run_folder} is whole ({'; '.join(damages)}); put back what was saved, or"
            " remove them to begin anew"
        )
    return None


def newest_with_model(run_folder: Path) -> tuple[int, Path] | None:
    """Step and folder of the newest checkpoint to be measured; None where the run has none.

    A folder that never held a model is passed over, with a word in the log. Damage is told when the model is
    loaded: to measure an earlier step in place of a damaged one would be another result under the same name.
    """
    folders = step_folders(run_folder)
    with_model = [
        step for step, folder in folders.items() if holds_model(folder) or (folder / MARK_FILE).exists()
    ]
    if not with_model:
        return None
    newest = max(with_model)
    for step, folder in folders.items():
        if step > newest:
            logger.warning("%s holds no model and is passed over; taking step %d", folder, newest)
    return newest, folders[newest]


def holds_model(folder: Path) -> bool:
    """Whether a folder has the files that a model is loaded from, whatever is in them."""
    return all((folder / name).is_file() for name in MODEL_FILES)


def read_tensors(path: Path) -> dict[str, Any]:
    """Named tensors and plain values of a file of `torch.save`, on the CPU; never code.

    Raises:
        InputError: the file is damaged, or holds something else.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged archive or pickle fails in as many ways as there are bytes
        if is_out_of_memory(error):
            raise
        raise InputError(f"{path} {unreadable(path, error)}; {_HINT}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}, not named tensors; {_HINT}")
    return content


def unreadable(path: Path, error: Exception) -> str:
    """Why torch could not read a file of tensors, as the rest of a sentence; torch's own is a paragraph."""
    if not zipfile.is_zipfile(path):
        return "is damaged: it is no archive of torch.save, or not all of one"
    if isinstance(error, pickle.UnpicklingError):
        return "holds something else than tensors and is refused: to load it could run code that came with it"
    return f"is damaged ({(str(error).splitlines() or [type(error).__name__])[0]})"


def _read_mark(path: Path) -> dict[str, tuple[int, str]] | None:
    """File -> size and SHA-256; None for garbage."""
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        return {name: (entry["bytes"], entry["sha256"]) for name, entry in files.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
