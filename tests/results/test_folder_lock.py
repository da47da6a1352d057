"""At most one writer a folder, whoever dies at whatever moment; parts of a folder are held side by side."""

import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli import InputError
from pipeline.results import files as folder_lock
from pipeline.results.files import LOCK_FILE, FolderLock

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import os, sys, time
sys.path[0] = {root!r}
from pathlib import Path
from pipeline.results.files import FolderLock
with FolderLock(Path(sys.argv[1]), "--out", sys.argv[2] or None):
    print("held", flush=True)
    time.sleep(60)
"""
# Many short holds that end by giving back or by a kill; a file made with O_EXCL tells of two at once.
RACE = """
import os, signal, sys
sys.path[0] = {root!r}
from pathlib import Path
from pipeline.cli import InputError
from pipeline.results import folder_lock
folder_lock._PATIENCE_SECONDS = 0
folder, witness = Path(sys.argv[1]), Path(sys.argv[2])

def race(is_killed):
    for turn in range(100):
        try:
            with folder_lock.FolderLock(folder, "--out"):
                os.close(os.open(witness, os.O_CREAT | os.O_EXCL))  # FileExistsError: somebody else is here
                os.unlink(witness)
                if is_killed and turn > 20:
                    os.kill(os.getpid(), signal.SIGKILL)
        except InputError:
            pass

for racer in range(60):
    if os.fork() == 0:
        try:
            race(is_killed=racer % 2 == 1)
        except BaseException as error:
            os.write(2, f"{{error!r}}".encode())
            os._exit(1)
        os._exit(0)
print(*sorted(os.wait()[1] for _ in range(60)))
"""


@pytest.fixture(autouse=True)
def without_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "_PATIENCE_SECONDS", 0.05)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def started(program: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", program.format(root=str(ROOT)), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def holder_of(folder: Path, part: str = "") -> "subprocess.Popen[str]":
    process = started(HOLD, folder, part)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


def refused(folder: Path, part: str | None = None) -> str:
    with pytest.raises(InputError) as told, FolderLock(folder, "--out", part):
        pass
    return str(told.value)


def test_it_says_who_holds_it_and_goes_away(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "run", "--out"):
        held = json.loads((tmp_path / "run" / LOCK_FILE).read_text())
        assert (held["host"], held["pid"]) == (socket.gethostname(), os.getpid())
        assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK_FILE]
    assert not (tmp_path / "run").exists()  # made for the lock, and nothing was written there
    with FolderLock(tmp_path, "--out"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_second_program_is_told_folder_process_host_and_time(tmp_path: Path) -> None:
    process = holder_of(tmp_path)
    expected = (
        f"{re.escape(str(tmp_path))} is in use by process {process.pid} on {re.escape(socket.gethostname())},"
        r" since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d; wait for it, or choose another --out"
    )
    assert re.fullmatch(expected, refused(tmp_path))
    assert (tmp_path / LOCK_FILE).exists()
    end(process)


def test_the_same_process_does_not_hold_it_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    with FolderLock(tmp_path, "--out"):
        assert f"in use by process {os.getpid()} on {socket.gethostname()}, Slurm job 41" in refused(tmp_path)


def test_the_lock_ends_with_its_holder(tmp_path: Path) -> None:
    process = holder_of(tmp_path)
    end(process)
    assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == process.pid
    with FolderLock(tmp_path, "--out"):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("content", [b"", b"{}", b"null", b"[3]", b'{"pid": ', b"\xff\x00", b'{"pid": "x"}'])
def test_what_the_file_holds_decides_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LOCK_FILE).write_bytes(content)
    with FolderLock(tmp_path, "--out"):
        (tmp_path / LOCK_FILE).write_bytes(content)
        assert "is in use by" in refused(tmp_path)


def test_a_child_that_lives_on_does_not_hold_it(tmp_path: Path) -> None:
    with FolderLock(tmp_path, "--out"):
        child = os.fork()
        if child == 0:
            signal.pause()
    try:
        with FolderLock(tmp_path, "--out"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_parts_are_held_side_by_side_but_none_twice_nor_beside_the_whole(tmp_path: Path) -> None:
    process = holder_of(tmp_path, "task-0-of-2")
    with FolderLock(tmp_path, "--out", "task-1-of-2"):
        assert f"process {process.pid} on" in refused(tmp_path, "task-0-of-2")
    assert f"process {process.pid} on" in refused(tmp_path)
    end(process)
    with FolderLock(tmp_path, "--out"):
        assert [path.name for path in tmp_path.iterdir()] == [LOCK_FILE]
        assert f"process {os.getpid()} on" in refused(tmp_path, "task-0-of-2")
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_killed_writers_are_removed(tmp_path: Path) -> None:
    kept = ["settings.json", "part", "a.part", "below/.a.json.part"]
    leftovers = ["settings-0f3a.json", ".lock.json.node17.4711", ".a.json.0f3a.part", "lock-task-0-of-2.json"]
    (tmp_path / "below").mkdir()
    for name in kept + leftovers:
        (tmp_path / name).write_text("{}")
    with FolderLock(tmp_path, "--out"):
        pass
    assert sorted(
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()
    ) == sorted(kept)


def test_a_file_system_without_locks_is_worked_on_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with FolderLock(tmp_path, "--out"):
        assert "cannot be locked (" in caplog.text


def test_of_many_racing_programs_never_two_hold_it(tmp_path: Path) -> None:
    folder, witness = tmp_path / "run", tmp_path / "witness"
    folder.mkdir()
    (folder / LOCK_FILE).write_text("")  # of one that died
    race = started(RACE, folder, witness)
    statuses, told = race.communicate(timeout=60)
    assert told == ""
    assert set(statuses.split()) == {"0", str(int(signal.SIGKILL))}
    assert statuses.split().count("0") >= 30
