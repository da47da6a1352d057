"""Do predictions that need few tokens withstand unseen distances? Tables, verdict, figures of a real model.

  python analysis/real_model.py --kept analysis/reference/real_model --out runs/real_model

Prints every table and the verdict, and writes the figures `mechanism` (interference by the distance and by
the number of distant tokens) and `interference_by_tokens_needed`. Question, rule and power were written down
before anything was measured: analysis/LOG.md, 2026-11-27.

The kept tables have a row a target. They are made of results of length_interference.py (--interference; of
texts as long as the model was trained on, and longer, --natural) and of influential_tokens.py (--needed):

  python analysis/real_model.py --data runs/real/data \\
      --interference runs/real/interference runs/real/squeezed --needed runs/real/needed \\
      --natural runs/real/natural --out analysis/reference/real_model
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse

from pipeline.cli import InputError, folder_path, stage_parser


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add("--kept", type=folder_path, help="folder of the kept tables, to print and draw")
    add("--data", type=folder_path, help="the texts, to make the tables of results")
    add(
        "--interference",
        type=folder_path,
        nargs="+",
        metavar="RESULTS",
        help="near tokens behind placed distant ones; of further folders what the first lacks",
    )
    add("--needed", type=folder_path, metavar="RESULTS", help="tokens needed, of the same targets")
    add("--natural", type=folder_path, metavar="RESULTS", help="the same placements in texts of full length")
    add("--out", type=folder_path, required=True, help="where tables and figures are written")
    return program


def main(arguments: argparse.Namespace) -> None:
    """Make the tables of targets, or print tables and verdict and draw the figures."""
    from analysis.figures import interference  # late, for a --help at once

    if arguments.interference or arguments.natural:
        if arguments.data is None:
            raise InputError("--interference and --natural need --data, the texts that were measured")
        sources = arguments.interference or [], arguments.needed, arguments.natural
        interference.make_tables(*sources, arguments.data, arguments.out)
    if arguments.kept is not None:
        interference.report(arguments.kept, arguments.out)
