"""The notebooks, executed end to end: what they leave, what is skipped, how cells fail, what ends them."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked_stages
import nbformat
import pytest
from synthetic_results import Truth

from analysis.notebooks import NOTEBOOKS, execute_all, missing_inputs
from analysis.run_notebooks import parser
from pipeline.cli import InputError
from pipeline.results.files import folder_lock

ROOT = Path(__file__).resolve().parents[2]
CHOOSING = ("long-seed0", "long-seed1", "short-contiguous")
FIGURES = {
    "loss_against_context_length",
    *(
        f"{figure}-{model}{judge}"
        for figure in ("loss_against_k", "token_effects")
        for model in CHOOSING
        for judge in ("", "-by-another-model")
    ),
}


def run(results: Path, figures: Path, cwd: Path, *further: str | Path) -> subprocess.CompletedProcess[str]:
    words = ["--results", results, "--figures", figures, *further]
    return forked_stages.run("analysis/run_notebooks.py", *words, cwd=cwd)


@pytest.mark.slow  # every notebook, in a process each
def test_all_notebooks_run_anywhere_and_only_once(scales: tuple[Path, Truth, Truth], tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    results = scales[0] / "small"
    # Relative to where it is typed, which is not where a kernel runs.
    relative = Path(os.path.relpath(results, tmp_path))
    done = run(relative, Path("figures"), tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (ROOT / "figures").exists()
    for suffix in ("png", "pdf"):
        assert {path.stem for path in figures.glob(f"*.{suffix}")} == FIGURES
    for skipped in (
        "sparsity_and_generalization.ipynb: no rule that is blind to the answer has mean_log2_k",
        "synthetic_tasks.ipynb: the results hold no 'synthetic_accuracy'; they hold",
    ):
        assert skipped in done.stderr, skipped
    executed = sorted(path.name for path in figures.glob("*.ipynb"))
    assert len(executed) == len([*NOTEBOOKS.glob("*.ipynb")]) - 2
    for path in figures.glob("*.ipynb"):
        assert "intervals of 95 % each" in path.read_text(), f"{path.name} has no multiple-comparison note"

    before = {path: path.stat().st_mtime_ns for path in figures.iterdir()}
    again = run(relative, Path("figures"), tmp_path)
    assert again.stderr.count("nothing has changed, skipped") == len(executed)
    assert {path: path.stat().st_mtime_ns for path in figures.iterdir()} == before


@pytest.mark.slow
def test_notebooks_of_losses_alone_and_refused_folders(results: Path, tmp_path: Path) -> None:
    """As of the novels in the reference study, of which no influential tokens are measured."""
    losses = tmp_path / "results"
    figures = tmp_path / "figures"
    for artefact in ("loss_differences", "length_losses"):
        shutil.copytree(results / artefact, losses / artefact)
        shutil.copytree(results / "_stages" / artefact, losses / "_stages" / artefact)
    words = ["--results", str(losses), "--figures", str(figures), "--data", str(tmp_path)]
    arguments = parser().parse_args(words)
    lacking = {path.stem: missing_inputs(path.stem, arguments) for path in NOTEBOOKS.glob("*.ipynb")}
    assert {name for name, missing in lacking.items() if missing is None} == {
        "length_losses",
        "loss_differences",
    }
    missing = "influential_tokens.ipynb: the results hold no 'sparse_context_losses'; they hold loss_diff"
    (tmp_path / "file").touch()
    for folder, out, name, sentence in (
        (losses, figures, "influential_tokens", missing),
        (losses, figures, "loses", "unknown notebook 'loses'; did you mean"),
        (tmp_path, figures, "length_losses", f"--results {tmp_path} holds no results"),
        (results, tmp_path / "file" / "figures", "length_losses", "file"),
    ):
        refused = run(folder, out, tmp_path, "--notebooks", name)
        assert refused.returncode == 2, sentence
        assert sentence in refused.stderr and refused.stderr.count("\n") == 1
    with folder_lock(tmp_path / "locked", "--figures"):
        refused = run(results, tmp_path / "locked", tmp_path, "--notebooks", "loss_differences")
    assert refused.returncode == 2 and "is in use by process" in refused.stderr


def one_cell(folder: Path, cell: str) -> Path:
    notebook = nbformat.v4.new_notebook()
    tags = {"tags": ["parameters"]}
    notebook.cells = [nbformat.v4.new_code_cell("a = 1", metadata=tags), nbformat.v4.new_code_cell(cell)]
    nbformat.write(notebook, folder / "broken.ipynb")
    return folder / "broken.ipynb"


SLOW = {"marks": pytest.mark.slow}


@pytest.mark.parametrize(
    ("cell", "error", "sentence"),
    [
        ("from pipeline.cli import InputError\nraise InputError('mend' * a)", InputError, "mendmend"),
        pytest.param("open('/nowhere/a')", InputError, r".*No such file or directory: '/nowhere/a'", **SLOW),
        pytest.param("import os\nos._exit(9)", InputError, "its kernel ended by itself", **SLOW),
        ("1 / 0", SystemExit, r"a cell failed: ZeroDivisionError: division by zero; its traceback is in \S+"),
    ],
)
def test_a_failing_cell_is_told(tmp_path: Path, cell: str, error: type[BaseException], sentence: str) -> None:
    figures = tmp_path / "figures"
    with pytest.raises(error, match=rf"^broken\.ipynb: {sentence}") as failed:
        list(execute_all([one_cell(tmp_path, cell)], figures, {"a": 2}))
    assert "\n" not in str(failed.value)
    left = {"broken.failed.ipynb"} if error is SystemExit else set()
    assert {path.name for path in figures.iterdir()} == left
    if left:
        assert "ZeroDivisionError" in (figures / "broken.failed.ipynb").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_no_kernel(number: signal.Signals, tmp_path: Path) -> None:
    wait = f"import os, pathlib, time\npathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))"
    path = one_cell(tmp_path, f"{wait}\ntime.sleep(100)")
    program = tmp_path / "program.py"
    program.write_text(
        "from pathlib import Path\n"
        "def parser():\n"
        "    from pipeline.cli import stage_parser\n"
        "    return stage_parser('x')\n"
        "def main(arguments):\n"
        "    import signal\n"
        "    from analysis.notebooks import execute_all\n"
        "    for number in (signal.SIGINT, signal.SIGTERM):\n"
        "        signal.signal(number, signal.default_int_handler)\n"
        f"    list(execute_all([Path({str(path)!r})], Path({str(tmp_path / 'figures')!r}), {{}}))\n"
    )
    begin = "from pipeline.cli import *; prepare(); run_module('program', 'program.py')"
    path_of_both = os.pathsep.join([str(ROOT), str(tmp_path)])
    running = subprocess.Popen(
        [sys.executable, "-c", begin],
        env=os.environ | {"PYTHONPATH": path_of_both},
        stderr=subprocess.PIPE,
        text=True,
    )
    pid_file = tmp_path / "pid"
    deadline = time.monotonic() + 120
    while not (pid_file.exists() and pid_file.read_text()):
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.05)
    running.send_signal(number)
    sent = time.monotonic()
    _, text = running.communicate(timeout=60)
    assert running.returncode == 130
    assert len(text.strip().splitlines()) == 1 and "run the same command again to go on" in text
    while Path(f"/proc/{pid_file.read_text()}").exists():  # until whoever reaps it has done so
        assert time.monotonic() - sent < 10
        time.sleep(0.05)


def test_notebooks_hold_no_outputs_and_little_code() -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert sum("parameters" in cell.metadata.get("tags", []) for cell in notebook.cells) == 1
        for cell in notebook.cells:
            assert len(cell.source.splitlines()) <= 25, path.name
            if cell.cell_type == "code":
                assert cell.outputs == [] and cell.execution_count is None, path.name
