"""Whether the generalization gap rises with dependency sparsity, other things being equal.

A row of most tables here is a slope: nats of generalization gap a doubling of k*. Sparse targets may simply
be easy ones, so each slope stands beside those with controls: how frequent the target's token is, where in
the chunk it stands, and its loss under the short context; and, as who gains much from the long context has
much to lose, what it gains.

Targets of one document are not independent: standard errors are robust to that (documents are clusters).
Beside them stands a permutation test: how often sparsity shuffled at random goes with the gap as closely as
it does.

Shapes: T targets, B permutations of a block, C controls, P parameters (intercept, sparsity, controls).
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis import drawing
from analysis.gap.gaps import (
    AMONG_REACHED,
    CODINGS,
    NO_GAIN,
    coded_sparsity,
    generalization_gaps,
    measure_text,
    measures_in_order,
)
from analysis.read import (
    NO_INTERVAL,
    TARGET,
    interval_columns,
    interval_of,
    interval_over_documents,
    joined_on_common,
    mean_columns,
    rows_of,
    sample_counts,
    summarized,
)
from pipeline.cli import InputError
from pipeline.results.statistics import Interval

NUM_PERMUTATIONS = 1_999
_VALUES_PER_BLOCK = 1_000_000
_ROUNDING = 1e-9  # of the statistic: sums in another order must still count as equal


def permutation_p_value(
    gaps_T: np.ndarray, sparsity_T: np.ndarray, strata_T: np.ndarray,
    *, seed: int = 0, num_permutations: int = NUM_PERMUTATIONS,
) -> float:  # fmt: skip
    """Two-sided p-value of the hypothesis that within a stratum the gap does not depend on sparsity.

    Sparsity is permuted among the targets of a stratum, so what differs between strata (documents, how hard
    a target is) can make no difference. The statistic is the sum of products of both, each less its
    stratum's mean: the slope within strata, but for a factor that permuting does not move.

    Returns:
        (1 + permutations at least as extreme) / (1 + permutations) (Phipson and Smyth 2010), which is never
        0; NaN where no permutation changes anything.
    """
    strata_T = _codes(strata_T)
    counts = np.bincount(strata_T)
    gaps_T, sparsity_T = (
        values_T - (np.bincount(strata_T, values_T) / counts)[strata_T] for values_T in (gaps_T, sparsity_T)
    )
    size = np.abs(gaps_T) @ np.abs(sparsity_T)
    if not size > 0:
        return np.nan
    least_extreme = np.abs(gaps_T @ sparsity_T) - _ROUNDING * size
    order = np.argsort(strata_T, kind="stable")
    gaps_T, sparsity_T, strata_T = gaps_T[order], sparsity_T[order], strata_T[order]
    generator = np.random.default_rng(seed)
    num_extreme, num_drawn = 0, 0
    while num_drawn < num_permutations:
        num_block = min(num_permutations - num_drawn, max(1, _VALUES_PER_BLOCK // len(strata_T)))
        # Sorted by stratum and then by chance: each place keeps its stratum, with another target's sparsity.
        chosen_BT = np.argsort(strata_T + generator.random((num_block, len(strata_T))), axis=1)
        num_extreme += int((np.abs(sparsity_T[chosen_BT] @ gaps_T) >= least_extreme).sum())
        num_drawn += num_block
    return (1 + num_extreme) / (1 + num_permutations)


FEWEST_DOCUMENTS = 10
"""Standard errors over fewer clusters are too small to be called robust (Cameron and Miller 2015)."""
_SPARSITY = 1  # its place among the parameters


def cluster_robust_slope(
    gaps_T: np.ndarray, sparsity_T: np.ndarray, controls_TC: np.ndarray, documents_T: np.ndarray
) -> Interval:
    """Least-squares slope of the gap on sparsity, its 95 % interval robust to dependence within documents.

    Args:
        gaps_T, sparsity_T: nats, and the coded k*.
        controls_TC: what is held constant; columns without variance are left out.
        documents_T: whose document each target is, any labels.

    Returns:
        NaN for fewer than `FEWEST_DOCUMENTS` documents, or where sparsity is a linear function of the
        controls. The interval is Student's with as many degrees of freedom as documents less one, the
        covariance Liang and Zeger's (1986) with the correction G / (G - 1) · (T - 1) / (T - P).
    """
    # Imported late: statsmodels takes seconds, and few who read figures fit a regression.
    from statsmodels.regression.linear_model import OLS

    design_TP, clusters_T = _design(sparsity_T, controls_TC), _codes(documents_T)
    if not _is_estimable(design_TP, clusters_T):
        return NO_INTERVAL
    fit = OLS(gaps_T, design_TP).fit(cov_type="cluster", cov_kwds={"groups": clusters_T}, use_t=True)
    low, high = fit.conf_int()[_SPARSITY]
    return Interval(float(fit.params[_SPARSITY]), float(low), float(high))


def _design(sparsity_T: np.ndarray, controls_TC: np.ndarray) -> np.ndarray:
    """Intercept, sparsity, and the standardized controls that vary: that moves no slope on sparsity."""
    varying_TC = controls_TC[:, (controls_TC != controls_TC[:1]).any(axis=0)]
    if varying_TC.size:
        varying_TC = (varying_TC - varying_TC.mean(axis=0)) / varying_TC.std(axis=0)
    return np.column_stack([np.ones(len(sparsity_T)), sparsity_T, varying_TC])


def _is_estimable(design_TP: np.ndarray, clusters_T: np.ndarray) -> bool:
    if len(clusters_T) == 0 or clusters_T.max() + 1 < FEWEST_DOCUMENTS:
        return False
    return bool(np.linalg.matrix_rank(design_TP) == design_TP.shape[1])


def _codes(labels_T: np.ndarray) -> np.ndarray:
    return np.unique(labels_T, return_inverse=True)[1]


FREQUENCY, POSITION, DIFFICULTY = "log_token_count", "num_long_context_tokens", "short_context_loss"
NO_CONTROLS, SURFACE, ALL_CONTROLS = "no controls", "frequency, position", "frequency, position, short loss"
WITH_GAIN = "the same, gain"
GAIN = "loss_difference"
CALIBRATION = "calibration_slope"
ADJUSTMENTS = {
    NO_CONTROLS: (),
    SURFACE: (FREQUENCY, POSITION),
    ALL_CONTROLS: (FREQUENCY, POSITION, DIFFICULTY),
    WITH_GAIN: (FREQUENCY, POSITION, DIFFICULTY, GAIN),
}
"""Name -> the columns held constant."""
NUM_DIFFICULTY_STRATA = 3
"""Equal parts by L_short within which, and within a document, k* is permuted."""


def gap_targets(
    loss_differences: pd.DataFrame, *, short_models: Sequence[str], reference_model: str,
    difficulty_model: str, gain_model: str, token_counts_V: np.ndarray | None,
) -> pd.DataFrame:  # fmt: skip
    """The generalization gap of every target beside what it is to be controlled for.

    Args:
        loss_differences: the artefact.
        short_models: models trained at a short context.
        reference_model: the long-trained model that the gap is measured from.
        difficulty_model: whose L_short says how hard a target is; not the model that k* is read from.
        gain_model: whose L_short - L_long says what a target gains; the model that k* is read from, as the
            gain of the reference model shares its long-context loss with the gap.
        token_counts_V: how often each token ID occurs in the training text; None where that is not known, and
            then the column is missing and no regression controls for it.

    Returns:
        model, document_id, chunk_index, target_position, generalization_gap (nats), log_token_count (of the
        target's token: natural log of count + 1), num_long_context_tokens, short_context_loss and
        loss_difference (nats).
    """
    gaps = generalization_gaps(loss_differences, short_models=short_models, reference_model=reference_model)
    columns = [*TARGET, "target_token_id", POSITION, DIFFICULTY]
    of_difficulty = rows_of(loss_differences, difficulty_model)[columns]
    of_gain = rows_of(loss_differences, gain_model)[[*TARGET, GAIN]]
    what = "targets with a gap and with the losses of {}"
    targets = joined_on_common(gaps, of_difficulty, TARGET, what.format(difficulty_model))
    targets = joined_on_common(targets, of_gain, TARGET, what.format(gain_model))
    token_ids = targets.pop("target_token_id")
    if token_counts_V is None:
        return targets
    if len(targets) and token_ids.max() >= len(token_counts_V):
        raise InputError(
            f"the results have token ID {token_ids.max()}, and the tokens counted are {len(token_counts_V)};"
            " count those of the data that was measured"
        )
    return targets.assign(**{FREQUENCY: np.log(token_counts_V[token_ids] + 1.0)})


def mean_gaps(gaps: pd.DataFrame) -> pd.DataFrame:
    """Both gaps of `gap.gaps.expected_gaps`, and what the expected one says of the drawn one: a row a model.

    Returns:
        model, num_targets, num_documents, then with intervals generalization_gap, expected_gap,
        floor_divergence (means, nats) and calibration_slope: nats of the drawn gap for each of the expected
        one, over targets; 1 where the expected gap can stand for the drawn one, NaN where no slope can be
        estimated.
    """
    names = ("generalization_gap", "expected_gap", "floor_divergence")

    def means(targets: pd.DataFrame) -> dict[Hashable, Any]:
        drawn_T, expected_T = (targets[name].to_numpy(dtype="float64") for name in names[:2])
        documents_T = targets["document_id"].to_numpy()
        slope = cluster_robust_slope(drawn_T, expected_T, np.empty((len(targets), 0)), documents_T)
        return mean_columns(targets, *names) | interval_columns(CALIBRATION, slope)

    return summarized(gaps, ["model"], means, sort=False)


def few_and_many(targets: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """The gap where the studied k suffice and where they do not, in nats and as a share of the gain.

    Args:
        targets: of `gap_targets`.
        measured: of `gap.gaps.sparsity_measures`, one measure.

    Returns:
        A row a model: model, num_few and num_many (targets that have a k*, and that need more), then with
        intervals few_less_many (of mean gaps, nats), few_share and many_share (of the summed gain).
    """
    gains = measured[measured["dependency_sparsity"].notna() | measured["is_censored"]]
    both = targets.merge(gains[[*TARGET, "is_censored"]], on=TARGET)
    rows: list[dict[Hashable, Any]] = []
    for model, of_model in both.groupby("model", sort=False):
        few = ~of_model["is_censored"]
        gaps_T, few_T = of_model["generalization_gap"].to_numpy(), few.to_numpy(dtype="float64")
        documents_T = of_model["document_id"].to_numpy()
        difference = cluster_robust_slope(gaps_T, few_T, np.empty((len(few_T), 0)), documents_T)
        row: dict[Hashable, Any] = {"model": model, "num_few": int(few.sum()), "num_many": int((~few).sum())}
        row |= interval_columns("few_less_many", difference)
        for name, chosen in (("few_share", of_model[few]), ("many_share", of_model[~few])):
            share = interval_over_documents(chosen["document_id"], chosen["generalization_gap"], chosen[GAIN])
            row |= interval_columns(name, share)
        rows.append(row)
    return pd.DataFrame(rows)


def gap_slopes(targets: pd.DataFrame, measured: pd.DataFrame, largest_k: int) -> pd.DataFrame:
    """Slope of the gap on k*: a row a short model, measure, coding and adjustment.

    Args:
        targets: of `gap_targets`.
        measured: of `gap.gaps.sparsity_measures`, from another long-trained model than the gap.
        largest_k: the largest studied k.

    Returns:
        model, measure, coding, adjustment (of `ADJUSTMENTS`), num_targets, num_documents, slope with its
        interval (nats a doubling; NaN where it cannot be estimated).
    """
    rows = []
    for labels, chosen in _regressions(targets, measured, largest_k):
        labels |= sample_counts(chosen)
        for adjustment, names in ADJUSTMENTS.items():
            slope = cluster_robust_slope(*_variables(chosen, names))
            rows.append({**labels, "adjustment": adjustment, **interval_columns("slope", slope)})
    return pd.DataFrame(rows)


def expected_gap_slopes(
    targets: pd.DataFrame, expected: pd.DataFrame, measured: pd.DataFrame, largest_k: int
) -> pd.DataFrame:
    """`gap_slopes` of the expected gap, each row with its model's calibration slope on the drawn gap.

    `expected` is of `gap.gaps.expected_gaps`; targets without an expected gap are left out.
    """
    gaps = expected[["model", *TARGET, "expected_gap"]].rename(columns={"expected_gap": "generalization_gap"})
    replaced = targets.drop(columns="generalization_gap").merge(gaps, on=["model", *TARGET])
    calibration = [f"{CALIBRATION}{end}" for end in ("", "_low", "_high")]
    slopes = gap_slopes(replaced, measured, largest_k)
    return slopes.merge(mean_gaps(expected)[["model", *calibration]], on="model")


def permutation_tests(
    targets: pd.DataFrame, measured: pd.DataFrame, largest_k: int, seed: int = 0
) -> pd.DataFrame:
    """Whether gap and k* go together within documents and among targets about as hard.

    k* is permuted among the targets of a document that lie in the same third by L_short. Columns model,
    measure, coding, num_targets, num_documents, p_value (two-sided; NaN where nothing can be permuted).
    """
    rows = []
    for labels, chosen in _regressions(targets, measured, largest_k):
        ranks = chosen[DIFFICULTY].rank(method="first")
        # of a single target no quantiles differ
        thirds = pd.qcut(ranks, NUM_DIFFICULTY_STRATA, labels=False) if len(chosen) > 1 else ranks
        strata = chosen.groupby(["document_id", thirds.to_numpy()]).ngroup().to_numpy()
        gaps, sparsity = chosen["generalization_gap"].to_numpy(), chosen["sparsity"].to_numpy()
        p_value = permutation_p_value(gaps, sparsity, strata, seed=seed)
        rows.append({**labels, **sample_counts(chosen), "p_value": p_value})
    return pd.DataFrame(rows)


def _regressions(
    targets: pd.DataFrame, measured: pd.DataFrame, largest_k: int
) -> Iterator[tuple[dict[Hashable, Any], pd.DataFrame]]:
    """What each regression is of, and its targets with the column `sparsity`."""
    of_k = measured[TARGET].drop_duplicates()
    if joined_on_common(targets, of_k, TARGET, "targets of the gap and of k*").empty:
        raise InputError(
            "no target is common to the gaps and the dependency sparsity; measure them on the same documents"
        )
    for model, of_model in targets.groupby("model", sort=False):
        for measure in measures_in_order(measured):
            of_measure = measured[measured["measure"] == measure]
            for coding in CODINGS:
                sparsity = of_measure[TARGET].assign(sparsity=coded_sparsity(of_measure, coding, largest_k))
                chosen = of_model.merge(sparsity.dropna(), on=TARGET)
                yield {"model": str(model), "measure": measure, "coding": coding}, chosen


def _variables(chosen: pd.DataFrame, controls: Sequence[str]) -> tuple[np.ndarray, ...]:
    """Gap, sparsity, those controls that are known, and document of each target."""
    present = [name for name in controls if name in chosen]
    controls_TC = chosen[present].to_numpy(dtype="float64").reshape(len(chosen), len(present))
    gaps_T, sparsity_T = chosen["generalization_gap"].to_numpy(), chosen["sparsity"].to_numpy()
    return gaps_T, sparsity_T, controls_TC, chosen["document_id"].to_numpy()


_ASIDE = 0.24  # between models, of a row or class


def gap_figure(
    gaps: pd.DataFrame, slopes: pd.DataFrame, labels: Mapping[str, drawing.ModelLabel], held: str,
    expected: pd.DataFrame | None = None,
) -> Figure:  # fmt: skip
    """The gap of each class of k*, and beside it how a doubling of k* changes it, other things held constant.

    Args:
        gaps, slopes: `gap.gaps.generalization_gap_by_sparsity` and `gap_slopes` of one measure.
        labels: of the models.
        held: what the slopes hold constant beside the gain, in words.
        expected: of `expected_gap_slopes`, one measure; None: it was not measured.
    """
    figure, (gap_ax, slope_ax) = drawing.panels(2, 3.1)
    among = slopes[slopes["coding"] == AMONG_REACHED]
    is_large = gaps.groupby("category")["num_targets"].transform("min") >= drawing.FEWEST_TARGETS
    _draw_gaps_by_class(gaps[is_large], gap_ax, labels)
    adjustments = {"nothing": NO_CONTROLS, held: ALL_CONTROLS, f"{held}\nand the gain": WITH_GAIN}
    rows = {name: among[among["adjustment"] == adjustment] for name, adjustment in adjustments.items()}
    calibration = ""
    if expected is not None:
        is_shown = (expected["coding"] == AMONG_REACHED) & (expected["adjustment"] == WITH_GAIN)
        rows["the same,\nexpected gap"] = of_expected = expected[is_shown]
        of_models = ", ".join(str(interval_of(row, CALIBRATION)) for row in of_expected.to_dict("records"))
        calibration = f"nats of gap a nat of expected gap (1 is needed), from above: {of_models}"
    _draw_slopes(list(rows.values()), list(rows), slope_ax, labels)
    slope_ax.set_title("held constant:", loc="left")
    measure = measure_text(str(among["measure"].iloc[0]))
    left_out = "" if is_large.all() else f"classes of fewer than {drawing.FEWEST_TARGETS} left out"
    drawing.put_title(
        figure, "Does the generalization gap rise with k*?", drawing.sample_size(among), _size(among, labels),
        f"k* by {measure}", drawing.BARS, left_out, calibration,
    )  # fmt: skip
    return figure


def _draw_gaps_by_class(gaps: pd.DataFrame, ax: Axes, labels: Mapping[str, drawing.ModelLabel]) -> None:
    """Mean generalization gap of each class of k*, short-trained models beside each other, n below."""
    categories, models = (list(dict.fromkeys(gaps[name])) for name in ("category", "model"))
    ends, is_class = [], np.array([category != NO_GAIN for category in categories], dtype=bool)
    for place, model in enumerate(models):
        rows = gaps[gaps["model"] == model].set_index("category").loc[categories]
        x = np.arange(len(categories)) + _ASIDE * drawing.beside(place, len(models))
        style, name = labels[model].style, labels[model].text.replace(", ", ",\n")
        points = style.measured | {"linestyle": "none"}
        ends.append(drawing.draw_line(ax, x, rows, "generalization_gap", points, name))
        ax.plot(x[is_class], rows["generalization_gap"][is_class], color=style.color, linewidth=0.8)
    counts = gaps.groupby("category")["num_targets"].min()
    shorter = [name.replace("more than ", ">").replace(NO_GAIN, "none") for name in categories]
    names = [f"{name}\n{counts[category]:,}" for name, category in zip(shorter, categories, strict=True)]
    ax.set_xticks(range(len(categories)), names)
    ax.axhline(0, color=drawing.BLACK, linewidth=0.6)
    ax.set_xlabel("k*: tokens needed for 0.9 of the gain\nand number of targets (none: no gain)")
    ax.set_ylabel("generalization gap (nats)")
    drawing.label_line_ends(ax, ends)


def _draw_slopes(
    rows: Sequence[pd.DataFrame], names: Sequence[str], ax: Axes, labels: Mapping[str, drawing.ModelLabel]
) -> None:
    """Slopes in rows from above, a table of `gap_slopes` a row, models below each other in it."""
    for height, of_row in enumerate(rows):
        heights = height + _ASIDE * drawing.beside(np.arange(len(of_row)), len(of_row))
        styles = [labels[model].style.measured for model in of_row["model"]]
        drawing.draw_points(ax, heights, of_row, "slope", styles)
    ax.axvline(0, color=drawing.BLACK, linewidth=0.6)
    ax.set_yticks(range(len(rows)), names)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.set_xlabel("nats a doubling of k*")


def _size(slopes: pd.DataFrame, labels: Mapping[str, drawing.ModelLabel]) -> str:
    return drawing.common_size(labels[model] for model in slopes["model"].unique())
