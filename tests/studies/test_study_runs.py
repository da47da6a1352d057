"""Running a study: what a failure leaves, which signals arrive."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sparsity_length.studies.commands import Command
from sparsity_length.studies.run import run_all

ROOT = Path(__file__).resolve().parents[2]
LOGS = Path("run/logs")
# Writes down that it ran, fails while a file FAIL stands beside it, and writes its result.
STAGE = """
import pathlib, sys
name = sys.argv[1]
with open("ran", "a") as log:
    log.write(name + "\\n")
if pathlib.Path("FAIL-" + name).exists():
    print("no good", file=sys.stderr)
    sys.exit(75)
pathlib.Path(name).touch()
print(name, "is there")
"""
# Never ends by itself; what it does when it is told to is the argument's.
SLOW = """
import pathlib, signal, subprocess, sys, time
name, reaction = sys.argv[1:3]
if reaction == "saves":
    def save(*_):
        pathlib.Path(name + "-saved").touch()
        sys.exit(75)
    signal.signal(signal.SIGTERM, save)
elif reaction == "starts":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "grandchild"])
pathlib.Path(name + "-started").touch()
time.sleep(60)
"""
START = """
import signal, sys
from sparsity_length.cli import Stage
from stub import main
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored
sys.argv = ["study.py"]
Stage("a study", lambda parser: None, main).main()
"""
STUDY = """
import sys
from pathlib import Path
from sparsity_length.studies.commands import Command
from sparsity_length.studies.run import run_all
class Script(Command):
    def words(self):
        return [self.program, *self.arguments]
def main(_):
    reactions = REACTIONS
    here = Path.cwd()
    commands = [Script(name, str(here / f"{name}.py"), (name, how)) for name, how in reactions.items()]
    sys.exit(run_all(commands, [{}] * len(commands), Path("run/logs")))
"""


class Script(Command):
    """A command that is no program of ours."""

    def words(self) -> list[str]:
        return [self.program, *self.arguments]


def command(name: str, *needs: str) -> Command:
    return Script(name, str(Path("stage.py").absolute()), (name,), needs)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """Three stages, each of which needs the one before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # those of the tests' own process stay
    Path("stage.py").write_text(STAGE)
    return [command("first"), command("second", "first"), command("third", "second")]


def ran() -> list[str]:
    """Which stages ran since the last question."""
    names = Path("ran").read_text().split()
    Path("ran").unlink()
    return names


def test_after_a_failure_only_what_is_left_runs(
    commands: list[Command], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    Path("FAIL-second").touch()
    assert run_all(commands, [{}], LOGS) == 75
    assert ran() == ["first", "second"]
    assert capfd.readouterr().out == "sparsity stage first\nfirst is there\nsparsity stage second\n"
    assert caplog.messages[-2] == "second ended with exit code 75; run the same again to go on"
    assert "the last lines of run/logs/second.log:\n" in caplog.messages[-1]
    assert caplog.messages[-1].endswith("\nno good")
    Path("FAIL-second").unlink()
    assert run_all(commands[1:], [{}], LOGS) == 0
    assert ran() == ["second", "third"]
    assert Path("run/logs/second.log").read_text().count("--- ") == 2  # a heading a run


@pytest.fixture
def started_study(tmp_path: Path) -> Iterator[Callable[[dict[str, str]], "subprocess.Popen[str]"]]:
    """A function starting a study of slow commands, name -> reaction, which returns once all of them run."""
    studies = []

    def start(reactions: dict[str, str]) -> "subprocess.Popen[str]":
        for name in reactions:
            (tmp_path / f"{name}.py").write_text(SLOW)
        (tmp_path / "stub.py").write_text(STUDY.replace("REACTIONS", repr(reactions)))
        study = subprocess.Popen(
            [sys.executable, "-c", START],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        studies.append(study)
        wait_until(lambda: all((tmp_path / f"{name}-started").exists() for name in reactions))
        return study

    yield start
    for study in studies:
        study.kill()
        study.communicate()


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def living(folder: Path) -> list[list[str]]:
    """The command lines of all processes that work in a folder."""
    processes = psutil.process_iter(["cwd", "cmdline"])
    return [process.info["cmdline"] for process in processes if process.info["cwd"] == str(folder.resolve())]


STOPPED = "study: stopped by a signal, trainings once they have saved; run the same again to go on\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_request_to_stop_reaches_all_that_runs(
    number: int, tmp_path: Path, started_study: Callable[..., subprocess.Popen[str]]
) -> None:
    study = started_study({"pretrain": "saves", "measuring": "ends", "notebooks": "starts"})
    study.send_signal(number)
    _, said = study.communicate(timeout=60)
    assert (study.returncode, STOPPED in said) == (75, True), said
    assert (tmp_path / "pretrain-saved").exists()
    wait_until(lambda: living(tmp_path) == [], seconds=5)
