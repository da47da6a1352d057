"""Loss at unseen distances, by the tokens that a prediction needs; what distance and number do alone.

Experiments A and B of the plan (analysis/LOG.md, 2026-11-27). A: short-context models trained at 64 tokens
with contiguous IDs, given up to 224; targets and tokens needed are the first preregistered study's. And that
study and its second, read once more. Slopes are in nats per doubling of the tokens needed. B: the last 32
tokens stand behind 32 more as in training; behind the same 32 moved away (distance only); behind 192 more
squeezed into 32 position IDs (number only); or behind all 192 at their own IDs (both).
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import drawing
from analysis.drawing import Shown
from analysis.figures.slopes import (
    SPARSITY,
    Row,
    contrast,
    design_of,
    of_each,
    single,
    with_sparsity,
)
from analysis.read import interval_columns, rows_by, sample_counts
from pipeline.results.statistics import Interval

REFERENCE = Path(__file__).parents[1] / "reference"
KEYS = ["document_id", "target_position"]
SHORT = "short_context_models"
LONG = "long_context_models"
ROLES = (SHORT, LONG)
LOSS = "long_context_loss"
HARM = "length_interference"
OWN = {64: "near", 80: "own:16", 96: "own:32", 128: "own:64", 224: "own:160"}
SWAPPED = {80: "swap:16", 96: "swap:32", 128: "swap:64", 224: "swap:160"}
"""Tokens of context -> its placement, near context 64."""
SHARE_OF_THE_MEAN = 0.05
"""Smallest effect size of interest: a slope of 5% of the mean gap per doubling."""
CONDITIONS = {"trained": "32", "distance only": "32@192", "number only": "192/32", "both": "192"}
"""Condition -> its placement, near context 32."""
_RESAMPLES = 2000
_ENDS = (0.025, 0.975)
LOWEST = "lowest eighth left out"
HIGHEST = "highest eighth left out"
ENTROPY = "entropy held constant"


def kept_targets(measured: str, name: str = "outcome_targets") -> pd.DataFrame:
    """Targets of a preregistered study that have a sparsity, as `generalization_gap` has them.

    Columns "MEASURED of ROLE NUMBER" and "mean_log2_k of NUMBER". The negative control, a long-context model,
    is "negative_control 0".

    Args:
        measured: `LOSS` or `HARM`.
        name: "outcome_targets", the first study, or "again_targets", the second.
    """
    table = pd.read_parquet(REFERENCE / "decisive" / f"{name}.parquet")
    rows = table[table["measured"] == measured].reset_index(drop=True)
    wide = {f"{measured} of negative_control 0": rows["negative_control"].astype("float64")}
    for role in (*ROLES, SPARSITY):
        values = np.stack(rows[role].to_list()).astype("float64")
        called = f"{SPARSITY} of " if role == SPARSITY else f"{measured} of {role} "
        wide |= {f"{called}{number}": pd.Series(values[:, number]) for number in range(values.shape[1])}
    return with_sparsity(rows.assign(**wide))


def of_role(values: pd.DataFrame, *roles: str) -> list[str]:
    """The columns of models of these roles."""
    return [name for name in map(str, values) if name.startswith(roles)]


def read_again(name: str) -> pd.DataFrame:
    """Slopes of a preregistered study that its verdict did not look at: a row a number, per doubling."""
    of_losses = kept_targets(LOSS, name)
    losses = of_each(of_losses, LOSS)
    short = of_role(losses, SHORT)
    long = of_role(losses, LONG)
    found = design_of(of_losses).least_squares(losses)
    rows = {
        "gap, nats": contrast(found, short, long),
        "gap, all five long-context models compared": contrast(found, short, [*long, "negative_control 0"]),
    }
    targets = kept_targets(HARM, name)
    harms = of_each(targets, HARM)
    sparsity = of_each(targets, SPARSITY).mean(axis=1)
    is_kept = sparsity > sparsity.quantile(1 / 8)
    design = design_of(targets)
    without_lowest = design_of(targets[is_kept]).least_squares(harms[is_kept])
    of_long = harms[long].mean(axis=1)
    ratio = pd.Series(np.log(harms[short].mean(axis=1) / of_long))
    rows |= {
        "interference, nats": contrast(design.least_squares(harms), short, long),
        "interference, lowest eighth left out": contrast(without_lowest, short, long),
        "interference of long-context models alone": single(design.least_squares(of_long.to_frame())),
        "log of the ratio of interferences, short-context to long-context": single(
            design.least_squares(ratio.to_frame())
        ),
    }
    table = pd.DataFrame.from_dict(rows, orient="index")[["slope", "slope_low", "slope_high"]]
    return table.rename_axis("number").reset_index()


def values_of(placed: pd.DataFrame, near: int, placement: str, role: str) -> pd.DataFrame:
    """A row a target, in the order of the keys, a column a model, nats."""
    rows = placed[(placed["near_context_length"] == near) & (placed["placement"] == placement)]
    values = np.stack(rows[role].to_list())
    index = pd.MultiIndex.from_frame(rows[KEYS])
    return pd.DataFrame(values, index, [f"{role} {number}" for number in range(values.shape[1])]).sort_index()


def unseen_distances(placed: pd.DataFrame) -> pd.DataFrame:
    """Slopes on mean_log2_k: a row an outcome, context and variant; `mean` is that of the outcome, nats."""
    near = placed[(placed["near_context_length"] == 64) & (placed["placement"] == "near")]
    entropies = near.set_index(KEYS)["entropy"]
    rows = list[Row]()
    for measured, words, placements in ((LOSS, "gap", OWN), (HARM, "interference", SWAPPED)):
        values = {
            n: pd.concat([values_of(placed, 64, placement, role) for role in ROLES], axis=1)
            for n, placement in placements.items()
        }
        outcomes = [(f"{words} at {n}", values[n], "as planned") for n in placements]
        if measured == LOSS:
            outcomes.append(("gap at 224 less that at 64", values[224] - values[64], "as planned"))
        outcomes += [(f"{words} at 224", values[224], variant) for variant in (LOWEST, HIGHEST, ENTROPY)]
        known = kept_targets(measured).set_index(KEYS, drop=False)
        known = known[known.index.isin(values[224].index)]
        sparsity = of_each(known, SPARSITY).mean(axis=1)
        low, high = sparsity.quantile([1 / 8, 7 / 8])
        keep = {LOWEST: sparsity > low, HIGHEST: sparsity < high}
        for name, of_outcome, variant in outcomes:
            targets = known[keep.get(variant, sparsity.notna())]
            of_models = of_outcome.loc[targets.index]
            further = [entropies.loc[targets.index].to_numpy()] if variant == ENTROPY else []
            short, long = (of_role(of_models, role) for role in ROLES)
            found = contrast(design_of(targets, *further).least_squares(of_models), short, long)
            mean = of_models[short].mean(axis=1).mean() - of_models[long].mean(axis=1).mean()
            slopes = {end: found[end] for end in ("slope", "slope_low", "slope_high")}
            shares = {f"{end}_share": value / mean for end, value in slopes.items()}
            row: Row = {"outcome": name, "variant": variant, "mean": mean}
            rows.append(row | slopes | shares | sample_counts(targets))
    return pd.DataFrame(rows)


def verdict_of_unseen_distances(table: pd.DataFrame) -> str:
    """Decide by the rule of the log: "supported", "refuted", "opposite" or "open"."""
    rows = rows_by(table, "outcome", "variant")
    primary = rows["gap at 224", "as planned"]
    beyond = rows["gap at 224 less that at 64", "as planned"]
    shapes = [rows["gap at 224", variant] for variant in (LOWEST, HIGHEST)]
    smallest = SHARE_OF_THE_MEAN * primary["mean"]
    if all(row["slope_low"] > 0 for row in (primary, beyond, *shapes)):
        return "supported"
    if all(row["slope_high"] < 0 for row in (primary, beyond)):
        return "opposite"
    if all(row["slope_high"] < smallest for row in (primary, beyond)):
        return "refuted"
    return "open"


def distance_or_number(placed: pd.DataFrame) -> pd.DataFrame:
    """What each condition does: a row a text, role and condition; intervals over texts and models.

    Own text: rise of the loss over that with 64 tokens as in training. Another text's tokens: length
    interference. `share` is that of the condition "both".

    Shapes: C conditions, D documents, M models, R resamples.
    """
    rows = list[Row]()
    generator = np.random.default_rng(0)
    for kind, role in product(("own", "swap"), ROLES):
        of = {name: values_of(placed, 32, f"{kind}:{word}", role) for name, word in CONDITIONS.items()}
        base = of["trained"] if kind == "own" else 0.0
        sums_CDM = np.stack([(values - base).groupby(level="document_id").sum() for values in of.values()])
        counts_D = of["both"].groupby(level="document_id").size().to_numpy()
        _, num_texts, num_models = sums_CDM.shape
        drawn_RC = np.empty((_RESAMPLES, len(of)))
        for resample in range(_RESAMPLES):
            texts = generator.integers(num_texts, size=num_texts)
            models = generator.integers(num_models, size=num_models)
            totals_C = sums_CDM[:, texts][:, :, models].sum(axis=(1, 2)) / num_models
            drawn_RC[resample] = totals_C / counts_D[texts].sum()
        means_C = sums_CDM.sum(axis=(1, 2)) / num_models / counts_D.sum()
        for place, name in enumerate(of):
            mean = Interval(means_C[place], *np.quantile(drawn_RC[:, place], _ENDS))
            shares_R = drawn_RC[:, place] / drawn_RC[:, -1]  # "both" is the last condition
            share = Interval(means_C[place] / means_C[-1], *np.quantile(shares_R, _ENDS))
            row: Row = {"text": kind, "role": role, "condition": name}
            row |= interval_columns("value", mean) | interval_columns("share", share)
            rows.append(row | sample_counts(of["both"].reset_index()))
    return pd.DataFrame(rows)


def verdict_of_distance_or_number(table: pd.DataFrame, kind: str) -> str:
    """What fails short-context models, in own or swapped text: "distance", "number", "neither alone"."""
    of = rows_by(table[(table["text"] == kind) & (table["role"] == SHORT)], "condition")
    for first, second in (("distance", "number"), ("number", "distance")):
        strong = of[f"{first} only"]
        weak = of[f"{second} only"]
        are_clear = strong["share_low"] > 0.5 > weak["share_high"]
        if strong["share"] >= 2 / 3 and weak["share"] <= 1 / 3 and are_clear:
            return first
    return "neither alone"


def distance_or_number_figure(table: pd.DataFrame) -> Figure:
    """What distance and number do alone and together: a panel a text, a bar a condition and role."""
    figure, axes = drawing.panels(2, 2.3, sharey=True)
    names = list(CONDITIONS)
    titles = {"own": "rise of the loss on the text itself", "swap": "interference of another text (KL)"}
    looks = {SHORT: ("short-context models", drawing.GREEN), LONG: ("long-context models", "#B5B5B5")}
    for ax, (kind, title) in zip(axes, titles.items(), strict=True):
        for place, (role, (words, color)) in enumerate(looks.items()):
            rows = table[(table["text"] == kind) & (table["role"] == role)].set_index("condition").loc[names]
            errors = [rows["value"] - rows["value_low"], rows["value_high"] - rows["value"]]
            heights = np.arange(len(names)) + 0.4 * place
            ax.barh(heights, rows["value"], 0.38, color=color, label=words, xerr=errors)
        ax.set(title=title, xlabel="nats")
    axes[0].set_yticks(np.arange(len(names)) + 0.2, names)
    axes[0].invert_yaxis()
    axes[1].legend(loc="center right")
    of_short = rows_by(table[table["role"] == SHORT], "text", "condition")
    distance, number = (of_short["swap", f"{name} only"]["share"] for name in ("distance", "number"))
    own = of_short["own", "distance only"]["share"]
    drawing.put_title(
        figure,
        f"Unseen distance alone causes {own:.0%} of the rise in loss and {distance:.0%} of the interference;"
        f" more tokens alone cause {of_short['own', 'number only']['share']:.0%} and {number:.0%}",
        drawing.sample_size(table),
        "percentages: of both together",
        "bars: 95% over documents and models",
    )
    return figure


def report(kept: Path) -> Iterator[Shown]:
    """The preregistered studies read again, experiments A and B: tables, verdicts and figures."""
    for name in ("outcome_targets", "again_targets"):
        yield Shown(f"The preregistered study, {name}, read once more", read_again(name))
    placed = pd.read_parquet(kept / "placed_targets.parquet")
    slopes = unseen_distances(placed)
    yield Shown("A. Unseen distances", slopes, f"Verdict: {verdict_of_unseen_distances(slopes)}")
    conditions = distance_or_number(placed)
    verdicts = [f"{kind}: {verdict_of_distance_or_number(conditions, kind)}" for kind in ("own", "swap")]
    figures = {"distance_or_number": distance_or_number_figure(conditions)}
    yield Shown("B. Distance or number", conditions, f"Verdict: {'; '.join(verdicts)}", figures)
