"""Notebooks executed, each in a kernel of its own; what a notebook needs and results may lack."""

import argparse
import hashlib
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from analysis.figures.generalization_gap import compared_models
from pipeline.cli import InputError
from pipeline.results.files import refuse_replacing, write_atomically
from pipeline.results.read import artefacts_in

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "analysis" / "notebooks"
_NEEDED_ARTEFACTS = {
    "loss_differences": "loss_differences",
    "length_losses": "length_losses",
    "influential_tokens": "sparse_context_losses",
    "sparsity_and_generalization": "dependency_sparsity",
    "synthetic_tasks": "synthetic_accuracy",
}
_SECONDS_TO_END = 20
_FOR_THE_USER = ("InputError", "OSError", "FileNotFoundError", "PermissionError", "NotADirectoryError")
"""What a cell may raise that is no mistake of ours."""


def missing_inputs(notebook: str, arguments: argparse.Namespace) -> str | None:
    """What the notebook of this name needs and the results lack; None if it can be executed."""
    present = artefacts_in(arguments.results)
    if (needed := _NEEDED_ARTEFACTS[notebook]) not in present:
        return f"the results hold no '{needed}'; they hold {', '.join(present)}"
    if notebook == "sparsity_and_generalization":
        try:
            compared_models(arguments.results, arguments.long_models, arguments.short_models)
        except InputError as lacking:
            return str(lacking)
    return None


def fingerprint(inputs: Iterable[Path], parameters: Mapping[str, Any], figures: Path) -> str:
    """SHA-256 of the parameters and of the name, size and time of all code and of every file of the inputs.

    The folder `figures`, where notebooks write, is no input even if it lies in a folder that is.
    """
    digest = hashlib.sha256(repr(sorted(parameters.items())).encode())
    files = [path for code in ("analysis", "pipeline") for path in (ROOT / code).rglob("*.py")]
    files += [*NOTEBOOKS.glob("*.ipynb"), *(path for folder in inputs for path in folder.rglob("*"))]
    for path in sorted(files):
        is_temporary = path.name.startswith((".", "lock"))
        if path.is_file() and not is_temporary and figures.resolve() not in path.resolve().parents:
            stat = path.stat()
            digest.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def is_fresh(executed: Path, made_from: str) -> bool:
    """Whether the executed notebook was made from the inputs of this fingerprint."""
    try:
        return bool(nbformat.read(executed, as_version=4).metadata.get("made_from") == made_from)
    except (OSError, ValueError, AttributeError):  # not there, or damaged
        return False


def execute_all(
    notebooks: Sequence[Path],
    figures: Path,
    parameters: Mapping[str, Any],
    made_from: str = "",
    *,
    num_at_once: int = 1,
) -> Iterator[Path]:
    """Execute notebooks, several at once, write the executed copies, and yield each path as it ends.

    The first failure, or an interruption, ends the other notebooks too: an InputError where a cell met bad
    input or could not write; else SystemExit, in a sentence, and the traceback stands in <name>.failed.ipynb.

    Args:
        notebooks, figures: their paths; where the copies, their figures and tables go.
        parameters: name -> value, set after the cell tagged "parameters", which holds the defaults.
        made_from: the fingerprint of what they read.
        num_at_once: kernels, each of one thread, so that no figure depends on it.
    """
    refuse_replacing([figures / path.name for path in notebooks], notebooks)
    figures.mkdir(parents=True, exist_ok=True)
    execute = partial(_execute, figures, dict(parameters), made_from)
    with TemporaryDirectory(prefix="notebooks-", ignore_cleanup_errors=True) as folder:
        # In the place of the user's own settings of Jupyter, which could change what is shown.
        names = ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR")
        environment = {"OMP_NUM_THREADS": "1", **dict.fromkeys(names, folder)}
        pool = ProcessPoolExecutor(num_at_once, initializer=os.environ.update, initargs=(environment,))
        try:
            running = {pool.submit(execute, path): path for path in notebooks}
            for future in as_completed(running):
                future.result()
                yield running[future]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            children = active_children()
            for process in children:
                process.terminate()  # nbclient then ends its kernel
            for process in children:  # one that waits for a lock of one that has ended hears nothing
                process.join(_SECONDS_TO_END)
                process.kill()
            raise
        finally:
            pool.shutdown()


class _ThisInterpretersKernel(AsyncKernelManager):
    """Starts a kernel of this environment, whatever one the user has registered as python3."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """What starts it."""
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="Python 3", language="python")


def _execute(figures: Path, parameters: Mapping[str, Any], made_from: str, path: Path) -> None:
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)  # nbclient announces each kernel
    notebook = nbformat.read(path, as_version=4)
    place = next(i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    lines = [f"{name} = {value!r}" for name, value in parameters.items()]
    tags = {"tags": ["injected-parameters"]}
    cell = nbformat.v4.new_code_cell("\n".join(lines), id="injected", metadata=tags)
    notebook.cells.insert(place + 1, cell)
    client = NotebookClient(
        notebook,
        timeout=None,
        kernel_manager_class=_ThisInterpretersKernel,
        shutdown_kernel="immediate",
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(ROOT)}},
    )
    failed = figures / f"{path.stem}.failed.ipynb"
    try:
        client.execute()
    except CellExecutionError as error:
        text = " ".join(error.evalue.split())
        if error.ename in _FOR_THE_USER:
            raise InputError(f"{path.name}: {text}") from None
        nbformat.write(notebook, failed)
        reason = f"{error.ename}: {text}; its traceback is in {failed}"
        raise SystemExit(f"{path.name}: a cell failed: {reason}") from None
    except DeadKernelError:
        raise InputError(f"{path.name}: its kernel ended by itself, mostly for want of memory") from None
    notebook.metadata["made_from"] = made_from
    write_atomically(figures / path.name, lambda part: part.write_text(nbformat.writes(notebook)))
    failed.unlink(missing_ok=True)
