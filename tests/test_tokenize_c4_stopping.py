"""tokenize_c4 interrupted, terminated and killed at its busiest: it ends at once, and so do its workers."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pipeline import tokenize_c4

SECONDS = 20  # two, on a machine that does nothing else
LONG_WORD = 10_000_000
BUSY: dict[str, tuple[list[str], Callable[[list[psutil.Process]], bool]]] = {
    "encoding on workers": (["--tokenizer", "olmo", "--num-workers", "2"], lambda workers: len(workers) >= 1),
    "encoding on threads": (["--tokenizer", "olmo"], lambda workers: True),
    "training a BPE": (["--tokenizer", "bpe:60000"], lambda workers: len(workers) >= 1),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few short documents, and a word of ten million letters."""
    path = tmp_path_factory.mktemp("source") / "long.jsonl"
    long = "".join(random.Random(0).choices("abcdefghijklmnop", k=100_000)) * (LONG_WORD // 100_000)
    texts = [*(f"a short text {number}" for number in range(40)), long]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def start(source: Path, out: Path, flags: list[str]) -> "subprocess.Popen[str]":
    command = [sys.executable, tokenize_c4.__file__, "--out", str(out), "--source", str(source), *flags]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def workers_of(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """The processes below those that only serve and track others."""
    below = psutil.Process(process.pid).children(recursive=True)
    return [child for child in below if child.parent() and child.parent().pid != process.pid]


def are_gone(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("busy", BUSY)
@pytest.mark.parametrize("signals", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM,), (signal.SIGKILL,)])
def test_it_ends_at_once_and_leaves_no_process(
    busy: str, signals: tuple[signal.Signals, ...], source: Path, tmp_path: Path
) -> None:
    flags, is_busy = BUSY[busy]
    process = start(source, tmp_path / "data", flags)
    try:
        assert process.stderr is not None
        word = "training" if "BPE" in busy else "tokenizing"
        said = ""
        while word not in said:
            said += process.stderr.read(1)
        wait_for(lambda: is_busy(workers_of(process)), 60)
        time.sleep(1)
        children = psutil.Process(process.pid).children(recursive=True)
        for number in signals:
            # A terminal's Ctrl-C goes to all of them; a kill to the one alone.
            os.kill(process.pid, number) if number == signal.SIGKILL else os.killpg(process.pid, number)
            time.sleep(0.1)
        process.wait(SECONDS)
        wait_for(lambda: are_gone(children), SECONDS)
    finally:
        process.kill()
        process.wait()
    if signals != (signal.SIGKILL,):
        assert process.returncode == 128 + signals[0]
        said = process.stderr.read()
        assert said.count("; run the same command again to go on\n") == 1
        assert "Traceback" not in said
