"""What k tokens are worth: how much of a long context's gain they recover, and how much of that is selection.

Whatever the ablation, k tokens are added to a baseline, and what they recover of its gain is counted:

    baseline    the short context, or under `swap` it and another document's distant context
    gain        by the loss baseline - long; by the divergence that of the baseline, as that of long is 0
    recovered   baseline - with k tokens
    null        the same with another document's tokens, chosen as the kind of null says
    excess      recovered - null, target by target

Nats, means over targets; intervals as in `analysis.read`.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import drawing
from analysis.read import (
    NO_INTERVAL,
    TARGET,
    complete_rows,
    interval_columns,
    interval_over_documents,
    mean_columns,
    needs_null,
    summarized,
)
from pipeline.measuring.rules import MASK
from pipeline.results.schemas import DIVERGENCE, LOSS, OTHER_DOCUMENT, OWN

CRITERIA = (LOSS, DIVERGENCE)
PAPER_FIGURE = "loss_against_k"
"""What the file of `loss_figure` is called, followed by the model."""
_CHOICE = ["model", "evaluator", "rule", "k"]


def token_effects(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """A row a model, evaluator, criterion, rule and k, of all evaluators and k given (`read_sparse_losses`).

    Returns:
        model, evaluator, rule, k, criterion, num_targets, num_documents, then with intervals gain, recovered,
        null_recovered, excess (nats), effect (excess, or of rules that fit neither answer nor prediction
        recovered, which another document's tokens would flatter) and share (effect / gain, of sums; NaN where
        the gain's interval reaches 0). Choices without the null that they need are left out; of others
        without one null_recovered and excess are NaN.
    """

    def numbers(targets: pd.DataFrame) -> dict[Hashable, Any]:
        columns: dict[Hashable, Any] = {}
        for name in amounts:
            columns |= mean_columns(targets.dropna(subset=name), name)
        share = NO_INTERVAL
        if columns["gain_low"] > 0:
            share = interval_over_documents(targets["document_id"], targets["effect"], targets["gain"])
        return columns | interval_columns("share", share)

    amounts = "gain", "recovered", "null_recovered", "excess", "effect"
    paired = [effects_of_targets(sparse_context_losses, criterion) for criterion in CRITERIA]
    tables = [
        summarized(of_criterion.assign(criterion=criterion), [*_CHOICE, "criterion"], numbers, sort=False)
        for criterion, of_criterion in zip(CRITERIA, paired, strict=True)
    ]
    effects = pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)
    ends = [f"{name}{end}" for name in (*amounts, "share") for end in ("", "_low", "_high")]
    return effects if len(effects) else effects.reindex(columns=[*effects.columns, *ends])


def effects_of_targets(sparse_context_losses: pd.DataFrame, criterion: str) -> pd.DataFrame:
    """The amounts that `token_effects` averages, by one criterion.

    Returns:
        model, evaluator, rule, k, the columns of `TARGET`, then baseline, gain, recovered, null_recovered,
        excess and effect, nats; as `token_effects` says, where there is no null.
    """
    amounts = _amounts_of_targets(sparse_context_losses, criterion)
    needs_it = {rule: needs_null(str(rule)) for rule in amounts["rule"].unique()}
    needs = amounts["rule"].map(needs_it).astype(bool)
    has_null = amounts.groupby(_CHOICE)["null_recovered"].transform("count") > 0
    paired = complete_rows(amounts[has_null], "choices of own and null tokens")
    rows = pd.concat([paired, amounts[~has_null & ~needs]])
    excess = rows["recovered"] - rows["null_recovered"]
    return rows.assign(excess=excess, effect=excess.where(needs[rows.index], rows["recovered"]))


def _amounts_of_targets(sparse_context_losses: pd.DataFrame, criterion: str) -> pd.DataFrame:
    """Up to null_recovered, which is NaN where no null was measured."""
    evaluators = sparse_context_losses.get("evaluator", sparse_context_losses["model"])
    rows = sparse_context_losses.assign(evaluator=evaluators.fillna(sparse_context_losses["model"]))
    if criterion == DIVERGENCE and "sparse_context_divergence" not in rows:
        rows = rows.iloc[:0].assign(short_context_divergence=np.nan, sparse_context_divergence=np.nan)
    baseline = rows[f"short_context_{criterion}"]
    if (swapped := f"swapped_{criterion}") in rows:
        baseline = rows[swapped].astype("float64").fillna(baseline)
    gain = baseline - rows["long_context_loss"] if criterion == LOSS else baseline
    amounts = {
        "baseline": baseline,
        "gain": gain,
        "recovered": baseline - rows[f"sparse_context_{criterion}"],
    }
    rows = rows.assign(**{name: values.astype("float64") for name, values in amounts.items()})
    rows = rows.dropna(subset=list(amounts))[[*_CHOICE, *TARGET, "distant_context", *amounts]]
    own, null = (
        rows[rows["distant_context"] == far].drop(columns="distant_context") for far in (OWN, OTHER_DOCUMENT)
    )
    null = null.drop(columns=["baseline", "gain"]).rename(columns={"recovered": "null_recovered"})
    return own.merge(null, "left", [*_CHOICE, *TARGET])


_ROLES = {
    "leave_one_out": "selected, target-aware",
    "leave_one_out_divergence": "selected, target-agnostic",
    "recency": "recency",
    "random": "random",
}
"""What the paper's figure shows; `analysis.rules.selection` draws every rule."""
_BLIND = "leave_one_out_divergence"
_FEW = 16
"""Tokens that titles speak of, or the fewest studied: most of the distant context brings everything back."""
_ASIDE = 0.04  # doublings between lines whose bars would hide each other
_STEP_TO_ALL = 1.5  # doublings from the largest k to all distant tokens, not to scale


def has_loss_figure(settings: Mapping[str, Any], rules: Iterable[str]) -> bool:
    """Whether tokens stood alone, as in the paper's figure, and one of its rules chose them."""
    return (settings.get("ablation") or MASK) == MASK and not set(rules).isdisjoint(_ROLES)


def loss_curves(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """The curves of the paper's figure: rows of one model and evaluator under `mask`.

    A loss is that with the short context less what the tokens take off it, and its interval is of that
    difference: how hard the documents are drops out. A null may be of some of the documents only.

    Returns:
        rule, distant_context, k (from 0), num_targets, num_documents, then with intervals recovered (nats),
        recovered_share (of the gain, of sums; NaN where the gain's interval reaches 0) and loss, and in every
        row the same long_loss, nats: of k tokens, and of all.
    """

    def numbers(targets: pd.DataFrame) -> dict[Hashable, Any]:
        columns = mean_columns(targets, "recovered", "gain")
        share = NO_INTERVAL
        if columns["gain_low"] > 0:
            share = interval_over_documents(targets["document_id"], targets["recovered"], targets["gain"])
        return {**columns, **interval_columns("recovered_share", share), "short": targets["baseline"].mean()}

    own = _amounts_of_targets(sparse_context_losses, LOSS)
    own = own[own["rule"].isin(_ROLES)]
    null = own.assign(recovered=own["null_recovered"]).dropna(subset="recovered")
    choices = pd.concat([own.assign(distant_context=OWN), null.assign(distant_context=OTHER_DOCUMENT)])
    keys = ["rule", "distant_context", "k"]
    none = choices.drop_duplicates([*keys[:2], *TARGET]).assign(k=0, recovered=0.0)
    rows = summarized(pd.concat([none, choices]), keys, numbers)
    most = rows.sort_values("num_targets").iloc[-1]  # whose losses are the two levels
    for end, other in (("", ""), ("_low", "_high"), ("_high", "_low")):
        rows[f"loss{end}"] = most["short"] - rows[f"recovered{other}"]
        rows[f"long_loss{end}"] = most["short"] - most[f"gain{other}"]
    return rows.drop(columns="short")


def loss_figure(curves: pd.DataFrame, label: drawing.ModelLabel, evaluator: str = "") -> Figure:
    """The paper's figure: the loss with the short context and k distant tokens, from none of them to all.

    `loss_curves`; `evaluator` in words, where another model evaluated.
    """
    figure, (ax,) = drawing.panels(1, 3.2)
    ks = sorted(curves["k"].unique())
    places = {0: -1.0} | {k: float(np.log2(k)) for k in ks[1:]}
    place_of_all = places[ks[-1]] + _STEP_TO_ALL
    ends = []
    lines = list(curves.groupby(["rule", "distant_context"]))
    for index, ((rule, distant_context), line) in enumerate(lines):
        style = drawing.rule_style(str(rule))
        share = line["recovered_share"].iloc[-1]
        is_own = distant_context == OWN
        aside = _ASIDE * drawing.beside(index, len(lines))
        name = _ROLES[str(rule)] + ("" if is_own else ",\nin another text")
        name += "" if np.isnan(share) else f": {share:.2f}"
        at = line["k"].map(places) + aside * (line["k"] > 0)
        end = drawing.draw_line(ax, at, line, "loss", style.measured if is_own else style.null, name)
        if is_own or needs_null(str(rule)):  # the other nulls lie about the short context's line
            ends.append(end)
    drawn = label.style.measured | {"linestyle": "none"}
    drawing.draw_line(ax, [place_of_all], curves[:1], "long_loss", drawn)
    for name, level in zip(("short", "long"), curves[["loss", "long_loss"]].iloc[0], strict=True):
        ax.axhline(level, color=drawing.GREY, linewidth=0.8, zorder=1)
        words = f"{name} context, loss {level:.2f}"
        ends.append(drawing.LineEnd(ax.get_xlim()[1], level, words, drawing.GREY))
    ticks = {str(k): place for k, place in places.items()}
    ticks |= {"…": place_of_all - _STEP_TO_ALL / 2, "all": place_of_all}
    ax.set_xticks(list(ticks.values()), list(ticks))
    ax.set_xlabel("k distant tokens beside the short context")
    ax.set_ylabel("loss (nats)")
    drawing.label_line_ends(ax, ends)
    drawing.put_title(
        figure,
        _what_is_brought_back(curves),
        drawing.sample_size(curves),
        label.size,
        label.text,
        f"evaluated by {evaluator}" if evaluator else "",
        "hollow: in another text",
        "numbers after names: fraction of the gain, at the last k",
        f"{drawing.BARS}, of the difference from the short context",
    )
    return figure


def _what_is_brought_back(curves: pd.DataFrame) -> str:
    """The finding of `loss_figure`: of the choice that does not see the answer, or of the first there is."""
    rule = next(rule for rule in (_BLIND, *_ROLES) if rule in set(curves["rule"]))
    own = curves[(curves["rule"] == rule) & (curves["distant_context"] == OWN)].sort_values("k")
    last = own[own["k"] <= max(_FEW, own["k"].min())].iloc[-1]
    if np.isnan(last["recovered_share"]):
        return "The long context is not shown to gain anything that k tokens could recover"
    tokens = f"{drawing.counted(int(last['k']), 'distant token')}, {_ROLES[rule]},"
    return f"{tokens} recover {last['recovered_share']:.2f} of what the long context gains"


def effects_figure(effects: pd.DataFrame, label: drawing.ModelLabel, evaluator: str = "") -> Figure:
    """A panel a criterion, on one scale: what k tokens are worth; a line a rule, the nearest up to all.

    `token_effects` of one model and evaluator; `evaluator` in words, where another model evaluated.
    """
    of_panels = list(effects.groupby("criterion", sort=False))
    titles = {LOSS: "by the loss on the target token", DIVERGENCE: "by the whole prediction (divergence)"}
    figure, axes = drawing.panels(len(of_panels), 3.2)
    for ax, (criterion, rows) in zip(axes, of_panels, strict=True):
        ends = []
        for rule, line in rows.groupby("rule", sort=False):
            name = drawing.rule_text(str(rule)).replace(", ", ",\n")
            name += ",\nbeyond its null" if needs_null(str(rule)) else ""
            style = drawing.rule_style(str(rule)).measured
            ends.append(drawing.draw_line(ax, line["k"], line, "effect", style, name))
        ax.axhline(0, color=drawing.BLACK, linewidth=0.6)
        drawing.name_level(ax, rows["gain"].iloc[0], "all distant tokens", "left")
        drawing.tokens_axis(ax, rows["k"].unique())
        ax.set_title(titles[str(criterion)], loc="left")
    drawing.share_scale(axes)
    drawing.label_line_ends(axes[-1], ends)
    axes[0].set_ylabel("worth of k tokens (nats)")
    evaluated = f"evaluated by another model, {evaluator}" if evaluator else ""
    parts = [drawing.sample_size(effects), label.size, label.text, evaluated, drawing.BARS]
    drawing.put_title(figure, "What are k tokens of the distant context worth?", *parts)
    return figure
