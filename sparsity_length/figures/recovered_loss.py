"""Worth of k tokens: how much of a long context's gain they recover, and how much of that is selection.

Whatever the ablation, k tokens are added to a baseline, and what they recover of its gain is counted:

    baseline    the short context, or under `swap` it and another document's distant context
    gain        by the loss baseline - long; by the divergence that of the baseline, as that of long is 0
    recovered   baseline - with k tokens
    null        the same with another document's tokens, chosen as the kind of null says
    excess      recovered - null, target by target

Nats, means over targets; intervals as in `sparsity_length.figures.read`.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from sparsity_length.figures import drawing
from sparsity_length.figures.read import (
    NO_INTERVAL,
    TARGET,
    interval_columns,
    interval_over_documents,
    mean_columns,
    needs_null,
    rows_where,
    shown_rule,
    summarized,
)
from sparsity_length.measuring.rules import MASK
from sparsity_length.results.schemas import DIVERGENCE, LOSS, OTHER_DOCUMENT, OWN
from sparsity_length.results.statistics import Interval, decided

PAPER_FIGURE = "loss_against_k"
"""What the file of `loss_figure` is called, followed by the model."""
_CHOICE = ["model", "evaluator", "rule", "k"]
_AMOUNTS = ("gain", "recovered", "null_recovered", "excess", "effect")


def share_of_gain(targets: pd.DataFrame, recovered: str, name: str) -> dict[Hashable, float]:
    """The column `recovered` as a share of the gain, of sums, called `name`; NaN if the gain may be 0."""
    documents = targets["document_id"]
    # A ratio whose denominator may be 0 has no bounded interval (Fieller 1954).
    is_clear = interval_over_documents(documents, targets["gain"]).low > 0
    share = (
        interval_over_documents(documents, targets[recovered], targets["gain"]) if is_clear else NO_INTERVAL
    )
    return interval_columns(name, share)


def token_effects(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """One row per model, evaluator, criterion, rule and k, of all evaluators and k (`read_sparse_losses`).

    Returns:
        model, evaluator, rule, k, criterion, num_targets, num_documents, then with intervals gain, recovered,
        null_recovered, excess (nats), effect (excess, or recovered, of rules that fit neither the target
        token nor the prediction; another document's tokens would flatter these) and share (effect / gain, of
        sums; NaN if the gain's interval reaches 0). Choices without the null that they need are left out; of
        others without one null_recovered and excess are NaN.
    """

    def numbers(targets: pd.DataFrame) -> dict[Hashable, Any]:
        columns: dict[Hashable, Any] = {}
        for name in _AMOUNTS:
            columns |= mean_columns(targets.dropna(subset=name), name)
        return columns | share_of_gain(targets, "effect", "share")

    amounts = pd.concat(
        [
            _amounts_of_targets(sparse_context_losses, criterion).assign(criterion=criterion)
            for criterion in (LOSS, DIVERGENCE)
        ],
        ignore_index=True,
    )
    keys = [*_CHOICE, "criterion"]
    needs = amounts["rule"].map(needs_null).astype(bool)
    # A null may be of some of the documents only: there it decides the targets of rules that need it, and of
    # others those of null_recovered and excess.
    targets = amounts[amounts["null_recovered"].notna() | ~needs]
    excess = targets["recovered"] - targets["null_recovered"]
    effect = excess.where(needs[targets.index], targets["recovered"])
    # Unsorted, so that the divergence stays behind the loss: readers of the table take the last criterion.
    table = summarized(targets.assign(excess=excess, effect=effect), keys, numbers, sort=False)
    ends = [f"{name}{end}" for name in (*_AMOUNTS, "share") for end in ("", "_low", "_high")]
    return table if len(table) else table.reindex(columns=[*table.columns, *ends])


def _amounts_of_targets(sparse_context_losses: pd.DataFrame, criterion: str) -> pd.DataFrame:
    """Amounts that `token_effects` averages, by one criterion; null_recovered is NaN without a null.

    Returns:
        model, evaluator, rule, k, the columns of `TARGET`, then baseline, gain, recovered and null_recovered,
        nats.
    """
    columns = [f"{name}_{criterion}" for name in ("swapped", "short_context", "sparse_context")]
    rows = sparse_context_losses.reindex(
        columns=list(dict.fromkeys([*sparse_context_losses, *columns, "evaluator"]))
    )
    swapped, short, sparse = (rows[name].astype("float64") for name in columns)
    # Under `mask` nothing is swapped: tokens are added to the short context.
    baseline = swapped.fillna(short)
    long = rows["long_context_loss"] if criterion == LOSS else 0.0
    rows = rows.assign(
        baseline=baseline,
        gain=(baseline - long).astype("float64"),
        recovered=baseline - sparse,
    )
    amounts = ["baseline", "gain", "recovered"]
    rows = rows.dropna(subset=amounts)[[*_CHOICE, *TARGET, "distant_context", *amounts]]
    own = rows_where(rows, distant_context=OWN).drop(columns="distant_context")
    null = rows_where(rows, distant_context=OTHER_DOCUMENT)[[*_CHOICE, *TARGET, "recovered"]]
    return own.merge(null.rename(columns={"recovered": "null_recovered"}), "left", [*_CHOICE, *TARGET])


_SELECTED = "leave_one_out_divergence"
_RECENCY = "recency"
NULL = "null baseline"
_LEAST_SHARE = 0.5
_LEAST_LEAD = 0.1
"""Fractions of the gain that "supported" takes: recovered by the selection, and its lead over recency."""
_ROLES = {
    _SELECTED: "selected",
    "leave_one_out": "selected, target-aware",
    _RECENCY: "recency",
    "random": "random",
}
"""Rules of the paper's figure; it shows target-aware selection, which fits noise, only without the first."""
_FEW = 16
"""Tokens that titles speak of, or the fewest studied: most of the distant context recovers everything."""


def has_loss_figure(settings: Mapping[str, Any], rules: Iterable[str]) -> bool:
    """Tell whether tokens stood alone, as in the paper's figure, and one of its rules chose them."""
    return (settings.get("ablation") or MASK) == MASK and not set(rules).isdisjoint(_ROLES)


def loss_curves(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """The curves of the paper's figure: rows of one model and evaluator under `mask`.

    A loss is that with the short context minus what the tokens take off it, and its interval is of that
    difference: how hard the documents are drops out. A null may be of some of the documents only.

    Returns:
        rule, distant_context, k (from 0), num_targets, num_documents, then with intervals recovered (nats),
        recovered_share (of the gain, of sums; NaN if the gain's interval reaches 0) and loss, and in every
        row the same long_loss, nats: of k tokens, and of all.
    """

    def numbers(targets: pd.DataFrame) -> dict[Hashable, Any]:
        share = share_of_gain(targets, "recovered", "recovered_share")
        return {**mean_columns(targets, "recovered", "gain"), **share, "short": targets["baseline"].mean()}

    own = _amounts_of_targets(sparse_context_losses, LOSS)
    own = own[own["rule"].isin(_ROLES)]
    null = own.assign(recovered=own["null_recovered"]).dropna(subset="recovered")
    choices = pd.concat([own.assign(distant_context=OWN), null.assign(distant_context=OTHER_DOCUMENT)])
    keys = ["rule", "distant_context", "k"]
    # With no tokens nothing is recovered, by definition: each curve begins at the short context's loss.
    none = choices.drop_duplicates([*keys[:2], *TARGET]).assign(k=0, recovered=0.0)
    rows = summarized(pd.concat([none, choices]), keys, numbers)
    most = rows.sort_values("num_targets").iloc[-1]  # whose losses are the two levels
    # A loss falls as more is recovered, so the low end of one is the high end of the other.
    for end, other in (("", ""), ("_low", "_high"), ("_high", "_low")):
        rows[f"loss{end}"] = most["short"] - rows[f"recovered{other}"]
        rows[f"long_loss{end}"] = most["short"] - most[f"gain{other}"]
    return rows.drop(columns="short")


def paper_verdict(sparse_context_losses: pd.DataFrame, k: int = _FEW) -> tuple[str, Interval, Interval]:
    """Do few selected tokens predict nearly as well as all? Rows as of `loss_curves`.

    Supported: k tokens recover more than 50% of the gain, and lead recency by more than 10 points, both by
    their intervals. Refuted: the interval of the lead ends below 10 points, the smallest effect size of
    interest. Inconclusive: else. Written on 2026-11-29, when the numbers were known; it supports what the
    plan's rule (analysis/LOG.md, 2026-11-27) calls yes.

    Returns:
        "supported", "refuted" or "inconclusive"; the share of the gain that k tokens recover, selected
        without the target; and how much more that is than what recency recovers of the same targets.
    """
    targets = amounts_beside(sparse_context_losses, _RECENCY, k)
    share, lead = (
        interval_over_documents(targets["document_id"], targets[name], targets["gain"])
        for name in ("recovered", "lead")
    )
    word = decided(
        supported=share.low > _LEAST_SHARE and lead.low > _LEAST_LEAD, refuted=lead.high < _LEAST_LEAD
    )
    return word, share, lead


def amounts_beside(
    sparse_context_losses: pd.DataFrame, beside: str, k: int = _FEW, criterion: str = LOSS
) -> pd.DataFrame:
    """What k tokens, selected without the target, recover of each target that `beside` was tried on, too.

    Args:
        beside: a rule, or `NULL`, the null baseline.

    Returns:
        The columns of `TARGET`, then gain, recovered and lead: recovered minus what `beside` recovers of the
        same target, so that how hard a text is cancels; nats.
    """
    rows = _amounts_of_targets(sparse_context_losses, criterion).query("k == @k").set_index(TARGET)
    selected = rows[rows["rule"] == _SELECTED]
    other = selected["null_recovered"] if beside == NULL else rows[rows["rule"] == beside]["recovered"]
    lead = selected["recovered"] - other
    return selected.assign(lead=lead).dropna(subset="lead").reset_index()


def loss_figure(curves: pd.DataFrame, label: drawing.ModelLabel, evaluator: str = "") -> Figure:
    """The paper's figure: the loss with the short context and k distant tokens, from none of them to all.

    `loss_curves`; `evaluator` in words, if another model evaluated.
    """
    figure, (ax,) = drawing.panels(1, 3.2)
    figure.set_layout_engine("constrained", rect=(0, 0, 0.98, 1))  # else names end at the very border
    ks = sorted(curves["k"].unique())
    selected = next(rule for rule in _ROLES if rule in set(curves["rule"]))
    of_own = curves[curves["distant_context"] == OWN]
    for rule in [rule for rule in (selected, "recency", "random") if rule in set(of_own["rule"])]:
        line = of_own[of_own["rule"] == rule]
        share = line["recovered_share"].iloc[-1]
        name = _ROLES[rule] + ("" if np.isnan(share) else f": {share:.0%}")
        drawing.draw_line(ax, map(ks.index, line["k"]), line, "loss", drawing.rule_style(rule), name)
    null = rows_where(curves, distant_context=OTHER_DOCUMENT, rule=selected)
    style = drawing.hollow(drawing.rule_style(selected))
    drawing.draw_line(ax, map(ks.index, null["k"]), null, "loss", style, "null baseline")
    drawing.draw_line(ax, [len(ks)], curves[:1], "long_loss", label.style | {"linestyle": "none"})
    # Evenly spaced places: neither k = 0 nor "all" has one on a logarithmic axis.
    ax.set_xticks(range(len(ks) + 1), [*map(str, ks), "all"])
    ax.set_xlim(ax.get_xlim())  # the names of the levels begin at its end and widen nothing
    for name, level in zip(("short", "full"), curves[["loss", "long_loss"]].iloc[0], strict=True):
        ax.axhline(level, color=drawing.GREY, linewidth=0.8, zorder=1)
        words = f"{name} context, {level:.2f}"
        # An invisible point, beside which `put_title` writes the name of the level.
        ax.plot(len(ks) + 0.2, level, color=drawing.GREY, linestyle="none", label=words)
    ax.set_xlabel("k distant tokens beside the short context")
    ax.set_ylabel("loss (nats)")
    # ks[0] is 0, so ks[1] is the fewest studied, which counts even beyond 16.
    few = of_own[of_own["k"] == max(k for k in ks if k <= max(_FEW, ks[1]))].set_index("rule")
    title = "The full context has no clear gain that k tokens could recover"
    # Also False for NaN, if the gain may be 0.
    if few.loc[selected, "recovered_share"] > 0:
        tokens = drawing.counted(int(few.loc[selected, "k"]), f"{_ROLES[selected]} token")
        title = f"{tokens} recover {few.loc[selected, 'recovered_share']:.0%} of the full context's gain"
        if _RECENCY in few.index:  # else a share that recency reaches, too, would look like a finding
            title += f", the most recent ones {few.loc[_RECENCY, 'recovered_share']:.0%}"
    # A null may be of some of the documents only.
    sizes = [drawing.sample_size(rows) for rows in (of_own.query("rule == @selected"), null) if len(rows)]
    drawing.put_title(
        figure,
        title,
        sizes[0],
        f"null baseline: {sizes[-1]}" if sizes[-1] != sizes[0] else "",
        label.size,
        label.text,
        f"evaluated by {evaluator}" if evaluator else "",
        "percentages: recovered fraction of the gain",
        f"{drawing.BARS}, of the difference from the short context",
    )
    return figure


def effects_figure(effects: pd.DataFrame, label: drawing.ModelLabel, evaluator: str = "") -> Figure:
    """What k tokens are worth: one panel per criterion, on one scale; one line per rule, recency up to all.

    `token_effects` of one model and evaluator; `evaluator` in words, if another model evaluated.
    """
    of_panels = list(effects.groupby("criterion", sort=False))
    titles = {LOSS: "loss on the target token", DIVERGENCE: "whole prediction (KL)"}
    figure, axes = drawing.panels(len(of_panels), 3.2)
    for ax, (criterion, rows) in zip(axes, of_panels, strict=True):
        for rule, line in rows.groupby("rule", sort=False):
            name = drawing.rule_text(str(rule)).replace(", ", ",\n")
            name += ",\nbeyond its null" if needs_null(str(rule)) else ""
            name = name if ax is axes[-1] else ""
            drawing.draw_line(ax, line["k"], line, "effect", drawing.rule_style(str(rule)), name)
        drawing.name_level(ax, rows["gain"].iloc[0], "all distant tokens", side="left")
        ks = rows["k"].unique()
        # k & (k - 1) is 0 for powers of two, which have a single bit.
        drawing.length_axis(ax, [k for k in ks if not k & (k - 1) or k == max(ks)], "k distant tokens")
        ax.set_title(titles[str(criterion)], loc="left")
    axes[0].set_ylabel("recovered (nats)")
    # `rows` is that of the last panel: the divergence, if it was measured.
    few = rows[rows["k"] <= max(_FEW, rows["k"].min())]
    row = rows_where(few, rule=shown_rule(rows["rule"])).iloc[-1]
    title = "What are k distant tokens worth?"
    if row["share"] > 0:
        by = "By the KL" if row["criterion"] == DIVERGENCE else "By the loss"
        title = f"{by}, {row['k']} selected tokens recover {row['share']:.0%} of what all distant tokens do"
        for recent in rows_where(rows, rule=_RECENCY, k=row["k"])["share"]:
            title += f", the {row['k']} most recent {recent:.0%}"
    drawing.put_title(
        figure,
        title,
        drawing.sample_size(effects),
        label.size,
        label.text,
        f"evaluated by another model, {evaluator}" if evaluator else "",
        drawing.BARS,
    )
    return figure
