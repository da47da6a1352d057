"""Compare policies of a cache by what they lose: a leaderboard of the share of the far context's worth kept.

  python analysis/cache_policies.py --results runs/demo/policies --figures runs/demo/policies-figures

A policy keeps k far tokens of a cache of keys and values, its budget, beside the short context. What it keeps
is not attention but the prediction: loss and divergence with these tokens and nothing else. Reads what

  python pipeline/influential_tokens.py --results runs/demo/policies … --intervention remove \\
      --rules leave_one_out_divergence streaming_llm h2o snapkv quest nearest random

measured. Beside the policies stands the measure's own choice, leave_one_out_divergence, and its null, another
document's tokens. That choice may be other models': give the folder where they chose as well, and that where
their choice was tried (--choices of influential_tokens). Prints and writes cache_policies.parquet
(pipeline/RESULTS.md), the best first, and draws the share kept against the budget, of the first model. The
tokens are the same in all layers and heads.

A policy of your own is a function of ten lines: analysis/METHODS.md, "Policies of a cache".
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from pipeline.cli import InputError, folder_path, stage_parser
from pipeline.results.files import add_partial_flag, allow_partial

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

STAGE, REFERENCE = "influential_tokens", "leave_one_out_divergence"
COMPARED_AT = 16
"""Or at the largest budget below it."""
_KEPT = {"divergence_kept": "divergence", "loss_kept": "loss"}


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add_partial_flag(program)
    add = program.add_argument
    add("--results", type=folder_path, nargs="+", required=True, help="results folders of influential_tokens")
    add("--figures", type=folder_path, required=True, help="where the table and the figure are written")
    return program


def main(arguments: argparse.Namespace) -> None:
    """Print the table, write it and draw it."""
    # Imported late, for a --help at once.
    import pandas as pd

    from analysis.drawing import save
    from analysis.read import TARGET, interval_cell, read_sparse_losses, read_sparsity, write_derived_table
    from analysis.rules.selection import costs_of
    from pipeline.measuring.rules import REMOVE
    from pipeline.results.read import artefacts_in, read_artefact, read_settings
    from pipeline.results.schemas import DIVERGENCE
    from pipeline.results.table import as_table

    allow_partial(arguments.allow_partial)
    chose: dict[str, tuple[Path, dict[str, Any]]] = {}
    choosers: dict[str, str] = {}
    tried = []
    for results in arguments.results:
        of_models = read_settings(results, STAGE)
        if STAGE in artefacts_in(results):
            chose |= {model: (results, settings) for model, settings in of_models.items()}
        else:
            choosers |= {model: str(settings["choices"]["model"]) for model, settings in of_models.items()}
        if all(settings["intervention"] == REMOVE for settings in of_models.values()):
            tried.append((read_sparse_losses(results), read_sparsity(results, DIVERGENCE)))
    models = [model for model, (_, settings) in chose.items() if settings["intervention"] == REMOVE]
    if not models:
        raise InputError(
            f"in {arguments.results[0]} other tokens stand in the place of evicted ones; measure policies"
            " with --intervention remove"
        )
    losses, sparsity = (pd.concat(tables) for tables in zip(*tried, strict=True))
    # Controls may have been measured in two folders.
    losses = losses.drop_duplicates([*TARGET, "model", "rule", "far_context", "k"])
    tables = []
    for model in models:
        chooser = choosers.get(model, model)
        read = [
            read_artefact(chose[name][0], STAGE, only={"model": [name]})
            for name in (chooser, model) if name in chose
        ]  # fmt: skip
        chosen = pd.concat(read).drop_duplicates([*TARGET, "rule", "far_context", "rank"])
        of_losses, of_sparsity = (rows[rows["model"] == model] for rows in (losses, sparsity))
        table = leaderboard(of_losses, of_sparsity, chosen)
        costs = [
            costs_of(chose.get(chooser if rule == REFERENCE else model, chose[model])[1])
            .token_forwards_per_target(rule, k) for rule, k in zip(table["rule"], table["k"], strict=True)
        ]  # fmt: skip
        tables.append(table.assign(model=model, token_forwards_per_target=costs))
    table = pd.concat(tables, ignore_index=True)
    cells = [
        [
            row["model"], row["rule"] + " (null)" * row["is_null"], row["k"], row["num_documents"],
            *(interval_cell(row, name) for name in (*_KEPT, "recall")),
            f"{row['token_forwards_per_target']:,.0f}",
        ]
        for row in table.to_dict("records")
    ]  # fmt: skip
    header = ["model", "policy", "budget", "documents", "kept, by divergence", "kept, by loss", "recall",
              "token-forwards"]  # fmt: skip
    sys.stdout.write(as_table(header, cells, widest_cell=None, num_left_columns=2))
    arguments.figures.mkdir(parents=True, exist_ok=True)
    write_derived_table(table, "cache_policies", arguments.figures)
    save(policies_figure(tables[0]), arguments.figures, "cache_policies")


def leaderboard(losses: "pd.DataFrame", sparsity: "pd.DataFrame", chosen: "pd.DataFrame") -> "pd.DataFrame":
    """What each policy keeps at each budget: a row a policy and k, by k, the best first.

    Args:
        losses, sparsity: rows of one model of sparse_context_losses and, by the divergence, of
            dependency_sparsity.
        chosen: rows of influential_tokens, those of the reference perhaps of other models.

    Returns:
        The columns of the artefact `cache_policies`, without model and cost.
    """
    from analysis.read import NO_INTERVAL, TARGET, interval_columns, interval_over_documents, summarized
    from pipeline.results.schemas import OWN

    losses = losses.assign(is_null=losses["far_context"] != OWN)
    losses = losses[~losses["is_null"] | (losses["rule"] == REFERENCE)]
    chosen, place = chosen[chosen["far_context"] == OWN], [*TARGET, "context_position"]
    needed = chosen[chosen["rule"] == REFERENCE].merge(
        sparsity.loc[sparsity["rule"] == REFERENCE, [*TARGET, "half_sparsity"]].dropna(), on=TARGET
    )
    needed = needed.loc[needed["rank"] <= needed["half_sparsity"], place]

    def numbers(rows: "pd.DataFrame") -> dict[Hashable, float]:
        documents, (rule, is_null, k) = rows["document_id"], rows[["rule", "is_null", "k"]].iloc[0]
        short, long = rows["short_context_loss"], rows["long_context_loss"]
        gain = rows["short_context_divergence"]
        kept = interval_over_documents(documents, gain - rows["sparse_context_divergence"], gain)
        loss_kept = interval_over_documents(documents, short - rows["sparse_context_loss"], short - long)
        if not interval_over_documents(documents, short - long).low > 0:
            loss_kept = NO_INTERVAL
        recall, first = NO_INTERVAL, chosen.loc[(chosen["rule"] == rule) & (chosen["rank"] <= k), place]
        if len(first) and not is_null:
            found = needed.merge(rows[TARGET]).merge(first, how="left", indicator=True)
            recall = interval_over_documents(found["document_id"], found["_merge"] == "both")
        return {
            **interval_columns("divergence_kept", kept),
            **interval_columns("loss_kept", loss_kept),
            **interval_columns("recall", recall),
        }

    table = summarized(losses, ["rule", "is_null", "k"], numbers)
    return table.sort_values(["k", "divergence_kept"], ascending=[True, False], ignore_index=True)


def policies_figure(table: "pd.DataFrame") -> "Figure":
    """The share kept by the divergence against the budget, a line per policy and the measure's own choice."""
    from analysis import drawing

    at = max((k for k in table["k"] if k <= COMPARED_AT), default=table["k"].min())
    own = table[~table["is_null"]]
    policies = own[(own["k"] == at) & ~own["rule"].isin([REFERENCE, "random"])]
    first, last = policies.iloc[0], policies.iloc[-1]
    rules, ends = list(own["rule"].unique()), []
    figure, (ax,) = drawing.panels(1, 3.6)
    for place, rule in enumerate(rules):
        line, called = own[own["rule"] == rule].sort_values("k"), drawing.rule_text(rule)
        x = line["k"] * 1.02 ** drawing.beside(place, len(rules))  # the axis is logarithmic
        style = drawing.rule_style(rule).measured
        ends.append(drawing.draw_line(ax, x, line, "divergence_kept", style, called.replace(", by", ",\nby")))
    drawing.tokens_axis(ax, own["k"].unique(), "budget (far tokens)")
    ax.set_ylabel("share of D(0) kept")
    drawing.label_line_ends(ax, ends)
    most, least = (
        f"{drawing.rule_text(row['rule'])} keeps {row['divergence_kept']:.2f}" for row in (first, last)
    )
    title = f"Of what the far context is worth by divergence, {most} with {at} tokens, {least}"
    beside = "points of one budget stand side by side"
    drawing.put_title(figure, title, drawing.sample_size(own), drawing.BARS, beside)
    return figure
