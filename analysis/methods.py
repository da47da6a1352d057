"""The benchmark of methods: a line a method, the best first; a table and a figure.

Reads a run of olmo_configs/studies/methods.yaml: text (results, removed), text with planted signs (planted*);
and what was measured beside it, where it was: synthetic tasks with known dependencies, seconds a target. What
each column says, how to add a method, how to run it on another model: analysis/METHODS.md.

on a laptop, on what `make demo` leaves:
  python analysis/methods.py --run runs/demo --figures runs/demo/figures

the whole benchmark, once olmo_configs/studies/methods.yaml and methods_synthetic.yaml have run:
  python analysis/methods.py --run runs/methods --synthetic runs/methods/synthetic/results \\
      --seconds runs/methods/seconds.json --figures runs/methods/figures
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
from typing import TYPE_CHECKING

from pipeline.cli import InputError, file_path, folder_path, stage_parser

if TYPE_CHECKING:
    import pandas as pd

_TEXT, _PLANTED = ("results", "removed/results"), "planted*/results"
_SHOWN_KS = (1, 4, 16)


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add("--run", type=folder_path, required=True, help="the study's run folder")
    add("--figures", type=folder_path, required=True, help="where the table and the figures are written")
    add("--synthetic", type=folder_path, help="results of found_dependencies; left out if not given")
    add("--seconds", type=file_path, help="of tests/benchmarks/method_seconds.py; left out if not given")
    add(
        "--other-judge", action="store_true",
        help="tokens as tried by another model than chose them (the study's judge_with)",
    )  # fmt: skip
    return program


def main(arguments: argparse.Namespace) -> None:
    """Print the table, write it and draw it."""
    # Imported late, for a --help at once.
    from analysis.drawing import save
    from analysis.read import write_derived_table
    from analysis.rules.benchmark import methods_figure, methods_table, read_seconds
    from analysis.rules.trial import OTHER, SAME
    from pipeline.results.read import artefacts_in
    from pipeline.text.planting import PLANTED_FILE, read_planted

    run: Path = arguments.run
    text = [run / name for name in _TEXT if "sparse_context_losses" in artefacts_in(run / name)]
    if not text:
        raise InputError(f"{run} holds no influential tokens in {' or '.join(_TEXT)}; run a study first")
    truth = run / "signs" / "planted" / "data"
    is_planted = (truth / PLANTED_FILE).is_file()
    table = methods_table(
        text,
        judge=OTHER if arguments.other_judge else SAME,
        planted=sorted(run.glob(_PLANTED)) if is_planted else (),
        signs=read_planted(truth) if is_planted else (),
        synthetic=arguments.synthetic,
        seconds=read_seconds(arguments.seconds) if arguments.seconds else None,
    )
    arguments.figures.mkdir(parents=True, exist_ok=True)
    write_derived_table(table, "methods", arguments.figures)
    for intervention, of_one in table.groupby("intervention"):
        sys.stdout.write(f"{lines_of(of_one)}\n\n")
        save(methods_figure(of_one), arguments.figures, f"methods-{intervention}")


def lines_of(table: "pd.DataFrame") -> str:
    """The table of one intervention as text, a line a method: what 1, 4 and 16 tokens are worth."""
    from analysis.read import interval_cell
    from pipeline.results.table import as_table

    ks = [k for k in _SHOWN_KS if k in set(table["k"])]
    header = [
        "method", "intervention", "sees",
        *(f"k = {k}, by the {criterion}" for criterion in ("divergence", "loss") for k in ks),
        "behind the first, k = 4", "dependencies found", "signs found", "token-forwards", "backward",
        "seconds",
    ]  # fmt: skip
    rows = []
    for _, of_method in table.groupby("rule", sort=False):
        of_k = {row["k"]: row for row in of_method.to_dict("records")}
        first = next(iter(of_k.values()))
        cost = of_k.get(4, first)
        names = [f"{criterion}_effect" for criterion in ("divergence", "loss")]
        effects = [interval_cell(of_k.get(k), name) for name in names for k in ks]
        behind = interval_cell(cost, "behind_first")
        found = [interval_cell(first, name) for name in ("found_dependencies", "found_signs")]
        spent = [f"{cost[f'{name}_per_target']:,.0f}" for name in ("token_forwards", "backward_tokens")]
        seconds = cost["seconds_per_target"]
        spent.append("-" if seconds != seconds else f"{seconds:.4f}")
        rows.append([first["rule"], first["intervention"], first["sees"], *effects, behind, *found, *spent])
    return as_table(header, rows, widest_cell=None, num_left_columns=3)
