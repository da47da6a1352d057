"""Programs as processes of their own: to be killed, for signals and exit codes, for several ranks."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def command(*words: str | Path) -> list[str]:
    """What starts this Python on these words."""
    return [sys.executable, *map(str, words)]


def until(holds: Callable[[], object], seconds: float, say: Callable[[], object]) -> None:
    """Wait until something holds; say what is the matter after so many seconds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, say()
        time.sleep(0.05)


def wait_for(path: Path) -> None:
    """Wait until a file holds something."""
    until(lambda: path.exists() and path.stat().st_size, 240, lambda: f"no {path} within 240 s")


@contextmanager
def ranks(program: str, *words: str | Path, cwd: Path) -> Iterator[None]:
    """One run on two ranks; on leaving, both have ended well."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    run = subprocess.Popen(command(*torchrun, ROOT / program, *words), cwd=cwd)
    yield
    assert run.wait(timeout=600) == 0
