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
from typing import TYPE_CHECKING

from pipeline.cli import InputError, folder_path, stage_parser

if TYPE_CHECKING:
    import pandas as pd

TARGETS_FILE, NATURAL_FILE = "interference_targets.parquet", "natural_targets.parquet"


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add("--kept", type=folder_path, help="folder of the kept tables, to print and draw")
    add("--data", type=folder_path, help="the texts, to make the tables of results")
    add("--interference", type=folder_path, nargs="+", metavar="RESULTS",
        help="near tokens behind placed distant ones; of further folders what the first lacks")  # fmt: skip
    add("--needed", type=folder_path, metavar="RESULTS", help="tokens needed, of the same targets")
    add("--natural", type=folder_path, metavar="RESULTS", help="the same placements in texts of full length")
    add("--out", type=folder_path, required=True, help="where tables and figures are written")
    return program


def main(arguments: argparse.Namespace) -> None:
    """Make the tables of targets, or print tables and verdict and draw the figures."""
    import pandas as pd

    from analysis import drawing
    from analysis.figures import interference
    from pipeline.text.folder import TokenizedData

    out: Path = arguments.out
    if arguments.interference or arguments.natural:
        if arguments.data is None:
            raise InputError("--interference and --natural need --data, the texts that were measured")
        data = TokenizedData.open(arguments.data)
        out.mkdir(parents=True, exist_ok=True)
        if arguments.interference:
            targets = interference.interference_targets(arguments.interference[0], arguments.needed, data)
            for further in arguments.interference[1:]:
                more = interference.interference_targets(further, None, data).set_index(interference.KEYS)
                more = more[[name for name in more if name not in targets]]
                targets = targets.join(more, interference.KEYS)
            targets.to_parquet(out / TARGETS_FILE, index=False)
        if arguments.natural:
            natural = interference.interference_targets(arguments.natural, None, data)
            natural.to_parquet(out / NATURAL_FILE, index=False)
    if arguments.kept is None:
        return

    def show(title: str, table: "pd.DataFrame", words: str = "") -> None:
        sys.stdout.write(f"\n{title}\n{table.round(3).to_string(index=False)}\n{words}\n")

    targets = pd.read_parquet(arguments.kept / TARGETS_FILE)
    places = interference.mechanism(targets)
    show("Length interference by distance and number of distant tokens, nats", places)
    drawing.save(interference.mechanism_figure(places), out, "mechanism")
    if (arguments.kept / NATURAL_FILE).exists():
        natural = pd.read_parquet(arguments.kept / NATURAL_FILE)
        show("Natural lengths", *interference.natural_check(natural))
    if interference.SPARSITY not in targets:
        return
    known = interference.with_outcomes(targets)
    table = interference.slopes(known, interference.PRIMARY, interference.TRAINED, interference.others(known))
    permuted = interference.permuted(known, interference.PRIMARY)
    spread = f"Permuted within text and decile: mean {permuted.mean():.3f}, sd {permuted.std(ddof=1):.3f}"
    show("Slopes per doubling of the tokens needed", table, spread)
    drawing.save(interference.eighths_figure(known, table), out, "interference_by_tokens_needed")
    sys.stdout.write(f"Verdict: {interference.verdict(table)}\n")
