"""What k tokens are worth: how much of a long context's gain they recover, and how much of that is selection.

Whatever the intervention, k tokens are added to a baseline, and what they recover of its gain is counted:

    baseline    the short context, or under `background` it and another document's far context
    gain        by the loss baseline - long; by the divergence that of the baseline, as that of long is 0
    recovered   baseline - with k tokens
    null        the same with another document's tokens, chosen as the kind of null says
    excess      recovered - null, target by target

Nats, means over targets; intervals as in `analysis.read`.
"""

from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import drawing
from analysis.read import (
    NO_INTERVAL,
    TARGET,
    Row,
    interval_columns,
    interval_of,
    interval_over_documents,
    joined_on_common,
    mean_columns,
    needs_null,
    of_common_groups,
    summarized,
)
from pipeline.results.schemas import DIVERGENCE, LOSS, OTHER_DOCUMENT, OWN

CRITERIA = (LOSS, DIVERGENCE)
NEAREST = "nearest"
_CHOICE = ["model", "judge", "rule", "k"]


def with_recovered_losses(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """The artefact with `baseline_loss`, `loss_difference` and `recovered_loss` of each row, nats.

    `recovered_loss` is the baseline's loss less that with k tokens; `loss_difference` is the baseline's less
    L_long with the document's *own* far context in every row, the null's too, so that both are measured on
    one scale. Targets measured under the null only are left out.
    """
    keys = ["model", *TARGET]
    own = sparse_context_losses[sparse_context_losses["far_context"] == OWN]
    rows = joined_on_common(
        sparse_context_losses.drop(columns="long_context_loss"),
        own[[*keys, "long_context_loss"]].drop_duplicates(keys),
        keys,
        "targets with k tokens of their own far context",
    )
    rows["baseline_loss"] = _baseline_losses(rows)
    rows["loss_difference"] = rows["baseline_loss"] - rows["long_context_loss"]
    rows["recovered_loss"] = rows["baseline_loss"] - rows["sparse_context_loss"]
    return rows


def _baseline_losses(rows: pd.DataFrame) -> pd.Series:
    """The loss that k tokens are to lower, nats: of the short context, or with a foreign far context."""
    if "background_loss" not in rows:
        return rows["short_context_loss"]
    return rows["background_loss"].astype("float64").fillna(rows["short_context_loss"])


def recovered_losses(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """How much of the long context's gain k tokens recover: a row a model, rule, far context and k.

    The fraction is sum(recovered_loss) / sum(loss_difference), a ratio of sums. Where the mean
    gain's interval reaches 0 (`is_gain_clear` is False) the fraction divides by noise: it is NaN, and the
    recovered loss in nats is what can be read. The rows of the null say how much of either is selection.

    Returns:
        model, rule, far_context, k, num_targets, num_documents, baseline_loss, sparse_context_loss,
        long_context_loss (means, nats), then with intervals recovered_loss, loss_difference (nats) and
        recovered_fraction; is_gain_clear.
    """

    def numbers(targets: pd.DataFrame) -> dict[Hashable, Any]:
        losses = targets[["baseline_loss", "sparse_context_loss", "long_context_loss"]]
        means = losses.astype("float64").mean().to_dict()
        return means | _amount_and_fraction(targets, "recovered_loss", "recovered_fraction")

    losses = with_recovered_losses(sparse_context_losses)
    return summarized(losses, ["model", "rule", "far_context", "k"], numbers)


def excess_over_null(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """The effect: what k tokens recover beyond what choosing among another document's tokens recovers.

    Own and null are paired target by target: their difference has no noise of the baseline, and documents are
    resampled with both. Targets that lack either are left out.

    Returns:
        model, rule, k, num_targets, num_documents, then with intervals excess_loss (nats),
        loss_difference (nats), excess_fraction (of the gain; NaN where it is not clear); is_gain_clear.
        No rows where the null was not measured.
    """
    losses = with_recovered_losses(sparse_context_losses)
    own, null = (losses[losses["far_context"] == far_context] for far_context in (OWN, OTHER_DOCUMENT))
    keys = ["model", "rule", "k", *TARGET]
    own, null = of_common_groups(own, null[[*keys, "recovered_loss"]], keys[:3])
    paired = joined_on_common(own, null, keys, "choices of own and null tokens", ("", "_null"))
    paired["excess_loss"] = paired["recovered_loss"] - paired["recovered_loss_null"]
    return summarized(
        paired, keys[:3], lambda targets: _amount_and_fraction(targets, "excess_loss", "excess_fraction")
    )


def _amount_and_fraction(targets: pd.DataFrame, amount: str, fraction: str) -> dict[Hashable, float | bool]:
    """Mean of `amount` in nats, the mean gain, and their ratio where the gain is clear."""
    columns = mean_columns(targets, amount, "loss_difference")
    is_clear, ratio = bool(columns["loss_difference_low"] > 0), NO_INTERVAL
    if is_clear:
        ratio = interval_over_documents(targets["document_id"], targets[amount], targets["loss_difference"])
    return {**columns, **interval_columns(fraction, ratio), "is_gain_clear": is_clear}


def token_effects(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """A row a model, judge, criterion, rule and k, of all judges and k given (`read_sparse_losses`).

    Returns:
        model, judge, rule, k, criterion, num_targets, num_documents, then with intervals gain, recovered,
        null_recovered, excess (nats), effect (excess, or of rules that fit neither answer nor prediction
        recovered, which another document's tokens would flatter) and share (effect / gain, of sums; NaN where
        the gain's interval reaches 0). Choices without their null are left out.
    """

    def numbers(targets: pd.DataFrame) -> dict[Hashable, Any]:
        columns = mean_columns(targets, "gain", "recovered", "null_recovered", "excess", "effect")
        share = NO_INTERVAL
        if columns["gain_low"] > 0:
            share = interval_over_documents(targets["document_id"], targets["effect"], targets["gain"])
        return columns | interval_columns("share", share)

    paired = [effects_of_targets(sparse_context_losses, criterion) for criterion in CRITERIA]
    tables = [
        summarized(of_criterion.assign(criterion=criterion), [*_CHOICE, "criterion"], numbers, sort=False)
        for criterion, of_criterion in zip(CRITERIA, paired, strict=True)
    ]
    return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)


def effects_of_targets(sparse_context_losses: pd.DataFrame, criterion: str) -> pd.DataFrame:
    """The amounts that `token_effects` averages, by one criterion.

    Returns:
        model, judge, rule, k, the columns of `TARGET`, then gain, recovered, null_recovered, excess and
        effect, nats. Choices without their null are left out.
    """
    judges = sparse_context_losses.get("judge", sparse_context_losses["model"])
    rows = sparse_context_losses.assign(judge=judges.fillna(sparse_context_losses["model"]))
    if criterion == LOSS:
        baseline = _baseline_losses(rows)
        gain, with_tokens = baseline - rows["long_context_loss"], rows["sparse_context_loss"]
    elif "sparse_context_divergence" in rows:
        baseline = rows["background_divergence"].astype("float64").fillna(rows["short_context_divergence"])
        gain, with_tokens = baseline, rows["sparse_context_divergence"]
    else:
        rows = rows.iloc[:0]
        baseline = gain = with_tokens = rows["short_context_loss"]
    amounts = {"gain": gain.astype("float64"), "recovered": (baseline - with_tokens).astype("float64")}
    rows = rows.assign(**amounts).dropna(subset=list(amounts))[[*_CHOICE, *TARGET, "far_context", *amounts]]
    own, null = (
        rows[rows["far_context"] == far].drop(columns="far_context") for far in (OWN, OTHER_DOCUMENT)
    )
    null = null.drop(columns="gain").rename(columns={"recovered": "null_recovered"})
    own, null = of_common_groups(own, null, _CHOICE)
    paired = joined_on_common(own, null, [*_CHOICE, *TARGET], "choices of own and null tokens")
    excess = paired["recovered"] - paired["null_recovered"]
    has_null = paired["rule"].map({rule: needs_null(str(rule)) for rule in paired["rule"].unique()})
    return paired.assign(excess=excess, effect=excess.where(has_null.astype(bool), paired["recovered"]))


def nearest_equivalents(effects: pd.DataFrame) -> pd.DataFrame:
    """How many of the nearest far tokens do what k chosen ones do: between two numbers that were studied.

    Returns:
        model, judge, criterion, rule (no `nearest`), k, effect, then more_than and at_most: the least studied
        number of nearest tokens whose effect is as large, and the one before it (0 before the first; at_most
        is NaN where none of them does as much). No rows where `nearest` was not studied.
    """
    rows = []
    for _, group in effects.groupby(["model", "judge", "criterion"]):
        nearest = group[group["rule"] == NEAREST].sort_values("k")
        for row in group[group["rule"] != NEAREST].to_dict("records") if len(nearest) else ():
            more_than, at_most = _bracket(nearest, row["effect"])
            labels = {name: row[name] for name in ("model", "judge", "criterion", "rule", "k", "effect")}
            rows.append(labels | {"more_than": more_than, "at_most": at_most})
    return pd.DataFrame(rows)


def _bracket(nearest: pd.DataFrame, effect: float) -> tuple[float, float]:
    """The studied numbers of nearest tokens around an effect: the last below, the first that reaches it."""
    if np.isnan(effect):
        return 0, np.nan
    reaches = (nearest["effect"] >= effect).to_numpy()
    studied = nearest["k"].to_numpy()
    if not reaches.any():
        return int(studied[-1]), np.nan
    first = int(reaches.argmax())
    return (int(studied[first - 1]) if first else 0), int(studied[first])


def number_in_words(row: Row) -> str:
    """A row of `nearest_equivalents` as "between 32 and 64", "no more than 1" or "more than 231"."""
    if row["effect"] <= 0:
        return "none"
    if np.isnan(row["at_most"]):
        return f"more than {row['more_than']:.0f}"
    if not row["more_than"]:
        return f"no more than {row['at_most']:.0f}"
    return f"between {row['more_than']:.0f} and {row['at_most']:.0f}"


def effect_sentences(effects: pd.DataFrame, equivalents: pd.DataFrame) -> Iterator[str]:
    """A sentence a model, judge, criterion and rule: its largest k's worth, in nearest tokens too."""
    keys = ["model", "judge", "criterion", "rule", "k"]
    numbers = {} if equivalents.empty else equivalents.set_index(keys).to_dict("index")
    chosen = effects[effects["rule"] != NEAREST]
    for _, rows in chosen.groupby(keys[:-1], sort=False):
        row = rows.sort_values("k").iloc[-1]
        beyond = " beyond the null" if needs_null(row["rule"]) else ""
        judge = "" if row["judge"] == row["model"] else f", judged by {row['judge']}"
        nearest = numbers.get(tuple(row[name] for name in keys))
        as_many = "" if nearest is None else f", as {number_in_words(nearest)} of the nearest do"
        yield (
            f"{row['model']}, {row['rule']}, by the {row['criterion']}{judge}: {row['k']} tokens are worth"
            f" {interval_of(row, 'effect')} nats{beyond} of {row['gain']:.3f}{as_many}."
        )


_LARGEST_SHARE = 3.0
"""Of the gain; a choice that sees the answer and "recovers" more leaves the scale, and its name says so."""
_BESIDE = 1.04  # factor on a logarithmic axis between a rule's bars and its null's, which may be equal


def recovered_figure(recovered: pd.DataFrame, label: drawing.ModelLabel) -> Figure:
    """A panel of rules that do not see the answer, one of those that do, on one scale; each beside its null.

    `recovered_losses` of one model, as a share of the gain; in nats where that is not clear.
    """
    is_fitted = recovered["rule"].map(needs_null).astype(bool)
    of_panel = {
        "chosen blind to the answer": recovered[~is_fitted],
        "chosen by the answer, or to fit the prediction": recovered[is_fitted],
    }
    of_panel = {name: rows for name, rows in of_panel.items() if len(rows)}
    value, axis, whole, most = "recovered_fraction", "recovered share of the gain", 1.0, _LARGEST_SHARE
    if not recovered["is_gain_clear"].any():
        value, axis, most = "recovered_loss", "recovered (nats)", np.inf
        whole = recovered["loss_difference"].iloc[0]

    figure, axes = drawing.panels(len(of_panel), 3.4)
    ends_of_panels = []
    for ax, (title, rows) in zip(axes, of_panel.items(), strict=True):
        ends, nulls = [], []
        for (rule, far_context), line in rows.groupby(["rule", "far_context"], sort=False):
            line, style, name = line.sort_values("k"), drawing.rule_style(str(rule)), _name(str(rule))
            if far_context == OWN:
                ends.append(drawing.draw_line(ax, line["k"] / _BESIDE, line, value, style.measured, name))
            else:
                name = "its null: the same\nin another document"
                nulls.append(drawing.draw_line(ax, line["k"] * _BESIDE, line, value, style.null, name))
        lowest = min(nulls, key=lambda end: end.y, default=None)
        if lowest is not None:
            several = replace(lowest, name="dashed: their nulls", color=drawing.GREY)
            ends.append(several if len(nulls) > 1 else lowest)
        ends_of_panels.append(ends)
        ax.axhline(0, color=drawing.BLACK, linewidth=0.6)
        drawing.name_level(ax, whole, "the whole gain" if ax is axes[0] else "", "left")
        drawing.tokens_axis(ax, rows["k"].unique())
        ax.set_title(title, loc="left")
    drawing.share_scale(axes, most)
    for ax, ends in zip(axes, ends_of_panels, strict=True):
        top = ax.get_ylim()[1]
        drawing.label_line_ends(
            ax, [replace(end, y=top, name=f"{end.name}: {end.y:.2g}") if end.y > top else end for end in ends]
        )
    axes[0].set_ylabel(axis)
    title = "How much of what the far context is worth do k tokens recover?"
    drawing.put_title(figure, title, drawing.sample_size(recovered), label.size, label.text, drawing.BARS)
    return figure


def _name(rule: str) -> str:
    """In lines that fit beside a panel."""
    return drawing.rule_text(rule).replace(", ", ",\n")


def effects_figure(effects: pd.DataFrame, label: drawing.ModelLabel, judge: str = "") -> Figure:
    """A panel a criterion, on one scale: what k tokens are worth; a line a rule, the nearest up to all.

    `token_effects` of one model and judge; `judge` in words, where another model judged.
    """
    of_panels = list(effects.groupby("criterion", sort=False))
    titles = {LOSS: "by the loss of the token that came", DIVERGENCE: "by the whole prediction (divergence)"}
    figure, axes = drawing.panels(len(of_panels), 3.2)
    for ax, (criterion, rows) in zip(axes, of_panels, strict=True):
        ends = []
        for rule, line in rows.groupby("rule", sort=False):
            name = _name(str(rule)) + (",\nbeyond its null" if needs_null(str(rule)) else "")
            style = drawing.rule_style(str(rule)).measured
            ends.append(drawing.draw_line(ax, line["k"], line, "effect", style, name))
        ax.axhline(0, color=drawing.BLACK, linewidth=0.6)
        drawing.name_level(ax, rows["gain"].iloc[0], "the whole gain" if ax is axes[0] else "", "left")
        drawing.tokens_axis(ax, rows["k"].unique())
        ax.set_title(titles[str(criterion)], loc="left")
    drawing.share_scale(axes)
    drawing.label_line_ends(axes[-1], ends)
    axes[0].set_ylabel("worth of k tokens (nats)")
    judged = f"judged by another model, {judge}" if judge else ""
    parts = [drawing.sample_size(effects), label.size, label.text, judged, drawing.BARS]
    drawing.put_title(figure, "What are k tokens of the far context worth?", *parts)
    return figure
