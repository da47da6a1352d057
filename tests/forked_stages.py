"""Programs as processes of their own that begin at once: forked from one that has imported the libraries.

A stage started by its command pays some five seconds for importing torch and OLMo. Where a test needs a
process (to be killed, for signals and exit codes, for several ranks) and not the command as it is typed, it
starts the stage here: the same file is run as `__main__`, with its own folder, environment, output and signal
handlers. Only libraries are imported beforehand, nothing of the repository. What this cannot show, that a
stage brings along all it imports and runs wherever it is typed, tests/end_to_end and tests/test_start.py do.

Run as a program, this file is that first process: it forks for each request that comes through its socket,
and ends when the socket is closed, that is with the process of the tests.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import IO, NoReturn

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = (
    "olmo.model", "olmo.optim", "torch.distributed.fsdp", "pyarrow.parquet", "pandas", "rich.progress",
    "nbclient",
)  # fmt: skip
_LARGEST_REQUEST, _MOST_WRITTEN, _NUMBER = 1 << 20, 1 << 20, 32  # bytes


class ForkedStage:
    """A program that was started, in the words of `subprocess.Popen`."""

    def __init__(self, channel: socket.socket, written: tuple[IO[bytes], IO[bytes]]) -> None:
        self._channel = channel
        self._written = written
        self.pid = int(channel.recv(_NUMBER))
        self.returncode: int | None = None

    def wait(self, timeout: float = 240) -> int:
        """The exit code, less than 0 for a signal, once it has ended."""
        if self.returncode is None:
            if not select.select([self._channel], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout, *self._said())
            self.returncode = os.waitstatus_to_exitcode(int(self._channel.recv(_NUMBER)))
            self._channel.close()
        return self.returncode

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def communicate(self, timeout: float = 240) -> tuple[str, str]:
        """What it wrote on standard output and on standard error, once it has ended."""
        self.wait(timeout)
        return self._said()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _said(self) -> tuple[str, str]:
        # not by seeking: the place in the file is shared with the program
        out, error = (os.pread(file.fileno(), _MOST_WRITTEN, 0).decode() for file in self._written)
        return out, error


def start(program: str, *words: str | Path, cwd: Path, **environment: str) -> ForkedStage:
    """Start a program of the repository in the folder `cwd`.

    Args:
        program: its path below the repository's root: pipeline/pretrain.py.
        words: its command line.
        cwd: the folder that it is started in.
        environment: variables beside those of this process.
    """
    written = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 -- read while it is written
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = {
        "words": [str(ROOT / program), *map(str, words)],
        "cwd": str(cwd),
        "environment": {**os.environ, **environment},
    }
    descriptors = [there.fileno(), *(file.fileno() for file in written)]
    socket.send_fds(_server(), [json.dumps(request).encode()], descriptors)
    there.close()
    return ForkedStage(here, written)


def run(program: str, *words: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Start a program as `start` does, and wait for its end."""
    process = start(program, *words, cwd=cwd, **environment)
    said = process.communicate(timeout=600)
    return subprocess.CompletedProcess([program, *words], process.wait(), *said)


@cache
def _server() -> socket.socket:
    """The socket of the process that forks, which is started when it is first wanted."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(there.fileno())]
    subprocess.Popen(command, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL)
    there.close()
    return here


def _serve(requests: socket.socket) -> None:
    """Fork for each request, until nobody is left to make one."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait for the programs
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 3)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            _run_and_tell(json.loads(request), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _run_and_tell(request: dict, channel: int, out: int, error: int) -> NoReturn:
    """Run the program in a process of its own; tell its ID, and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(channel)
        _become(request, out, error)
    os.close(out)
    os.close(error)
    os.write(channel, b"%d" % pid)
    os.write(channel, b"%d" % os.waitpid(pid, 0)[1])
    os._exit(0)


def _become(request: dict, out: int, error: int) -> NoReturn:
    for descriptor, standard in ((out, 1), (error, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["words"]
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit(0)


if __name__ == "__main__":
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.freeze()  # what is never looked at again stays one copy for all
    _serve(socket.socket(fileno=int(sys.argv[1])))
