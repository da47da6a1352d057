import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import InputError
from pipeline.training.run_lock import LOCK_FILE, RunLock


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def write_lock(folder: Path, **holder: object) -> None:
    content = {"host": socket.gethostname(), "pid": os.getpid(), "slurm_job_id": None} | holder
    (folder / LOCK_FILE).write_text(json.dumps(content))


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_it_names_host_and_process_and_goes_away(tmp_path: Path) -> None:
    with RunLock(tmp_path / "run"):
        held = json.loads((tmp_path / "run" / LOCK_FILE).read_text())
        assert (held["host"], held["pid"]) == (socket.gethostname(), os.getpid())
        assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK_FILE]
    assert list((tmp_path / "run").iterdir()) == []


def test_a_live_holder_is_named_and_keeps_it(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        with (
            pytest.raises(InputError, match=f"in use by process {os.getpid()} on .*, which is alive"),
            RunLock(tmp_path),
        ):
            pass
        assert (tmp_path / LOCK_FILE).exists()


def test_the_lock_of_a_dead_process_on_this_host_is_taken_over(tmp_path: Path) -> None:
    write_lock(tmp_path, pid=dead_pid())
    with RunLock(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()


def test_the_lock_of_another_host_is_not(tmp_path: Path) -> None:
    write_lock(tmp_path, host="node17", pid=dead_pid())
    with (
        pytest.raises(InputError, match="on node17, whose state cannot be seen from here; .* remove"),
        RunLock(tmp_path),
    ):
        pass


def test_a_requeued_job_takes_over_its_own_lock_from_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    write_lock(tmp_path, host="node17", slurm_job_id="40")
    with pytest.raises(InputError, match="node17"), RunLock(tmp_path):
        pass
    write_lock(tmp_path, host="node17", slurm_job_id="41")
    with RunLock(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["host"] == socket.gethostname()
