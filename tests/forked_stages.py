"""Programs as processes of their own that begin at once: forked from one that has imported the libraries.

A stage started by its command pays some five seconds for importing torch and OLMo. Where a test needs a
process (to be killed, for signals and exit codes, for several ranks) and not the command as it is typed, it
starts the stage here: the same file is run as `__main__`, with its own folder, environment, output and signal
handlers. Only libraries are imported beforehand, nothing of the repository. That a stage brings along all it
imports and runs wherever it is typed, tests/studies shows.

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
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NoReturn

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
    # Which processes of tests import beside.
    "accelerate",
    "matplotlib.pyplot",
    "pytest",
    "scipy.stats",
    "statsmodels.api",
    "transformers.models.auto.modeling_auto",
    "transformers.models.gpt_neox.modeling_gpt_neox",
)
_NUMBER = 32  # bytes
_SHARED = "FORKING_SERVER"
"""The variable that tells processes of tests the address of the one that forks for all of them."""
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def command(*words: str | Path) -> list[str]:
    """What starts this Python on these words: forked. Of a signal it tells as a shell does."""
    return [sys.executable, "-S", "-E", __file__, "run", _server(), *map(str, words)]


def until(holds: Callable[[], object], seconds: float, say: Callable[[], object]) -> None:
    """Wait until something holds; say what is the matter after so many seconds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, say()
        time.sleep(0.05)


def wait_for(path: Path, writer: "subprocess.Popen[bytes] | None" = None) -> None:
    """Wait until a file holds something, as long as who writes it lives."""

    def is_over() -> bool:
        is_written = path.exists() and path.stat().st_size > 0
        return is_written or (writer is not None and writer.poll() is not None)

    until(is_over, 240, lambda: f"no {path} within 240 s")
    assert path.exists(), f"{path} was not written"


@contextmanager
def ranks(program: str, *words: str | Path, cwd: Path) -> Iterator[None]:
    """One run on two ranks, as torchrun starts it; on leaving, both have ended well."""
    import torch  # not for those that stand in

    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    of_all = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    started = [
        subprocess.Popen(
            command(ROOT / program, *words),
            cwd=cwd,
            env={**os.environ, **of_all, "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank in "01"
    ]
    yield
    assert [process.wait(timeout=600) for process in started] == [0, 0]


def stand_ins(folder: Path) -> Path:
    """Write `python` and `torchrun` into a folder for the PATH of others; both fork what they are to run."""
    for name, words in {
        "python": shlex.join(command()),
        "torchrun": f"env PYTHON_EXEC={folder}/python {folder}/python -m torch.distributed.run",
    }.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def share_one_server() -> None:
    """Start the process that forks, for all processes that this one will start; it ends with this one."""
    os.environ[_SHARED] = _begun_server()[0]


def python_that_forks() -> Path:
    """A program that stands in for `python`, for as long as the process lives that forks for it."""
    return stand_ins(Path(_server()).parent) / "python"


@cache
def _server() -> str:
    """The address of the process that forks: the shared one, or one that is started when first wanted."""
    address = os.environ.get(_SHARED) or _begun_server()[0]
    until(Path(address).exists, 240, lambda: "the process that forks has not begun")
    return address


@cache
def _begun_server() -> tuple[str, "subprocess.Popen[bytes]"]:
    """Its address, and it, which lives as long as its standard input is open: as this process does."""
    address = f"{tempfile.mkdtemp(prefix='forking-')}/socket"
    return address, subprocess.Popen([sys.executable, __file__, "serve", address], stdin=subprocess.PIPE)


def _stand_in(address: str, words: list[str]) -> NoReturn:
    """Have a program run, pass signals on, and end as it does; to end this process kills it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)  # until it is known to whom
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(address)
    program = {"words": words[words[0] == "-u" :], "cwd": str(Path.cwd()), "environment": dict(os.environ)}
    socket.send_fds(connection, [json.dumps(program).encode()], [0, 1, 2])
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
    request, standard, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _become(json.loads(request), standard)
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
    if sys.argv[0] == "-c":
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
    if role == "serve":
        for library in LIBRARIES:
            importlib.import_module(library)
        gc.freeze()  # what is never looked at again stays one copy for all
        _serve(address)
    else:
        _stand_in(address, words)
