"""Processes that work for this one: deaf to Ctrl-C and SIGTERM, which it answers, and never left over."""

import os
import signal
import threading
from collections.abc import Iterable
from multiprocessing import forkserver, get_context, parent_process
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess

_STOPPING = (signal.SIGINT, signal.SIGTERM)


def worker_context() -> ForkServerContext:
    """Where worker processes come from.

    Not "fork": this process may have threads by now, of the tokenizer or of a hub's client. The server that
    forks is started with the signals blocked: what it forks never hears them, not even while it starts.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return get_context("forkserver")


def leave_with_parent() -> None:
    """In a worker: have it end with its parent, however that ends, SIGKILL included."""
    threading.Thread(target=_await_parent, daemon=True).start()


def _await_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def kill(processes: Iterable[BaseProcess]) -> None:
    """End workers at once, and take them off the list of processes."""
    for process in list(processes):
        process.kill()
        process.join()
