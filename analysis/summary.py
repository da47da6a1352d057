"""Print the closing table of a results folder: what the distant context is worth, and how few tokens carry
it.

python analysis/summary.py --results runs/demo/results --figures runs/demo/figures
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse

from pipeline.cli import folder_path, stage_parser


def main(arguments: argparse.Namespace) -> None:
    """Print the page."""
    from analysis.answers import page  # late, for a --help at once

    figures = arguments.figures or arguments.results.parent / "figures"
    sys.stdout.write(page(arguments.results, figures))


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add("--results", type=folder_path, required=True, help="a results folder")
    add("--figures", type=folder_path, help="the folder of figures; beside the results where not given")
    return program
