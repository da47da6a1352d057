"""Execute the notebooks on a results folder; the executed copies and their figures go to the figures folder.

    python analysis/run_notebooks.py --results runs/demo/results --figures runs/demo/figures \
        --long-models long-seed0 long-seed1 --short-models short-contiguous short-pose \
        --train-context-lengths short-contiguous=32 short-pose=32 long-seed0=256 long-seed1=256

A notebook is skipped if its executed copy was made from the same files and parameters (results, data and
code), or if the results lack what it is about; for sparsity_and_generalization also a short-context model,
and a long-context one that neither chose nor evaluated.

To execute some notebooks only, which must then lack nothing:

    python analysis/run_notebooks.py --results runs/demo/results --figures runs/demo/figures \
        --notebooks loss_differences
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
import hashlib
import logging
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from joblib import Parallel, delayed
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from analysis.figures.generalization_gap import compared_models
from pipeline.cli import InputError, folder_path, positive_int, progress, stage_parser, unknown_name
from pipeline.results.files import folder_lock, refuse_replacing, write_atomically
from pipeline.results.read import artefacts_in, no_results

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "analysis" / "notebooks"
_NEEDED_ARTEFACTS = {
    "loss_differences": "loss_differences",
    "length_losses": "length_losses",
    "influential_tokens": "sparse_context_losses",
    "sparsity_and_generalization": "dependency_sparsity",
    "synthetic_tasks": "synthetic_accuracy",
}
_READ = {".py", ".ipynb", ".parquet", ".json", ".done", ".npy", ".bin"}
_FOR_THE_USER = ("InputError", "OSError", "FileNotFoundError", "PermissionError", "NotADirectoryError")
"""What a cell may raise that is no mistake of ours."""
logger = logging.getLogger("analysis")


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


def fingerprint(inputs: Sequence[Path], parameters: Mapping[str, Any], figures: Path) -> str:
    """SHA-256 of the parameters and of the name, size and time of all code and of every file of the inputs.

    The folder `figures`, where notebooks write, is no input even if it lies in a folder that is.
    """
    folders = [ROOT / "analysis", ROOT / "pipeline", *(folder.resolve() for folder in inputs)]
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.suffix in _READ)
    read = [path for path in files if figures not in path.parents and not path.name.startswith(".")]
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in read]
    return hashlib.sha256(repr((sorted(parameters.items()), stats)).encode()).hexdigest()


def execute_all(
    notebooks: Sequence[Path],
    figures: Path,
    parameters: Mapping[str, Any],
    made_from: str = "",
    *,
    num_at_once: int = 1,
) -> Iterator[None]:
    """Execute notebooks, several at once, write the executed copies, and yield as each ends.

    The first failure, or an interruption, ends the other notebooks too: an InputError if a cell met bad input
    or could not write; else SystemExit, in a sentence, and the traceback stands in <name>.failed.ipynb.

    Args:
        notebooks, figures: their paths; where the copies, their figures and tables go.
        parameters: name -> value, set after the cell tagged "parameters", which holds the defaults.
        made_from: the fingerprint of what they read.
        num_at_once: kernels, each of one thread, so that no figure depends on it.
    """
    refuse_replacing([figures / path.name for path in notebooks], notebooks)
    figures.mkdir(parents=True, exist_ok=True)
    workers = Parallel(num_at_once, return_as="generator_unordered")
    return workers(delayed(_execute)(figures, dict(parameters), made_from, path) for path in notebooks)


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
    lines = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
    tags = {"tags": ["injected-parameters"]}
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(lines, id="injected", metadata=tags))
    client = NotebookClient(
        notebook,
        timeout=None,
        kernel_manager_class=_ThisInterpretersKernel,
        shutdown_kernel="immediate",
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )
    failed = figures / f"{path.stem}.failed.ipynb"
    try:
        with TemporaryDirectory(prefix="notebooks-", ignore_cleanup_errors=True) as folder:
            # Instead of the user's own settings of Jupyter, which could change what is shown.
            settings = {"OMP_NUM_THREADS": "1", "JUPYTER_CONFIG_DIR": folder, "IPYTHONDIR": folder}
            client.execute(cwd=str(ROOT), env=os.environ | settings)
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


def main(arguments: argparse.Namespace) -> None:
    """Execute every notebook that is not up to date.

    Raises:
        InputError: no results, a notebook that is not there or that lacks something, or bad input of a cell.
        SystemExit: a cell failed.
    """
    if not artefacts_in(arguments.results):
        raise no_results(arguments.results)
    paths = {path.stem: path for path in sorted(NOTEBOOKS.glob("*.ipynb"))}
    for name in arguments.notebooks:
        if name not in paths:
            raise unknown_name("notebook", name, paths)
    figures = arguments.figures.resolve()
    parameters = {
        "results": str(arguments.results.resolve()),
        "figures_folder": str(figures),
        "long_models": arguments.long_models,
        "short_models": arguments.short_models,
        "train_context_lengths": dict(arguments.train_context_lengths),
        "data": str(arguments.data.resolve()) if arguments.data else None,
    }
    parameters = {name: value for name, value in parameters.items() if value}  # else a notebook's own
    data = arguments.data or arguments.results.parent / "data"
    with folder_lock(figures, "--figures"):
        made_from = fingerprint([arguments.results, data], parameters, figures)
        stale = []
        for name in arguments.notebooks or paths:
            executed = figures / f"{name}.ipynb"
            if executed.exists() and nbformat.read(executed, 4).metadata.get("made_from") == made_from:
                logger.info("%s.ipynb: nothing has changed, skipped", name)
            elif missing := missing_inputs(name, arguments):
                if arguments.notebooks:
                    raise InputError(f"{name}.ipynb: {missing}")
                logger.info("%s.ipynb: %s, skipped", name, missing)
            else:
                stale.append(paths[name])
        for number in (signal.SIGINT, signal.SIGTERM):  # there are kernels to be ended first
            signal.signal(number, signal.default_int_handler)
        done = execute_all(stale, figures, parameters, made_from, num_at_once=arguments.jobs)
        for _ in progress(done, "notebooks", "notebook", len(stale)):
            pass


def _model_and_length(text: str) -> tuple[str, int]:
    model, _, train_context_length = text.rpartition("=")
    if not model or not train_context_length.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not of the form model=tokens, such as long-seed0=256")
    return model, int(train_context_length)


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    models: dict[str, Any] = {"nargs": "+", "default": (), "metavar": "MODEL"}
    add("--results", type=folder_path, required=True, help="a results folder")
    add("--figures", type=folder_path, required=True, help="where executed notebooks and figures go")
    add(
        "--long-models",
        **models,
        help="models trained at the long context; the gap is from the last, or from all that neither chose"
        " nor evaluated (default: as the results say)",
    )
    add("--short-models", **models, help="models trained at a short context (default: as the results say)")
    add(
        "--train-context-lengths",
        nargs="*",
        type=_model_and_length,
        default=(),
        metavar="MODEL=TOKENS",
        help="training lengths, marked in the figure of losses by length",
    )
    add(
        "--data",
        type=folder_path,
        help="the tokenize_c4.py folder that was measured, for its text and token counts (default: data"
        " beside --results; without it, no control for token frequency)",
    )
    add("--notebooks", nargs="+", default=(), metavar="NAME", help="notebooks to execute (default: all)")
    add(
        "--jobs",
        type=positive_int,
        default=len(os.sched_getaffinity(0)),
        help="notebooks executed at once, each by one thread and in some 0.5 GiB (default: one per core)",
    )
    return program
