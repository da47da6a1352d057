"""Why do models fail beyond their training length? Four experiments, their verdicts, tables and figures.

  python analysis/length_failures.py --kept analysis/reference/length --out runs/length

A, unseen distances: do short-context models lose more where a prediction needs more tokens? B: is it distance
or the number of tokens? C: do functions of k bits other than parity fail as k rises? D: is the loss with
several cues that of the farthest one? Questions, rules and power were written down before (analysis/LOG.md,
2026-11-27). Prints each table with its verdict, and writes the figures unseen_distances,
distance_or_number, marked_bits and cue_distances.

The kept folder has `placed_targets.parquet`, `functions` (C) and `cues` (D). The first is made of results of
length_interference.py, near contexts of 64 and of 32 tokens, short-context models first by name:

  python analysis/length_failures.py --placed runs/unseen/near64 runs/unseen/near32 --out FOLDER
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
from typing import TYPE_CHECKING

from pipeline.cli import folder_path, stage_parser

if TYPE_CHECKING:
    import pandas as pd


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add("--kept", type=folder_path, help="the folder of the kept tables")
    add(
        "--placed",
        type=folder_path,
        nargs=2,
        metavar="RESULTS",
        help="results folders of length_interference.py, to make placed_targets.parquet of",
    )
    add("--out", type=folder_path, required=True, help="where tables and figures are written")
    return program


def main(arguments: argparse.Namespace) -> None:
    """Make the table of placed targets, or print the tables and verdicts and draw the figures."""
    import numpy as np
    import pandas as pd

    from analysis import drawing
    from analysis.figures import cues, marked_bits
    from analysis.figures import unseen_distances as unseen
    from analysis.read import write_derived_table
    from pipeline.results.read import read_artefact

    out = arguments.out
    if arguments.placed:
        placed = unseen.placed_targets(arguments.placed)
        write_derived_table(placed, "placed_targets", out)
    if arguments.kept is None:
        return

    def show(title: str, table: "pd.DataFrame", verdict: str = "") -> None:
        sys.stdout.write(f"\n{title}\n{table.round(3).to_string(index=False)}\n{verdict}\n")

    for name in ("outcome_targets", "again_targets"):
        again = unseen.read_again(name)
        show(f"The preregistered study, {name}, read once more", again)
    placed = pd.read_parquet(arguments.kept / "placed_targets.parquet")
    slopes = unseen.unseen_distances(placed)
    show("A. Unseen distances", slopes, f"Verdict: {unseen.verdict_of_unseen_distances(slopes)}")
    drawing.save(unseen.unseen_distances_figure(placed, slopes), out, "unseen_distances")
    conditions = unseen.distance_or_number(placed)
    verdicts = [
        f"{kind}: {unseen.verdict_of_distance_or_number(conditions, kind)}" for kind in ("own", "swap")
    ]
    show("B. Distance or number", conditions, f"Verdict: {'; '.join(verdicts)}")
    drawing.save(unseen.distance_or_number_figure(conditions), out, "distance_or_number")
    accuracy = read_artefact(arguments.kept / "functions", "synthetic_accuracy")
    cells = marked_bits.marked_bits(accuracy)
    verdict, difference = marked_bits.verdict(accuracy)
    at_ends = cells[cells["size"].isin([18, 72, 180])]
    show("C. Marked bits: accuracy", at_ends, f"OR less parity, k = 5 to 8, 180 tokens: {difference}")
    earlier = marked_bits.earlier_parity_beside_or()
    show("C. The earlier parity models beside OR: largest difference", earlier)
    rules = marked_bits.simpler_rules(read_artefact(arguments.kept / "functions", "synthetic_examples"))
    show("C. How often a parity model answers as another function would", rules, f"Verdict: {verdict}")
    drawing.save(marked_bits.figure_of(cells, verdict), out, "marked_bits")
    examples = read_artefact(arguments.kept / "cues", "synthetic_examples")
    means = cues.cue_contrasts(cues.cue_distances(examples, np.mean))
    show("D. Four cues less one, by the mean distance", means)
    contrasts = cues.cue_contrasts(cues.cue_distances(examples))
    verdict = cues.verdict_of_distances(contrasts)
    show("D. Four cues less one, by the farthest distance", contrasts, f"Verdict: {verdict}")
    drawing.save(cues.distances_figure(examples, verdict), out, "cue_distances")
