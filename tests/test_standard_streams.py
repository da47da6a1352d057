"""Streams that are closed, cut off or of few characters: a sentence, or the work all the same."""

import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from sparsity_length.programs import explain
from written_results import write_length_losses

from sparsity_length.cli import InputError, words


def test_another_system_is_named() -> None:
    command = "import sys; sys.platform = 'win32'; import sparsity_length"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].endswith("on Windows, under WSL")


POSIX = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return write_length_losses(tmp_path, "a", [1.0])


def run(command: str, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    program = f"{sys.executable} -c 'from sparsity_length.cli import main; main()'"
    line = command.format(sparsity=program, folder=folder)
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


@pytest.mark.parametrize(
    ("command", "code", "output", "error"),
    [
        ("{sparsity} explain --model {folder} <&-", 2, "", "there is no text: standard input is closed"),
        ("{sparsity} query --results {folder} 'SELECT 1' >&-", 2, "", "standard output is closed"),
        ("{sparsity} query --results {folder} 'SELECT 7' 2>&-", 0, "7", ""),
        (
            "{sparsity} query --results {folder} 'SELECT range FROM range(200)' | true; exit $PIPESTATUS",
            141,
            "",
            "",
        ),
        ("{sparsity} query --results {folder} \"SELECT length('中文') + 40\"", 0, "42", ""),
        ("{sparsity} query --results {folder} \"SELECT '中文', 7\"", 0, "7", ""),
    ],
)
def test_streams(command: str, code: int, output: str, error: str, results: Path) -> None:
    ended = run(command, results, **POSIX)
    assert ended.returncode == code and output in ended.stdout and "Traceback" not in ended.stderr
    assert error in ended.stderr and len(ended.stderr.splitlines()) == (1 if error else 0)


def test_a_terminal_is_told_that_it_is_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True, buffer=io.BytesIO(b" ")))
    with pytest.raises(InputError, match="the text is empty"):
        explain.STAGE(["--model", "none"])
    assert "reading standard input: end the text with Ctrl-D" in caplog.text


def test_words_of_a_command_line_are_utf_8() -> None:
    given = "中文 naïve"
    assert words(given) == given and words(given.encode().decode("ascii", "surrogateescape")) == given
