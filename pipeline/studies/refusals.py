"""What the checks of every study share, before its first command runs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import InputError


@contextmanager
def told_of(name: str) -> Iterator[None]:
    """Put the command's name before a refusal."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def refuse_unwritable(run: Path) -> None:
    """Refuse a run folder that cannot be made or written into.

    Raises:
        InputError: names the nearest folder that is there.
    """
    nearest = next((path for path in (run, *run.absolute().parents) if path.exists()), Path("/"))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"cannot write into {nearest}; choose another folder, as in run=FOLDER")
