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
import logging
import os
import signal
from typing import Any

from pipeline.cli import InputError, folder_path, positive_int, progress, stage_parser, unknown_name

logger = logging.getLogger("analysis")


def main(arguments: argparse.Namespace) -> None:
    """Execute every notebook that is not up to date.

    Raises:
        InputError: no results, a notebook that is not there or that lacks something, or bad input of a cell.
        SystemExit: a cell failed.
    """
    # Imported late, for a --help at once.
    from analysis.notebooks import NOTEBOOKS, execute_all, fingerprint, is_fresh, missing_inputs
    from pipeline.results.files import folder_lock
    from pipeline.results.read import artefacts_in, no_results

    if not artefacts_in(arguments.results):
        raise no_results(arguments.results)
    paths = {path.stem: path for path in sorted(NOTEBOOKS.glob("*.ipynb"))}
    for name in arguments.notebooks:
        if name not in paths:
            raise unknown_name("notebook", name, paths)
    figures = arguments.figures.resolve()
    data = arguments.data or arguments.results.parent / "data"
    parameters = {
        "results": str(arguments.results.resolve()),
        "figures_folder": str(figures),
        "long_models": arguments.long_models,
        "short_models": arguments.short_models,
        "train_context_lengths": dict(arguments.train_context_lengths),
        "data": str(arguments.data.resolve()) if arguments.data else None,
    }
    parameters = {name: value for name, value in parameters.items() if value}  # else a notebook's own
    with folder_lock(figures, "--figures"):
        made_from = fingerprint([arguments.results, data], parameters, figures)
        stale = []
        for name in arguments.notebooks or paths:
            if is_fresh(figures / f"{name}.ipynb", made_from):
                logger.info("%s.ipynb: nothing has changed, skipped", name)
            elif missing := missing_inputs(name, arguments):
                if arguments.notebooks:
                    raise InputError(f"{name}.ipynb: {missing}")
                logger.info("%s.ipynb: %s, skipped", name, missing)
            else:
                stale.append(paths[name])
        for number in (signal.SIGINT, signal.SIGTERM):  # there are kernels to be ended first
            signal.signal(number, signal.default_int_handler)
        executed = execute_all(stale, figures, parameters, made_from, num_at_once=arguments.jobs)
        for _ in progress(executed, "notebooks", "notebook", len(stale)):
            pass


def _model_and_length(text: str) -> tuple[str, int]:
    model, separator, train_context_length = text.rpartition("=")
    if not separator or not train_context_length.isdecimal():
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
        help="models trained at the long context; the gap is from the last, or"
        " from all that neither chose nor evaluated; those that the results name if not given",
    )
    add("--short-models", **models, help="models trained at a short context; likewise")
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
        help="folder of tokenize_c4.py that was measured, for its text and the"
        " counts of its tokens; data beside --results where not given, and no control for token frequency"
        " where there is none",
    )
    add("--notebooks", nargs="+", default=(), metavar="NAME", help="those to execute; (default: all)")
    add(
        "--jobs",
        type=positive_int,
        default=len(os.sched_getaffinity(0)),
        help="notebooks executed at once, each by one thread and in some 0.5 GiB; a core each if not given",
    )
    return program
