"""Programs as processes of their own, for tests of kills, signals, exit codes and several ranks."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]


def start(program: str, *words: str | Path, cwd: Path, **environment: str) -> "subprocess.Popen[str]":
    """Start a program by its path below the repository's root, with these variables beside this process's."""
    return subprocess.Popen(
        [sys.executable, ROOT / program, *words], cwd=cwd, env=os.environ | environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(program: str, *words: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Start a program as `start` does, and wait for its end."""
    process = start(program, *words, cwd=cwd, **environment)
    said = process.communicate(timeout=600)
    return subprocess.CompletedProcess([program, *words], process.returncode, *said)


@contextmanager
def ranks(
    program: str, *words: str | Path, cwd: Path, count: int = 2, code: int = 0
) -> Iterator[list["subprocess.Popen[str]"]]:
    """The processes of one run on several ranks, as torchrun starts them.

    On leaving, all of them have ended with the exit code `code`.
    """
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    of_all = {
        "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    started = [
        start(program, *words, cwd=cwd, RANK=str(rank), LOCAL_RANK=str(rank), **of_all)
        for rank in range(count)
    ]
    yield started
    for rank in started:
        said = rank.communicate(timeout=240)
        assert rank.returncode == code, said
