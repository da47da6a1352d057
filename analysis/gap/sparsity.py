"""Dependency sparsity k* as each selection rule reads it, and as numbers that a regression can take.

A k* of a rule that sees the answer is mostly selection noise where gains are small. Beside it stand a k* that
requires the same recovery beyond the null, and those of rules that never see the answer.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import drawing
from analysis.losses.token_worth import effects_of_targets
from analysis.read import (
    TARGET,
    needs_null,
    read_judged_sparsity,
    read_sparse_losses,
    read_sparsity,
    shown_rule,
)
from analysis.rules.selection import compared_rules
from pipeline.results.read import read_settings_of
from pipeline.results.schemas import LOSS

BEYOND_NULL = " beyond its null"
"""What the name of a measure adds to that of its rule."""
JUDGED = ", judged by another seed"
"""What the name adds where another model says, by the divergence, how many of the tokens are needed."""
AMONG_REACHED, ALL_TARGETS = "log2 k*, of targets that have one", "log2 (k* + 1), of all targets"
CODINGS = (AMONG_REACHED, ALL_TARGETS)
"""How k* becomes a number: without the targets that gain too little or need more than was studied; or with
them, as 0 far tokens and as twice the largest studied k."""


def read_sparsity_measures(results: Path, model: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`sparsity_measures` of one model, also as another judged, and its rows of sparse_context_losses."""
    only = {"model": [model]}
    losses = read_sparse_losses(results, only=only)
    settings = read_settings_of(results, "influential_tokens", model)
    own = sparsity_measures(read_sparsity(results, only=only), losses, settings)
    judged = read_judged_sparsity(results, only)
    judged = judged.assign(measure=judged["rule"] + JUDGED)[list(own)].astype(own.dtypes)
    return pd.concat([own, judged], ignore_index=True), losses


def sparsity_measures(
    dependency_sparsity: pd.DataFrame, sparse_context_losses: pd.DataFrame, settings: Mapping[str, Any]
) -> pd.DataFrame:
    """k* of every target by every measure, a row a target and measure.

    Args:
        dependency_sparsity, sparse_context_losses: the artefacts, one model.
        settings: of the stage that made them: `recovery_fraction`, `minimum_gain` (nats).

    Returns:
        document_id, chunk_index, target_position, measure (a rule, or one that needs its null followed by
        `BEYOND_NULL`), dependency_sparsity (float64, NaN where it is not reached), is_censored.
    """
    columns = [*TARGET, "measure", "dependency_sparsity", "is_censored"]
    of_rules = dependency_sparsity.rename(columns={"rule": "measure"})[columns]
    fitted = sparse_context_losses[sparse_context_losses["rule"].map(needs_null).astype(bool)]
    required = {name: settings[name] for name in ("recovery_fraction", "minimum_gain")}
    beyond = sparsity_beyond_null(fitted, **required)
    measures = pd.concat([of_rules, beyond[columns]], ignore_index=True)
    return measures.astype({"dependency_sparsity": "float64", "is_censored": bool})


def sparsity_beyond_null(
    sparse_context_losses: pd.DataFrame, *, recovery_fraction: float, minimum_gain: float
) -> pd.DataFrame:
    """The least studied k that recovers beyond its null the fraction of the gain that k* requires.

    One draw of another document stands for the null of each target, so this k* is noisy too, but not by
    selection: what choosing with the answer in hand finds anywhere is taken out on average.

    Args:
        sparse_context_losses: the artefact, one model, own far context and null.
        recovery_fraction: of L_short - L_long.
        minimum_gain: nats; a target that gains less has no k*.

    Returns:
        document_id, chunk_index, target_position, measure, dependency_sparsity (NaN where not reached),
        is_censored; targets without a null are left out.
    """
    effects = effects_of_targets(sparse_context_losses, LOSS)
    excess = effects.pivot(index=["rule", *TARGET, "gain"], columns="k", values="excess")
    targets = excess.index.to_frame(index=False)
    gains = targets["gain"].to_numpy()
    reaches = excess.to_numpy() >= recovery_fraction * gains[:, None]
    helps, reached = gains >= minimum_gain, reaches.any(axis=1)
    least = excess.columns.to_numpy(dtype="float64")[reaches.argmax(axis=1)] if len(targets) else gains
    return targets[TARGET].assign(
        measure=targets["rule"] + BEYOND_NULL,
        dependency_sparsity=np.where(helps & reached, least, np.nan),
        is_censored=helps & ~reached,
    )


def coded_sparsity(measured: pd.DataFrame, coding: str, largest_k: int) -> pd.Series:
    """k* as a number, one unit a doubling; NaN where the coding, one of `CODINGS`, leaves the target out."""
    k_star = measured["dependency_sparsity"]
    if coding == AMONG_REACHED:
        return np.log2(k_star)
    return np.log2(k_star.fillna(0).mask(measured["is_censored"], 2 * largest_k) + 1)


def measures_in_order(measured: pd.DataFrame) -> list[str]:
    """The measures present: rules in the order of all tables, each followed by its other readings."""
    rules = compared_rules(pd.DataFrame({"rule": measured["measure"].map(rule_of)}))
    present, suffixes = set(measured["measure"]), ("", JUDGED, BEYOND_NULL)
    return [rule + suffix for rule in rules for suffix in suffixes if rule + suffix in present]


def rule_of(measure: str) -> str:
    """The selection rule that a measure reads."""
    return measure.removesuffix(BEYOND_NULL).removesuffix(JUDGED)


def shown_measure(measures: Iterable[str]) -> str:
    """What a page of one measure shows: the trusted rule, judged by another seed where one did."""
    present = list(measures)
    rule = shown_rule([measure for measure in present if measure == rule_of(measure)])
    return rule + JUDGED if rule + JUDGED in present else rule


def measure_text(measure: str) -> str:
    """A measure in words: `leave_one_out beyond its null` is "leave one out, beyond its null"."""
    rule = rule_of(measure)
    return drawing.rule_text(rule) + measure.removeprefix(rule).replace(" beyond", ", beyond")


def sparsity_figure(needed: pd.DataFrame, labels: Mapping[str, drawing.ModelLabel]) -> Figure:
    """Share of the targets that gain for which k tokens suffice: a panel a measure, a line a model.

    The measures are the rule that is trusted most, and beyond its null the first that needs one. `needed` is
    `gap.gaps.shares_of_gaining_targets` of every model, with the column `model`.
    """
    present, models = list(dict.fromkeys(needed["measure"])), list(dict.fromkeys(needed["model"]))
    trusted, beyond = shown_measure(present), [name for name in present if name.endswith(BEYOND_NULL)]
    measures = [*([] if needs_null(rule_of(trusted)) and beyond else [trusted]), *beyond[:1]]
    sizes = {model: labels[model].size for model in models}
    names = {model: labels[model].text.replace(", ", ",\n") for model in models}
    if len(set(sizes.values())) == len(models) > 1:
        names = {model: size.replace(" parameters", "\nparameters") for model, size in sizes.items()}
    figure, axes = drawing.panels(len(measures), 3.1)
    for measure, ax in zip(measures, axes, strict=True):
        rows, ends = needed[needed["measure"] == measure], []
        for place, (model, line) in enumerate(rows.groupby("model", sort=False)):
            # Models of one kind differ by the weight of their lines.
            style = drawing.rule_style(rule_of(measure)).measured | {"linewidth": 1.0 + 0.8 * place}
            ends.append(drawing.draw_line(ax, line["k"], line, "share", style, names[str(model)]))
        drawing.tokens_axis(ax, rows["k"].unique())
        ax.set_ylim(0, 1)
        ax.set_title(measure_text(measure), loc="left")
        drawing.label_line_ends(ax, ends)
    axes[0].set_ylabel("share of targets with k* of at most k")
    size = drawing.common_size(labels[model] for model in models)
    drawn = drawing.sample_size(needed[needed["measure"].isin(measures)])
    title = "How many far tokens does a prediction need that gains from its long context?"
    drawing.put_title(figure, title, drawn, "of targets that gain", size, drawing.BARS)
    return figure
