"""How much of a long context's gain k tokens recover, and how much of that is selection.

Losses are in nats; means and intervals as in `analysis.read`. The baseline is what k tokens are
added to: the short context, or under the intervention `background` it and a foreign far context.

The drawing of what k tokens recover of the gain, beside the null: tables of `recovered_gain` in.

What k tokens are worth, by both criteria and for every judge: the paired excess over the null.

Whatever the intervention, k tokens are added to a baseline, and what they recover of its gain is counted:

    baseline    the short context, or under `background` it and another document's far context
    gain        by the loss baseline - long; by the divergence that of the baseline, as that of long is 0
    recovered   baseline - with k tokens
    null        the same with another document's tokens, chosen as the kind of null says
    excess      recovered - null, target by target

Nats, means over targets; intervals as in `analysis.read`.

The drawing of what k tokens are worth: tables of `analysis.losses.token_worth` in, Figures out.
"""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.drawing import (
    BARS,
    BLACK,
    GREY,
    TEXT_WIDTH,
    LineEnd,
    Role,
    carried_share,
    draw_with_bars,
    label_line_ends,
    name_level,
    panels,
    put_title,
    rule_look,
    rule_words,
    sample_size,
    share_scale,
    size_words,
    subtitle,
    tokens_axis,
)
from analysis.read import (
    TARGET,
    interval_columns,
    interval_over_documents,
    joined_on_common,
    needs_null,
    of_common_groups,
    sample_counts,
    shown_rule,
)
from pipeline.results.schemas import DIVERGENCE, LOSS, OTHER_DOCUMENT, OWN
from pipeline.results.statistics import Interval


def is_clear_gain(gain: Interval) -> bool:
    """Whether the interval of a mean gain is above 0: only then is a fraction of it a number."""
    return bool(gain.low > 0)


def with_recovered_losses(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """The artefact with `baseline_loss`, `loss_difference` and `recovered_loss` of each row, nats.

    `recovered_loss` is the baseline's loss less that with k tokens; `loss_difference` is the baseline's less
    L_long with the document's *own* far context in every row, the null's too, so that both are measured on
    one scale. Targets measured under the null only are left out.
    """
    own_targets = sparse_context_losses.loc[
        sparse_context_losses["far_context"] == OWN, ["model", *TARGET, "long_context_loss"]
    ].drop_duplicates(["model", *TARGET])
    rows = joined_on_common(
        sparse_context_losses.drop(columns="long_context_loss"),
        own_targets,
        ["model", *TARGET],
        "targets with k tokens of their own far context",
    )
    rows["baseline_loss"] = baseline_losses(rows)
    rows["loss_difference"] = rows["baseline_loss"] - rows["long_context_loss"]
    rows["recovered_loss"] = rows["baseline_loss"] - rows["sparse_context_loss"]
    return rows


def baseline_losses(sparse_context_losses: pd.DataFrame) -> pd.Series:
    """The loss that k tokens are to lower, nats: of the short context, or with a foreign far context."""
    short_losses = sparse_context_losses["short_context_loss"]
    if "background_loss" not in sparse_context_losses:
        return short_losses
    return sparse_context_losses["background_loss"].astype("float64").fillna(short_losses)


def recovered_losses(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """How much of the long context's gain k tokens recover: a row a model, rule, far context and k.

    The fraction is sum(recovered_loss) / sum(loss_difference), a ratio of sums. Where the mean
    gain's interval reaches 0 (`is_gain_clear` is False) the fraction divides by noise: it is NaN, and the
    recovered loss in nats is what can be read. The rows of the null say how much of either is selection.

    Args:
        sparse_context_losses: the artefact, any number of models.

    Returns:
        model, rule, far_context, k, num_targets, num_documents, baseline_loss, sparse_context_loss,
        long_context_loss (means, nats), then with intervals recovered_loss, loss_difference (nats) and
        recovered_fraction; is_gain_clear.
    """
    rows = []
    groups = with_recovered_losses(sparse_context_losses).groupby(["model", "rule", "far_context", "k"])
    for (model, rule, far_context, k), targets in groups:
        losses = ["baseline_loss", "sparse_context_loss", "long_context_loss"]
        rows.append(
            {
                "model": model, "rule": rule, "far_context": far_context, "k": k,
                **sample_counts(targets),
                **targets[losses].astype("float64").mean().to_dict(),
                **_amount_and_fraction(targets, "recovered_loss", "recovered_fraction"),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def _amount_and_fraction(targets: pd.DataFrame, amount: str, fraction: str) -> dict[Hashable, float | bool]:
    """Mean of `amount` in nats, the mean gain, and their ratio where the gain is clear."""
    documents, gains = targets["document_id"], targets["loss_difference"]
    gain = interval_over_documents(documents, gains)
    is_clear = is_clear_gain(gain)
    ratio = (
        interval_over_documents(documents, targets[amount], gains)
        if is_clear
        else Interval(np.nan, np.nan, np.nan)
    )
    return {
        **interval_columns(amount, interval_over_documents(documents, targets[amount])),
        **interval_columns("loss_difference", gain),
        **interval_columns(fraction, ratio),
        "is_gain_clear": is_clear,
    }


def excess_over_null(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """The effect: what k tokens recover beyond what choosing among another document's tokens recovers.

    Own and null are paired target by target: their difference has no noise of the baseline, and documents are
    resampled with both. Targets that lack either are left out.

    Args:
        sparse_context_losses: the artefact, any number of models.

    Returns:
        model, rule, k, num_targets, num_documents, then with intervals excess_loss (nats),
        loss_difference (nats), excess_fraction (of the gain; NaN where it is not clear); is_gain_clear.
        No rows where the null was not measured.
    """
    losses = with_recovered_losses(sparse_context_losses)
    own, null = (losses[losses["far_context"] == far_context] for far_context in (OWN, OTHER_DOCUMENT))
    keys = ["model", "rule", "k", *TARGET]
    own, null = of_common_groups(own, null[[*keys, "recovered_loss"]], ["model", "rule", "k"])
    paired = joined_on_common(own, null, keys, "choices of own and null tokens", ("", "_null"))
    paired["excess_loss"] = paired["recovered_loss"] - paired["recovered_loss_null"]
    rows = [
        {
            "model": model, "rule": rule, "k": k,
            **sample_counts(targets),
            **_amount_and_fraction(targets, "excess_loss", "excess_fraction"),
        }
        for (model, rule, k), targets in paired.groupby(["model", "rule", "k"])
    ]  # fmt: skip
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["model", "rule", "k"])


NEAREST = "nearest"
_LARGEST_SHARE = 3
"""Of the gain; where a choice that sees the answer "recovers" more, it leaves the scale, told in words."""
_BESIDE = 1.04  # factor on a logarithmic axis between a rule's bars and its null's, which may be equal


def recovered_figure(recovered: pd.DataFrame, role: Role) -> Figure:
    """A panel of rules that do not see the answer, one of those that do, on one scale; each beside its null.

    As a share of the gain; in nats where the long context brings no clear gain.

    Args:
        recovered: `recovered_gain.recovered_losses`, one model.
        role: of the model.
    """
    is_fitted = recovered["rule"].map(needs_null).astype(bool)
    of_panel = {
        "chosen blind to the answer": recovered[~is_fitted],
        "chosen by the answer, or to fit the prediction": recovered[is_fitted],
    }
    of_panel = {name: rows for name, rows in of_panel.items() if len(rows)}
    value, label, whole = "recovered_fraction", "recovered share of the gain", 1.0
    if not recovered["is_gain_clear"].any():
        value, label = "recovered_loss", "recovered (nats)"
        whole = recovered["loss_difference"].iloc[0]
    figure, grid = panels(1, len(of_panel), TEXT_WIDTH, 3.4)
    axes = np.ravel(grid)
    for ax, (name, rows) in zip(axes, of_panel.items(), strict=True):
        _draw_rules(ax, rows, value)
        tokens_axis(ax, rows["k"].unique())
        ax.set_title(name, loc="left")
    share_scale(axes, _LARGEST_SHARE * whole)
    for ax, rows in zip(axes, of_panel.values(), strict=True):
        name_level(ax, whole, "the whole gain" if ax is axes[0] else "", "left")
        _name_rules(ax, rows, value)
    axes[0].set_ylabel(label)
    put_title(figure, recovered_title(recovered), recovered_subtitle(recovered, role))
    return figure


def _draw_rules(ax: Axes, rows: pd.DataFrame, value: str) -> None:
    for (rule, far_context), line in rows.groupby(["rule", "far_context"], sort=False):
        line, look = line.sort_values("k"), rule_look(str(rule))
        is_null = far_context == OTHER_DOCUMENT
        style = look.null if is_null else look.measured
        draw_with_bars(ax, line["k"] * (_BESIDE if is_null else 1 / _BESIDE), line, value, **style)
    ax.axhline(0, color=BLACK, linewidth=0.6)


def _name_rules(ax: Axes, rows: pd.DataFrame, value: str) -> None:
    """The rules at their ends; their nulls together, or one by one where few rules stand here."""
    last, top = rows[rows["k"] == rows["k"].max()], ax.get_ylim()[1]

    def end(row: dict, words: str, color: str) -> LineEnd:
        beyond = f": {row[value]:.2g}" if row[value] > top else ""
        return LineEnd(row["k"], min(row[value], top), words + beyond, color)

    ends = []
    for row in last[last["far_context"] == OWN].to_dict("records"):
        ends.append(end(row, rule_words(row["rule"]).replace(", ", ",\n"), rule_look(row["rule"]).color))
    null = last[last["far_context"] == OTHER_DOCUMENT].sort_values(value).to_dict("records")
    if len(null) == 1:
        words = "its null: the same\nin another document"
        ends.append(end(null[0], words, rule_look(null[0]["rule"]).color))
    elif null:
        ends.append(LineEnd(null[0]["k"], min(null[0][value], top), "dashed: their nulls", GREY))
    label_line_ends(ax, ends)


def recovered_title(recovered: pd.DataFrame) -> str:
    """What few tokens of the rule that is trusted most carry, and as many of the nearest where that differs.

    Args:
        recovered: `recovered_gain.recovered_losses`, one model.
    """
    if not recovered["is_gain_clear"].any():
        return "The long context brings no clear gain, so there is none for few tokens to carry"
    own = recovered[recovered["far_context"] == OWN]
    rule = shown_rule(own["rule"])
    of_rule, nearest = own[own["rule"] == rule], own[own["rule"] == NEAREST]
    if needs_null(rule):
        return (
            f"What k tokens recover that {rule_words(rule)} chooses, and what it recovers in another document"
        )
    return carried_share(of_rule, nearest if rule != NEAREST else nearest.iloc[:0], "recovered_fraction")


def recovered_subtitle(recovered: pd.DataFrame, role: Role) -> str:
    """n, model, bars.

    Args:
        recovered: `recovered_gain.recovered_losses`, one model.
        role: of the model.
    """
    return subtitle(sample_size(recovered), size_words(role.num_parameters), role.words, BARS)


CRITERIA = (LOSS, DIVERGENCE)
_GROUP = ["model", "judge", "rule", "k"]


def token_effects(sparse_context_losses: pd.DataFrame) -> pd.DataFrame:
    """A row a model, judge, criterion, rule and k.

    Args:
        sparse_context_losses: the artefact, with all judges and k that are meant
            (`own_measurements.read_sparse_losses`). Rows of version 1 have no divergences.

    Returns:
        model, judge, criterion, rule, k, num_targets, num_documents, then with intervals gain, recovered,
        null_recovered, excess (nats), effect (excess, or of rules that fit neither answer nor prediction
        recovered, which another document's tokens would flatter) and share (effect / gain, of sums; NaN where
        the gain's interval reaches 0). Choices without their null are left out.
    """
    rows = []
    for criterion in CRITERIA:
        paired = effects_of_targets(sparse_context_losses, criterion)
        for key, targets in paired.groupby(_GROUP, sort=False):
            labels: dict[Hashable, Any] = dict(zip(_GROUP, cast(tuple[Any, ...], key), strict=True))
            rows.append({**labels, "criterion": criterion, **sample_counts(targets), **_amounts(targets)})
    columns = [*_GROUP, "criterion"]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)


def effects_of_targets(sparse_context_losses: pd.DataFrame, criterion: str) -> pd.DataFrame:
    """The amounts that `token_effects` averages, by one criterion.

    Returns:
        model, judge, rule, k, the columns of `TARGET`, then gain, recovered, null_recovered, excess and
        effect, nats. Choices without their null are left out.
    """
    amounts = _recovered(sparse_context_losses, criterion)
    own, null = (amounts[amounts["far_context"] == far_context] for far_context in (OWN, OTHER_DOCUMENT))
    null = null[[*_GROUP, *TARGET, "recovered"]].rename(columns={"recovered": "null_recovered"})
    own, null = of_common_groups(own[[*_GROUP, *TARGET, "gain", "recovered"]], null, _GROUP)
    paired = joined_on_common(own, null, [*_GROUP, *TARGET], "choices of own and null tokens")
    excess = paired["recovered"] - paired["null_recovered"]
    has_null = paired["rule"].map({rule: needs_null(str(rule)) for rule in paired["rule"].unique()})
    return paired.assign(excess=excess, effect=excess.where(has_null.astype(bool), paired["recovered"]))


def _recovered(sparse_context_losses: pd.DataFrame, criterion: str) -> pd.DataFrame:
    """Gain and recovered of each row, nats; without those that have no such numbers."""
    judges = sparse_context_losses.get("judge", sparse_context_losses["model"])
    rows = sparse_context_losses.assign(judge=judges.fillna(sparse_context_losses["model"]))
    if criterion == LOSS:
        baseline = baseline_losses(rows)
        gain, with_tokens = baseline - rows["long_context_loss"], rows["sparse_context_loss"]
    elif "sparse_context_divergence" not in rows:
        return rows.iloc[:0].assign(gain=0.0, recovered=0.0)
    else:
        of_background = rows["background_divergence"].astype("float64")
        baseline = of_background.fillna(rows["short_context_divergence"])
        gain, with_tokens = baseline, rows["sparse_context_divergence"]
    amounts = rows.assign(
        gain=gain.astype("float64"),
        recovered=(baseline - with_tokens).astype("float64"),
    )
    return amounts.dropna(subset=["gain", "recovered"])


def _amounts(targets: pd.DataFrame) -> dict[Hashable, Any]:
    documents = targets["document_id"]
    intervals = {
        name: interval_over_documents(documents, targets[name])
        for name in ("gain", "recovered", "null_recovered", "excess", "effect")
    }
    share = Interval(np.nan, np.nan, np.nan)
    if is_clear_gain(intervals["gain"]):
        share = interval_over_documents(documents, targets["effect"], targets["gain"])
    columns: dict[Hashable, Any] = {}
    for name, interval in {**intervals, "share": share}.items():
        columns |= interval_columns(name, interval)
    return columns


def nearest_equivalents(effects: pd.DataFrame) -> pd.DataFrame:
    """How many of the nearest far tokens do what k chosen ones do: between two numbers that were studied.

    Args:
        effects: of `token_effects`, with the control `nearest` at every k that it was studied at.

    Returns:
        model, judge, criterion, rule (no `nearest`), k, effect, then more_than and at_most: the least studied
        number of nearest tokens whose effect is as large, and the one before it (0 before the first; at_most
        is NaN where none of them does as much). Likewise more_than_low and at_most_high, by the ends of the
        effect's interval. No rows where `nearest` was not studied.
    """
    rows = []
    for key, group in effects.groupby(["model", "judge", "criterion"]):
        nearest = group[group["rule"] == NEAREST].sort_values("k")
        for row in group[group["rule"] != NEAREST].to_dict("records") if len(nearest) else ():
            low, _ = _bracket(nearest, row["effect_low"])
            _, high = _bracket(nearest, row["effect_high"])
            more_than, at_most = _bracket(nearest, row["effect"])
            labels = dict(zip(("model", "judge", "criterion"), key, strict=True))
            of_k = {name: row[name] for name in ("rule", "k", "effect")}
            ends = {
                "more_than": more_than, "at_most": at_most, "more_than_low": low, "at_most_high": high,
                "most_studied": int(nearest["k"].max()),
            }  # fmt: skip
            rows.append({**labels, **of_k, **ends})
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


def number_in_words(row: Mapping[Hashable, Any]) -> str:
    """A row of `nearest_equivalents` as "between 32 and 64", "no more than 1" or "more than 231"."""
    if row["effect"] <= 0:
        return "none"
    if np.isnan(row["at_most"]):
        return f"more than {row['more_than']:.0f}"
    if not row["more_than"]:
        return f"no more than {row['at_most']:.0f}"
    return f"between {row['more_than']:.0f} and {row['at_most']:.0f}"


def effect_sentences(effects: pd.DataFrame, equivalents: pd.DataFrame) -> Iterator[str]:
    """A sentence a model, judge, criterion and rule: what its largest k is worth, and how many nearest are.

    Args:
        effects: of `token_effects`.
        equivalents: of `nearest_equivalents`.
    """
    keys = ["model", "judge", "criterion", "rule", "k"]
    numbers = {} if equivalents.empty else equivalents.set_index(keys).to_dict("index")
    chosen = effects[effects["rule"] != NEAREST]
    for _, rows in chosen.groupby(keys[:-1], sort=False):
        row = rows.sort_values("k").iloc[-1]
        effect = Interval(row["effect"], row["effect_low"], row["effect_high"])
        beyond = " beyond the null" if needs_null(row["rule"]) else ""
        judge = "" if row["judge"] == row["model"] else f", judged by {row['judge']}"
        nearest = numbers.get(tuple(row[name] for name in keys))
        as_many = "" if nearest is None else f", as {number_in_words(nearest)} of the nearest do"
        yield (
            f"{row['model']}, {row['rule']}, by the {row['criterion']}{judge}: {row['k']} tokens are worth"
            f" {effect} nats{beyond} of {row['gain']:.3f}{as_many}."
        )


_PANELS = {LOSS: "by the loss of the token that came", DIVERGENCE: "by the whole prediction (divergence)"}


def effects_figure(effects: pd.DataFrame, role: Role, judge: str = "") -> Figure:
    """A panel a criterion, on one scale: what k tokens are worth; a line a rule, the nearest up to all.

    Args:
        effects: `token_effects.token_effects`, one model and judge.
        role: of the model.
        judge: in words, where another model judged.
    """
    present = [criterion for criterion in CRITERIA if criterion in set(effects["criterion"])]
    figure, grid = panels(1, len(present), TEXT_WIDTH, 3.2)
    axes = np.ravel(grid)
    of_panel = [effects[effects["criterion"] == criterion] for criterion in present]
    for criterion, rows, ax in zip(present, of_panel, axes, strict=True):
        effects_against_k(rows, ax)
        ax.set_title(_PANELS[criterion], loc="left")
    share_scale(axes)
    for rows, ax in zip(of_panel, axes, strict=True):
        name_level(ax, rows["gain"].iloc[0], "the whole gain" if ax is axes[0] else "", "left")
        if ax is axes[-1]:
            _name_rules_of_token_effect_figures(ax, rows)
    axes[0].set_ylabel("worth of k tokens (nats)")
    told = [
        sample_size(effects),
        size_words(role.num_parameters),
        role.words,
        f"judged by another model, {judge}" if judge else "",
        "shares by the whole prediction" if DIVERGENCE in present else "",
        BARS,
    ]
    put_title(figure, effects_title(effects), subtitle(*told))
    return figure


def effects_against_k(effects: pd.DataFrame, ax: Axes) -> Axes:
    """Nats against k, a line and the bars of its interval a rule.

    Args:
        effects: `token_effects.token_effects`, one model, judge and criterion.
        ax: to draw on.
    """
    for rule, line in effects.groupby("rule", sort=False):
        draw_with_bars(ax, line["k"], line, "effect", **rule_look(str(rule)).measured)
    ax.axhline(0, color=BLACK, linewidth=0.6)
    tokens_axis(ax, effects["k"].unique())
    return ax


def _name_rules_of_token_effect_figures(ax: Axes, effects: pd.DataFrame) -> None:
    last = effects.sort_values("k").groupby("rule").tail(1)
    label_line_ends(
        ax,
        [
            LineEnd(row["k"], row["effect"], _words(row["rule"]), rule_look(row["rule"]).color)
            for row in last.to_dict("records")
        ],
    )


def _words(rule: str) -> str:
    """In lines that fit beside a panel."""
    words = rule_words(rule).replace(", ", ",\n")
    return f"{words},\nbeyond its null" if needs_null(rule) else words


def effects_title(effects: pd.DataFrame) -> str:
    """What few tokens of the most trusted rule are worth, by the divergence where it was measured.

    Args:
        effects: `token_effects.token_effects`, one model and judge.
    """
    criterion = DIVERGENCE if DIVERGENCE in set(effects["criterion"]) else LOSS
    rows = effects[effects["criterion"] == criterion]
    rule = shown_rule(rows["rule"])
    beyond = " beyond their null" if needs_null(rule) else ""
    of_rule, nearest = rows[rows["rule"] == rule], rows[rows["rule"] == NEAREST]
    return carried_share(of_rule, nearest if rule != NEAREST else nearest.iloc[:0], "share", beyond)
