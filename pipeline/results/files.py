"""Files that are whole or absent: written to a temporary name, fsynced, renamed."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

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
