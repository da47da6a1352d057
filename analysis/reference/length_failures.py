"""Print and draw where a pretrained model fails at length.

  sparsity length_failures --kept analysis/reference/real_model --out runs/real_model

The program prints how far the model reads (how much of a planted fact's effect remains at each distance), how
much another text's tokens disturb predictions by distance and number, and the slopes with their verdict, and
draws the figures. The questions, decision rules and power were written down beforehand (analysis/LOG.md,
2026-11-27 and 2026-11-29).

The kept tables have one row per target. They are made from results of length_interference (--interference;
for texts as long as the training context and longer, --natural) and of influential_tokens (--needed):
  sparsity length_failures --data runs/real/data \\
      --interference runs/real/interference runs/real/squeezed --needed runs/real/needed \\
      --natural runs/real/natural --out runs/real/kept

The table of moved texts (distances set by hand, pretrained_distance.yaml) is made from results of
length_interference, without and with --rope, of influential_tokens (--needed, if there are any), and of an
earlier study by removal (--earlier: a file of the table sparse_context_losses, or its folder):
  sparsity length_failures --data runs/distance/data --moved runs/distance/results \\
      runs/distance/yarn/results --needed runs/distance/needed/results \\
      --earlier analysis/reference/real_model/few_tokens.parquet --out runs/distance/kept

The table of planted facts is made from the data of plant_needles and from results of length_interference on
these documents, with or without --rope; give --told once per model:
  sparsity length_failures --told runs/reach/needles/length-64/data runs/reach/results \\
      runs/reach/yarn/results --out runs/reach/kept
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from sparsity_length.cli import InputError, Stage, folder_path


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The program's command line."""
    add = partial(parser.add_argument, type=folder_path)
    add("--kept", help="folder of kept tables, to print and draw")
    add("--out", required=True, help="folder to write tables and figures to")
    add("--data", help="folder of tokenize_c4 with the texts of --interference, --needed and --natural")
    add("--interference", nargs="+", default=[], help="results folders; later ones add what the first lacks")
    add("--needed", help="results folder of influential_tokens, for the same targets")
    add("--natural", help="results folder with the same placements in texts of full length")
    add("--moved", nargs=2, metavar="FOLDER", help="results folders of moved texts, without and with --rope")
    add("--earlier", type=Path, metavar="FILE", help="table of the same targets, selected by removal")
    add(
        "--told",
        nargs="+",
        action="append",
        default=[],
        metavar="FOLDER",
        help="a data folder of plant_needles, then results folders",
    )


def main(arguments: argparse.Namespace) -> None:
    """Make tables, and print those of told facts; or print kept tables and verdicts, and draw the figures."""
    # Imported late, for a --help at once.
    import pandas as pd

    from sparsity_length.figures import distance, drawing, interference, reach

    kept = arguments.kept
    of_data = arguments.data and (arguments.interference or (arguments.moved and arguments.earlier))
    if kept is None and not arguments.told and not of_data:
        raise InputError(
            "name the kept tables (--kept); or, to make them, --data and --interference, --data, --moved and"
            " --earlier, or --told"
        )
    if arguments.interference:
        interference.make_tables(
            arguments.interference, arguments.needed, arguments.natural, arguments.data, arguments.out
        )
    if arguments.moved:
        measured = dict(zip(distance.PANELS, arguments.moved, strict=True))
        distance.make_table(measured, arguments.data, arguments.needed, arguments.earlier, arguments.out)
    if arguments.told:
        of_models = [reach.reach_items(needles, measured) for needles, *measured in arguments.told]
        arguments.out.mkdir(parents=True, exist_ok=True)
        pd.concat(of_models).to_parquet(arguments.out / reach.REACH_FILE, index=False)
    said = list[str]()
    if (told := (kept or arguments.out) / reach.REACH_FILE).exists():
        items = pd.read_parquet(told)
        curves = reach.curves(items)
        said += ["Share of a told fact's worth that is kept, by gap", curves.round(3).to_string()]
        said += reach.verdicts(items, curves)
        if len(curves):
            drawing.save(reach.reach_figure(curves), arguments.out, "reach")
    if kept is not None and (moved := kept / distance.MOVED_FILE).exists():
        targets = pd.read_parquet(moved)
        said += distance.sentences(targets)
        drawing.save(distance.moved_figure(*distance.deciding(targets)), arguments.out, "distance")
    if kept is not None and (of_targets := kept / interference.TARGETS_FILE).exists():
        targets = pd.read_parquet(of_targets)
        places = interference.mechanism(targets)
        drawing.save(interference.mechanism_figure(places), arguments.out, "mechanism")
        said += ["Length interference by distance and number, nats", places.round(3).to_string()]
        word, ratios = interference.where_read(targets)
        said += [f"{placement}: {ratio} of {interference.UNSEEN}" for placement, ratio in ratios.items()]
        said.append(f"Other text disturbs less where it is read: {word}")
        # Tables made without --needed have no predictor to take slopes on.
        if interference.SPARSITY in targets:
            table = interference.slopes(interference.with_outcomes(targets))
            said += ["Slopes per doubling of the tokens needed", table.round(3).to_string()]
            said.append(f"Verdict: {interference.verdict(table)}")
    if kept is not None and (natural := kept / interference.NATURAL_FILE).exists():
        said.append(interference.natural_check(pd.read_parquet(natural)))
    sys.stdout.write("\n".join([*said, ""]))


STAGE = Stage(__doc__, add_flags, main)

if __name__ == "__main__":
    STAGE.main()
