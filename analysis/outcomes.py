"""Tell whether short-trained models lose more where a prediction needs more far tokens: the study's decision.

  python analysis/outcomes.py --sparsity-results runs/decisive-2m/results \\
      --near-results runs/decisive-2m/near/results --loss-results runs/decisive-2m/results \\
      --short-trained 2m-short-pose-seed{0,1,2,3} --long-trained 2m-long-seed{4,5,6,7} \\
      --placebo 2m-long-seed8 --out runs/decisive-2m/outcomes

again from the targets that this has written, as for the study of the first page:
  python analysis/outcomes.py --targets analysis/reference/decisive/outcome_targets.parquet --out runs/first

Three slopes on mean_log2_k, whose formulas stand in analysis/gap/outcomes.py: of the gap in nats; of the gap
as a share of D(0), what the far context is worth to the judges by the divergence; of the harm of length
alone. Each stands beside that of the placebo, a long-trained model in the place of the short-trained ones,
and the slope with each judge's sparsity as the instrument of the other's. Variants follow, none of which
decides: other thresholds of D(0), weights by it, C4 alone, targets not after a repeated bigram, k* at 0.5,
the loss in the place of the divergence. Prints them with the decision, and writes outcome_targets.parquet,
all that the slopes rest on, outcomes.parquet (both in pipeline/RESULTS.md) and the figure gap_by_sparsity:
both outcomes in nats against mean_log2_k, binned, with what is held constant taken out.

With --chosen-results a second table: the loss with the short context and k chosen tokens alone, of models
that chose none of them (chosen_alone.parquet, and a figure of that name).

The judges are those of the sparsity results that chose no tokens. The loss results hold the judges and all
models named. A model of two roles is refused.

on a laptop, the rehearsal at 0.34 M parameters: the same with 300k in the place of 2m.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.cli import InputError, file_path, folder_path, stage_parser

if TYPE_CHECKING:
    import pandas as pd

RULE = "leave_one_out_divergence"


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add("--targets", type=file_path, metavar="FILE", help="outcome_targets.parquet, in the place of results")
    add("--sparsity-results", type=folder_path, help="mean_log2_k of all far tokens")
    add("--near-results", type=folder_path, help="mean_log2_k within length_harm's last tokens")
    add("--loss-results", type=folder_path, help="loss_differences of all models")
    beside = "the tokenized data that was measured; beside the loss results where not given"
    add("--data", type=folder_path, help=beside)
    add("--short-trained", nargs="+", metavar="MODEL", help="trained at a short context")
    add("--long-trained", nargs="+", metavar="MODEL", help="whom these are compared with")
    add("--placebo", metavar="MODEL", help="a long-trained model of no other role")
    chosen = "of influential_tokens --choices under --intervention remove, one of each --positions"
    add("--chosen-results", type=folder_path, nargs="+", default=[], metavar="RESULTS", help=chosen)
    add("--out", type=folder_path, required=True, help="where the tables and the figures are written")
    return program


_OF_RESULTS = (
    "sparsity_results", "near_results", "loss_results", "short_trained", "long_trained", "placebo",
)  # fmt: skip
_WRITTEN = ("outcomes", "chosen_alone")


def main(arguments: argparse.Namespace) -> None:
    """Print the table and the decision, and write them."""
    # Imported late, for a --help at once.
    from analysis import drawing
    from analysis.gap import outcomes
    from analysis.read import write_derived_table
    from pipeline.results.files import read_parquet, refuse_replacing
    from pipeline.results.schemas import SCHEMAS

    given = [name for name in _OF_RESULTS if getattr(arguments, name)]
    if len(given) != (0 if arguments.targets else len(_OF_RESULTS)):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in _OF_RESULTS)
        raise InputError(f"give --targets alone, or all of {flags}")
    refuse_replacing([arguments.out / f"{name}.parquet" for name in _WRITTEN], [arguments.targets])
    if (path := arguments.targets) is None:
        path = write_derived_table(targets_of_results(arguments), "outcome_targets", arguments.out)
    # Read also where it was just written: the numbers are then those that anyone gets from the file.
    table = read_parquet(path, SCHEMAS["outcome_targets"].names).to_pandas()
    planned, others, of_outcomes = [], [], {}
    for outcome in (outcomes.GAP, outcomes.SHARE, outcomes.HARM):
        targets, short, long = outcomes.of_measured(table, outcome.measured)
        planned += outcomes.outcome_rows(targets, outcome, short=short, long=long, placebo=outcomes.PLACEBO)
        others += outcomes.variants(targets, outcome, short=short, long=long)
        if not outcome.is_share:
            of_outcomes[outcome] = outcomes.binned(
                targets, outcome, short=short, long=long, placebo=outcomes.PLACEBO
            )
    slopes = outcomes.with_decision([*planned, *others])
    sys.stdout.write(lines_of(slopes))
    write_derived_table(slopes, "outcomes", arguments.out)
    drawing.save(outcomes.outcome_figure(of_outcomes, slopes), arguments.out, "gap_by_sparsity")
    if arguments.chosen_results:
        tell_of_chosen(arguments.chosen_results, arguments.out)


def tell_of_chosen(folders: Sequence[Path], out: Path) -> None:
    """Print and write what the models make of the short context and the chosen tokens alone."""
    import pandas as pd

    from analysis import drawing
    from analysis.losses.token_worth import alone_figure, chosen_alone
    from analysis.read import interval_cell, read_sparse_losses, write_derived_table
    from pipeline.results.read import read_settings
    from pipeline.results.table import as_table

    tables: list[pd.DataFrame] = []
    labels: dict[str, drawing.ModelLabel] = {}
    for folder in folders:
        settings = read_settings(folder, "influential_tokens")
        positions = {model: of.get("positions") or "original" for model, of in settings.items()}
        alone = chosen_alone(read_sparse_losses(folder, only={"rule": [RULE, "nearest"]}))
        tables.append(alone.assign(positions=alone["model"].map(positions)))
        labels |= drawing.model_labels(folder, "sparse_context_losses")
    table = pd.concat(tables, ignore_index=True).sort_values("model", kind="stable", ignore_index=True)
    names = ("loss", "gain", "less_than_short", "null_less_than_short", "less_than_nearest", "less_than_long")
    rows = [
        [row["model"], row["positions"], row["k"], row["num_targets"]]
        + [interval_cell(row, name) for name in names]
        for row in table.to_dict("records")
    ]
    header = ["model", "positions", "k", "targets", *(name.replace("_", " ") for name in names)]
    sys.stdout.write(as_table(header, rows, widest_cell=None) + "\n")
    write_derived_table(table, "chosen_alone", out)
    drawing.save(alone_figure(table, labels), out, "chosen_alone")


def targets_of_results(arguments: argparse.Namespace) -> "pd.DataFrame":
    """The table outcome_targets (pipeline/RESULTS.md) of the results that the command line names."""
    import pandas as pd

    from analysis.gap import outcomes
    from analysis.read import MeasuredText
    from analysis.tokens import kinds
    from pipeline.results.read import read_artefact
    from pipeline.results.schemas import DIVERGENCE, LOSS

    short, long, placebo = arguments.short_trained, arguments.long_trained, arguments.placebo
    models = [*short, *long, placebo]
    of_folders = []
    for folder in (arguments.sparsity_results, arguments.near_results):
        rows = outcomes.judged(read_artefact(folder, "dependency_sparsity", only={"rule": [RULE]}))
        by_divergence = rows[rows["criterion"] == DIVERGENCE]
        of_folders.append(outcomes.with_other_sparsities(by_divergence, rows[rows["criterion"] == LOSS]))
    far, near = of_folders
    for sparsity in of_folders:
        named = [*sparsity["model"].iloc[0].split("+"), *sparsity["judge"].unique(), *models]
        if twice := [model for model in named if named.count(model) > 1]:
            raise InputError(
                f"{twice[0]} has two roles of chooser, judge, short-trained, long-trained and placebo: its"
                " luck would be on both sides; name another model"
            )
    text = MeasuredText.open(arguments.loss_results, "loss_differences", arguments.data)
    losses = read_artefact(arguments.loss_results, "loss_differences")
    of_data = outcomes.held_of_data(text.data)
    short_length, kinds_of_targets = text.short_context_length, []
    for _, chunk in text.chunks():
        for position in text.targets_of(chunk):
            kind = kinds.follows(chunk.token_ids_L, position - chunk.start, short_length)
            kinds_of_targets.append((chunk.document_id, position, kind))
    follows = pd.DataFrame(kinds_of_targets, columns=[*outcomes.KEYS, "follows"])
    tables = []
    for sparsity, outcome in ((far, outcomes.GAP), (near, outcomes.HARM)):
        targets = outcomes.outcome_targets(
            sparsity, losses, measured=outcome.measured, models=models, **of_data
        )
        targets = targets.merge(follows, on=outcomes.KEYS, how="left", validate="1:1")
        tables.append(outcomes.by_role(targets, outcome.measured, short=short, long=long, placebo=placebo))
    return pd.concat(tables)


def lines_of(table: "pd.DataFrame") -> str:
    """The table and the decision as text."""
    from analysis.read import interval_cell
    from pipeline.results.table import as_table

    shown = [
        "outcome", "variant", "compared", "estimator", "num_targets", "num_documents", "num_left_out",
        "pearson", "spearman", "text_error", "seed_error", "degrees_of_freedom", "p_value", "holm_p_value",
    ]  # fmt: skip
    rows = []
    for row in table.to_dict("records"):
        pairs = f"{min(row['pair_slopes']):.3f} to {max(row['pair_slopes']):.3f}"
        rows.append([*(row[name] for name in shown), interval_cell(row, "slope"), pairs])
    header = [
        *(name.removeprefix("num_").replace("_", " ") for name in shown),
        "slope [95 %]",
        "of seed pairs",
    ]
    lines = as_table(header, rows, widest_cell=None)
    main = table[table["holm_p_value"].notna()].to_dict("records")
    widths = [f"{row['outcome']} {(row['slope_high'] - row['slope_low']) / 2:.4f}" for row in main]
    return f"{lines}\nDecision: {main[0]['decision']}. Half of each interval: {', '.join(widths)}.\n"
