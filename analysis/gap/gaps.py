"""The generalization gap of every target, drawn and expected; how many far tokens predictions need.

A gap is how much worse a short-trained model is than a long-trained one under the long context, in nats. The
drawn gap is of one token, the one that came. If that were drawn from the prediction of a long-trained
reference, the gap of a short-trained model to another long-trained seed would be

    KL(p_ref || p_short) - KL(p_ref || p_seed)

The second term, the seed-to-seed floor, takes off that two seeds of one training differ too. This expected
gap says which model resembles the reference more. It stands for the drawn gap only where the drawn gap rises
by one nat for each of its own: so it is never told without that slope (`analysis.gap.slopes.mean_gaps`).

A k* of a rule that sees the answer is mostly selection noise where gains are small. Beside it stand a k* that
requires the same recovery beyond the null, and those of rules that never see the answer.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import drawing
from analysis.losses.token_worth import effects_of_targets
from analysis.read import (
    TARGET,
    interval_columns,
    interval_over_documents,
    joined_on_common,
    mean_columns,
    needs_null,
    read_judged_sparsity,
    read_sparse_losses,
    read_sparsity,
    rows_of,
    sample_counts,
    shown_rule,
)
from analysis.rules.selection import compared_rules
from pipeline.cli import InputError
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
    `shares_of_gaining_targets` of every model, with the column `model`.
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


NO_GAIN = "no gain"
_REFERENCE = "reference_divergence"
_KEYS = ["model", *TARGET]


def sparsity_categories(studied_ks: Iterable[int]) -> list[str]:
    """Names of the classes of k*, sparse to dense: each studied k, more than the largest, no gain."""
    ks = sorted(studied_ks)
    return [*map(str, ks), f"more than {ks[-1]}", NO_GAIN]


def sparsity_category(dependency_sparsity: pd.DataFrame, studied_ks: Sequence[int]) -> pd.Series:
    """The class of each target's k*; a censored target helps but needs more than the largest studied k."""
    k_star = dependency_sparsity["dependency_sparsity"]
    reached = k_star.map(lambda k: NO_GAIN if pd.isna(k) else str(int(k)))
    return reached.mask(dependency_sparsity["is_censored"], f"more than {max(studied_ks)}")


def generalization_gaps(
    loss_differences: pd.DataFrame, *, short_models: Sequence[str], reference_model: str
) -> pd.DataFrame:
    """Per token, how much worse a short-trained model is at the long context than a long-trained one.

    Returns:
        model (each of `short_models`), document_id, chunk_index, target_position, generalization_gap:
        L_long of the short-trained model - L_long of the reference, nats. Targets both have, no others.
    """
    columns = [*TARGET, "long_context_loss"]
    reference = rows_of(loss_differences, reference_model)[columns]
    shorts = pd.concat([rows_of(loss_differences, model)[["model", *columns]] for model in short_models])
    what = f"targets of {', '.join(short_models)} and of {reference_model}"
    pairs = joined_on_common(shorts, reference, TARGET, what, ("", "_reference"))
    pairs["generalization_gap"] = pairs["long_context_loss"] - pairs["long_context_loss_reference"]
    return pairs[[*_KEYS, "generalization_gap"]]


def generalization_gap_by_sparsity(
    loss_differences: pd.DataFrame,
    sparsity: pd.DataFrame,
    *,
    short_models: Sequence[str],
    reference_model: str,
    studied_ks: Sequence[int],
) -> pd.DataFrame:
    """Mean generalization gap of the tokens of each dependency sparsity k*: a row a short model and class.

    k* and the gap must come from two seeds: a token on which one long-trained model happens to be lucky
    has a large gain and a large gap from that model alone, which would tie the two together.

    Args:
        loss_differences: the artefact.
        sparsity: of `sparsity_measures`, one measure: k* of a long-trained model.
        short_models: models trained at a short context.
        reference_model: the long-trained model that the gap is measured from, best another seed.
        studied_ks: every k that was studied; gives the classes, also those no token falls in.

    Returns:
        model, category (see `sparsity_categories`), num_targets, num_documents, generalization_gap with
        its interval (nats); NaN where a class is empty.
    """
    sparsity = sparsity[TARGET].assign(category=sparsity_category(sparsity, studied_ks))
    gaps = generalization_gaps(loss_differences, short_models=short_models, reference_model=reference_model)
    tokens = joined_on_common(gaps, sparsity, TARGET, "targets with a gap and with k*")
    if tokens.empty:
        raise InputError(
            f"no target is common to the loss differences of {', '.join(short_models)} and k*; measure them"
            " on the same documents"
        )
    rows = []
    for model in short_models:
        for category in sparsity_categories(studied_ks):
            chosen = tokens[(tokens["model"] == model) & (tokens["category"] == category)]
            numbers = sample_counts(chosen) | mean_columns(chosen, "generalization_gap")
            rows.append({"model": model, "category": category, **numbers})
    return pd.DataFrame(rows)


def floor_models(loss_differences: pd.DataFrame, long_models: Sequence[str]) -> list[str]:
    """Of these long-trained models those that can be the floor: compared with the reference, and not it."""
    if _REFERENCE not in loss_differences:
        return []
    largest = loss_differences.groupby("model")[_REFERENCE].max()  # of the reference to itself it is 0
    return [model for model in long_models if largest.get(model, 0) > 0]


def expected_gaps(
    loss_differences: pd.DataFrame, *, short_models: Sequence[str], floor_model: str
) -> pd.DataFrame:
    """Both gaps of every target, to the same long-trained seed, which is not the reference.

    Short-trained models that were not compared with the reference (--reference-model) are left out.

    Returns:
        model, document_id, chunk_index, target_position, generalization_gap (of the drawn token, to
        `floor_model`), reference_divergence, floor_divergence and expected_gap, nats.
    """
    drawn = generalization_gaps(loss_differences, short_models=short_models, reference_model=floor_model)
    compared = loss_differences.dropna(subset=[_REFERENCE])
    floor = rows_of(compared, floor_model)[[*TARGET, _REFERENCE]]
    shorts = compared.loc[compared["model"].isin(short_models), [*_KEYS, _REFERENCE]]
    floor = floor.rename(columns={_REFERENCE: "floor_divergence"})
    what = f"targets compared with the reference, and those of {floor_model}"
    both = joined_on_common(shorts, floor, TARGET, what)
    both["expected_gap"] = both[_REFERENCE] - both["floor_divergence"]
    drawn = drawn[drawn["model"].isin(set(both["model"]))]
    return joined_on_common(drawn, both, _KEYS, "targets with a drawn and an expected gap")


def sparsity_distribution(measured: pd.DataFrame, studied_ks: Sequence[int]) -> pd.DataFrame:
    """Share of the targets in each class of k*, censored targets and those without a gain among them.

    Returns:
        measure, category (see `sparsity_categories`), num_targets and num_documents (of the measure), share
        with its interval.
    """
    categories = sparsity_category(measured, studied_ks)
    rows = []
    for measure, targets in measured.groupby("measure", sort=False):
        for category in sparsity_categories(studied_ks):
            is_category = categories[targets.index] == category
            rows.append({"measure": measure, "category": category, **_share(targets, is_category)})
    return pd.DataFrame(rows)


def shares_of_gaining_targets(measured: pd.DataFrame, studied_ks: Sequence[int]) -> pd.DataFrame:
    """Of the targets that gain enough to have a k*, the share that needs at most so many far tokens.

    Returns:
        measure, k (each studied one), num_targets, num_documents, share of them with k* <= k, with interval;
        no rows where no target gains enough.
    """
    columns = ["measure", "k", "num_targets", "num_documents", "share", "share_low", "share_high"]
    gaining = measured[measured["dependency_sparsity"].notna() | measured["is_censored"]]
    rows = []
    for measure, targets in gaining.groupby("measure", sort=False):
        for k in sorted(studied_ks):
            is_enough = targets["dependency_sparsity"] <= k
            rows.append({"measure": measure, "k": k, **_share(targets, is_enough)})
    return pd.DataFrame(rows, columns=columns)


def _share(targets: pd.DataFrame, is_counted: pd.Series) -> dict[Hashable, Any]:
    """The sample, and the share of it that is counted with its interval."""
    interval = interval_over_documents(targets["document_id"], is_counted.astype("float64"))
    return {**sample_counts(targets), **interval_columns("share", interval)}
