"""Make every headline of the first page anew by every variant of its analysis, from the kept results.

  python analysis/robustness.py --out analysis/reference/robustness.parquet

The file has one row per headline, model and variant. Variants are: every k; the loss and the KL; the two
texts left out that move the number most; runs included that a rule left out; all controls, none, each alone,
each left out; texts with equal weights; another kind of interval; each seed; each distant text. Column
`holds` tells whether the interval stays on the same side of `level` as the published one. The program prints
how many rows of each headline hold. It takes half a minute on one core.
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
