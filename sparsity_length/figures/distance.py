"""What a prediction keeps of its distant context that position IDs alone move away, by the tokens it needs.

The near tokens of a target, 32, are moved away from all tokens before them by a gap of position IDs, and
nothing else changes (length_interference.py, placements own:all+GAP, --compared-with full). What the
distant context is worth to the target is KL(full || near): from the prediction by the full context to that by
the near tokens alone. The *share kept* at a gap is

    1 - KL(full || full at the gap) / KL(full || near)

1 at a gap of 0, 0 if the prediction is as far off as without any distant token, negative if it is
farther. The predictor is `mean_log2_k`, how many distant tokens the prediction needs, in doublings, by KL at
gap 0 in swapped contexts; beside it that by removal, kept of an earlier study. Slopes on it, per doubling,
with natural splines of the logarithm of the total effect and of the entropy held constant:

    trained   share kept at a gap of 2,048, clipped to [0, 1]                   the claim says: below 0
    unseen    fall of the share kept from 4,096 to 9,216, over its mean          above 0
    readable  share kept at 9,216 with YaRN, minus that without                 above 0

The last two are winsorized at 2%. Intervals: Student's, with the jackknife over texts. Plan and rules:
analysis/LOG.md, 2026-11-29.

Shapes: T targets.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import t
from statsmodels.stats.multitest import multipletests

from sparsity_length.figures import drawing
from sparsity_length.figures.reach import PLAIN, YARN
from sparsity_length.figures.read import (
    interval_columns,
    interval_over_documents,
    mean_columns,
    rows_where,
    sample_counts,
    summarized,
)
from sparsity_length.figures.slopes import (
    KEYS,
    RULE,
    SPARSITY,
    Design,
    Row,
    controls_of,
    pseudo_values,
    single,
)
from sparsity_length.measuring.settings import NEAR, Placement
from sparsity_length.results.read import Results
from sparsity_length.results.schemas import DIVERGENCE, OWN
from sparsity_length.results.statistics import Interval, decided, ratio_of_sums
from sparsity_length.text.folder import TokenizedData

BY_REMOVAL = "mean_log2_k_by_removal"
"""The second predictor: of an earlier study, in which distant tokens were removed, not swapped."""
HALVES = ["mean_log2_k_first", "mean_log2_k_second"]
"""The first predictor by each half of the trial's swapped contexts."""
PREDICTORS = {SPARSITY: "in swapped contexts", BY_REMOVAL: "by removal"}
"""Predictor -> its name on the page."""
MOVED_FILE = "moved_targets.parquet"
SWAPPED = "swapped"
OF_EFFECT = "share of the total effect"
OF_EFFECT_AND_WORTH = f"{OF_EFFECT}, with log_worth"
"""Rows of robustness: the total effect in place of the worth; and the worth held constant, too."""
LEAST_EFFECT = 0.1
"""Total effect, and worth of the distant context, below which a share says little, nats."""
FEWEST_TEXTS = 24
"""Texts that the first predictor needs to decide; with fewer, the second decides."""
CONTROLS = ("log_total_effect", "entropy")
SPLINES = (*CONTROLS, "log_worth")
"""Controls whose effect need not be straight; the last is one of robustness alone."""


class Outcome(NamedTuple):
    """A regression that decides."""

    sign: int
    """Sign of the slope that the claim predicts."""
    smallest: float
    """SESOI per doubling, in the outcome's unit."""
    values: Callable[[pd.DataFrame], pd.Series]
    """Targets with columns "kept ROPE GAP" -> the outcome of each."""


def _winsorized(values: pd.Series) -> pd.Series:
    """Values beyond the 2nd and 98th percentiles moved to these."""
    return values.clip(*values.quantile([0.02, 0.98]))


def kept_at(gap: int, targets: pd.DataFrame) -> pd.Series:
    """The share kept at a gap without YaRN, clipped to [0, 1]."""
    return targets[f"kept {PLAIN} {gap}"].clip(0, 1)


def fall(first: int, second: int, targets: pd.DataFrame) -> pd.Series:
    """The fall of the share kept between two gaps, over its mean."""
    values = _winsorized(targets[f"kept {PLAIN} {first}"] - targets[f"kept {PLAIN} {second}"])
    return values / values.mean()


def gained(gap: int, targets: pd.DataFrame) -> pd.Series:
    """The share kept with YaRN minus that without."""
    return _winsorized(targets[f"kept {YARN} {gap}"] - targets[f"kept {PLAIN} {gap}"])


TRAINED = "trained"
UNSEEN = "unseen"
READABLE = "readable"
OUTCOMES = {
    TRAINED: Outcome(-1, 0.02, partial(kept_at, 2048)),
    UNSEEN: Outcome(1, 0.1, partial(fall, 4096, 9216)),
    READABLE: Outcome(1, 0.0, partial(gained, 9216)),
}


def moved_targets(
    measured: Mapping[str, Path], sources: Mapping[str, str], needed: Path | None, earlier: pd.DataFrame
) -> pd.DataFrame:
    """One row per target: what each gap does to it, and the tokens that it needs.

    Args:
        measured: scaling of RoPE -> results of length_interference.py, one model, --compared-with full.
        sources: document -> where it is from.
        needed: results of influential_tokens.py of the same targets; None: the first predictor is NaN.
        earlier: rows of `sparse_context_losses` by removal, for the second predictor.

    Returns:
        `KEYS`, source, entropy, log_total_effect and log_worth (full context, plain), mean_log2_k, `HALVES`,
        mean_log2_k_by_removal; for each scaling and placement, near, swapped or a gap, the columns "KL ROPE
        PLACEMENT" (from the full context's prediction) and "loss ROPE PLACEMENT", nats. Texts that served as
        swapped contexts are left out.
    """
    tables = []
    for rope, results in measured.items():
        rows = Results(results).frame("length_interference")
        rows = rows[~rows["document_id"].isin(rows["distant_document_id"].dropna())]
        by_place = rows.assign(place=rows["placement"].map(_place)).rename(columns={"divergence": "KL"})
        for name in ("KL", "loss"):
            # Of swapped contexts the mean.
            wide = by_place.pivot_table(name, KEYS, "place", sort=False)
            tables.append(wide.add_prefix(f"{name} {rope} "))
        if rope == PLAIN:
            tables.append(rows_where(rows, placement=NEAR).set_index(KEYS)[["entropy"]])
    targets = pd.concat(tables, axis=1, join="inner").astype("float64")
    targets["log_total_effect"] = np.log(targets[f"KL {PLAIN} {SWAPPED}"])
    targets["log_worth"] = np.log(targets[f"KL {PLAIN} {NEAR}"])
    targets = targets.join(_by_removal(earlier))
    targets = (
        targets.join(_by_swaps(needed)) if needed else targets.assign(**dict.fromkeys([SPARSITY, *HALVES]))
    )
    targets = targets.reset_index()
    targets.insert(2, "source", targets["document_id"].map(sources))
    return targets


def make_table(
    measured: Mapping[str, Path], data: Path, needed: Path | None, earlier: Path, out: Path
) -> None:
    """Write the kept table, `moved_targets`; `data` holds the texts, whose `url` is their source.

    `earlier`: rows of `sparse_context_losses` by removal, a file or the table's folder.
    """
    sources = {one.document_id: one.url or "" for one in TokenizedData.open(data).evaluation_documents()}
    out.mkdir(parents=True, exist_ok=True)
    (model,) = Results(measured[PLAIN]).settings("length_interference")
    removed = pd.read_parquet(earlier, filters=[("model", "==", model)])
    targets = moved_targets(measured, sources, needed, removed)
    targets.to_parquet(out / MOVED_FILE, index=False)


def _place(placement: str) -> str:
    """A placement as columns name it: near, swapped, or the gap."""
    if placement == NEAR:
        return NEAR
    found = Placement.parse(placement)
    return str(found.gap) if found.kind == OWN else SWAPPED


def _by_swaps(needed: Path) -> pd.DataFrame:
    """`mean_log2_k` in swapped contexts, and in either half of these."""
    only = {"rule": [RULE], "criterion": [DIVERGENCE]}
    rows = Results(needed).frame("dependency_sparsity", only=only).set_index(KEYS)
    rows = rows[rows["mean_log2_k_of_swaps"].notna()]
    of_swaps_TB = np.stack(rows["mean_log2_k_of_swaps"].to_list()).astype("float64")
    halves = np.array_split(of_swaps_TB, 2, axis=1)
    return rows[[SPARSITY]].assign(
        **{name: half_TB.mean(axis=1) for name, half_TB in zip(HALVES, halves, strict=True)}
    )


def _by_removal(earlier: pd.DataFrame) -> pd.Series:
    """`mean_log2_k` by removal, of the share of the KL that tokens beside the short context recover."""
    from sparsity_length.measuring.sparsity import mean_log2_k  # late: it loads torch

    rows = rows_where(earlier, rule=RULE, distant_context=OWN)
    shares = 1 - rows["sparse_context_divergence"] / rows["short_context_divergence"]
    by_k = rows.assign(share=shares).pivot(index=KEYS, columns="k", values="share")
    # The largest k is all distant tokens of a chunk's first target.
    short = rows["target_position"].min() - rows["k"].max()
    num_far_T = by_k.index.get_level_values("target_position").to_numpy() - short
    values = mean_log2_k(by_k.to_numpy(), by_k.columns.to_numpy(), num_far_T)
    return pd.Series(values, by_k.index, name=BY_REMOVAL)


def with_shares(targets: pd.DataFrame, worth: str = NEAR, name: str = "KL") -> pd.DataFrame:
    """The targets with their shares kept, columns "kept ROPE GAP".

    Args:
        worth: what the distant context is compared with: no token (`NEAR`), or other documents' (`SWAPPED`).
        name: KL, or loss: of its rise.
    """
    columns = {}
    for column in map(str, targets):
        kind, _, rope_and_place = column.partition(" ")
        rope, _, place = rope_and_place.partition(" ")
        if kind == name and place.isdigit():
            at_0 = targets[f"{name} {rope} 0"]
            columns[f"kept {rope_and_place}"] = 1 - (targets[column] - at_0) / (
                targets[f"{name} {rope} {worth}"] - at_0
            )
    return targets.assign(**columns)


def known_targets(
    targets: pd.DataFrame, predictor: str, worth: str = NEAR, name: str = "KL", least: float = LEAST_EFFECT
) -> pd.DataFrame:
    """The targets that have a predictor, and a total effect and a worth of `least` nats or more; with shares.

    `worth` and `name` as of `with_shares`.
    """
    is_large = np.exp(targets["log_total_effect"]) >= least
    for rope in (PLAIN, YARN):
        is_large &= targets[f"{name} {rope} {worth}"] - targets[f"{name} {rope} 0"] >= least
    return with_shares(targets[is_large & targets[predictor].notna()], worth, name).reset_index(drop=True)


def predictor_of(targets: pd.DataFrame) -> str:
    """The predictor that decides: the first, if it is there for enough texts."""
    has_first = targets.dropna(subset=[SPARSITY])["document_id"].nunique() >= FEWEST_TEXTS
    return SPARSITY if has_first else BY_REMOVAL


def slope(
    values: Callable[[pd.DataFrame], pd.Series],
    predictor: str,
    targets: pd.DataFrame,
    controls: Sequence[str] = CONTROLS,
) -> Row:
    """The slope of an outcome per doubling of the tokens needed, with CR2's interval, as columns `slope`."""
    regressors_T1 = targets[[predictor]].to_numpy(dtype="float64")
    controls_TC = controls_of(targets, controls, SPLINES)
    design = Design(regressors_T1, controls_TC, targets["document_id"].to_numpy())
    return single(design.least_squares(values(targets).to_frame()))


def jackknifed(
    values: Callable[[pd.DataFrame], pd.Series],
    predictor: str,
    targets: pd.DataFrame,
    controls: Sequence[str] = CONTROLS,
) -> Row:
    """`slope` with Student's interval over texts by the jackknife."""
    found = partial(slope, values, predictor, controls=controls)
    of_texts = pseudo_values(targets, found).to_numpy()
    around_mean = ratio_of_sums(of_texts, np.ones(len(of_texts)), sys.maxsize)
    half = (around_mean.high - around_mean.low) / 2
    estimate = found(targets)["slope"]
    return interval_columns("slope", Interval(estimate, estimate - half, estimate + half))


def p_value(row: Row) -> float:
    """Two-sided p-value of a slope beyond the SESOI on the claimed side; Student's."""
    sign, smallest, _ = OUTCOMES[row["outcome"]]
    degrees_of_freedom = row["num_documents"] - 1
    error = (row["slope_high"] - row["slope_low"]) / 2 / t.ppf(0.975, degrees_of_freedom)
    return float(min(1, 2 * t.sf((sign * row["slope"] - smallest) / error, degrees_of_freedom)))


def slopes(targets: pd.DataFrame, predictor: str) -> pd.DataFrame:
    """A row per outcome that decides: outcome, slope with interval, p_value, holm_p_value, word, counts.

    Args:
        targets: of `known_targets`.
    """
    table = pd.DataFrame(
        {"outcome": name, **jackknifed(outcome.values, predictor, targets), **sample_counts(targets)}
        for name, outcome in OUTCOMES.items()
    )
    table["p_value"] = [p_value(row) for row in table.to_dict("records")]
    # The third is a condition, not a test of its own.
    table["holm_p_value"] = pd.Series(multipletests(table["p_value"][:2], method="holm")[1])
    return table.assign(word=[_word(row) for row in table.to_dict("records")])


def _word(row: Row) -> str:
    """One outcome by its rule.

    Supported: beyond the SESOI on the claimed side, by Holm if two are tested. Refuted: within
    the SESOI, or on the other side of 0.
    """
    sign, smallest, _ = OUTCOMES[row["outcome"]]
    low, high = sorted([sign * row["slope_low"], sign * row["slope_high"]])
    p = row["p_value"] if np.isnan(row["holm_p_value"]) else row["holm_p_value"]
    return decided(
        supported=low > smallest and p <= 0.05,
        refuted=(-smallest < low and high < smallest) or high < 0,
    )


def verdict(table: pd.DataFrame) -> str:
    """The claim by the rule written before, of `slopes`: "supported", "refuted" or "inconclusive"."""
    words = dict(zip(table["outcome"], table["word"], strict=True))
    return decided(
        supported=set(words.values()) == {"supported"},
        refuted=words[TRAINED] == words[UNSEEN] == "refuted",
    )


def deciding(targets: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The targets that count, and the predictor that decides."""
    predictor = predictor_of(targets)
    return known_targets(targets, predictor), predictor


def sentences(targets: pd.DataFrame) -> list[str]:
    """Tables and verdicts of `moved_targets`, for each predictor that is there."""
    said = []
    for predictor in (SPARSITY, BY_REMOVAL):
        known = known_targets(targets, predictor)
        if known["document_id"].nunique() < 2:
            continue
        table = slopes(known, predictor)
        said += [f"By {predictor}: {verdict(table)}", table.round(3).to_string()]
        if predictor == SPARSITY:
            said.append(
                "Correlation of its halves, and of their mean: {:.2f}, {:.2f}".format(*reliability(known))
            )
        said += ["Shares kept", curves(known).round(3).to_string()]
    return said


def reliability(targets: pd.DataFrame) -> tuple[float, float]:
    """Correlation of the predictor's halves; and of their mean with another such mean (Spearman-Brown)."""
    of_halves = float(targets[HALVES[0]].corr(targets[HALVES[1]]))
    return of_halves, 2 * of_halves / (1 + of_halves)


def curves(targets: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Shares kept, a row per scaling and gap, and group of the columns `by`.

    Args:
        targets: of `known_targets`.

    Returns:
        rope, gap, `by`; kept_KL and kept_loss (ratios of sums), kept (mean of shares clipped to [0, 1]), each
        with its interval; counts.
    """
    tables = []
    for column in map(str, targets.filter(regex="^kept ")):
        _, rope, gap = column.split(" ")

        def numbers(of: pd.DataFrame, rope: str = rope, gap: str = gap) -> Row:
            columns = mean_columns(of.assign(kept=of[f"kept {rope} {gap}"].clip(0, 1)), "kept")
            for name in ("KL", "loss"):
                near, there, at_0 = (of[f"{name} {rope} {place}"] for place in (NEAR, gap, "0"))
                kept = interval_over_documents(of["document_id"], near - there, near - at_0)
                columns |= interval_columns(f"kept_{name}", kept)
            return columns

        at_gap = targets.assign(rope=rope, gap=int(gap))
        tables.append(summarized(at_gap, ["rope", "gap", *by], numbers))
    return pd.concat(tables).sort_values(["rope", "gap", *by], ignore_index=True)


def in_parts(targets: pd.DataFrame, predictor: str, parts: int) -> pd.DataFrame:
    """The targets with a column `part`, from 0: equal parts by the tokens needed."""
    return targets.assign(part=pd.qcut(targets[predictor], parts, labels=False))


LOOKS = {
    0: ("few needed", drawing.solid(drawing.BLUE)),
    1: ("many", drawing.solid(drawing.VERMILION, "s")),
}
PANELS = {PLAIN: "plain RoPE, trained to 8,192", YARN: "YaRN × 2, untrained"}


def moved_figure(targets: pd.DataFrame, predictor: str) -> Figure:
    """Share kept against the gap, a panel per scaling, a line per half of the tokens needed."""
    table = curves(in_parts(targets, predictor, len(LOOKS)), ["part"])
    figure, axes = drawing.panels(len(PANELS), 2.6)
    for ax, (rope, title) in zip(axes, PANELS.items(), strict=True):
        for part, (words, look) in LOOKS.items():
            line = rows_where(table, rope=rope, part=part)
            drawing.draw_line(ax, line["gap"], line, "kept", look, words, scale=100)
        drawing.shade(ax, 0, 8192 - 1024)  # where the last of 1,024 tokens has a trained ID
        ax.set(title=title, xlabel="gap, position IDs", ylim=(0, None), xticks=[0, 4096, 8192])
        ax.xaxis.set_major_formatter("{x:,.0f}")
    axes[0].set(ylabel="distant context's worth, % kept")
    kept = curves(targets).set_index(["rope", "gap"])["kept"]
    drawing.put_title(
        figure,
        f"Moved 2,048 position IDs away, predictions keep {kept[PLAIN, 2048]:.0%} of what distant text is"
        f" worth (mean clipped share); at 9,216 {kept[PLAIN, 9216]:.0%}, with YaRN {kept[YARN, 9216]:.0%}",
        drawing.sample_size(table),
        "mean of shares clipped to 0 to 100%",
        drawing.BARS,
        "shaded: all IDs trained; halves of the predictions by tokens needed",
    )
    return figure
