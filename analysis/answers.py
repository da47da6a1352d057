"""The page that summary.py prints: the table of losses, a line an answer, and where figures and data lie.

What k tokens are worth is said by the measure that is fooled least, of those that the results have
(`PREFERRED_RULES`), beyond its null where it needs one, as another model evaluates where one did. No share is
told of what may be near nothing.
"""

import textwrap
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.figures.losses import needed_context, summarize_models
from analysis.figures.recovered_loss import PAPER_FIGURE, token_effects
from analysis.read import (
    PREFERRED_RULES,
    TARGET,
    generalization_gaps,
    interval_cell,
    interval_of,
    interval_over_documents,
    models_by_training,
    read_sparse_losses,
)
from pipeline.measuring.rules import CONTROLS, RULES
from pipeline.results.read import artefacts_in, read_artefact, read_settings
from pipeline.results.schemas import DIVERGENCE
from pipeline.results.table import as_table

_UNKNOWN = "What short-context models lose cannot be told:"
_FEW_TOKENS = 16
"""The closing page tells of the largest k that was asked for and is no larger."""
_WIDTH = 155  # the table is as wide
_ABSENT = "-"
_NOTES = f"""\
Nats a token [95 % over documents]. "expected": by the model's own prediction. "its own": lost with another
document's distant context in its place. "{_ABSENT}": not measured."""


def chosen_measure(results: Path) -> tuple[str, str] | None:
    """The model and the rule that the answers are about; None where no tokens were chosen.

    The least fooled rule of the results, of the first model that has it. Rules that see the answer come last:
    of these only the excess over the null is shown too.
    """
    if "sparse_context_losses" not in artefacts_in(results):
        return None
    present = read_artefact(results, "sparse_context_losses", ["rule"]).drop_duplicates()
    others = [rule for rule in (*RULES, *present["rule"]) if rule not in CONTROLS]
    for rule in dict.fromkeys([*PREFERRED_RULES, *others]):
        for model in present.loc[present["rule"] == rule, "model"]:
            return str(model), rule
    return None


def answers(results: Path) -> Iterator[str]:
    """Worth of the distant context, what few tokens recover, how many it takes, who loses without it."""
    present = artefacts_in(results)
    if "length_losses" in present:
        yield from context_needed(results)
    losses = read_artefact(results, "loss_differences")
    chosen = chosen_measure(results)
    model = str(losses.groupby("model")["loss_difference"].mean().idxmax())
    if chosen is not None and chosen[0] in set(losses["model"]):
        model = chosen[0]
    yield worth_of_far_context(losses[losses["model"] == model], model)
    if chosen is None:
        yield "How many tokens carry it was not measured: run influential_tokens with its default rules."
    else:
        yield carried_by(results, *chosen)
        yield from tokens_needed(results, *chosen)
    yield short_models_answer(results, losses)


def context_needed(results: Path) -> Iterator[str]:
    """How much context keeps 90 % of what the longest is worth to each model, by the loss."""
    table = needed_context(read_artefact(results, "length_losses"))
    for row in table[table["criterion"] == "loss"].dropna(subset="window_90").to_dict("records"):
        window = interval_of(row, "window_90")
        yield (
            f"{row['model']} needs the nearest {window.estimate:.0f} [{window.low:.0f}, {window.high:.0f}]"
            f" tokens for 90 % of the {interval_of(row, 'worth')} nats that the longest context is worth"
            " beyond the shortest (notebook length_losses)."
        )


def worth_of_far_context(targets: pd.DataFrame, model: str) -> str:
    """Worth of the distant context to one model, and what is lost with another document's in its place."""
    documents = targets["document_id"]
    gain = interval_over_documents(documents, targets["loss_difference"])
    text = f"The distant context is worth {gain} nats a token to {model}"
    if (
        "document_specific_gain" not in targets or targets["document_specific_gain"].isna().all()
    ):  # earlier results
        return f"{text}; how much of it is its own was not measured: run loss_differences again."
    own = interval_over_documents(documents, targets["document_specific_gain"])
    return f"{text}; another document's in its place costs {own}."


def carried_by(results: Path, model: str, rule: str) -> str:
    """How much few tokens recover, beside another document's, as another model evaluates where one did."""
    only = {"model": [model], "rule": [rule]}
    losses = read_sparse_losses(results, only=only, every_evaluator=True)
    effects = token_effects(losses)
    if effects.empty:
        return f"How many tokens carry it cannot be told: {rule} was measured without the null that it needs."
    # The divergence is surer than the loss; of evaluators, those that did not choose; of k, the largest of
    # few.
    effects = effects[effects["criterion"] == effects["criterion"].iloc[-1]]
    others = effects[~effects["evaluator"].isin(model.split("+"))]
    effects = others if len(others) else effects
    few = effects[effects["k"] <= _FEW_TOKENS]
    effects = few if len(few) else effects
    row = effects[effects["k"] == effects["k"].max()].to_dict("records")[0]
    gain, own, null = (interval_of(row, name) for name in ("gain", "recovered", "null_recovered"))
    kind = " of divergence" if row["criterion"] == DIVERGENCE else ""
    evaluated = f" to {row['evaluator']}" if len(others) else ""
    text = f"{row['k']} tokens of {rule} recover {own} of {gain.estimate:.3f} nats{kind}{evaluated}"
    return f"{text}." if isnan(null.estimate) else f"{text}; another document's {null}."


def tokens_needed(results: Path, model: str, rule: str) -> Iterator[str]:
    """How mean_log2_k spreads over the predictions, and whether two models agree in it."""
    columns = [*TARGET, "evaluator", "mean_log2_k"]
    only = {"model": [model], "rule": [rule], "criterion": [DIVERGENCE]}
    rows = read_artefact(results, "dependency_sparsity", columns, only)
    of_evaluators = rows.pivot_table("mean_log2_k", TARGET, "evaluator", dropna=False)
    if of_evaluators.isna().all(axis=None):
        return  # results of before there was such a number
    others = [evaluator for evaluator in of_evaluators if evaluator not in model.split("+")]
    values = of_evaluators[others or list(of_evaluators)].mean(axis=1, skipna=False).dropna()
    low, middle, high = values.quantile([0.1, 0.5, 0.9])
    text = f"The median prediction, of {len(values)} of {len(of_evaluators)} with enough at stake, needs"
    text += f" {middle:.1f} doublings of tokens (mean_log2_k; 80 %: {low:.1f} to {high:.1f})"
    if len(of_evaluators.columns) > 1:
        agreement = of_evaluators.corr("spearman").to_numpy()[0, 1]
        text += f"; two models agree at {agreement:.2f}"
    yield f"{text}."


def short_models_answer(results: Path, losses: pd.DataFrame) -> str:
    """What short-context models lose beyond the last long-context one; the first may have chosen tokens."""
    longs, shorts = models_by_training(results)
    if not (shorts and longs):
        return f"{_UNKNOWN} it needs models trained at a short context and at the long one."
    gaps = generalization_gaps(losses, short_models=shorts, reference_model=longs[-1])
    means = [
        f"{model} {interval_over_documents(of_model['document_id'], of_model['generalization_gap'])}"
        for model, of_model in gaps.groupby("model", sort=False)
    ]
    text = f"Nats lost beyond {longs[-1]} under the long context: {', '.join(means)}"
    return f"{text}; the notebook sparsity_and_generalization draws it against the tokens needed."


def models_table(results: Path) -> str:
    """A row a model: contexts, sample size, mean losses, and what the distant context is worth (`_NOTES`)."""
    settings = read_settings(results, "loss_differences")
    rows = []
    for row in summarize_models(read_artefact(results, "loss_differences")).to_dict("records"):
        of_model = settings.get(row["model"], {})
        lengths = [of_model.get(name, _ABSENT) for name in ("short_context_length", "long_context_length")]
        counts = [f"{row[f'num_{kind}']:,}" for kind in ("targets", "documents")]
        losses = [f"{row[f'{kind}_context_loss']:.3f}" for kind in ("short", "long")]
        worth = [
            interval_cell(row, name)
            for name in ("loss_difference", "expected_gain", "document_specific_gain")
        ]
        rows.append([row["model"], " / ".join(map(str, lengths)), *counts, *losses, *worth])
    header = [
        "model",
        "context short / long",
        "targets",
        "documents",
        "short loss",
        "long loss",
        "short - long [95 %]",
        "expected [95 %]",
        "its own [95 %]",
    ]
    return as_table(header, rows, num_left_columns=1)


def page(results: Path, figures: Path) -> str:
    """The whole page."""
    indents: dict[str, Any] = {"initial_indent": "- ", "subsequent_indent": "  "}
    unbroken: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    in_words = [textwrap.fill(sentence, _WIDTH, **indents, **unbroken) for sentence in answers(results)]
    # Those of the study's further evaluations stand beside; the paper's own figure comes first.
    paths = [*figures.glob("*.png"), *figures.parent.glob(f"*/{figures.name}/*.png")]
    paths.sort(key=lambda path: (not path.name.startswith(PAPER_FIGURE), path))
    further = f", and {len(paths) - 1} more beside it" if paths[1:] else ""
    drawn = f"{paths[0]}{further}" if paths else f"none in {figures}"
    asking = f"sparsity query --results {results}"
    return "\n".join(
        [
            models_table(results),
            _NOTES,
            *in_words,
            f"Figures: {drawn}",
            f"Data: {results} (columns: pipeline/RESULTS.md; to ask it: {asking})",
            "",
        ]
    )
