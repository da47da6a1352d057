"""One notebook executed in a kernel: what it leaves, how its cells fail, what ends it."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from analysis.notebooks import execute, is_up_to_date
from pipeline.cli import InputError

ROOT = Path(__file__).resolve().parents[2]


def test_a_figure_that_is_gone_or_other_is_drawn_again(tmp_path: Path) -> None:
    executed = nbformat.v4.new_notebook()
    written = {"a.png": hashlib.sha256(b"a").hexdigest()}
    executed.metadata["execution_of_results"] = {"made_from": "f", "written": written}
    nbformat.write(executed, tmp_path / "a.ipynb")
    assert not is_up_to_date(tmp_path / "a.ipynb", "f")
    (tmp_path / "a.png").write_bytes(b"a")
    assert is_up_to_date(tmp_path / "a.ipynb", "f")
    assert not is_up_to_date(tmp_path / "a.ipynb", "g")
    assert not is_up_to_date(tmp_path / "b.ipynb", "f")
    (tmp_path / "a.png").write_bytes(b"")
    assert not is_up_to_date(tmp_path / "a.ipynb", "f")
    for damaged in (b"", b"{", b"[]", b"\xff"):
        (tmp_path / "a.ipynb").write_bytes(damaged)
        assert not is_up_to_date(tmp_path / "a.ipynb", "f")


def broken_notebook(folder: Path, cell: str) -> Path:
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_code_cell("a = 1", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell(cell),
    ]
    nbformat.write(notebook, folder / "broken.ipynb")
    return folder / "broken.ipynb"


@pytest.mark.parametrize(
    ("cell", "error", "sentence"),
    [
        ("from pipeline.cli import InputError\nraise InputError('mend this')", InputError, "mend this"),
        ("import errno\nraise OSError(errno.ENOSPC, 'No space left', 'a.png')", InputError,
         "no space left on the device while writing a.png; free some and"),
        ("import errno\nraise OSError(errno.ENOSPC, 'No space left')", InputError,
         "no space left on the device while writing the output"),
        ("open('/nowhere/a')", InputError, "/nowhere/a does not exist"),
        ("import os\nos._exit(9)", InputError, "its kernel ended by itself"),
        ("1 / 0", SystemExit, r"a cell failed: ZeroDivisionError: division by zero; its traceback is in \S+"),
    ],
)  # fmt: skip
def test_a_failing_cell_is_told_in_a_sentence(
    tmp_path: Path, cell: str, error: type[BaseException], sentence: str
) -> None:
    figures = tmp_path / "figures"
    figures.mkdir()
    with pytest.raises(error, match=rf"^broken\.ipynb: {sentence}") as failed:
        execute(broken_notebook(tmp_path, cell), figures, {"a": 2}, "f")
    assert "\n" not in str(failed.value)
    left = {"broken.failed.ipynb"} if error is SystemExit else set()
    assert {path.name for path in figures.iterdir()} == left
    if left:
        assert "ZeroDivisionError" in (figures / "broken.failed.ipynb").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_is_one_sentence_and_leaves_no_kernel(number: signal.Signals, tmp_path: Path) -> None:
    wait = f"import os, pathlib, time\npathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))"
    path = broken_notebook(tmp_path, f"{wait}\ntime.sleep(100)")
    program = tmp_path / "program.py"
    program.write_text(
        "from pathlib import Path\n"
        "def parser():\n"
        "    from pipeline.cli import stage_parser\n"
        "    return stage_parser('x')\n"
        "def main(arguments):\n"
        "    from analysis.notebooks import execute\n"
        f"    execute(Path({str(path)!r}), Path({str(tmp_path)!r}), {{}}, 'f')\n"
    )
    begin = "from pipeline.cli import *; prepare('program.py'); run_module('program', 'program.py')"
    path_of_both = os.pathsep.join([str(ROOT), str(tmp_path)])
    running = subprocess.Popen(
        [sys.executable, "-c", begin], env=os.environ | {"PYTHONPATH": path_of_both}, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    pid_file, deadline = tmp_path / "pid", time.monotonic() + 120
    while not (pid_file.exists() and pid_file.read_text()):
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.05)
    running.send_signal(number)
    sent = time.monotonic()
    _, told = running.communicate(timeout=60)
    assert time.monotonic() - sent < 4  # two on a machine that does nothing else
    assert running.returncode == 128 + number
    assert len(told.strip().splitlines()) == 1 and "run the same command again to go on" in told
    while Path(f"/proc/{pid_file.read_text()}").exists():  # until whoever reaps it has done so
        assert time.monotonic() - sent < 10
        time.sleep(0.05)
    assert not (tmp_path / "figures").exists()


def test_traits_are_resolved_before_there_are_threads() -> None:
    code = """
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager
from analysis import notebook_execution

def names():
    traits = [kind.class_traits().values() for kind in (AsyncKernelManager, AsyncKernelClient)]
    return [trait for both in traits for trait in both if isinstance(getattr(trait, "klass", None), str)]

assert names()
with notebook_execution._folder_of_jupyter():
    notebook_execution._resolve_traits()
assert not names()
"""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
