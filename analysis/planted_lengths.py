"""Answers that k planted tokens decide, beyond the trained length: a line a k and length, a table, a figure.

  python analysis/planted_lengths.py --run runs/planted_lengths --figures runs/planted_lengths/figures

Reads a run of olmo_configs/studies/planted_lengths.yaml: the losses of answers planted in real text, in
documents of several lengths, the shortest of which the models were trained at. Of each number of planted
tokens only models count that have learnt its answers at that length; others are named. Writes
planted_lengths.parquet (pipeline/RESULTS.md) and the figure.

on a laptop, minutes on the text of `make demo`; what is not learnt so soon is named, not drawn:
  python pipeline/study.py olmo_configs/studies/planted_lengths.yaml run=runs/demo/lengths \\
      text_folder=. 'data.source=[embedded]' data.further_source=null data.evaluation_source=null \\
      data.evaluation_fraction=0.15 sizes.tiny.max_duration=600
  python analysis/planted_lengths.py --run runs/demo/lengths --figures runs/demo/lengths/figures
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


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add("--run", type=folder_path, required=True, help="the study's run folder")
    add("--figures", type=folder_path, required=True, help="where the table and the figure are written")
    ambiguous = (
        "leave out texts in which another sign of the same number stands by chance: their answers are"
        " ambiguous, the more often the longer the text"
    )
    add("--without-chance-signs", action="store_true", help=ambiguous)
    return program


def main(arguments: argparse.Namespace) -> None:
    """Print the table, write it, and draw what was learnt."""
    # Imported late, for a --help at once.
    from analysis.drawing import save
    from analysis.read import write_derived_table
    from analysis.tokens.planted import (
        answers_at_lengths,
        learnt,
        over_models,
        planted_lengths_figure,
        texts_with_chance_signs,
    )
    from pipeline.results.read import artefacts_in

    run: Path = arguments.run
    folders = [folder for folder in (run / "results", *sorted(run.glob("*/results"))) if folder.is_dir()]
    results = [folder for folder in folders if "loss_differences" in artefacts_in(folder)]
    planted = sorted(run.glob("signs/planted*/data"))
    if not (results and planted):
        raise InputError(
            f"{run} holds no losses of planted answers; run the study first, as in"
            f" python pipeline/study.py olmo_configs/studies/planted_lengths.yaml run={run}"
        )
    is_without = arguments.without_chance_signs
    answers = answers_at_lengths(results, planted, texts_with_chance_signs(planted) if is_without else set())
    known = learnt(answers)
    arguments.figures.mkdir(parents=True, exist_ok=True)
    write_derived_table(answers, "planted_lengths", arguments.figures)
    sys.stdout.write(f"{lines_of(answers)}\n")
    for num_planted, of_number in answers.groupby("num_planted"):
        those = set(of_number["model"]) - set(known.loc[known["num_planted"] == num_planted, "model"])
        if those:
            names = ", ".join(sorted(those))
            sys.stdout.write(f"\nNot learnt, and left out of the figure: {num_planted} deciding, {names}")
    sys.stdout.write("\n")
    if not known.empty:
        which_texts = " without a sign by chance" if is_without else ""
        save(planted_lengths_figure(over_models(known), which_texts), arguments.figures, "planted_lengths")


def lines_of(answers: "pd.DataFrame") -> str:
    """The table as text."""
    from analysis.read import interval_cell
    from pipeline.results.table import as_table

    header = ["model", "deciding tokens", "document tokens", "texts", "right", "loss (nats)"]
    counts = ("num_planted", "test_length", "num_documents")
    rows = [
        [row["model"], *(str(row[name]) for name in counts),
         *(interval_cell(row, name) for name in ("right_share", "loss"))]
        for row in answers.to_dict("records")
    ]  # fmt: skip
    return as_table(header, rows, widest_cell=None, num_left_columns=1)
