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

from sparsity_length.figures import interference, pages, recovered_loss, unseen_distances
from sparsity_length.figures.read import interval_columns, interval_of, sample_counts
from sparsity_length.figures.slopes import CONTROLS, Row, pseudo_values
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
SQUEEZED = "swap:11776/7680@7680 novels"
COUPLED = {
    "copy, 40 letters, rotary_pct 1": ("rotated", "copy", 40),
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
    named = {"headline": headline, "model": model, **(more or {})}
    for variant, found in variants:
        yield {**named, "variant": variant, **interval_columns("estimate", found)}


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


def of_slopes(measured: pd.DataFrame, placed: pd.DataFrame) -> Iterator[Row]:
    """Both slopes of claim 2: of interference, share of its mean per doubling, and of the gap, nats."""
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
    _, gap, known = unseen_distances.gaps(placed)
    variants = of_slope(known, CONTROLS, partial(unseen_distances.gap_slope, gap))
    yield from rows_of("slope of the gap at 224", "0.34 M", variants, sample_counts(known))
    for row in unseen_distances.unseen_distances(placed)[1:].to_dict("records"):
        yield from rows_of("slope of the gap at 224", "0.34 M", [(row["outcome"], interval_of(row, "slope"))])


def of_synthetic_tasks() -> Iterator[Row]:
    """Accuracy of OR and parity by k at ten times the trained length, and of coupled tasks."""
    functions = pages.synthetic("length/functions")
    at_end = functions[functions["size"] == functions["size"].max()]
    for name, words in (("sparse_or", "OR at 180 tokens"), ("sparse_parity", "parity at 180 tokens")):
        for k, cells in at_end[at_end["task"] == name].groupby("sparsity"):
            yield from rows_of(ACCURACY, words, of_seeds(cells), {"k": k})
    for words, (folder, task, size) in COUPLED.items():
        cells = pages.synthetic(f"synthetic/{folder}")
        is_shown = (cells["task"] == task) & (cells["positions"] == "predicted") & (cells["size"] == size)
        yield from rows_of(ACCURACY, f"PPC: {words}", of_seeds(cells[is_shown]))


def of_seeds(cells: pd.DataFrame) -> Variants:
    """An accuracy over the seeds that learned the task (if none did, over all), over all, and of each."""
    learned = cells[cells["is_learnt"]]
    for variant, of in {PUBLISHED: learned if len(learned) else cells, "all seeds": cells}.items():
        yield variant, ratio_of_sums(of["exact_match"].to_numpy(), np.ones(len(of)))
    for row in cells.to_dict("records"):
        words = "" if row["is_learnt"] else ", not learned"
        yield f"seed {row['seed']}{words}", interval_of(row, "exact_match")  # over examples


def of_interference(measured: pd.DataFrame) -> Iterator[Row]:
    """Interference minus that of many tokens at trained distances, nats: each placement and distant text."""
    placements = measured.filter(like="swap:").drop(columns=SQUEEZED)
    placements[PUBLISHED] = interference.mean_interference(measured, "swap:512@11776")
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
    of_models = chain(
        of_few_tokens(pages.sparse_losses()),
        of_slopes(pages.interference_targets(), pages.placed_targets()),
        of_interference(pages.interference_targets()),
    )
    return with_holds(pd.DataFrame(chain(of_models, of_synthetic_tasks())))


def with_holds(table: pd.DataFrame) -> pd.DataFrame:
    """The rows with is_headline, level and holds: if the interval is on the same side as the headline's."""
    # Of tokens; and of bits.
    shown_k = table["headline"].map({ACCURACY: 8}).fillna(16)
    is_shown = table["k"].isna() | ((table["k"] == shown_k) & (table["criterion"] != DIVERGENCE))
    level = table["headline"].map({"recovered fraction": 0.5, ACCURACY: 0.9}).fillna(0.0)
    side = table["estimate_low"].gt(level).astype("int64") - table["estimate_high"].lt(level).astype("int64")
    table = table.assign(is_headline=is_shown & (table["variant"] == PUBLISHED), level=level)
    # One row of each group is a headline, the only one that `where` keeps.
    of_headline = (
        side.where(table["is_headline"]).groupby([table["headline"], table["model"]]).transform("max")
    )
    return table.assign(holds=side == of_headline)
