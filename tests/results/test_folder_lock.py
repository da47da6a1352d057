"""At most one writer a folder, whoever dies at whatever moment; parts of a folder are held side by side."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli import InputError
from pipeline.results.files import LOCK_FILE, folder_lock

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import os, sys, time
sys.path[0] = {root!r}
from pathlib import Path
from pipeline.results.files import folder_lock
with folder_lock(Path(sys.argv[1]), "--out", sys.argv[2] or None):
    print("held", flush=True)
    time.sleep(60)
"""


def holder_of(folder: Path, part: str = "") -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLD.format(root=str(ROOT)), str(folder), part]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def refused(folder: Path, part: str | None = None) -> str:
    with pytest.raises(InputError) as error, folder_lock(folder, "--out", part):
        pass
    return str(error.value)


def test_it_says_who_holds_it_and_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    with folder_lock(tmp_path / "run", "--out"):
        assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK_FILE]
        holder = f"in use by process {os.getpid()} on {socket.gethostname()}, Slurm job 41, since 2"
        assert holder in refused(tmp_path / "run")
        assert holder in refused(tmp_path / "run", "task-0-of-2")
    assert list(tmp_path.iterdir()) == []  # made for the lock, and nothing was written there


def test_a_second_program_is_refused_until_the_holder_ends_however(tmp_path: Path) -> None:
    process = holder_of(tmp_path)
    assert refused(tmp_path).startswith(f"{tmp_path} is in use by process {process.pid} on ")
    assert refused(tmp_path).endswith("; wait for it, or choose another --out")
    process.kill()
    process.communicate()
    (tmp_path / ".a.json.0f3a.part").touch()  # what it left half-written
    (tmp_path / "a.part").touch()
    with folder_lock(tmp_path, "--out"):
        assert f"process {os.getpid()} on" in (tmp_path / LOCK_FILE).read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["a.part"]
    for content in (b"", b"{}", b"[3]", b"\xff\x00"):  # what the file holds decides nothing
        (tmp_path / LOCK_FILE).write_bytes(content)
        with folder_lock(tmp_path, "--out"):
            (tmp_path / LOCK_FILE).write_bytes(content)
            assert "is in use by another program; wait" in refused(tmp_path), content


def test_parts_are_held_side_by_side_but_none_twice_nor_beside_the_whole(tmp_path: Path) -> None:
    process = holder_of(tmp_path, "task-0-of-2")
    with folder_lock(tmp_path, "--out", "task-1-of-2"):
        for part in ("task-0-of-2", "task-0-of-3", None):
            assert f"process {process.pid} on" in refused(tmp_path, part), part
    process.kill()
    process.communicate()
    with folder_lock(tmp_path, "--out"):
        assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_worked_on_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with folder_lock(tmp_path / "run", "--out"):
        assert caplog.text.count("cannot be locked (") == 1
