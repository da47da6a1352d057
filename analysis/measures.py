"""Compare measures in a trial: which tells how few tokens a prediction needs, and which what a search finds.

  python analysis/measures.py --run runs/measures --figures runs/measures/figures

Reads a run of olmo_configs/studies/measures.yaml: real text (results, text_*), text with a foreign far
context (foreign*) and text with planted signs (planted*), each under several interventions. Prints a line a
measure, and writes measures.parquet (pipeline/RESULTS.md) and the figure. What each column asks:
analysis/rules/trial.py.

on a laptop, a trial of minutes on the text of `make demo`, which models this small do not learn to answer:
  python pipeline/study.py olmo_configs/studies/measures.yaml run=runs/demo/measures text_folder=. \\
      'data.source=[embedded]' data.evaluation_source=null data.evaluation_fraction=0.15 \\
      sizes.tiny.max_duration=200 evaluation.max_documents=4
  python analysis/measures.py --run runs/demo/measures --figures runs/demo/measures/figures
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
from typing import TYPE_CHECKING

from pipeline.cli import InputError, folder_path, positive_int, stage_parser

if TYPE_CHECKING:
    import pandas as pd

_KINDS = {
    "text": ("results", "text_*/results"), "foreign": ("foreign*/results",), "planted": ("planted*/results",),
}  # fmt: skip
_INTERVALS = ("excess", "foreign_excess", "found", "right_sparsity", "agreement")


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add("--run", type=folder_path, required=True, help="the study's run folder")
    add("--figures", type=folder_path, required=True, help="where the table and the figure are written")
    add("--k", type=positive_int, default=4, help="tokens whose worth is compared (default: %(default)s)")
    return program


def main(arguments: argparse.Namespace) -> None:
    """Print the table, write it and draw it."""
    # Imported late, for a --help at once.
    from analysis.drawing import save
    from analysis.read import write_derived_table
    from analysis.rules.trial import TriedText, agreement_of_gains, compared_measures, measures_figure
    from pipeline.text.planting import read_planted

    of_kind = {}
    for kind, patterns in _KINDS.items():
        folders = [folder for pattern in patterns for folder in sorted(arguments.run.glob(pattern))]
        if not folders:
            raise InputError(
                f"{arguments.run} holds no results of {' or '.join(patterns)}; run the study first, as in"
                f" python pipeline/study.py olmo_configs/studies/measures.yaml run={arguments.run}"
            )
        of_kind[kind] = TriedText.of(folders)
    signs = read_planted(arguments.run / "signs" / "planted" / "data")
    table = compared_measures(**of_kind, signs=signs, k=arguments.k)
    if table.empty:
        raise InputError(
            f"no measure of {arguments.run} was studied at k = {arguments.k}; choose a studied --k"
        )
    gains = agreement_of_gains(of_kind["text"])
    sys.stdout.write(f"{lines_of(table)}\n\nLoss differences of the two models agree by {gains}.\n")
    arguments.figures.mkdir(parents=True, exist_ok=True)
    write_derived_table(table, "measures", arguments.figures)
    save(measures_figure(table), arguments.figures, "measures")


def lines_of(table: "pd.DataFrame") -> str:
    """The table as text, a line a measure."""
    from analysis.read import interval_cell
    from pipeline.results.table import as_table

    header = [
        "rule", "intervention", "judge", "by", "excess (nats)", "foreign excess", "signs found", "k* right",
        "k* agrees", "old needs", "cost",
    ]  # fmt: skip
    rows = [
        [
            row["rule"], row["intervention"], row["judge"], row["criterion"],
            *(interval_cell(row, name) for name in _INTERVALS),
            f"{row['documents_of_the_old']:.0f}", f"{row['token_forwards_per_target']:,.0f}",
        ]
        for row in table.to_dict("records")
    ]  # fmt: skip
    return as_table(header, rows, widest_cell=None, num_left_columns=4)
