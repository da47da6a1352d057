"""Execute the notebooks on a results folder, and save them with their figures.

  sparsity run_notebooks --results runs/demo/results --figures runs/demo/figures \\
      --long-models long-seed0 long-seed1 --short-models short-contiguous short-pose \\
      --train-context-lengths short-contiguous=32 short-pose=32 long-seed0=128 long-seed1=128

A notebook is skipped if the results lack its tables. The notebook sparsity_and_generalization also needs a
short-context model and a long-context model that was neither selector nor evaluator.

To execute some notebooks only (the results must then have all their tables):
  sparsity run_notebooks --results runs/demo/results --figures runs/demo/figures --notebooks loss_differences
"""

import argparse
import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sparsity_length.cli import InputError, Stage, folder_path, logger, progress, unknown_name
from sparsity_length.figures.generalization_gap import compared_models
from sparsity_length.results.files import refuse_replacing, write_text
from sparsity_length.results.read import Results

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "analysis" / "notebooks"
_NEEDED_ARTEFACTS = {
    "loss_differences": "loss_differences",
    "length_losses": "length_losses",
    "influential_tokens": "sparse_context_losses",
    "sparsity_and_generalization": "dependency_sparsity",
    "synthetic_tasks": "synthetic_accuracy",
}


def missing_inputs(notebook: str, arguments: argparse.Namespace) -> str | None:
    """Name what a notebook needs and the results lack; None if it can be executed."""
    present = Results(arguments.results).tables
    if (needed := _NEEDED_ARTEFACTS[notebook]) not in present:
        return f"the results hold no '{needed}'; they hold {', '.join(present)}"
    if notebook == "sparsity_and_generalization":
        try:
            compared_models(arguments.results, arguments.long_models, arguments.short_models)
        except InputError as lacking:
            return str(lacking)
    return None


def execute(path: Path, figures: Path, parameters: Mapping[str, Any]) -> None:
    """Execute a notebook and write the executed copy, also if a cell fails, which is an InputError.

    Args:
        path: the notebook.
        figures: where the copy goes.
        parameters: name -> value, set after the cell tagged "parameters", which holds the defaults.
    """
    # Late: what lacks them says so in a sentence.
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    executed = figures / path.name
    refuse_replacing([executed], [path])
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)  # nbclient announces each kernel
    notebook = nbformat.read(path, as_version=4)
    # Papermill's convention: a tagged cell holds the defaults; the run's own values follow right after it.
    place = next(i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    lines = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
    tags = {"tags": ["injected-parameters"]}
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell(lines, id="injected", metadata=tags))
    # This environment's kernel, not one that the user has registered; one thread, so that no figure depends
    # on their number.
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    client = NotebookClient(
        notebook,
        timeout=None,
        kernel_name="python3",
        shutdown_kernel="immediate",
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )
    try:
        # In the main thread the client would take Ctrl-C for a kernel that died; so it ends the program.
        with ThreadPoolExecutor(max_workers=1) as thread:
            thread.submit(client.execute, cwd=str(ROOT), env=os.environ | {"OMP_NUM_THREADS": "1"}).result()
    except CellExecutionError as error:
        # An error is reported in one line, and a cell's message may have many.
        text = " ".join(f"{error.ename}: {error.evalue}".split())
        raise InputError(f"a cell of {path.name} failed: {text}; the traceback is in {executed}") from None
    finally:
        write_text(executed, nbformat.writes(notebook))


def main(arguments: argparse.Namespace) -> None:
    """Execute every notebook that the results have what it needs for, or those that are named.

    Raises:
        InputError: no results, a notebook that is not there or that lacks something, or a cell that failed.
    """
    Results(arguments.results).refuse_empty()
    paths = {path.stem: path for path in sorted(NOTEBOOKS.glob("*.ipynb"))}
    shown = []
    for name in arguments.notebooks or paths:
        if name not in paths:
            raise unknown_name("notebook", name, paths)
        if (missing := missing_inputs(name, arguments)) is None:
            shown.append(paths[name])
        elif arguments.notebooks:
            raise InputError(f"{name}.ipynb: {missing}")
        else:
            logger.info("%s.ipynb: %s, skipped", name, missing)
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
    for path in progress(shown, "notebooks", "notebook"):
        execute(path, figures, parameters)


def _model_and_length(text: str) -> tuple[str, int]:
    # Split from the right: a model's name may contain an equals sign.
    model, _, train_context_length = text.rpartition("=")
    if not model or not train_context_length.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not of the form model=tokens, such as long-seed0=256")
    return model, int(train_context_length)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The program's command line."""
    add = parser.add_argument
    models: dict[str, Any] = {"nargs": "+", "default": (), "metavar": "MODEL"}
    add("--results", type=folder_path, required=True, help="results folder to read")
    add("--figures", type=folder_path, required=True, help="folder for executed notebooks and figures")
    add(
        "--long-models",
        **models,
        help="models trained with the long context; the gap is measured from the last one, or from all that"
        " were"
        " neither selector nor evaluator (default: as the results say)",
    )
    add("--short-models", **models, help="models trained with a short context (default: as the results say)")
    add(
        "--train-context-lengths",
        nargs="*",
        type=_model_and_length,
        default=(),
        metavar="MODEL=TOKENS",
        help="training context lengths, to mark in the figure of losses by length",
    )
    add(
        "--data",
        type=folder_path,
        help="folder of tokenize_c4 that was measured, for its text and token counts (default: the folder"
        " data"
        " beside --results; without it, there is no control for token frequency)",
    )
    add("--notebooks", nargs="+", default=(), metavar="NAME", help="notebooks to execute (default: all)")


STAGE = Stage(__doc__, add_flags, main)

if __name__ == "__main__":
    STAGE.main()
