"""What k tokens are worth, by both criteria and for every judge: the paired excess over the null.

Whatever the intervention, k tokens are added to a baseline, and what they recover of its gain is counted:

    baseline    the short context, or under `background` it and another document's far context
    gain        by the loss baseline - long; by the divergence that of the baseline, as that of long is 0
    recovered   baseline - with k tokens
    null        the same with another document's tokens, chosen as the kind of null says
    excess      recovered - null, target by target

Nats, means over targets; intervals as in `analysis.document_intervals`.
"""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import pandas as pd

from analysis.document_intervals import interval_columns, interval_over_documents, sample_counts
from analysis.own_measurements import needs_null
from analysis.paired_targets import TARGET, joined_on_common, of_common_groups
from analysis.recovered_gain import baseline_losses, is_clear_gain
from pipeline.results.bootstrap import Interval
from pipeline.results.names import DIVERGENCE, LOSS, OTHER_DOCUMENT, OWN

CRITERIA = (LOSS, DIVERGENCE)
NEAREST = "nearest"
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
