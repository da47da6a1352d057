"""One writer a folder: a lock of the kernel's, so that it ends with whoever holds it, however that ends."""

import fcntl
import json
import logging
import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pipeline.errors import InputError
from pipeline.results.files import remove_leftovers

LOCK_FILE = "lock.json"
_PATIENCE_SECONDS = 0.5  # a file is held for a moment by whoever takes it away, or has not said yet who it is
logger = logging.getLogger("pipeline.results")


class FolderLock:
    """Held while entered; a second program that enters it for the same folder is refused.

    flock(2) on `<folder>/lock.json`, which says for the refusal who holds it, and since when. The kernel
    takes the lock back when its holder dies, SIGKILL and power loss included: nothing is ever stale, and
    the file's presence or content decides nothing. On NFS the lock reaches over all hosts. A file system
    without flock, such as Lustre mounted so, leaves the folder unguarded, and the log says it: refusing to
    work there would help nobody, for files are whole or absent all the same.

    Several programs may share a folder where each writes a part that it names, as the tasks of one
    array job do: then one part is refused twice, and the whole folder beside any part.
    """

    def __init__(self, folder: Path, flag: str, part: str | None = None) -> None:
        """Name what is to be held.

        Args:
            folder: made where it is absent, and taken away again where nothing is written.
            flag: what the refused user may give otherwise, such as "--save-folder".
            part: of the folder, such as "task-1-of-4", beside which others of 4 may be held; None for all of
                the folder.
        """
        self._folder, self._flag, self._part = folder, flag, part
        self._held: list[tuple[Path, int]] = []  # path, file descriptor
        self._made: list[Path] = []

    def __enter__(self) -> Self:
        """Take the lock, and remove what killed writers left in the folder itself.

        Raises:
            InputError: another program holds it, or this one does already.
        """
        self._made = [path for path in (self._folder, *self._folder.parents) if not path.exists()]
        try:
            if self._part is None:
                self._hold(LOCK_FILE, fcntl.LOCK_EX)
            else:
                self._hold(LOCK_FILE, fcntl.LOCK_SH)
                self._hold(f"lock-{self._part}.json", fcntl.LOCK_EX)
                self._refuse_another_division()
        except BaseException:
            self._give_back()
            raise
        if self._part is None:
            remove_leftovers(self._folder, "lock-*.json", ".lock.json.*", "settings-*.json")
            remove_leftovers(self._folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_back()

    def _hold(self, name: str, operation: int) -> None:
        path = self._folder / name
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            except FileNotFoundError:
                continue  # its last holder removed the folder, for it had left nothing there
            try:
                fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                if time.monotonic() > deadline:
                    raise self._refusal(path) from None
                time.sleep(0.02)
                continue
            except OSError as error:
                logger.warning("%s cannot be locked (%s): start no second program on it", path, error)
            if _is_still(path, descriptor):
                break
            os.close(descriptor)  # its last holder removed it between the two lines
        self._held.append((path, descriptor))
        if operation == fcntl.LOCK_EX:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(_this_process()).encode(), 0)

    def _refuse_another_division(self) -> None:
        """Raise where somebody holds task 1 of 3 and this is task 0 of 2: those overlap."""
        own = _division(self._held[-1][0])
        for path in sorted(self._folder.glob("lock-*.json")):
            if _division(path) != own and _is_held(path):
                raise self._refusal(path)

    def _give_back(self) -> None:
        while self._held:
            path, descriptor = self._held.pop()
            with suppress(OSError):  # held by other parts too: the last of them removes it
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_still(path, descriptor):
                    path.unlink()
            with suppress(OSError):  # not by closing alone: a child may have the file open still
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)
        with suppress(OSError):  # not empty: then it stays
            for folder in self._made:
                folder.rmdir()

    def _refusal(self, path: Path) -> InputError:
        if path.name == LOCK_FILE and self._part is None:
            parts = [part for part in self._folder.glob("lock-*.json") if _is_held(part)]
            path = next(iter(sorted(parts)), path)
        who = _holder(path)
        holder = "another program"
        if who:
            job = f", Slurm job {who['slurm_job_id']}" if who.get("slurm_job_id") else ""
            since = f", since {who['since']}" if who.get("since") else ""
            holder = f"process {who.get('pid')} on {who.get('host')}{job}{since}"
        return InputError(
            f"{self._folder} is in use by {holder}; wait for it, or choose another {self._flag}"
        )


def _division(path: Path) -> str:
    return re.sub(r"\d+(?=-of-)", "", path.name)


def _this_process() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether `path` is the open file; a file that was removed is another one's no longer."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _holder(path: Path) -> dict[str, Any]:
    """What the file says of its holder; empty where it is gone, empty or garbage."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
