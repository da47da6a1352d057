"""Print the closing tables of results: what the distant context is worth, and how few tokens recover it.

  python analysis/summary.py --results runs/demo/results --figures runs/demo/figures

Recovery by k tokens is reported for the most reliable rule that the results have (`PREFERRED_RULES`), beside
its null baseline. Brackets are 95% intervals over documents; "-": not measured, or too few documents.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
from collections.abc import Iterator

import pandas as pd

from analysis.figures.losses import needed_context, summarize_models
from analysis.figures.recovered_loss import PAPER_FIGURE, token_effects
from analysis.read import (
    generalization_gaps,
    interval_cell,
    mean_columns,
    models_by_training,
    read_sparse_losses,
    shown_rule,
    summarized,
)
from pipeline.cli import folder_path, stage_parser
from pipeline.results.read import artefacts_in, read_artefact, read_settings
from pipeline.results.schemas import DIVERGENCE

_KEYS = ["evaluator", "criterion", "k", "num_targets", "num_documents"]


def in_cells(table: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Intervals as they are printed, "0.429 [0.314, 0.554]"; their ends are no columns any more."""
    rows = table.to_dict("records")
    cells = {name: [interval_cell(row, name) for row in rows] for name in names}
    return table.assign(**cells).drop(columns=[f"{name}{end}" for name in names for end in ("_low", "_high")])


def models_table(results: Path, losses: pd.DataFrame) -> pd.DataFrame:
    """A row a model: contexts, sample size, mean losses, and what the distant context is worth, nats."""
    table = summarize_models(losses)
    settings = read_settings(results, "loss_differences")
    for number, length in enumerate(("short_context_length", "long_context_length")):
        lengths = [settings.get(model, {}).get(length) for model in table["model"]]
        table.insert(1 + number, length, pd.Series(lengths, dtype="Int64"))
    return in_cells(table, "loss_difference", "expected_gain", "document_specific_gain")


def tables(results: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """A title and a table for each question that the results answer."""
    present = artefacts_in(results)
    losses = read_artefact(results, "loss_differences")
    yield "What the distant context is worth, nats per token", models_table(results, losses)
    if "length_losses" in present:
        windows = needed_context(read_artefact(results, "length_losses"))
        columns = ["model", "criterion", "worth", "window_90"]
        title = "Nearest tokens that keep 90% of what the longest context is worth beyond the shortest, nats"
        yield title, in_cells(windows, "worth", "window_90")[columns]
    if "sparse_context_losses" in present:
        rules = read_artefact(results, "sparse_context_losses", ["rule"])
        rule = shown_rule(rules["rule"])
        model = rules["model"][rules["rule"] == rule].iloc[0]
        only = {"model": [model], "rule": [rule]}
        effects = token_effects(read_sparse_losses(results, only=only, every_evaluator=True))
        amounts = ["gain", "recovered", "null_recovered"]
        title = f"What k tokens recover that {model} selects by {rule}, nats"
        yield title, in_cells(effects, *amounts)[[*_KEYS, *amounts]]
        of_kl = only | {"criterion": [DIVERGENCE]}
        needed = read_artefact(results, "dependency_sparsity", ["evaluator", "mean_log2_k"], of_kl)
        spread = needed.dropna().groupby("evaluator")["mean_log2_k"].describe(percentiles=[0.1, 0.5, 0.9])
        yield "Tokens needed, doublings (mean_log2_k), over targets", spread.reset_index()
    longs, shorts = models_by_training(results)
    if shorts and longs:
        gaps = generalization_gaps(losses, short_models=shorts, reference_model=longs[-1])
        means = summarized(gaps, ["model"], lambda rows: mean_columns(rows, "generalization_gap"))
        title = f"Loss of short-context models beyond {longs[-1]} with the long context, nats"
        yield title, in_cells(means, "generalization_gap")


def page(results: Path, figures: Path) -> str:
    """All tables, and where figures and data are."""
    parts = [
        f"{title}\n{table.to_string(index=False, float_format='{:.3f}'.format)}\n"
        for title, table in tables(results)
        if len(table)
    ]
    # Figures of the study's further evaluations are in folders beside; the paper's own figure comes first.
    paths = [*figures.glob("*.png"), *figures.parent.glob(f"*/{figures.name}/*.png")]
    paths.sort(key=lambda path: (not path.name.startswith(PAPER_FIGURE), path))
    parts += [
        f"Figures: {paths[0]}, {len(paths)} in all" if paths else f"Figures: none in {figures}",
        f"Data: {results} (columns: pipeline/RESULTS.md; to query: sparsity query --results {results})\n",
    ]
    return "\n".join(parts)


def main(arguments: argparse.Namespace) -> None:
    """Print the page."""
    sys.stdout.write(page(arguments.results, arguments.figures or arguments.results.parent / "figures"))


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add("--results", type=folder_path, required=True, help="a results folder")
    add("--figures", type=folder_path, help="the folder of figures (default: figures beside the results)")
    return program
