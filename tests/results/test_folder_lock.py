"""At most one writer a folder, whoever dies at whatever moment; parts of a folder are held side by side."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli import InputError
from pipeline.results.files import LOCK_FILE, folder_lock

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys, time
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


@pytest.mark.parametrize("part", ["", "task-0-of-2"])
def test_a_second_program_is_refused_until_the_holder_ends_however(tmp_path: Path, part: str) -> None:
    process = holder_of(tmp_path, part)
    for asked in (part or None, None):
        holder = "another program" if part and not asked else f"process {process.pid} on "
        assert refused(tmp_path, asked).startswith(f"{tmp_path} is in use by {holder}")
    if part:
        with folder_lock(tmp_path, "--out", "task-1-of-2"):
            pass
    process.kill()
    process.communicate()
    with folder_lock(tmp_path, "--out"):
        assert f"process {os.getpid()} on" in (tmp_path / LOCK_FILE).read_text()
