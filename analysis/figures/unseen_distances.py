"""Loss at unseen distances, by the tokens that a prediction needs; what distance and number do alone.

Experiments A and B of the plan (analysis/LOG.md, 2026-11-27). A: short-context models trained at 64 tokens
with contiguous IDs, given up to 224; targets and tokens needed are the first preregistered study's. And that
study and its second, read once more. Slopes are in nats per doubling of the tokens needed. B: the last 32
tokens stand behind 32 more as in training; behind the same 32 moved away (distance only); behind 192 more
squeezed into 32 position IDs (number only); or behind all 192 at their own IDs (both).
"""

from collections.abc import Hashable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import drawing
from analysis.figures.slopes import (
    SPARSITY,
    Row,
    contrast,
    design_of,
    of_each,
    partial_residuals,
    single,
    with_sparsity,
)
from analysis.read import rows_by, sample_counts
from pipeline.results.read import read_artefact, read_settings

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
    rows = list[Row]()

    def add(what: str, targets: pd.DataFrame, values: pd.DataFrame, *roles: Sequence[str]) -> None:
        found = design_of(targets).least_squares(values)
        rows.append({"number": what} | (contrast(found, *roles) if roles else single(found)))

    targets = kept_targets(LOSS, name)
    losses = of_each(targets, LOSS)
    short, long = of_role(losses, SHORT), of_role(losses, LONG)
    add("gap, nats", targets, losses, short, long)
    add("gap, all five long-context models compared", targets, losses, short, [*long, "negative_control 0"])
    targets = kept_targets(HARM, name)
    harms = of_each(targets, HARM)
    add("interference, nats", targets, harms, short, long)
    sparsity = of_each(targets, SPARSITY).mean(axis=1)
    is_kept = sparsity > sparsity.quantile(1 / 8)
    add("interference, lowest eighth left out", targets[is_kept], harms[is_kept], short, long)
    of_long = harms[long].mean(axis=1)
    ratio = pd.Series(np.log(harms[short].mean(axis=1) / of_long))
    add("interference of long-context models alone", targets, of_long.to_frame())
    add("log of the ratio of interferences, short-context to long-context", targets, ratio.to_frame())
    return pd.DataFrame(rows)[["number", "slope", "slope_low", "slope_high"]]


def placed_targets(folders: Sequence[Path]) -> pd.DataFrame:
    """The table of that name, of the first study's targets with a total effect of 0.1 nats or more."""
    kept = pd.concat(kept_targets(measured)[KEYS] for measured in (LOSS, HARM)).drop_duplicates()
    parts = []
    for folder in folders:
        settings = next(iter(read_settings(folder, "length_interference").values()))
        rows = read_artefact(folder, "length_interference").merge(kept, on=KEYS)
        is_swap = rows["placement"].str.startswith("swap")
        rows["value"] = rows["divergence"].where(is_swap, rows["loss"])
        by = [*KEYS, "placement"]
        of_models = rows.pivot_table(index=by, columns="model", values="value", sort=True)
        is_short = of_models.columns.str.contains("short")
        of_roles = {SHORT: of_models.loc[:, is_short], LONG: of_models.loc[:, ~is_short]}
        part = pd.DataFrame({role: list(models.to_numpy()) for role, models in of_roles.items()})
        part.index = of_models.index
        longs = rows[~rows["model"].str.contains("short")]
        part["entropy"] = longs.groupby(by)["entropy"].mean().reindex(part.index)
        parts.append(part.reset_index().assign(near_context_length=settings["near_context_length"]))
    return pd.concat(parts)


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
    rows = list[dict[Hashable, Any]]()

    def add(measured: str, name: str, values: pd.DataFrame, variant: str = "as planned") -> None:
        targets = kept_targets(measured).set_index(KEYS, drop=False)
        targets = targets[targets.index.isin(values.index)]
        sparsity = of_each(targets, SPARSITY).mean(axis=1)
        low, high = sparsity.quantile([1 / 8, 7 / 8])
        keep = {LOWEST: sparsity > low, HIGHEST: sparsity < high}
        targets = targets[keep.get(variant, sparsity.notna())]
        of_models = values.loc[targets.index]
        further = [entropies.loc[targets.index].to_numpy()] if variant == ENTROPY else []
        roles = [of_role(of_models, role) for role in ROLES]
        found = contrast(design_of(targets, *further).least_squares(of_models), *roles)
        mean = of_models[roles[0]].mean(axis=1).mean() - of_models[roles[1]].mean(axis=1).mean()
        ends = ("slope", "slope_low", "slope_high")
        rows.append(
            {
                "outcome": name,
                "variant": variant,
                "mean": mean,
                **{end: found[end] for end in ends},
                **{f"{end}_share": found[end] / mean for end in ends},
                **sample_counts(targets),
            }
        )

    for measured, words, placements in ((LOSS, "gap", OWN), (HARM, "interference", SWAPPED)):
        values = {
            n: pd.concat([values_of(placed, 64, placement, role) for role in ROLES], axis=1)
            for n, placement in placements.items()
        }
        for n in placements:
            add(measured, f"{words} at {n}", values[n])
        if measured == LOSS:
            add(measured, "gap at 224 less that at 64", values[224] - values[64])
        for variant in (LOWEST, HIGHEST, ENTROPY):
            add(measured, f"{words} at 224", values[224], variant)
    return pd.DataFrame(rows)


def verdict_of_unseen_distances(table: pd.DataFrame) -> str:
    """By the rule of the log: "supported", "refuted", "opposite" or "open"."""
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


def unseen_distances_figure(placed: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """The gap by eighths of mean_log2_k, at the longest context and at the trained one."""
    targets = kept_targets(LOSS)
    figure, axes = drawing.panels(2, 2.8)
    for ax, n in zip(axes, (64, 224), strict=True):
        short, long = (values_of(placed, 64, OWN[n], role).mean(axis=1) for role in ROLES)
        gap = pd.Series((short - long).reindex(pd.MultiIndex.from_frame(targets[KEYS])).to_numpy())
        known = targets[gap.notna()].reset_index(drop=True)
        line = partial_residuals(known, gap.dropna().reset_index(drop=True))
        drawing.draw_line(ax, line[SPARSITY], line, "gap", drawing.TRAINED_CONTIGUOUS.measured)
        ax.set_title(f"{n} tokens of context" + (", as trained" if n == 64 else ""))
        ax.set_xlabel("tokens needed (mean log2 k, doublings)")
        ax.axhline(0, color=drawing.GREY, linewidth=0.8)
    drawing.share_scale(axes)
    axes[0].set_ylabel("loss of short-context less\nlong-context models (nats)")
    titles = {
        "supported": "At unseen distances short-context models lose more where more tokens are needed",
        "opposite": "At unseen distances short-context models lose less where more tokens are needed",
        "refuted": "Even at unseen distances the loss does not grow with the number of tokens needed",
        "open": "At unseen distances: no clear answer by the number of tokens needed",
    }
    drawing.put_title(
        figure,
        titles[verdict_of_unseen_distances(table)],
        drawing.sample_size(table[table["outcome"] == "gap at 224"].head(1)),
        drawing.BARS,
        "eighths of the targets; controls held constant",
    )
    return figure


def distance_or_number(placed: pd.DataFrame) -> pd.DataFrame:
    """What each condition does: a row a text, role and condition; intervals over texts and models.

    Own text: rise of the loss over that with 64 tokens as in training. Another text's tokens: length
    interference. `share` is that of the condition "both".
    """
    rows = list[dict[Hashable, Any]]()
    generator = np.random.default_rng(0)
    for kind, role in product(("own", "swap"), ROLES):
        of = {name: values_of(placed, 32, f"{kind}:{word}", role) for name, word in CONDITIONS.items()}
        base = of["trained"] if kind == "own" else 0.0
        sums = {
            name: (values - base).groupby(level="document_id").sum().to_numpy() for name, values in of.items()
        }
        counts = of["both"].groupby(level="document_id").size().to_numpy()
        num_texts, num_models = sums["both"].shape
        draws = [
            (generator.integers(num_texts, size=num_texts), generator.integers(num_models, size=num_models))
            for _ in range(_RESAMPLES)
        ]
        drawn = {
            name: np.array(
                [values[texts][:, models].sum() / num_models / counts[texts].sum() for texts, models in draws]
            )
            for name, values in sums.items()
        }
        for name, values in sums.items():
            low, high = np.quantile(drawn[name], [0.025, 0.975])
            share_low, share_high = np.quantile(drawn[name] / drawn["both"], [0.025, 0.975])
            rows.append(
                {
                    "text": kind,
                    "role": role,
                    "condition": name,
                    "value": values.sum() / num_models / counts.sum(),
                    "value_low": low,
                    "value_high": high,
                    "share": values.sum() / sums["both"].sum(),
                    "share_low": share_low,
                    "share_high": share_high,
                    "num_targets": int(counts.sum()),
                    "num_documents": num_texts,
                }
            )
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
    """What distance and number do alone and together: a panel a text, a point a condition and role."""
    figure, axes = drawing.panels(2, 2.4)
    names = list(CONDITIONS)
    titles = {
        "own": "own text: rise of the loss (nats)",
        "swap": "another text's distant tokens:\nlength interference (KL, nats)",
    }
    styles = {SHORT: drawing.TRAINED_CONTIGUOUS, LONG: drawing.TRAINED_LONG}
    for ax, (kind, title) in zip(axes, titles.items(), strict=True):
        for place, role in enumerate((SHORT, LONG)):
            rows = table[(table["text"] == kind) & (table["role"] == role)].set_index("condition").loc[names]
            look = styles[role].measured | {"linestyle": ""}
            words = "short-context models (64)" if role == SHORT else "long-context models (256)"
            heights = [len(names) - index - 0.2 * place for index in range(len(names))]
            drawing.draw_points(ax, heights, rows, "value", [look] * len(rows))
            if ax is axes[0]:
                ax.plot([], [], label=words, **look)
        shown = names if ax is axes[0] else [""] * len(names)
        ax.set_yticks([len(names) - index - 0.1 for index in range(len(names))], shown)
        ax.axvline(0, color=drawing.GREY, linewidth=0.8)
        ax.set_xlabel(title)
    figure.legend(loc="outside right upper")
    verdicts = [verdict_of_distance_or_number(table, kind) for kind in titles]
    short = table[(table["role"] == SHORT)].set_index(["text", "condition"])["share"]
    parts = [
        f"{name.removesuffix(' only')} alone does {short['own', name]:.0%} of the loss and"
        f" {short['swap', name]:.0%} of the interference"
        for name in ("distance only", "number only")
    ]
    title = f"Unseen {'; '.join(parts)} of both together"
    drawing.put_title(
        figure,
        title,
        drawing.sample_size(table),
        f"verdict: {verdicts[0]} (loss), {verdicts[1]} (interference)",
        "bars: 95% over documents and models",
    )
    return figure
