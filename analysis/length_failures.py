"""Print and draw where a pretrained model fails: how far it reads, and what disturbs which predictions.

  python analysis/length_failures.py --kept analysis/reference/real_model --out runs/real_model

Prints how much of a told fact is kept by distance (the reach), how much another text's tokens disturb
predictions by distance and number, and the slopes with their verdict, and writes the figures. Questions,
rules and power were written down before (analysis/LOG.md, 2026-11-27 and 2026-11-29).

The kept tables have a row a target. They are made of results of length_interference.py (--interference; of
texts as long as the model was trained on, and longer, --natural) and of influential_tokens.py (--needed):

  python analysis/length_failures.py --data runs/real/data \\
      --interference runs/real/interference runs/real/squeezed --needed runs/real/needed \\
      --natural runs/real/natural --out runs/real/kept

The table of told facts is made of needles (plant_needles.py), followed by results of length_interference.py
of their documents, with --rope or without; once per model:

  python analysis/length_failures.py --told runs/reach/needles/length-64/data runs/reach/results \
      runs/reach/yarn/results --out runs/reach/kept
"""

import argparse
import sys
from functools import partial

from pipeline.cli import InputError, folder_path, run_stage, stage_parser


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
    add(
        "--told",
        nargs="+",
        action="append",
        default=[],
        metavar="FOLDER",
        help="data of needles, and results",
    )
    return program


def main(arguments: argparse.Namespace) -> None:
    """Make the tables of targets, or print tables and verdicts and draw the figure."""
    # Imported late, for a --help at once.
    import pandas as pd

    from analysis import drawing
    from analysis.figures import interference, reach

    if arguments.kept is None:
        if not (arguments.data and arguments.interference) and not arguments.told:
            raise InputError(
                "name the kept tables (--kept), or --data and --interference, or --told, to make them"
            )
        if arguments.interference:
            interference.make_tables(
                arguments.interference, arguments.needed, arguments.natural, arguments.data, arguments.out
            )
        if arguments.told:
            told = [reach.reach_items(needles, measured) for needles, *measured in arguments.told]
            arguments.out.mkdir(parents=True, exist_ok=True)
            pd.concat(told).to_parquet(arguments.out / reach.REACH_FILE, index=False)
        return
    if (kept := arguments.kept / reach.REACH_FILE).exists():
        items = pd.read_parquet(kept)
        curves = reach.curves(items)
        drawing.save(reach.reach_figure(curves), arguments.out, "reach")
        sys.stdout.write(
            "\n".join(
                [
                    "Share of a told fact kept, by gap",
                    curves.round(3).to_string(),
                    *reach.verdicts(items, curves),
                    "",
                ]
            )
        )
    targets = pd.read_parquet(arguments.kept / interference.TARGETS_FILE)
    places = interference.mechanism(targets)
    drawing.save(interference.mechanism_figure(places), arguments.out, "mechanism")
    said = ["Length interference by distance and number of distant tokens, nats", places.round(3).to_string()]
    if (natural := arguments.kept / interference.NATURAL_FILE).exists():
        said.append(interference.natural_check(pd.read_parquet(natural)))
    # Tables made without --needed have no predictor to take slopes on.
    if interference.SPARSITY in targets:
        table = interference.slopes(interference.with_outcomes(targets))
        said += ["Slopes per doubling of the tokens needed", table.round(3).to_string()]
        said.append(f"Verdict: {interference.verdict(table)}")
    sys.stdout.write("\n".join([*said, ""]))


if __name__ == "__main__":
    run_stage(parser(), main)
