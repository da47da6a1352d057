"""One live job a run folder: a lock file that says which host and process hold it."""

import json
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from pipeline.errors import InputError

LOCK_FILE = "lock.json"


class RunLock:
    """Held while entered; `<run folder>/lock.json` names host, process and, under Slurm, the job.

    A file and not flock(2), which some cluster file systems lack. A lock is taken over where its process
    is dead and ran on this host, or where it was this very Slurm job before a requeue.
    """

    def __init__(self, run_folder: Path) -> None:
        self._path = run_folder / LOCK_FILE
        self._ours = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
        }

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            InputError: a job that lives, or of which this host cannot know, holds it.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        while not self._create():
            self._remove_where_stale()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._path.unlink(missing_ok=True)

    def _create(self) -> bool:
        """Make the file, with its content, in one step; whether it was not there before."""
        draft = self._path.with_name(f".{LOCK_FILE}.{self._ours['host']}.{self._ours['pid']}")
        draft.write_text(json.dumps(self._ours), encoding="utf-8")
        try:
            os.link(draft, self._path)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        return True

    def _remove_where_stale(self) -> None:
        try:
            holder = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return  # given back just now
        here = holder["host"] == self._ours["host"]
        requeued = holder["slurm_job_id"] is not None and holder["slurm_job_id"] == self._ours["slurm_job_id"]
        if requeued or (here and not _is_alive(holder["pid"])):
            self._path.unlink(missing_ok=True)
            return
        state = "which is alive" if here else "whose state cannot be seen from here"
        raise InputError(
            f"{self._path.parent} is in use by process {holder['pid']} on {holder['host']}, {state}; wait for"
            f" it or choose another --save-folder, and where that job is dead remove {self._path}"
        )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True
