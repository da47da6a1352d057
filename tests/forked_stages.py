"""Programs as processes of their own that begin at once: forked from one that has imported the libraries.

A stage started by its command pays some five seconds for importing torch and OLMo. Where a test needs a
process (to be killed, for signals and exit codes, for several ranks) and not the command as it is typed, it
starts the stage here: the same file is run as `__main__`, with its own folder, environment, output and signal
handlers. Only libraries are imported beforehand, nothing of the repository. That a stage brings along all it
imports and runs wherever it is typed, tests/end_to_end shows.

Run as a program, this file is one of two: that first process, which forks for each request through its
socket and ends with the process that started it; or what stands in for `python` and `torchrun` where others
start them (`stand_ins`). The processes of pytest-xdist are forked from it, too (`share_one_server`).
"""

import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, NoReturn

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = (
    "olmo.model",
    "olmo.optim",
    "torch.distributed.fsdp",
    "torch.distributed.run",
    "pyarrow.parquet",
    "pandas",
    "rich.progress",
    "nbclient",
)
LIBRARIES_OF_TESTS = (
    "accelerate",
    "matplotlib.pyplot",
    "pytest",
    "scipy.stats",
    "statsmodels.api",
    "transformers.models.auto.modeling_auto",
    "transformers.models.gpt_neox.modeling_gpt_neox",
)
"""What processes of tests import beside."""
_MOST_SECONDS_OF_IMPORTS = 240
_LARGEST_REQUEST = 1 << 20  # bytes, and so are the next two
_MOST_WRITTEN = 1 << 20
_NUMBER = 32
_SHARED = "FORKING_SERVER"
"""The variable that tells processes of tests the address of the one that forks for all of them."""
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


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
    """Start a program by its path below the repository's root, with these variables beside this process's."""
    written = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 -- read while it is written
    words = (str(ROOT / program), *map(str, words))
    with Path(os.devnull).open("rb") as nothing:
        descriptors = [file.fileno() for file in (nothing, *written)]
        connection = _request(_server(), words, str(cwd), {**os.environ, **environment}, descriptors)
    return ForkedStage(connection, written)


def run(program: str, *words: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Start a program as `start` does, and wait for its end."""
    process = start(program, *words, cwd=cwd, **environment)
    said = process.communicate(timeout=600)
    return subprocess.CompletedProcess([program, *words], process.wait(), *said)


@contextmanager
def ranks(
    program: str, *words: str | Path, cwd: Path, count: int = 2, code: int = 0
) -> Iterator[list[ForkedStage]]:
    """The processes of one run on several ranks, as torchrun starts them.

    On leaving, all of them have ended with the exit code `code`.
    """
    import torch  # not for those that stand in

    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    of_all = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    started = [
        start(program, *words, cwd=cwd, RANK=str(rank), LOCAL_RANK=str(rank), **of_all)
        for rank in range(count)
    ]
    yield started
    for rank in started:
        assert rank.wait() == code, rank.communicate()


def stand_ins(folder: Path) -> Path:
    """Write `python` and `torchrun` into a folder for the PATH of others; both fork what they are to run."""
    for name in ("python", "torchrun"):
        words = f'exec "{sys.executable}" -S -E "{__file__}" {name} "{_server()}"'
        torchruns_own = f"export PYTHON_EXEC={folder}/python\n" if name == "torchrun" else ""
        (folder / name).write_text(f'#!/bin/sh\n{torchruns_own}{words} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def share_one_server() -> None:
    """Start the process that forks, for all processes that this one will start; it ends with this one."""
    os.environ[_SHARED] = _begun_server("serve_tests")[0]


def python_that_forks() -> Path:
    """A program that stands in for `python`, for as long as the process lives that forks for it."""
    return stand_ins(Path(_server()).parent) / "python"


@cache
def _server() -> str:
    """The address of the process that forks: the shared one, or one that is started when first wanted."""
    address = os.environ.get(_SHARED) or _begun_server()[0]
    deadline = time.monotonic() + _MOST_SECONDS_OF_IMPORTS
    while not Path(address).exists():
        assert time.monotonic() < deadline, "the process that forks has not begun"
        time.sleep(0.02)
    return address


@cache
def _begun_server(role: str = "serve") -> tuple[str, "subprocess.Popen[bytes]"]:
    """Its address, and it, which lives as long as its standard input is open: as this process does."""
    address = f"{tempfile.mkdtemp(prefix='forking-')}/socket"
    return address, subprocess.Popen([sys.executable, __file__, role, address], stdin=subprocess.PIPE)


def _request(
    address: str, words: tuple[str, ...], cwd: str, environment: dict[str, str], standard: list[int]
) -> socket.socket:
    """A connection that tells the new process' ID, and then how it ended; closing it kills the process.

    `standard` are the descriptors of its standard input, output and error.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(address)
    request = json.dumps({"words": words, "cwd": cwd, "environment": environment})
    socket.send_fds(connection, [request.encode()], standard)
    return connection


def _stand_in(name: str, address: str, words: list[str]) -> NoReturn:
    program = ("torchrun", *words) if name == "torchrun" else tuple(words[words[0] == "-u" :])
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # until it is known to whom
    connection = _request(address, program, str(Path.cwd()), dict(os.environ), [0, 1, 2])
    pid = int(connection.recv(_NUMBER))

    def pass_on(number: int, frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    code = os.waitstatus_to_exitcode(int(connection.recv(_NUMBER) or signal.SIGKILL))  # nobody left to tell
    sys.exit(code if code >= 0 else 128 - code)  # as a shell has it


def _serve(address: str) -> None:
    """Fork for each request, until the standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody need wait for those that end
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those who asked for the programs
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{address}.part")
        listener.listen(64)
        Path(f"{address}.part").rename(address)  # whoever sees it can connect
        while 0 not in select.select([0, listener], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _run_and_tell(connection)
            connection.close()
    shutil.rmtree(Path(address).parent)


def _run_and_tell(connection: socket.socket) -> NoReturn:
    """Run the program in a process of its own; tell its ID, and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, standard, _, _ = socket.recv_fds(connection, _LARGEST_REQUEST, 3)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(json.loads(request), standard)
    for descriptor in standard:
        os.close(descriptor)
    connection.send(b"%d" % pid)
    if connection in select.select([os.pidfd_open(pid), connection], [], [])[0]:  # whoever asked has gone
        os.kill(pid, signal.SIGKILL)
    with suppress(BrokenPipeError):
        connection.send(b"%d" % os.waitpid(pid, 0)[1])
    os._exit(0)


def _become(request: dict, standard: list[int]) -> NoReturn:
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        os.close(descriptor)
    # Not those of the first process, which know whether they are a pipe or a file.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["words"]
    if sys.argv[0] == "torchrun":
        importlib.import_module("torch.distributed.run").main(sys.argv[1:])
    elif sys.argv[0] == "-c":
        sys.path[0] = ""
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(sys.argv.pop(1), vars(sys.modules["__main__"]))
    elif sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit(0)


if __name__ == "__main__":
    role, address, *words = sys.argv[1:]
    if role.startswith("serve"):
        for library in (*LIBRARIES, *(LIBRARIES_OF_TESTS if role == "serve_tests" else ())):
            importlib.import_module(library)
        gc.freeze()  # what is never looked at again stays one copy for all
        _serve(address)
    else:
        _stand_in(role, address, words)
