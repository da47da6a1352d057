"""Why do models fail beyond their training length? Verdicts, tables and figures from kept tables.

  python analysis/length_failures.py --kept analysis/reference/real_model --out runs/real_model
  python analysis/length_failures.py --kept analysis/reference/length --out runs/length

A pretrained model: do predictions that need few tokens withstand unseen distances better? Models trained
here: A, unseen distances: do short-context models lose more if a prediction needs more tokens? B: is it
distance or the number of tokens? C: do functions of k bits other than parity fail as k rises? D: is the loss
with several cues that of the farthest one? Questions, rules and power were written down before
(analysis/LOG.md, 2026-11-27). Prints every table with its verdict, and writes the figures.

The kept tables have a row a target. They are made of results of length_interference.py (--interference; of
texts as long as the model was trained on, and longer, --natural) and of influential_tokens.py (--needed):

  python analysis/length_failures.py --data runs/real/data \\
      --interference runs/real/interference runs/real/squeezed --needed runs/real/needed \\
      --natural runs/real/natural --out runs/real/kept
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
from functools import partial

from pipeline.cli import InputError, folder_path, stage_parser


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = partial(program.add_argument, type=folder_path)
    add("--kept", help="folder of the kept tables, to print and draw")
    add("--out", required=True, help="where tables and figures are written")
    add("--data", help="the texts, to make tables of --interference, --needed and --natural")
    add("--interference", nargs="+", default=[], help="results; of further folders what the first lacks")
    add("--needed", help="results: tokens needed, of the same targets")
    add("--natural", help="results: the same placements in texts of full length")
    return program


def main(arguments: argparse.Namespace) -> None:
    """Make the tables of targets, or print tables and verdicts and draw the figures."""
    # Imported late, for a --help at once.
    from analysis import drawing
    from analysis.figures import cues, interference, marked_bits, unseen_distances

    if arguments.interference or arguments.natural:
        if arguments.data is None:
            raise InputError("--interference and --natural need --data, the texts that were measured")
        interference.make_tables(
            arguments.interference, arguments.needed, arguments.natural, arguments.data, arguments.out
        )
    if arguments.kept is None:
        return
    reports = {
        "placed_targets.parquet": unseen_distances.report,
        "functions": marked_bits.report,
        "cues": cues.report,
        interference.TARGETS_FILE: interference.report,
    }
    for needed, report in reports.items():
        for shown in report(arguments.kept) if (arguments.kept / needed).exists() else ():
            table = shown.table.round(3).to_string(index=False)
            sys.stdout.write(f"\n{shown.title}\n{table}\n{shown.words}\n")
            for name, figure in shown.figures.items():
                drawing.save(figure, arguments.out, name)
