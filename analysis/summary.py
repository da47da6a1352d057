"""Print the main findings of a results folder: a table and a few sentences.

  sparsity summary --results runs/demo/results --figures runs/demo/figures

The program says what the distant context is worth to each model, how few tokens recover it, and how many
tokens predictions need. It reports recovery by k tokens for the most reliable rule in the results, by a
held-out evaluator if there is one, beside its null baseline. It shows no fraction of a gain whose interval
includes 0.
"""

import argparse
import sys
import textwrap
from collections.abc import Iterator
from math import isnan
from pathlib import Path

import pandas as pd

from sparsity_length.cli import Stage, folder_path
from sparsity_length.figures.losses import needed_context, summarize_models
from sparsity_length.figures.read import (
    TARGET,
    interval_cell,
    interval_of,
    mean_columns,
    models_by_training,
    needs_null,
    read_sparse_losses,
    rows_by,
    shown_rule,
)
from sparsity_length.figures.recovered_loss import PAPER_FIGURE, token_effects
from sparsity_length.measuring.rules import CONTROLS
from sparsity_length.results.read import Results
from sparsity_length.results.schemas import DIVERGENCE, OWN
from sparsity_length.results.table import as_table

_FEW_TOKENS = 16
"""The page reports the largest requested k that is no larger."""
_WIDTH = 155  # the table is as wide
_NOTES = """\
Nats per token [95% over documents]. "KL gain": expected by the model's own prediction. "document-specific":
lost with another document's distant context instead. "-": not measured."""


def chosen_measure(results: Path) -> tuple[str, str] | None:
    """The model and the rule that the answers are about; None if no tokens were selected.

    The least fooled rule of the results, of the first model that has it; target-aware rules come last.
    """
    if "sparse_context_losses" not in Results(results).tables:
        return None
    rows = Results(results).frame("sparse_context_losses", ["rule"])
    selections = rows[~rows["rule"].isin(CONTROLS)]
    if selections.empty:
        return None
    rule = shown_rule(selections["rule"])
    return selections.loc[selections["rule"] == rule, "model"].iloc[0], rule


def answers(results: Path) -> Iterator[str]:
    """Worth of the distant context, recovery by few tokens, needed tokens, losses of short-context models."""
    losses = Results(results).frame("loss_differences")
    models = rows_by(summarize_models(losses), "model")
    chosen = chosen_measure(results)
    model = max(models, key=lambda name: models[name]["loss_difference"])
    if chosen is not None and chosen[0] in models:
        model = chosen[0]
    gain, specific = (
        interval_cell(models[model], name) for name in ("loss_difference", "document_specific_gain")
    )
    yield (
        f"{model} gains {gain} nats per token from the distant context, and {specific} from the text's own"
        " rather than another document's."
    )
    if chosen is None:
        yield "How many tokens recover it was not measured: run influential_tokens with its default rules."
    else:
        yield recovered_by(results, *chosen)
        yield from tokens_needed(results, *chosen)
    if "length_losses" in Results(results).tables:
        yield from lengths_needed(results)
    yield short_models_answer(results, losses)


def lengths_needed(results: Path) -> Iterator[str]:
    """Nearest tokens that give 90% of the gain of the longest context, one sentence per model."""
    table = needed_context(Results(results).frame("length_losses"))
    for row in table[table["criterion"] == "loss"].to_dict("records"):
        worth = f"{interval_of(row, 'worth')} nats"
        if isnan(row["window_90"]):
            yield (
                f"{row['model']} gains {worth} from the shortest to the longest context, not clearly more"
                " than 0: how many of the nearest tokens give 90% of it is not said."
            )
            continue
        window = [f"{row[f'window_90{end}']:.0f}" for end in ("", "_low", "_high")]
        yield (
            f"The nearest {window[0]} [{', '.join(window[1:])}] tokens give {row['model']} 90% of the {worth}"
            " that it gains from the shortest to the longest context (notebook length_losses)."
        )


def recovered_by(results: Path, model: str, rule: str) -> str:
    """Recovery by few tokens, beside the null baseline, by an evaluator that did not choose if any."""
    only = {"model": [model], "rule": [rule, "recency"]}
    rows = read_sparse_losses(results, only=only, every_evaluator=True)
    with_null = rows.loc[rows["distant_context"] != OWN, "document_id"].unique()
    if needs_null(rule):  # and so of these documents, then of recency, too
        rows = rows[rows["document_id"].isin(with_null)]
    of_rules = token_effects(rows)
    effects = of_rules[of_rules["rule"] == rule]
    if effects.empty:
        return f"How many tokens recover it is not known: {rule} was measured without the null that it needs."
    # The divergence is surer than the loss.
    effects = effects[effects["criterion"] == effects["criterion"].iloc[-1]]
    # Models that selected together are named with a plus between them; none of them is held out.
    is_other = ~effects["evaluator"].isin(model.split("+"))
    effects = effects[is_other | ~is_other.any()]
    is_few = effects["k"] <= _FEW_TOKENS
    # The sort is stable: of several held-out evaluators the last one's row.
    row = effects[is_few | ~is_few.any()].sort_values("k", kind="stable").to_dict("records")[-1]
    gain, own, null = (interval_of(row, name) for name in ("gain", "recovered", "null_recovered"))
    kind = " of KL" if row["criterion"] == DIVERGENCE else ""
    text = (
        f"{row['k']} distant tokens, selected by {rule}, recover {own} of the {gain.estimate:.3f} nats{kind}"
        f" that all are worth to {row['evaluator']}"
    )
    same = ["evaluator", "criterion", "k"]
    is_recent = (of_rules["rule"] == "recency") & (of_rules[same] == [row[name] for name in same]).all(axis=1)
    beside = [
        f"as many recent ones {interval_of(recent, 'recovered')}"
        for recent in of_rules[is_recent].to_dict("records")
    ]
    if not isnan(null.estimate):
        of_fewer = "" if len(with_null) == row["num_documents"] else f" ({len(with_null)} documents)"
        beside.append(f"null baseline: {null}{of_fewer}")
    return f"{'; '.join([text, *beside])}."


def tokens_needed(results: Path, model: str, rule: str) -> Iterator[str]:
    """Spread of mean_log2_k over the predictions, and agreement of two models in it."""
    columns = [*TARGET, "evaluator", "mean_log2_k"]
    only = {"model": [model], "rule": [rule], "criterion": [DIVERGENCE]}
    rows = Results(results).frame("dependency_sparsity", columns, only)
    of_evaluators = rows.pivot_table("mean_log2_k", TARGET, "evaluator", dropna=False)
    if of_evaluators.isna().all(axis=None):
        return
    others = [evaluator for evaluator in of_evaluators if evaluator not in model.split("+")]
    # Only targets that every evaluator has a value for: else the mean would change its models by target.
    values = of_evaluators[others or list(of_evaluators)].mean(axis=1, skipna=False).dropna()
    num_targets = len(rows.drop_duplicates(TARGET))
    low, middle, high = values.quantile([0.1, 0.5, 0.9])
    text = (
        # 2**x keeps the order, so this is the median target's k, as a geometric mean over thresholds.
        f"{len(values):,} of {num_targets:,} predictions have enough total effect; half of these need"
        f" about {2**middle:.0f} distant tokens or fewer (mean_log2_k: median {middle:.1f}, 80% range"
        f" {low:.1f} to {high:.1f})"
    )
    if len(of_evaluators.columns) > 1:
        text += f"; Spearman correlation of two models: {of_evaluators.corr('spearman').to_numpy()[0, 1]:.2f}"
    yield f"{text}."


def short_models_answer(results: Path, losses: pd.DataFrame) -> str:
    """Losses of short-context models beyond the last long-context one; the first may have chosen tokens."""
    longs, shorts = models_by_training(results)
    if not (shorts and longs):
        return "To compare short-context models, add models trained at a short context and at the long one."
    of_models = losses.pivot(index=TARGET, columns="model", values="long_context_loss").reset_index()
    means = []
    for model in shorts:
        # Models that selected come first in the list, so the last is the one least likely to have.
        gaps = of_models.assign(gap=of_models[model] - of_models[longs[-1]]).dropna(subset="gap")
        means.append(f"{model}'s by {interval_cell(mean_columns(gaps, 'gap'), 'gap')} nats")
    text = f"With the long context, losses exceed that of {longs[-1]}: {', '.join(means)}"
    return f"{text} (notebook sparsity_and_generalization plots this against the tokens needed)."


def models_table(results: Path) -> str:
    """One row per model: contexts, sample size, mean losses, the worth of the distant context (`_NOTES`)."""
    settings = Results(results).settings("loss_differences")
    rows = []
    for row in summarize_models(Results(results).frame("loss_differences")).to_dict("records"):
        of_model = settings.get(row["model"], {})
        lengths = [of_model.get(f"{name}_context_length", "-") for name in ("short", "long")]
        counts = [f"{row[f'num_{kind}']:,}" for kind in ("targets", "documents")]
        losses = [f"{row[f'{kind}_context_loss']:.3f}" for kind in ("short", "long")]
        gains = ("loss_difference", "expected_gain", "document_specific_gain")
        worth = [interval_cell(row, name) for name in gains]
        rows.append([row["model"], " / ".join(map(str, lengths)), *counts, *losses, *worth])
    numbers = ["context short / long", "targets", "documents", "short loss", "long loss"]
    numbers += ["gain", "KL gain", "document-specific"]
    return as_table(["model", *numbers], rows, numbers)


def page(results: Path, figures: Path) -> str:
    """The whole page."""
    # Figures of the study's further evaluations are in folders beside; the paper's own figure comes first.
    paths = [*figures.glob("*.png"), *figures.parent.glob(f"*/{figures.name}/*.png")]
    paths.sort(key=lambda path: (not path.name.startswith(PAPER_FIGURE), path))
    lines = [
        textwrap.fill(
            sentence,
            _WIDTH,
            initial_indent="- ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for sentence in (*answers(results), f"Figures: {', '.join(map(str, paths)) or f'none in {figures}'}.")
    ]
    data = f"Data: {results} (columns: pipeline/RESULTS.md; to query: sparsity query --results {results})"
    return "\n".join([models_table(results), _NOTES, *lines, data, ""])


def main(arguments: argparse.Namespace) -> None:
    """Print the page."""
    sys.stdout.write(page(arguments.results, arguments.figures or arguments.results.parent / "figures"))


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The program's command line."""
    add = parser.add_argument
    add("--results", type=folder_path, required=True, help="results folder to read")
    add(
        "--figures",
        type=folder_path,
        help="folder of the figures to list (default: the folder figures beside --results)",
    )


STAGE = Stage(__doc__, add_flags, main)

if __name__ == "__main__":
    STAGE.main()
