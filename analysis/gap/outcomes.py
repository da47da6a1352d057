"""Do short-trained models lose more where a prediction needs more far tokens? The slope of the gap.

    gap = L_short - L_long ~ mean_log2_k + controls        nats a doubling

L is the loss under the long context, a mean over the short-trained seeds less the mean over other
long-trained ones. The controls are natural splines of log D(0), what the far context is worth to the judges
by the divergence, and of the judges' gain by the loss (L_short - L_long), and straight lines of their loss
under the long context, the target token's log frequency, its position and the source of the text. The
preregistered studies, whose other outcomes, negative control and decision were made at commit 9a5d093, are
read once more in analysis/figures/length_failures.py.

Targets of a text are not independent, nor are a seed's. A model's slope is linear in its outcome, so that of
a pair of seeds is a difference, a_p - b_q, and the variance of its mean over all pairs is

    V = V_text + (S²_a - E_a)+ / n_a + (S²_b - E_b)+ / n_b

V_text: over texts, the seeds as they are (CR2: Bell and McCaffrey 2002; Pustejovsky and Tipton 2018). S²: the
variance between the seeds' slopes of a role, a crossed random effect. E: what texts explain of it, the mean
V_text of one seed less the mean covariance of two, which is taken off as in two-way clustering (Cameron,
Gelbach and Miller 2011). ( )+ is 0 where it is negative; a role of one seed has the other role's S² - E. The
interval is Student's with Satterthwaite's degrees of freedom, from Bell and McCaffrey's of V_text and, of S²,
the seeds less one.

Shapes: T targets, G texts, M models, J judges, C controls, P parameters.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis import drawing
from analysis.read import (
    MeasuredText,
    complete_rows,
    interval_cell,
    interval_columns,
    interval_over_documents,
    joined_on_common,
    models_by_training,
    rows_of,
    sees_answer,
    shown_rule,
)
from pipeline.cli import InputError
from pipeline.measuring.rules import CONTROLS
from pipeline.results.read import read_artefact
from pipeline.results.schemas import DIVERGENCE
from pipeline.results.statistics import Interval
from pipeline.text.folder import MANIFEST_FILE, TokenizedData, training_token_counts

KEYS = ["document_id", "target_position"]
SPARSITY = "mean_log2_k"
PLACEBO = "placebo"
"""A long-context model in the preregistered studies' kept targets."""
SPLINE_DEGREES = 4
"""Of each natural spline: knots at the ends and at both terciles, straight beyond them."""
LEAST_DIVERGENCE = 0.1
"""Total effect to each evaluator, nats, below which there is nothing to recover."""
MEASURED = "long_context_loss"
FEWEST_DOCUMENTS = 10
"""Standard errors over fewer clusters are too small to be called robust (Cameron and Miller 2015)."""
_NOTHING = 1e-9  # relative: what rounding leaves of a column that others determine


def judged(sparsity: pd.DataFrame) -> pd.DataFrame:
    """The rows of dependency_sparsity, all of one rule and criterion, whose judge chose no tokens."""
    choosers = sparsity["model"].unique()
    if len(choosers) > 1:
        raise InputError(f"tokens chosen by {' and by '.join(choosers)} need a results folder each")
    is_chooser = sparsity["judge"].isin("+".join(choosers).split("+"))
    if is_chooser.all():
        raise InputError("no model that chose no tokens has judged them; run influential_tokens with judges")
    return sparsity[~is_chooser]


def outcome_targets(
    sparsity: pd.DataFrame,
    losses: pd.DataFrame,
    models: Sequence[str],
    token_counts_V: np.ndarray | None = None,
    sources: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """A row a target: its sparsity to each judge, what is held constant, and the loss of each model.

    Args:
        sparsity: of `judged`.
        losses: loss_differences of the judges and of `models`.
        token_counts_V: how often each token ID occurs in the training text.
        sources: document_id -> where the text is from. Where one of both is None, its column is missing, and
            not held constant.

    Returns:
        document_id, target_position, "mean_log2_k of JUDGE" (doublings; null where there is too little to
        bring back), divergence and least_divergence (mean and least D(0), nats), gain and difficulty (the
        judges' mean loss_difference and long_context_loss, nats), position (tokens), log_token_count (natural
        log of count + 1), source, "long_context_loss of MODEL" (nats).
    """
    far = sparsity.pivot(index=KEYS, columns="judge", values=SPARSITY).astype("float64")
    stakes = sparsity.pivot(index=KEYS, columns="judge", values="gain").astype("float64")
    of_judges = pd.concat([rows_of(losses, judge) for judge in sparsity["judge"].unique()])
    held = of_judges.groupby(KEYS).agg(
        gain=("loss_difference", "mean"),
        difficulty=("long_context_loss", "mean"),
        position=("num_long_context_tokens", "first"),
        token_id=("target_token_id", "first"),
    )
    token_ids = held.pop("token_id")
    if token_counts_V is not None:
        held["log_token_count"] = np.log(token_counts_V[token_ids] + 1.0)
    of_models = pd.concat([rows_of(losses, model) for model in models])
    outcomes = of_models.pivot(index=KEYS, columns="model", values=MEASURED).astype("float64")
    known = complete_rows(held.join(outcomes.add_prefix(f"{MEASURED} of ")), f"targets with {MEASURED}")
    found = far.add_prefix(f"{SPARSITY} of ")
    found = found.assign(divergence=stakes.mean(axis=1), least_divergence=stakes.min(axis=1))
    what = f"targets with {SPARSITY} and with {MEASURED}"
    targets = joined_on_common(found.reset_index(), known.reset_index(), KEYS, what, may_right_have_more=True)
    return targets if sources is None else targets.assign(source=targets["document_id"].map(sources))


Trainings = Mapping[str, Sequence[str]]
"""How short-trained models were trained, in words -> the seeds."""


def compared_models(
    results: Path, long_models: Sequence[str] = (), short_models: Sequence[str] = ()
) -> tuple[pd.DataFrame, Trainings, list[str]]:
    """Whom any results can compare: rows of `judged`, the short-trained models, and other long-trained ones.

    The rows are by the divergence, of the most trusted rule that is blind to the answer. The long-trained
    models are those that neither chose its tokens nor judged them. Models: as `models_by_training` has them.

    Raises:
        InputError: says which model or measurement the results lack.
    """
    columns = [*KEYS, "rule", "judge", "criterion", "gain", SPARSITY]
    rows = read_artefact(results, "dependency_sparsity", columns, {"criterion": [DIVERGENCE]})
    rows = rows[~rows["rule"].isin(CONTROLS) & ~rows["rule"].map(sees_answer).astype(bool)]
    if rows[SPARSITY].isna().all():
        raise InputError(f"no rule that is blind to the answer has {SPARSITY}; run influential_tokens anew")
    rows = judged(rows[rows["rule"] == shown_rule(rows["rule"])])
    judges = set(rows["judge"])
    choosers = rows["model"].iloc[0].split("+")
    labels = drawing.model_labels(results, "loss_differences")
    if unknown := judges - labels.keys():
        raise InputError(f"the loss differences of the judge {min(unknown)} are missing")
    longs, shorts = models_by_training(results, long_models, short_models)
    if not shorts:
        raise InputError("no model was trained at a short context; name one with --short-models")
    if not (others := [model for model in longs if model not in judges.union(choosers)]):
        raise InputError("a long-trained model that neither chose tokens nor judged them is missing")
    at_stake = rows[rows[SPARSITY].notna() & (rows["gain"] >= LEAST_DIVERGENCE)]
    if (num_documents := at_stake["document_id"].nunique()) < FEWEST_DOCUMENTS:
        raise InputError(f"{num_documents} texts have {SPARSITY}, and an interval needs {FEWEST_DOCUMENTS}")
    trainings: dict[str, list[str]] = {}
    for model in shorts:
        trainings.setdefault(labels[model].training, []).append(model)
    return rows, trainings, others


def gap_targets(
    results: Path, data: Path | None = None, long_models: Sequence[str] = (), short_models: Sequence[str] = ()
) -> tuple[pd.DataFrame, Trainings, list[str]]:
    """`outcome_targets` of the gap between the models of `compared_models`, and these, short and long.

    How frequent a token is, and where a text is from, is held constant where the tokenized data is at hand:
    in the folder `data`, or in that of this name beside the results.
    """
    sparsity, trainings, long = compared_models(results, long_models, short_models)
    losses = read_artefact(results, "loss_differences")
    of_data = dict[str, Any]()
    if data is not None or (results.parent / "data" / MANIFEST_FILE).is_file():
        of_data = held_of_data(MeasuredText.open(results, "loss_differences", data).data)
    models = [*chain(*trainings.values()), *long]
    return outcome_targets(sparsity, losses, models, **of_data), trainings, long


def held_of_data(data: TokenizedData) -> dict[str, Any]:
    """What `outcome_targets` takes of the tokenized data: token_counts_V and sources."""
    urls = {document.document_id: document.url or "" for document in data.evaluation_documents()}
    sources = {name: "Wikipedia" if "wikipedia.org/" in url else "C4" for name, url in urls.items()}
    return {"token_counts_V": training_token_counts(data), "sources": sources}


def of_measured(table: pd.DataFrame, measured: str) -> tuple[pd.DataFrame, list[str], list[str]]:
    """Rows of the table outcome_targets as `outcome_targets` gives them, one of its `measured`.

    Models are called by role and number: these names follow, of the short- and of the long-trained.
    """
    rows = table[table["measured"] == measured].reset_index(drop=True)
    wide = {f"{measured} of {PLACEBO}": rows["placebo"].astype("float64")}
    names = {}
    for role in ("short_trained", "long_trained", SPARSITY):
        values = np.stack(rows[role].to_list()).astype("float64")
        what, whose = (measured, role) if role.endswith("_trained") else (role, "judge")
        names[role] = [f"{whose} {index}" for index in range(values.shape[1])]
        wide |= {
            f"{what} of {name}": pd.Series(values[:, index], rows.index)
            for index, name in enumerate(names[role])
        }
    return rows.assign(**wide), names["short_trained"], names["long_trained"]


def of_each(targets: pd.DataFrame, name: str) -> pd.DataFrame:
    """The columns "NAME of MODEL" of `outcome_targets`, called by the models."""
    columns = [column for column in map(str, targets) if column.startswith(f"{name} of ")]
    return targets[columns].rename(columns=lambda column: column.removeprefix(f"{name} of "))


def with_sparsity(targets: pd.DataFrame, least_divergence: float = LEAST_DIVERGENCE) -> pd.DataFrame:
    """The targets that have a sparsity and at least so much at stake, nats, to each judge."""
    is_known = of_each(targets, SPARSITY).notna().all(axis=1)
    return targets[is_known & (targets["least_divergence"] >= least_divergence)].reset_index(drop=True)


def controls_of(targets: pd.DataFrame) -> np.ndarray:
    """What every outcome holds constant: float64 [T, C]."""
    from patsy import dmatrix  # late: few who read figures fit a regression

    values = {"stake": np.log(targets["divergence"].to_numpy()), "gain": targets["gain"].to_numpy()}
    splines = [dmatrix(f"cr({name}, df={SPLINE_DEGREES}) - 1", values) for name in values]
    names = [name for name in ("difficulty", "log_token_count", "position", "source") if name in targets]
    return np.hstack([*splines, pd.get_dummies(targets[names]).to_numpy(dtype="float64")])


@dataclass(frozen=True, eq=False)
class Slopes:
    """Of each model's own outcome, all by one design."""

    models: Sequence[str]
    slopes_M: np.ndarray
    covariance_MM: np.ndarray
    """Over texts."""
    degrees_of_freedom: float


class Design:
    """A regression whose algebra is done once, whatever is regressed: a slope is linear in its outcome."""

    def __init__(
        self,
        regressors_TJ: np.ndarray,
        controls_TC: np.ndarray,
        texts_T: np.ndarray,
        weights_T: np.ndarray | None = None,
    ) -> None:
        """Name what the slope is on, as each judge has it, and what is held constant beside an intercept.

        Controls may determine each other. `texts_T`: any labels; `weights_T`: None where all weigh the same.
        """
        codes_T = np.unique(texts_T, return_inverse=True)[1]
        self._order = np.argsort(codes_T, kind="stable")  # from here on a text's targets are neighbours
        self._starts_G = np.flatnonzero(np.diff(codes_T[self._order], prepend=-1))
        self.num_texts = len(self._starts_G)
        weights_T = np.ones(len(codes_T)) if weights_T is None else weights_T
        self._root_T1 = np.sqrt(weights_T)[self._order, None]
        varying_TC = controls_TC[:, np.ptp(controls_TC, axis=0) > 0]
        varying_TC = (varying_TC - varying_TC.mean(axis=0)) / varying_TC.std(axis=0)
        held_TC = self._ordered(np.column_stack([np.ones(len(codes_T)), varying_TC]))
        basis_TC, sizes_C, _ = np.linalg.svd(held_TC, full_matrices=False)
        self._held_TC = basis_TC[:, sizes_C > _NOTHING * sizes_C[0]]
        self._regressors_TJ = self._beyond_controls(self._ordered(regressors_TJ))

    def _ordered(self, values_TX: np.ndarray) -> np.ndarray:
        return self._root_T1 * values_TX[self._order]

    def _beyond_controls(self, values_TX: np.ndarray) -> np.ndarray:
        return values_TX - self._held_TC @ (self._held_TC.T @ values_TX)

    def _by_text(self, values_TX: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values_TX, self._starts_G, axis=0)

    def least_squares(self, outcomes: pd.DataFrame) -> Slopes:
        """Slopes on the judges' mean, with CR2 covariance; `outcomes` has a column a model."""
        slope_T, adjusted_T, basis_TP, degrees_of_freedom = self._adjusted
        outcomes_TM = self._ordered(outcomes.to_numpy())
        residuals_TM = outcomes_TM - basis_TP @ (basis_TP.T @ outcomes_TM)
        scores_GM = self._by_text(adjusted_T[:, None] * residuals_TM)
        return Slopes(
            outcomes.columns.tolist(), slope_T @ outcomes_TM, scores_GM.T @ scores_GM, degrees_of_freedom
        )

    @cached_property
    def _adjusted(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """The w of slope = w'y; CR2's (I - H_gg)^(-1/2) w of each text; a basis; degrees of freedom."""
        mean_T = self._regressors_TJ.mean(axis=1)
        slope_T = mean_T / (mean_T @ mean_T)
        basis_TP = np.column_stack([self._held_TC, mean_T / np.sqrt(mean_T @ mean_T)])
        adjusted_T = slope_T.copy()
        for start, end in zip(self._starts_G, [*self._starts_G[1:], len(mean_T)], strict=True):
            own_TP = basis_TP[start:end]  # H_gg is its product with itself: P eigenvalues tell all of it
            values_P, vectors_PP = np.linalg.eigh(own_TP.T @ own_TP)
            root_P = np.sqrt(np.maximum(1 - values_P, _NOTHING))
            # (1 / root - 1) / value; of a value of 1 by the generalized inverse, where 1 / root is 0.
            change_P = np.where(values_P < 1 - _NOTHING, 1 / (root_P * (1 + root_P)), -1.0)
            projected_P = vectors_PP.T @ (own_TP.T @ slope_T[start:end])
            adjusted_T[start:end] += own_TP @ (vectors_PP @ (change_P * projected_P))
        # V is Σ (p_g'y)², p_g'p_h = δ_gh a_g'a_g - q_g'q_h: its mean and variance for independent targets.
        squares_G = self._by_text(adjusted_T**2)
        projected_GP = self._by_text(adjusted_T[:, None] * basis_TP)
        lengths_G = (projected_GP**2).sum(axis=1)
        inner_PP = projected_GP.T @ projected_GP
        mean = (squares_G - lengths_G).sum()
        half_variance = squares_G @ squares_G - 2 * squares_G @ lengths_G + (inner_PP**2).sum()
        return slope_T, adjusted_T, basis_TP, float(mean**2 / half_variance)

    def slope_and_rest(self, outcome_T: np.ndarray) -> tuple[float, np.ndarray]:
        """The slope of one outcome, and what slope and controls leave of it, as given: float64 [T]."""
        slope_T, _, basis_TP, _ = self._adjusted
        values_T1 = self._ordered(outcome_T[:, None])
        rest_T = np.empty(len(outcome_T))
        left_T1 = values_T1 - basis_TP @ (basis_TP.T @ values_T1)
        rest_T[self._order] = (left_T1 / self._root_T1)[:, 0]
        return float(slope_T @ values_T1[:, 0]), rest_T


Row = dict[Hashable, Any]


def contrast(found: Slopes, first: Sequence[str], second: Sequence[str]) -> Row:
    """The mean slope over all pairs of a model of `first` and one of `second`, as columns of `outcomes`.

    Where both are single models, how seeds differ is not known and not in the interval.
    """
    from scipy.stats import t  # late: it is slow to load

    roles = [[found.models.index(model) for model in models] for models in (first, second)]
    weights_M = np.array([(m in first) / len(first) - (m in second) / len(second) for m in found.models])
    text_variance = weights_M @ found.covariance_MM @ weights_M
    seed_variance = 0.0
    squares = text_variance**2 / found.degrees_of_freedom
    for models, others in (roles, roles[::-1]):
        if (num_models := len(models)) > 1:
            share = 1 / num_models + (1 if len(others) == 1 else 0)  # a single one differs as these do
            spread = found.slopes_M[models].var(ddof=1)
            covariance_MM = found.covariance_MM[np.ix_(models, models)]
            own = num_models * np.trace(covariance_MM) - covariance_MM.sum()
            if (beyond := spread - own / (num_models * (num_models - 1))) > 0:
                seed_variance += share * beyond
                squares += (share * spread) ** 2 / (num_models - 1)
    variance = text_variance + seed_variance
    slope = weights_M @ found.slopes_M
    error = np.sqrt(variance)
    degrees_of_freedom = variance**2 / squares
    half = t.ppf(0.975, degrees_of_freedom) * error
    return {
        **interval_columns("slope", Interval(slope, slope - half, slope + half)),
        "text_error": np.sqrt(text_variance),
        "seed_error": np.sqrt(seed_variance),
        "degrees_of_freedom": degrees_of_freedom,
        "p_value": 2 * t.sf(abs(slope) / error, degrees_of_freedom),
        "pair_slopes": np.subtract.outer(*(found.slopes_M[models] for models in roles)).ravel().tolist(),
    }


def gap_slope(targets: pd.DataFrame, *, short: Sequence[str], long: Sequence[str]) -> Row:
    """`contrast` of the losses of short- and long-trained models, with counts and the judges' agreement.

    Args:
        targets: of `outcome_targets`; those without a sparsity to each judge, or with less than 0.1 nats at
            stake, are counted and left out.
    """
    known = with_sparsity(targets)
    sparsity = of_each(known, SPARSITY)
    num_documents = known["document_id"].nunique()
    if num_documents < FEWEST_DOCUMENTS:
        raise InputError(f"{num_documents} texts have {SPARSITY}, and an interval needs {FEWEST_DOCUMENTS}")
    pairs = np.triu_indices(sparsity.shape[1], 1)
    found = design_of(known).least_squares(of_each(known, MEASURED))
    return {
        "num_targets": len(known),
        "num_documents": num_documents,
        "num_left_out": len(targets) - len(known),
        "spearman": float(sparsity.corr("spearman").to_numpy()[pairs].mean()),
        **contrast(found, short, long),
    }


def design_of(known: pd.DataFrame) -> Design:
    """The regression on the judges' mean sparsity with all controls held constant."""
    return Design(of_each(known, SPARSITY).to_numpy(), controls_of(known), known["document_id"].to_numpy())


def binned(
    targets: pd.DataFrame, *, short: Sequence[str], long: Sequence[str], num_bins: int = 8
) -> pd.DataFrame:
    """The gap against mean_log2_k with the controls held: a row a bin of equally many targets.

    Partial residuals: what the regression leaves, with the slope's part and the gap's mean.

    Returns:
        mean_log2_k (the bin's mean), gap with its interval over texts, num_targets, num_documents.
    """
    known = with_sparsity(targets)
    losses = of_each(known, MEASURED)
    sparsity = of_each(known, SPARSITY).mean(axis=1)
    gap = losses[list(short)].mean(axis=1) - losses[list(long)].mean(axis=1)
    slope, rest_T = design_of(known).slope_and_rest(gap.to_numpy())
    held = gap.mean() + slope * (sparsity - sparsity.mean()) + rest_T
    rows = []
    bins = pd.qcut(sparsity, num_bins, labels=False, duplicates="drop")
    for places in held.groupby(bins).groups.values():
        texts = known.loc[places, "document_id"]
        interval = interval_over_documents(texts, held[places])
        rows.append(
            {
                SPARSITY: sparsity[places].mean(),
                "num_targets": len(places),
                "num_documents": texts.nunique(),
                **interval_columns("gap", interval),
            }
        )
    return pd.DataFrame(rows)


def gap_figure(bins: pd.DataFrame, slope: Row, models: str = "") -> Figure:
    """The figure of the project: `binned`, titled by what `gap_slope` says; `models` in words."""
    figure, (ax,) = drawing.panels(1, 3.0)
    style = drawing.TRAINED_POSE.measured
    drawing.draw_line(ax, bins[SPARSITY], bins, "gap", style, "short-trained less long-trained")
    ax.set_xlabel("tokens needed (mean log2 k, doublings)")
    ax.set_ylabel("gap (nats)")
    said = "Do short-trained models lose more where more tokens are needed?"
    if slope["slope_low"] > 0:
        said = "Short-trained models lose more where more tokens are needed"
    elif slope["slope_high"] < 0:
        said = "Short-trained models lose less where more tokens are needed"
    drawing.put_title(
        figure,
        said,
        models,
        drawing.sample_size(pd.DataFrame([slope])),
        f"{interval_cell(slope, 'slope')} nats per doubling, over documents and seeds",
        "without targets that have too little at stake",
        "stake, gain, difficulty, frequency, position and source held equal",
        drawing.BARS,
    )
    return figure
