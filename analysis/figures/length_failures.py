"""Why models fail beyond their training length: slopes, verdicts and figures of four experiments.

Questions, rules and power were written down before anything was measured (analysis/LOG.md, 2026-11-27); the
program is analysis/length_failures.py. Slopes are in nats per doubling of the tokens needed.

Shapes: T targets, J evaluators, C controls.
"""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from analysis import drawing
from analysis.gap import outcomes
from analysis.read import interval_columns, interval_over_documents, rows_by
from pipeline.results.read import read_artefact, read_settings
from pipeline.results.statistics import Interval
from pipeline.synthetic.evaluation import test_examples
from pipeline.synthetic.tasks import MARKED_FUNCTIONS, task_called

TARGETS = Path(__file__).parents[1] / "reference" / "decisive" / "outcome_targets.parquet"
EARLIER_PARITY = Path(__file__).parents[1] / "reference" / "synthetic" / "parity"
KEYS = ["document_id", "target_position"]
SHORT = "short_trained"
LONG = "long_trained"
OWN = {64: "near", 80: "own:16", 96: "own:32", 128: "own:64", 224: "own:160"}
SWAPPED = {80: "swap:16", 96: "swap:32", 128: "swap:64", 224: "swap:160"}
"""Tokens of context -> the placement of A, near context 64."""
CONDITIONS = {"trained": "32", "distance only": "32@192", "number only": "192/32", "both": "192"}
"""Condition of B -> its placement, near context 32."""
SHARE_OF_THE_MEAN = 0.05
"""Smallest effect size of interest of A: a slope of 5% of the mean gap per doubling."""
SMALLEST_EFFECT = 0.05
"""Of D, nats."""
FUNCTIONS = ("parity", "or", "majority", "last", "lookup")
_RESAMPLES = 2000


# The preregistered studies, read once more


def read_again(name: str) -> pd.DataFrame:
    """Slopes of a preregistered study that its verdict did not look at: a row a number, per doubling.

    Args:
        name: "outcome_targets", the first, or "again_targets", the second.
    """
    table = pd.read_parquet(TARGETS.with_name(f"{name}.parquet"))
    rows = list[dict[Hashable, Any]]()

    def add(what: str, targets: pd.DataFrame, values: pd.DataFrame, *roles: Sequence[str]) -> None:
        regressors_TJ = outcomes.of_each(targets, outcomes.SPARSITY).to_numpy()
        controls_TC = outcomes.controls_of(targets)
        texts_T = targets["document_id"].to_numpy()
        found = outcomes.Design(regressors_TJ, controls_TC, texts_T).least_squares(values)
        slope = outcomes.contrast(found, *roles) if roles else _single(found)
        rows.append({"number": what} | {end: slope[end] for end in ("slope", "slope_low", "slope_high")})

    targets, short, long = outcomes.of_measured(table, "long_context_loss")
    targets = outcomes.with_sparsity(targets)
    losses = outcomes.of_each(targets, "long_context_loss")
    add("gap, nats", targets, losses, short, long)
    add("gap, all five long-context models compared", targets, losses, short, [*long, outcomes.PLACEBO])
    targets = outcomes.with_sparsity(outcomes.of_measured(table, "length_harm")[0])
    harms = outcomes.of_each(targets, "length_harm")
    add("interference, nats", targets, harms, short, long)
    sparsity = outcomes.of_each(targets, outcomes.SPARSITY).mean(axis=1)
    rest = targets[sparsity > sparsity.quantile(1 / 8)].reset_index(drop=True)
    add("interference, lowest eighth left out", rest, outcomes.of_each(rest, "length_harm"), short, long)
    means = pd.DataFrame({"long": harms[long].mean(axis=1), "short": harms[short].mean(axis=1)})
    add("interference of long-context models alone", targets, means[["long"]])
    ratio = pd.DataFrame({"ratio": np.log(means["short"] / means["long"])})
    add("log of the ratio of interferences, short-context to long-context", targets, ratio)
    return pd.DataFrame(rows)


def _single(found: outcomes.Slopes) -> dict[str, float]:
    """The slope of one outcome, with its interval over texts."""
    slope = float(found.slopes_M[0])
    half = float(found.covariance_MM[0, 0] ** 0.5)
    half *= float(stats.t.ppf(0.975, found.degrees_of_freedom))
    return {"slope": slope, "slope_low": slope - half, "slope_high": slope + half}


# A and B


def placed_targets(folders: Sequence[Path]) -> pd.DataFrame:
    """The table of that name, of the first study's targets with a total effect of 0.1 nats or more."""
    table = pd.read_parquet(TARGETS)
    kept = pd.concat(
        outcomes.with_sparsity(outcomes.of_measured(table, measured)[0])[KEYS]
        for measured in ("long_context_loss", "length_harm")
    ).drop_duplicates()
    parts = []
    for folder in folders:
        settings = next(iter(read_settings(folder, "length_interference").values()))
        rows = read_artefact(folder, "length_interference").merge(kept, on=KEYS)
        is_swap = rows["placement"].str.startswith("swap")
        rows["value"] = rows["divergence"].where(is_swap, rows["loss"])
        by = [*KEYS, "placement"]
        of_models = rows.pivot_table(index=by, columns="model", values="value", sort=True)
        is_short = of_models.columns.str.contains("short")
        part = pd.DataFrame(index=of_models.index)
        for role, columns in ((SHORT, is_short), (LONG, ~is_short)):
            part[role] = pd.Series(list(of_models.loc[:, columns].to_numpy()), part.index)
        longs = rows[~rows["model"].str.contains("short")]
        part["entropy"] = longs.groupby(by)["entropy"].mean().reindex(part.index)
        parts.append(part.reset_index().assign(near_context_length=settings["near_context_length"]))
    return pd.concat(parts)


def _values(placed: pd.DataFrame, near: int, placement: str, role: str) -> pd.DataFrame:
    """A row a target, in the order of the keys, a column a model, nats."""
    rows = placed[(placed["near_context_length"] == near) & (placed["placement"] == placement)]
    values = np.stack(rows[role].to_list())
    index = pd.MultiIndex.from_frame(rows[KEYS])
    return pd.DataFrame(values, index, [f"{role} {number}" for number in range(values.shape[1])]).sort_index()


def unseen_distances(placed: pd.DataFrame) -> pd.DataFrame:
    """Slopes on mean_log2_k: a row an outcome, context and variant; `mean` is that of the outcome, nats."""
    table = pd.read_parquet(TARGETS)
    rows = list[dict[Hashable, Any]]()

    def add(measured: str, name: str, values: pd.DataFrame, variant: str = "as planned") -> None:
        targets = outcomes.with_sparsity(outcomes.of_measured(table, measured)[0])
        targets = targets.set_index(KEYS, drop=False).loc[lambda of: of.index.isin(values.index)]
        sparsity = outcomes.of_each(targets, outcomes.SPARSITY).mean(axis=1)
        low, high = sparsity.quantile([1 / 8, 7 / 8])
        keep = {"lowest eighth left out": sparsity > low, "highest eighth left out": sparsity < high}
        targets = targets[keep.get(variant, sparsity.notna())]
        of_models = values.loc[targets.index]
        controls_TC = outcomes.controls_of(targets)
        if variant == "entropy held constant":
            near = placed[(placed["near_context_length"] == 64) & (placed["placement"] == "near")]
            entropy = near.set_index(KEYS)["entropy"].loc[targets.index].to_numpy()
            controls_TC = np.column_stack([controls_TC, entropy])
        regressors_TJ = outcomes.of_each(targets, outcomes.SPARSITY).to_numpy()
        design = outcomes.Design(regressors_TJ, controls_TC, targets["document_id"].to_numpy())
        roles = [[name for name in map(str, of_models) if name.startswith(role)] for role in (SHORT, LONG)]
        found = outcomes.contrast(design.least_squares(of_models), *roles)
        mean = of_models[roles[0]].mean(axis=1).mean() - of_models[roles[1]].mean(axis=1).mean()
        ends = ("slope", "slope_low", "slope_high")
        rows.append(
            {
                "outcome": name,
                "variant": variant,
                "mean": mean,
                **{end: found[end] for end in ends},
                **{f"{end}_share": found[end] / mean for end in ends},
                "num_targets": len(targets),
                "num_documents": targets["document_id"].nunique(),
            }
        )

    both = pd.concat
    gaps = {
        n: both([_values(placed, 64, name, role) for role in (SHORT, LONG)], axis=1)
        for n, name in OWN.items()
    }
    harms = {
        n: both([_values(placed, 64, name, role) for role in (SHORT, LONG)], axis=1)
        for n, name in SWAPPED.items()
    }
    longest = max(gaps)
    for n, values in gaps.items():
        add("long_context_loss", f"gap at {n}", values)
    add("long_context_loss", f"gap at {longest} less that at 64", gaps[longest] - gaps[64])
    for variant in ("lowest eighth left out", "highest eighth left out", "entropy held constant"):
        add("long_context_loss", f"gap at {longest}", gaps[longest], variant)
    for n, values in harms.items():
        add("length_harm", f"interference at {n}", values)
    for variant in ("lowest eighth left out", "highest eighth left out", "entropy held constant"):
        add("length_harm", f"interference at {longest}", harms[longest], variant)
    return pd.DataFrame(rows)


def verdict_of_unseen_distances(table: pd.DataFrame) -> str:
    """By the rule of the log: "supported", "refuted", "opposite" or "open"."""
    rows = rows_by(table, "outcome", "variant")
    primary = rows["gap at 224", "as planned"]
    beyond = rows["gap at 224 less that at 64", "as planned"]
    shapes = [rows["gap at 224", f"{end} eighth left out"] for end in ("lowest", "highest")]
    smallest = SHARE_OF_THE_MEAN * primary["mean"]
    if all(row["slope_low"] > 0 for row in (primary, beyond, *shapes)):
        return "supported"
    if all(row["slope_high"] < 0 for row in (primary, beyond)):
        return "opposite"
    if all(row["slope_high"] < smallest for row in (primary, beyond)):
        return "refuted"
    return "open"


def distance_or_number(placed: pd.DataFrame) -> pd.DataFrame:
    """What each condition of B does: a row a text, role and condition; intervals over texts and models.

    Own text: rise of the loss over that with 64 tokens as in training. Another text's tokens: length
    interference. `share` is that of the condition "both".
    """
    rows = list[dict[Hashable, Any]]()
    generator = np.random.default_rng(0)
    for kind, role in ((kind, role) for kind in ("own", "swap") for role in (SHORT, LONG)):
        of = {name: _values(placed, 32, f"{kind}:{word}", role) for name, word in CONDITIONS.items()}
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
    """Of the short-context models' own or swapped text: "distance", "number", or "neither alone"."""
    of = rows_by(table[(table["text"] == kind) & (table["role"] == SHORT)], "condition")
    for first, second in (("distance", "number"), ("number", "distance")):
        strong = of[f"{first} only"]
        weak = of[f"{second} only"]
        are_clear = strong["share_low"] > 0.5 > weak["share_high"]
        if strong["share"] >= 2 / 3 and weak["share"] <= 1 / 3 and are_clear:
            return first
    return "neither alone"


# C


def marked_bits(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Accuracy by function, k and size: mean over the seeds that learnt it, with Student's interval."""
    learnt = accuracy[accuracy["is_learnt"]]
    rows = []
    for (task, k, size), cells in learnt.groupby(["task", "sparsity", "size"]):
        interval = _student(cells["exact_match"])
        rows.append({"task": task, "k": k, "size": size, "num_seeds": len(cells), **interval})
    return pd.DataFrame(rows).astype({"k": int})


def earlier_parity_beside_or() -> pd.DataFrame:
    """How far the accuracy of the earlier parity models is from what OR would have: a row a seed and size.

    `difference` is the largest over k = 2 to 7, on the same test examples.
    """
    accuracy = read_artefact(EARLIER_PARITY, "synthetic_accuracy")
    rows = list[dict[Hashable, Any]]()
    for size, cells in accuracy[accuracy["size"] > 18].groupby("size"):
        of_or = {}
        for k in range(2, 8):
            batch, _ = test_examples(task_called("sparse_parity"), (int(str(size)), k), 500, test_seed=0)
            bits = [example.token_ids_S[list(example.dependencies[0])[1::2]] for example in batch.examples]
            answers = [example.target_ids_T[0] for example in batch.examples]
            of_or[k] = np.mean([of.max() == answer for of, answer in zip(bits, answers, strict=True)])
        between = cells[cells["sparsity"].between(2, 7)]
        differences = (between["exact_match"] - between["sparsity"].map(of_or)).abs()
        for seed, largest in differences.groupby(between["seed"]).max().items():
            rows.append({"seed": seed, "size": size, "difference": largest})
    return pd.DataFrame(rows)


def simpler_rules(examples: pd.DataFrame) -> pd.DataFrame:
    """How often each parity model answers as another function would: a row a seed and size.

    Of the examples with two marked bits or more.
    """
    parity = examples[(examples["task"] == "sparse_parity") & (examples["sparsity"] > 1)].copy()
    bits = [[int(bit) for bit in tokens.split()[1::2]] for tokens in parity["decisive_tokens"]]
    answers = parity["answer"].to_numpy()
    for name, function in MARKED_FUNCTIONS.items():
        parity[name] = [answer == str(function(of)) for answer, of in zip(answers, bits, strict=True)]
    return parity.groupby(["seed", "size"])[list(MARKED_FUNCTIONS)].mean().reset_index()


def verdict_of_marked_bits(accuracy: pd.DataFrame) -> tuple[str, dict[Hashable, float]]:
    """By the rule of the log, and the difference that it needs: OR less parity, k = 5 to 8, at 180 tokens."""
    at_end = accuracy[accuracy["is_learnt"] & (accuracy["size"] == accuracy["size"].max())]
    of_or = at_end[(at_end["task"] == "sparse_or") & (at_end["sparsity"] == 8)]["exact_match"].mean()
    many = at_end[at_end["sparsity"].between(5, 8)].groupby(["task", "seed"])["exact_match"].mean()
    difference = _student((many["sparse_or"] - many["sparse_parity"]).dropna())
    if difference["exact_match_low"] <= 0:
        return "open", difference
    if of_or >= 0.9:
        return "the number of tokens is not what fails", difference
    return ("the number fails" if of_or <= 0.6 else "in part"), difference


def _student(values: pd.Series, name: str = "exact_match") -> dict[Hashable, float]:
    """Mean over seeds with Student's 95% interval, as columns."""
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval() if len(values) > 1 else (np.nan, np.nan)
    return interval_columns(name, Interval(float(values.mean()), low, high))


# D

BINS = (64, 128, 256, 512)
"""Edges of the distances of the farthest (or mean) cue, tokens."""


def cue_distances(examples: pd.DataFrame, by: Any = np.max) -> pd.DataFrame:
    """Excess loss by number of cues and distance of the farthest one: a row a task, seed and bin, nats."""
    distance = examples["distances"].map(by)
    bins = pd.cut(distance, [0, *BINS], labels=["up to 64", "64 to 128", "128 to 256", "256 to 512"])
    cells = examples.assign(distance=bins).groupby(["task", "seed", "distance"], observed=True)
    return cells["excess_loss"].agg(["mean", "size"]).reset_index()


def cue_contrasts(cells: pd.DataFrame, more: str = "signs_4", fewer: str = "signs_1") -> pd.DataFrame:
    """Excess with more cues less that with fewer, same distance: a row a bin beyond 64, and their mean."""
    wide = cells.pivot(index=["seed", "distance"], columns="task", values="mean")
    differences = (wide[more] - wide[fewer]).unstack("distance").drop(columns="up to 64")
    differences["mean"] = differences.mean(axis=1)
    rows = []
    for name in differences:
        of_seeds = differences[name].dropna()
        rows.append({"distance": name, "num_seeds": len(of_seeds), **_student(of_seeds, "difference")})
    return pd.DataFrame(rows)


def verdict_of_cues(contrasts: pd.DataFrame) -> str:
    """By the rule of the log, of the mean over bins."""
    mean = rows_by(contrasts, "distance")["mean"]
    low = mean["difference_low"]
    high = mean["difference_high"]
    if low > SMALLEST_EFFECT:
        return "number has an effect of its own"
    if high < -SMALLEST_EFFECT:
        return "the other way"
    return "no effect of its own" if low > -SMALLEST_EFFECT and high < SMALLEST_EFFECT else "open"


# Figures


def unseen_distances_figure(placed: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """The gap by eighths of mean_log2_k, at the longest context and at the trained one."""
    targets = outcomes.with_sparsity(outcomes.of_measured(pd.read_parquet(TARGETS), "long_context_loss")[0])
    figure, axes = drawing.panels(2, 2.8)
    for ax, n in zip(axes, (64, 224), strict=True):
        short, long = (_values(placed, 64, OWN[n], role).mean(axis=1) for role in (SHORT, LONG))
        gap = (short - long).reindex(pd.MultiIndex.from_frame(targets[KEYS])).to_numpy()
        known = targets[~np.isnan(gap)].reset_index(drop=True)
        regressors_TJ = outcomes.of_each(known, outcomes.SPARSITY).to_numpy()
        sparsity = regressors_TJ.mean(axis=1)
        texts_T = known["document_id"].to_numpy()
        design = outcomes.Design(regressors_TJ, outcomes.controls_of(known), texts_T)
        slope, rest_T = design.slope_and_rest(gap[~np.isnan(gap)])
        held = pd.Series(np.nanmean(gap) + slope * (sparsity - sparsity.mean()) + rest_T)
        lines = pd.DataFrame(
            [
                {"place": sparsity[places].mean()}
                | interval_columns("gap", interval_over_documents(known["document_id"][places], held[places]))
                for places in held.groupby(pd.qcut(sparsity, 8, labels=False)).groups.values()
            ]
        )
        drawing.draw_line(ax, lines["place"], lines, "gap", drawing.TRAINED_CONTIGUOUS.measured)
        ax.set_title(f"{n} tokens of context" + (", as trained" if n == 64 else ""))
        ax.set_xlabel("tokens needed (mean_log2_k, doublings)")
        ax.axhline(0, color=drawing.GREY, linewidth=0.8)
    drawing.share_scale(axes)
    axes[0].set_ylabel("loss of short-context less\nlong-context models (nats)")
    primary = rows_by(table, "outcome", "variant")["gap at 224", "as planned"]
    titles = {
        "supported": "At unseen distances short-context models lose more where more tokens are needed",
        "opposite": "At unseen distances short-context models lose less where more tokens are needed",
        "refuted": "Even at unseen distances the loss does not grow with the number of tokens needed",
        "open": "At unseen distances: no clear answer by the number of tokens needed",
    }
    drawing.put_title(
        figure,
        titles[verdict_of_unseen_distances(table)],
        f"n = {primary['num_targets']:,} targets, {primary['num_documents']} documents",
        drawing.BARS,
        "eighths of the targets; controls held constant",
    )
    return figure


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
    figure.legend(loc="outside lower center", ncols=2)
    verdicts = [verdict_of_distance_or_number(table, kind) for kind in titles]
    short = table[(table["role"] == SHORT)].set_index(["text", "condition"])["share"]
    parts = [
        f"{name.removesuffix(' only')} alone does {short['own', name]:.0%} of the loss and"
        f" {short['swap', name]:.0%} of the interference"
        for name in ("distance only", "number only")
    ]
    title = f"Unseen {'; '.join(parts)} of both together"
    n = table.iloc[0]
    drawing.put_title(
        figure,
        title,
        f"n = {n['num_targets']:,} targets, {n['num_documents']} documents",
        f"verdict: {verdicts[0]} (loss), {verdicts[1]} (interference)",
        "bars: 95% over documents and models",
    )
    return figure


def marked_bits_figure(cells: pd.DataFrame, verdict: str) -> Figure:
    """Accuracy by k at four and at ten times the trained length, a line a function."""
    figure, axes = drawing.panels(2, 2.8)
    for ax, size in zip(axes, (72, 180), strict=True):
        ends = []
        for color, marker, name in zip(drawing.graded(len(FUNCTIONS)), "osD^v", FUNCTIONS, strict=True):
            rows = cells[(cells["task"] == f"sparse_{name}") & (cells["size"] == size)].sort_values("k")
            if len(rows):
                look = drawing.Style(color, marker).measured
                words = name.replace("lookup", "look-up")
                if name not in ("parity", "or"):  # a band each would hide the two that decide
                    rows = rows.assign(exact_match_low=np.nan, exact_match_high=np.nan)
                ends.append(drawing.draw_line(ax, rows["k"], rows, "exact_match", look, words, band=True))
        ax.set_title(f"{size} tokens ({size // 18} times the trained length)")
        ax.set_xlabel("marked bits k")
        ax.set_ylim(0.3, 1.03)
        drawing.name_level(ax, 0.5, "guessing", below=True)
        drawing.label_line_ends(ax, ends)
    axes[0].set_ylabel("accuracy")
    titles = {
        "the number of tokens is not what fails": "Parity fails as k rises, OR does not",
        "the number fails": "OR fails as k rises, as parity does: the number of tokens fails",
        "in part": "OR of many bits holds better than their parity, and not fully",
        "open": "OR and parity of many bits do not differ clearly",
    }
    drawing.put_title(
        figure,
        titles[verdict],
        f"means of {drawing.counted_seeds(cells)} that learnt the task",
        "bands of parity and OR: 95% over seeds",
    )
    return figure


def cue_distances_figure(examples: pd.DataFrame, verdict: str) -> Figure:
    """Excess loss by the distance of the farthest cue and by their mean distance, a line a number of cues."""
    figure, axes = drawing.panels(2, 2.8)
    for ax, (label, by) in zip(axes, {"farthest cue": np.max, "cues, mean": np.mean}.items(), strict=True):
        cells = cue_distances(examples, by)
        ends = []
        for color, number in zip(drawing.graded(3), (1, 2, 4), strict=True):
            of_bins = cells[cells["task"] == f"signs_{number}"].groupby("distance", observed=True)["mean"]
            means = of_bins.mean()
            num_seeds = examples["seed"].nunique()
            errors = of_bins.sem() * stats.t.ppf(0.975, num_seeds - 1)
            line = means.to_frame("excess").assign(excess_low=means - errors, excess_high=means + errors)
            places = range(len(line))
            words = drawing.counted(number, "cue")
            look = drawing.Style(color, "o").measured
            ends.append(drawing.draw_line(ax, places, line, "excess", look, words))
            ax.set_xticks(list(places), [str(name) for name in line.index], fontsize=7)
        ax.set_xlabel(f"distance of the {label} (tokens)")
        drawing.label_line_ends(ax, ends)
    drawing.share_scale(axes)
    axes[0].set_ylabel("loss beyond the best possible (nats)")
    titles = {
        "number has an effect of its own": "At one distance of the farthest cue four cues lose more than one",
        "the other way": "At one distance of the farthest cue, one cue loses more than four",
        "no effect of its own": "At one distance of the farthest cue, their number makes no difference",
        "open": "At one distance of the farthest cue: no clear effect of the number of cues",
    }
    drawing.put_title(
        figure,
        titles[verdict],
        f"{examples['seed'].nunique()} seeds, {len(examples):,} examples",
        "trained at 64 tokens, tested at 64 to 512, plain IDs",
        "bars: 95% over seeds",
    )
    return figure
