"""The console command `sparsity`: every program as a subcommand.

`sparsity query …` is `python pipeline/query.py …`, from any folder; `sparsity --help` lists the programs.
"""

import ast
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from pipeline.endings import endings
from pipeline.errors import unknown_name
from pipeline.start import prepare, run_module

COMMAND = "sparsity"
PROGRAMS = (
    "pipeline.study",
    "pipeline.tokenize_c4",
    "pipeline.pretrain",
    "pipeline.loss_differences",
    "pipeline.length_losses",
    "pipeline.influential_tokens",
    "analysis.run_notebooks",
    "analysis.summary",
    "analysis.explorer",
    "analysis.measures",
    "analysis.methods",
    "analysis.planted_lengths",
    "pipeline.explain",
    "pipeline.query",
    "pipeline.plant_needles",
    "pipeline.plant_signs",
    "pipeline.export_huggingface",
    "pipeline.train_synthetic",
    "pipeline.evaluate_synthetic",
    "pipeline.found_dependencies",
    "pipeline.sparse_functional_attention",
)
"""A whole study, its stages in the order of the work, what is done besides, synthetic tasks, theory."""


def main() -> NoReturn:
    """Run the program that the first word names, on the words behind it."""
    words = sys.argv[1:]
    typed = " ".join([COMMAND, *words[:1]])
    prepare(typed)
    with endings(COMMAND):
        if not words or words[0] in ("-h", "--help"):
            sys.stdout.write(listing())
            sys.exit(0 if words else 2)
        modules = {module.rpartition(".")[2]: module for module in PROGRAMS}
        if words[0] not in modules:
            raise unknown_name("program", words[0], modules)
    sys.argv = [typed, *words[1:]]
    run_module(modules[words[0]], typed)


def listing() -> str:
    """The programs, a line each: the first line of their manual."""
    names = [module.rpartition(".")[2] for module in PROGRAMS]
    width = max(map(len, names))
    lines = [
        f"  {name:{width}}  {_first_line(module)}\n" for name, module in zip(names, PROGRAMS, strict=True)
    ]
    return f"usage: {COMMAND} PROGRAM …; {COMMAND} PROGRAM --help is its manual\n\n{''.join(lines)}"


def _first_line(module: str) -> str:
    """Read, not imported: a list is there at once."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    manual = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8")))
    assert manual is not None
    return manual.partition("\n")[0]
