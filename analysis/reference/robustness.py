"""Recompute the first page's headline numbers under every variant of the analysis.

  sparsity robustness --out analysis/reference/robustness.parquet

All numbers are computed from the kept results. The file has one row per headline, model and variant. The
variants are: every k; the loss and the KL; leaving out the two texts that move the number most; including
runs that a rule left out; all controls, none, each alone, and all but one; equal weights for texts; another
kind of interval; each seed; each distant text. Column `holds` says whether the interval is on the same side
of `level` as the published one. The program prints how many rows of each headline hold. It takes half a
minute on one core.
"""

import argparse
import sys

from sparsity_length.cli import Stage, file_path


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The program's command line."""
    parser.add_argument("--out", type=file_path, required=True, help="Parquet file to write")


def main(arguments: argparse.Namespace) -> None:
    """Write the table and print its headlines."""
    # Imported late, for a --help at once.
    from sparsity_length.figures.robustness import robustness
    from sparsity_length.results.files import stream_of, whole_or_absent

    table = robustness()
    with whole_or_absent(arguments.out) as temporary:
        table.to_parquet(temporary, index=False)
    held = table.groupby(["headline", "model"], sort=False)["holds"]
    words = sys.stderr if stream_of(arguments.out) == 1 else sys.stdout
    words.write(f"{held.agg(hold='sum', rows='size').to_string()}\n")


STAGE = Stage(__doc__, add_flags, main)

if __name__ == "__main__":
    STAGE.main()
