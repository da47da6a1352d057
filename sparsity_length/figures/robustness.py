"""Headlines of the first page under variants of their analysis: one row per headline, model and variant.

A headline may hang on the k that was chosen, the criterion, two texts, a control, a run that was left out, or
the kind of interval. These are changed, and `holds` tells whether the interval stays on the same side of
`level` as the published one: above it, below it, or around it.

Shapes: D documents, C columns.
"""

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, product
from typing import Any

import numpy as np
import pandas as pd

from sparsity_length.figures import (
    distance,
    interference,
    marked_bits,
    pages,
    reach,
    recovered_loss,
)
from sparsity_length.figures.read import interval_columns, interval_of, rows_where, sample_counts
from sparsity_length.figures.slopes import Row, pseudo_values
from sparsity_length.results.schemas import DIVERGENCE, LOSS
from sparsity_length.results.statistics import (
    FEWEST_RESAMPLED,
    Interval,
    difference_of_ratios,
    interval_of_statistic,
    ratio,
    ratio_of_sums,
)

Variants = Iterable[tuple[str, Interval]]
PUBLISHED = "as published"
ACCURACY = "accuracy"
FALL = "fall of accuracy"
TOLD_FACT = "effect of a told fact"
SQUEEZED = "swap:11776/7680@7680 novels"
COUPLED = {
    "copy, 40 letters, rotary_pct 1": ("rotated", "copy", 40),
    "copy, 40 letters": ("results", "copy", 40),
    "copy, 30 letters": ("results", "copy", 30),
    "variable assignment, 18": ("results", "variable_assignment", 18),
    "variable assignment, 18, rotary_pct 1": ("rotated", "variable_assignment", 18),
    "parity with scratchpad, 30 bits": ("results", "parity_scratchpad", 30),
    "addition, 24 digits": ("results", "addition", 24),
    "addition, 24 digits, rotary_pct 1": ("rotated", "addition_padded", 24),
}
"""Words -> kept results, task and test size."""


def of_sums(sums: pd.DataFrame, statistic: Callable[[np.ndarray], np.ndarray] = ratio) -> Variants:
    """Variants of a statistic of sums over documents, a row of `sums` each; none if there is no row.

    The other interval is the bootstrap's of few documents, the jackknife's of many (`FEWEST_RESAMPLED`).
    """
    if sums.empty:
        return
    sums_DC = sums.to_numpy()
    published = interval_of_statistic(list(sums_DC.T), statistic)
    yield PUBLISHED, published
    fewest = 0 if len(sums_DC) < FEWEST_RESAMPLED else sys.maxsize
    yield "other interval", interval_of_statistic(list(sums_DC.T), statistic, fewest)
    influence_D = np.abs(statistic(sums_DC.sum(axis=0) - sums_DC) - published.estimate)
    yield (
        "without the two most influential texts",
        interval_of_statistic(list(sums_DC[np.argsort(influence_D)[:-2]].T), statistic),
    )
    yield "mean over texts", ratio_of_sums(statistic(sums_DC), np.ones(len(sums_DC)))


def of_slope(targets: pd.DataFrame, controls: Sequence[str], slope: Callable[..., Row]) -> Variants:
    """Variants of a slope: each control left out, alone and none; without two texts; jackknife over texts.

    `slope` takes targets and names of controls, and returns columns `slope`.
    """
    published = slope(targets, controls)
    yield PUBLISHED, interval_of(published, "slope")
    yield "no controls", interval_of(slope(targets, ()), "slope")
    for name in controls:
        others = [other for other in controls if other != name]
        yield f"without {name}", interval_of(slope(targets, others), "slope")
        yield f"{name} alone", interval_of(slope(targets, [name]), "slope")
    values = pseudo_values(targets, partial(slope, controls=controls))
    influential = (values - published["slope"]).abs().nlargest(2).index
    rest = targets[~targets["document_id"].isin(influential)]
    yield "without the two most influential texts", interval_of(slope(rest, controls), "slope")
    yield "other interval", ratio_of_sums(values.to_numpy(), np.ones(len(values)), sys.maxsize)


def rows_of(
    headline: str, model: str, variants: Variants, more: Mapping[Hashable, Any] | None = None
) -> Iterator[Row]:
    """One row per variant; `more`: further columns."""
    for variant, found in variants:
        yield {
            "headline": headline,
            "model": model,
            **(more or {}),
            "variant": variant,
            **interval_columns("estimate", found),
        }


def of_few_tokens(sparse: Mapping[str, pd.DataFrame]) -> Iterator[Row]:
    """What k selected tokens recover, alone and beyond recency and the null baseline, of each model."""
    kinds = {
        "recovered fraction": ("recency", "recovered"),
        "lead over recency": ("recency", "lead"),
        "lead over the null baseline": (recovered_loss.NULL, "lead"),
    }
    for k, criterion, (headline, (beside, name)) in product(
        [2**i for i in range(9)], (LOSS, DIVERGENCE), kinds.items()
    ):
        sums = {}
        for model, rows in sparse.items():
            targets = recovered_loss.amounts_beside(rows, beside, k, criterion)
            sums[model] = targets.groupby("document_id")[[name, "gain"]].sum()
            more = {"k": k, "criterion": criterion, **sample_counts(targets)}
            yield from rows_of(headline, model, of_sums(sums[model]), more)
        # A contrast, on the texts of both.
        both = sums["SmolLM2 135 M"].join(sums["Gemma 3 270 M"], how="inner", rsuffix=" of Gemma")
        more = {"k": k, "criterion": criterion, "num_documents": len(both)}
        variants = of_sums(both, difference_of_ratios)
        yield from rows_of(f"{headline}, difference", "SmolLM2 135 M minus Gemma 3 270 M", variants, more)


def of_slopes(measured: pd.DataFrame) -> Iterator[Row]:
    """The slope of interference, a share of its mean per doubling."""
    outcomes = interference.with_outcomes(measured)
    targets = interference.with_predictor(outcomes)
    for kind in interference.KINDS:
        slope = partial(interference.slope, interference.PRIMARY, kind)
        variants = of_slope(targets, interference.CONTROLS, slope)
        yield from rows_of("slope of interference", kind, variants, sample_counts(targets))
    for row in interference.slopes(outcomes)[len(interference.KINDS) :].to_dict("records"):
        yield from rows_of(
            "slope of interference", row["kind"], [(row["variant"], interval_of(row, "slope"))]
        )


def of_reach(items: pd.DataFrame, table: pd.DataFrame) -> Iterator[Row]:
    """The fraction of a told fact's effect that is kept at the last gap of trained position IDs, plain."""
    for model in reach.TRAINED_POSITIONS:
        of_model = reach.with_worth(rows_where(items, model=model, rope=reach.PLAIN))
        answered = of_model[of_model["template"].isin(reach.answered_templates(items, model))]
        _, last = reach.reads_less_than_trained(table, model)

        def kept(rows: pd.DataFrame, gap: int = last) -> pd.DataFrame:
            return rows_where(rows, gap=gap).groupby("document_id")[["worth", "worth_at_0"]].sum()

        variants = dict(of_sums(kept(answered)))
        for template, rows in answered.groupby("template", sort=False):
            variants[f"template {template}"] = dict(of_sums(kept(rows)))[PUBLISHED]
        gaps = np.sort(answered["gap"].unique())
        place = int(np.searchsorted(gaps, last))
        for gap in gaps[place - 1 : place + 2 : 2].tolist():
            variants[f"gap {gap:,}"] = dict(of_sums(kept(answered, gap)))[PUBLISHED]
        right = rows_where(answered, gap=last).assign(one=1.0)
        sums = right.groupby("document_id")[["is_right_told", "one"]].sum().astype("float64")
        variants["answers that are right"] = dict(of_sums(sums))[PUBLISHED]
        yield from rows_of(TOLD_FACT, model, variants.items(), {"num_documents": len(sums)})


def of_distance(moved: pd.DataFrame) -> Iterator[Row]:
    """Slopes of what predictions keep of a distant context that position IDs alone move away."""
    targets, predictor = distance.deciding(moved)
    gaps = {
        distance.TRAINED: {f"gap {gap:,}": partial(distance.kept_at, gap) for gap in (1024, 4096, 6144)},
        distance.UNSEEN: {
            f"from {first:,} to {second:,}": partial(distance.fall, first, second)
            for first, second in ((2048, 9216), (4096, 7168), (4096, 10752))
        },
        distance.READABLE: {f"gap {gap:,}": partial(distance.gained, gap) for gap in (7168, 10752)},
    }
    known = partial(distance.known_targets, moved)
    samples = {
        "by the loss": known(predictor, name="loss"),
        distance.OF_EFFECT: known(predictor, distance.SWAPPED),
        "0.05 nats or more": known(predictor, least=0.05),
        "0.2 nats or more": known(predictor, least=0.2),
    }
    for name, outcome in distance.OUTCOMES.items():
        slope = partial(distance.jackknifed, outcome.values, predictor)
        of_planned = dict(of_slope(targets, distance.CONTROLS, slope))
        with_cr2 = distance.slope(outcome.values, predictor, targets)
        of_planned["other interval"] = interval_of(with_cr2, "slope")
        for further in ("source", "log_worth"):
            found = slope(targets, (*distance.CONTROLS, further))
            of_planned[f"with {further}"] = interval_of(found, "slope")
        for variant, values in gaps[name].items():
            found = distance.jackknifed(values, predictor, targets)
            of_planned[variant] = interval_of(found, "slope")
        named = partial(rows_of, "slope of the share kept", name)
        yield from named(of_planned.items(), sample_counts(targets))
        for variant, of in samples.items():
            yield from named([(variant, interval_of(slope(of), "slope"))], sample_counts(of))
        of = samples[distance.OF_EFFECT]
        found = slope(of, distance.SPLINES)
        yield from named([(distance.OF_EFFECT_AND_WORTH, interval_of(found, "slope"))], sample_counts(of))
        for other, words in distance.PREDICTORS.items():
            of = known(other)
            if other != predictor and len(of):
                found = distance.jackknifed(outcome.values, other, of)
                yield from named([(f"tokens needed {words}", interval_of(found, "slope"))], sample_counts(of))


def of_synthetic_tasks() -> Iterator[Row]:
    """Accuracy of OR and parity by k at ten times the trained length, and of coupled tasks."""
    functions = pages.synthetic("length/functions")
    at_end = functions[functions["size"] == functions["size"].max()]
    for name, words in (("sparse_or", "OR at 180 tokens"), ("sparse_parity", "parity at 180 tokens")):
        for k, cells in at_end[at_end["task"] == name].groupby("sparsity"):
            yield from rows_of(ACCURACY, words, of_seeds(cells), {"k": k})
    yield from rows_of(
        FALL, "parity learned, 180 tokens", of_fall(pages.synthetic("synthetic/parity_learnt"))
    )
    for words, (folder, task, size) in COUPLED.items():
        cells = pages.synthetic(f"synthetic/{folder}")
        shown = rows_where(cells, task=task, positions="predicted", size=size)
        yield from rows_of(ACCURACY, f"PPC: {words}", of_seeds(shown))


def of_seeds(cells: pd.DataFrame) -> Variants:
    """An accuracy over the seeds that learned the task (if none did, over all), over all, and of each."""
    learned = cells[cells["is_learnt"]]
    for variant, of in {PUBLISHED: learned if len(learned) else cells, "all seeds": cells}.items():
        yield variant, ratio_of_sums(of["exact_match"].to_numpy(), np.ones(len(of)))
    for row in cells.to_dict("records"):
        words = "" if row["is_learnt"] else ", not learned"
        yield f"seed {row['seed']}{words}", interval_of(row, "exact_match")  # over examples


def of_fall(cells: pd.DataFrame) -> Variants:
    """Accuracy of parity of few bits minus that of many, over all seeds, those that learned it, and by k."""
    few, many = (marked_bits.by_seed(cells, "parity", ks) for ks in (marked_bits.FEW, marked_bits.MANY))
    yield from of_sums(pd.DataFrame({"fall": few - many, "one": 1.0}))
    yield "seeds that learned it", marked_bits.fall(cells[cells["is_learnt"]])
    for k in range(3, 9):
        yield f"to k = {k}", marked_bits.student(few - marked_bits.by_seed(cells, "parity", [k]))


def of_interference(measured: pd.DataFrame) -> Iterator[Row]:
    """Interference minus that of many tokens at trained IDs, nats: each placement of the same novel."""
    placements = measured.filter(regex=r"^swap:.* novels$").drop(columns=SQUEEZED)  # of the same text
    placements = placements.rename(columns={"swap:512@11776 novels": PUBLISHED})
    for name, values in placements.items():
        targets = measured[["document_id"]].assign(lead=values - measured[SQUEEZED], one=1.0).dropna()
        variants = list(of_sums(targets.groupby("document_id")[["lead", "one"]].sum()))
        variants = variants if name == PUBLISHED else [(str(name), variants[0][1])]
        yield from rows_of("interference", "SmolLM2 135 M", variants, sample_counts(targets))


def robustness() -> pd.DataFrame:
    """All rows.

    Returns:
        headline, model, variant, k, criterion, num_targets, num_documents, estimate with its interval (a
        share, or nats), is_headline (whether it is the row that a page states), level, holds.
    """
    rows = chain(
        of_few_tokens(pages.sparse_losses()),
        of_slopes(pages.interference_targets()),
        of_interference(pages.interference_targets()),
        of_reach(*pages.told_facts()),
        of_distance(pages.moved_targets()),
        of_synthetic_tasks(),
    )
    return with_holds(pd.DataFrame(rows))


def with_holds(table: pd.DataFrame) -> pd.DataFrame:
    """The rows with is_headline, level and holds: if the interval is on the same side as the headline's."""
    # Of tokens; and of bits.
    shown_k = table["headline"].map({ACCURACY: 8}).fillna(16)
    is_shown = table["k"].isna() | ((table["k"] == shown_k) & (table["criterion"] != DIVERGENCE))
    level = (
        table["headline"]
        .map({"recovered fraction": 0.5, TOLD_FACT: reach.HALF, ACCURACY: 0.9, FALL: marked_bits.SMALL})
        .fillna(0.0)
    )
    side = table["estimate_low"].gt(level).astype("int64") - table["estimate_high"].lt(level).astype("int64")
    table = table.assign(is_headline=is_shown & (table["variant"] == PUBLISHED), level=level)
    # One row of each group is a headline, the only one that `where` keeps.
    of_headline = (
        side.where(table["is_headline"]).groupby([table["headline"], table["model"]]).transform("max")
    )
    return table.assign(holds=side == of_headline)
