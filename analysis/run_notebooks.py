"""Execute the notebooks on a results folder; the executed copies and their figures go to the figures folder.

    python analysis/run_notebooks.py --results runs/demo/results --figures runs/demo/figures \
        --long-models long-seed0 long-seed1 --short-models short-contiguous short-pose \
        --train-context-lengths short-contiguous=32 short-pose=32 long-seed0=256 long-seed1=256

A notebook whose results, code and parameters are those of its last execution is skipped, and so is one for
which something lacks (analysis/notebook_needs.py): the results it is about, several selection rules
(selection_rules), model sizes or training steps, those of --also-results counted (model_scale), the tokenized
data, beside the results or as --data (token_categories, influential_places), planted needles, as --needles
(needles). To execute some notebooks only, which must then lack nothing:

    python analysis/run_notebooks.py --results runs/demo/rules --figures runs/demo/rules-figures \
        --notebooks selection_rules
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.start import start

    start(__file__)

import argparse
import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from analysis.notebook_needs import what_lacks
from pipeline.errors import InputError, unknown_name
from pipeline.results.files import write_atomically
from pipeline.results.folder import artefacts_in
from pipeline.stage import progress, stage_parser

ROOT = Path(__file__).resolve().parents[1]
logger = logging.getLogger("analysis")


def fingerprint(results: Path, notebook: Path, parameters: Mapping[str, Any]) -> str:
    """SHA-256 of all that decides what a notebook shows.

    Code enters by its content; Parquet files by name, size and time, as reading gigabytes to learn that
    nothing is to be done would defeat the purpose.
    """
    digest = hashlib.sha256(repr(sorted(parameters.items())).encode())
    for source in [
        notebook,
        *sorted((ROOT / "analysis").rglob("*.py")),
        *sorted((ROOT / "pipeline/results").glob("*.py")),
    ]:
        digest.update(source.read_bytes())
    folders = [results, *map(Path, parameters.get("also_results", ()))]
    parquet = [path for folder in folders for path in sorted(folder.glob("*/model=*/*.parquet"))]
    if "needles" in parameters:
        parquet += sorted(Path(parameters["needles"]).glob("length-*/*/**/*.parquet"))
    for path in parquet:
        stat = path.stat()
        digest.update(f"{path.relative_to(path.parents[2])} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def is_up_to_date(executed: Path, made_from: str) -> bool:
    """Whether `executed` was made from the inputs of this fingerprint, and its figures are still there."""
    if not executed.exists():
        return False
    execution = nbformat.read(executed, as_version=4).metadata.get("execution_of_results", {})
    figures = (executed.parent / name for name in execution.get("figures", []))
    return execution.get("made_from") == made_from and all(figure.exists() for figure in figures)


def with_parameters(notebook: nbformat.NotebookNode, parameters: Mapping[str, Any]) -> nbformat.NotebookNode:
    """`notebook` with a cell setting `parameters`, after the one tagged "parameters" with the defaults."""
    place = next(i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    lines = [f"{name} = {value!r}" for name, value in parameters.items()]
    cell = nbformat.v4.new_code_cell(
        "\n".join(lines), id="injected", metadata={"tags": ["injected-parameters"]}
    )
    notebook.cells.insert(place + 1, cell)
    return notebook


def execute(path: Path, figures: Path, parameters: Mapping[str, Any], made_from: str) -> None:
    """Execute one notebook and write the executed copy.

    Raises:
        InputError: a cell met bad input, such as an artefact that is missing.
        SystemExit: a cell failed otherwise; with the cell's traceback.
    """
    notebook = with_parameters(nbformat.read(path, as_version=4), parameters)
    started = time.time_ns()
    client = NotebookClient(
        notebook,
        timeout=None,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT)}},
    )
    try:
        client.execute()
    except CellExecutionError as error:
        if error.ename == "InputError":
            raise InputError(f"{path.name}: {error.evalue}") from error
        raise SystemExit(f"{path.name}: a cell failed\n{error}") from error
    written = [
        file.name for file in sorted(figures.glob("*.p[dn][fg]")) if file.stat().st_mtime_ns >= started
    ]
    notebook.metadata["execution_of_results"] = {"made_from": made_from, "figures": written}
    write_atomically(
        figures / path.name, lambda part: part.write_text(nbformat.writes(notebook), encoding="utf-8")
    )


def main(arguments: argparse.Namespace) -> None:
    """Execute every notebook that is not up to date."""
    logging.getLogger("traitlets").setLevel(logging.WARNING)  # nbclient announces each kernel
    if not arguments.results.is_dir():
        raise InputError(f"--results {arguments.results} is not a folder; name one that the stages wrote to")
    if not artefacts_in(arguments.results):
        raise InputError(f"--results {arguments.results} holds no results; name a folder of a stage's")
    arguments.figures.mkdir(parents=True, exist_ok=True)
    given = {
        "results": str(arguments.results.resolve()),
        "figures_folder": str(arguments.figures.resolve()),
        "long_models": arguments.long_models,
        "short_models": arguments.short_models,
        "train_context_lengths": dict(arguments.train_context_lengths),
        "also_results": [str(folder.resolve()) for folder in arguments.also_results],
        "data": str(arguments.data.resolve()) if arguments.data else None,
        "needles": str(arguments.needles.resolve()) if arguments.needles else None,
    }
    parameters = {name: value for name, value in given.items() if value}
    notebooks = _notebooks(arguments.notebooks)
    for path in progress(notebooks, "notebooks", "notebook", len(notebooks)):
        made_from = fingerprint(arguments.results, path, parameters)
        if is_up_to_date(arguments.figures / path.name, made_from):
            logger.info("%s: nothing has changed, skipped", path.name)
        elif lacks := what_lacks(path.stem, arguments):
            if arguments.notebooks:
                raise InputError(f"{path.name}: {lacks}")
            logger.info("%s: %s, skipped", path.name, lacks)
        else:
            execute(path, arguments.figures, parameters, made_from)


def _notebooks(names: Sequence[str]) -> list[Path]:
    """Those of the given names, all where none is given.

    Raises:
        InputError: there is none of a name.
    """
    of_name = {path.stem: path for path in sorted((ROOT / "analysis" / "notebooks").glob("*.ipynb"))}
    for name in names:
        if name not in of_name:
            raise unknown_name("notebook", name, of_name)
    return [path for name, path in of_name.items() if not names or name in names]


def _model_and_length(text: str) -> tuple[str, int]:
    model, separator, train_context_length = text.rpartition("=")
    if not separator or not train_context_length.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not of the form model=tokens, such as long-seed0=256")
    return model, int(train_context_length)


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add("--results", type=Path, required=True, help="a results folder")
    add("--figures", type=Path, required=True, help="where executed notebooks and figures go")
    add(
        "--long-models",
        nargs="+",
        default=(),
        metavar="MODEL",
        help="models trained at the long context; k* from the first, gap from the last; the demo's if not"
        " given",
    )
    add(
        "--short-models",
        nargs="+",
        default=(),
        metavar="MODEL",
        help="models trained at a short context; the demo's if not given",
    )
    add(
        "--train-context-lengths",
        nargs="*",
        type=_model_and_length,
        default=(),
        metavar="MODEL=TOKENS",
        help="training lengths, marked in the figure of losses by length",
    )
    add("--needles", type=Path, help="a folder of plant_needles.py, measured")
    add(
        "--also-results",
        nargs="+",
        type=Path,
        default=(),
        metavar="FOLDER",
        help="further results folders, of other sizes or steps, for the notebook model_scale",
    )
    add(
        "--data",
        type=Path,
        help="folder of tokenize_c4.py that was measured, for its text and the counts of its tokens; data"
        " beside --results where not given, and no control for token frequency where there is none",
    )
    add(
        "--notebooks",
        nargs="+",
        default=(),
        metavar="NAME",
        help="the notebooks to execute; all if not given",
    )
    return program
