"""Do short-trained models lose more where a prediction needs more far tokens: three outcomes, one decision.

    gap             L_short - L_long        ~ mean_log2_k + controls                           nats a doubling
    share           the same                ~ stake + stake · (mean_log2_k - mean) + controls  a share
    harm of length  harm_short - harm_long  ~ mean_log2_k within the last tokens + controls    nats a doubling

L is the loss under the long context and harm `length_harm`, each a mean over the short-trained seeds less
the mean over other long-trained ones. The stake is what the far context is worth to the judges: D(0), the
mean of theirs, by the divergence; it is positive and blind to the token that came. The controls are natural
splines of log D(0) and of the judges' gain by the loss (L_short - L_long), and straight lines of their loss
under the long context, the target token's log frequency, its position and the source of the text.

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
    interval_columns,
    interval_of,
    interval_over_documents,
    joined_on_common,
    models_by_training,
    rows_of,
    sees_answer,
    shown_rule,
)
from analysis.tokens.kinds import NO_REPEAT
from pipeline.cli import InputError
from pipeline.measuring.rules import CONTROLS
from pipeline.results.read import read_artefact
from pipeline.results.schemas import DIVERGENCE
from pipeline.results.statistics import Interval
from pipeline.text.folder import MANIFEST_FILE, TokenizedData, training_token_counts

KEYS = ["document_id", "target_position"]
SPARSITY = "mean_log2_k"
SHORT_TRAINED, PLACEBO = "short-trained", "placebo"
LEAST_SQUARES, INSTRUMENTED = "least squares", "other judge as instrument"
SPLINE_DEGREES = 4
"""Of each natural spline: knots at the ends and at both terciles, straight beyond them."""
PLANNED, LEAST_DIVERGENCE = "as planned", 0.1
"""The variant that decides, and its D(0) of both judges, nats: below there is nothing to bring back."""
FEWEST_DOCUMENTS = 10
"""Standard errors over fewer clusters are too small to be called robust (Cameron and Miller 2015)."""
_NOTHING = 1e-9  # relative: what rounding leaves of a column that others determine


@dataclass(frozen=True)
class Outcome:
    """What is regressed on mean_log2_k."""

    name: str
    measured: str
    """The column of loss_differences that each model has."""
    is_share: bool
    smallest_effect: float
    """Of interest, a doubling: written down before anything was measured."""


GAP = Outcome("gap", "long_context_loss", False, 0.02)
SHARE = Outcome("share of the stake", "long_context_loss", True, 0.05)
HARM = Outcome("harm of length", "length_harm", False, 0.01)  # half of the gap's: no sampled token is in it


def judged(sparsity: pd.DataFrame) -> pd.DataFrame:
    """The rows of dependency_sparsity, all of one rule and criterion, whose judge chose no tokens."""
    choosers = sparsity["model"].unique()
    if len(choosers) > 1:
        raise InputError(f"tokens chosen by {' and by '.join(choosers)} need a results folder each")
    is_chooser = sparsity["judge"].isin("+".join(choosers).split("+"))
    if is_chooser.all():
        raise InputError("no model that chose no tokens has judged them; run influential_tokens with judges")
    return sparsity[~is_chooser]


_INSTEAD = ("log2_half_sparsity", f"{SPARSITY}_by_loss")
"""What `variants` regress on in its place."""


def with_other_sparsities(of_divergence: pd.DataFrame, of_loss: pd.DataFrame) -> pd.DataFrame:
    """Rows of dependency_sparsity by the divergence, with log2 of k* at 0.5 and mean_log2_k by the loss."""
    by_loss = of_loss.set_index([*KEYS, "judge"])[SPARSITY].rename(f"{SPARSITY}_by_loss")
    half = np.log2(of_divergence["half_sparsity"].astype("float64"))
    return of_divergence.assign(log2_half_sparsity=half).join(by_loss, [*KEYS, "judge"])


def outcome_targets(
    sparsity: pd.DataFrame, losses: pd.DataFrame, *, measured: str, models: Sequence[str],
    token_counts_V: np.ndarray | None = None, sources: Mapping[str, str] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """A row a target: its sparsity to each judge, what is held constant, and what each model has of it.

    Args:
        sparsity: of `judged`, `with_other_sparsities` where `variants` are asked for.
        losses: loss_differences of the judges and of `models`, whose column `measured` makes the outcome.
        token_counts_V: how often each token ID occurs in the training text.
        sources: document_id -> where the text is from. Where one of both is None, its column is missing, and
            not held constant.

    Returns:
        document_id, target_position, "mean_log2_k of JUDGE" (doublings; null where there is too little to
        bring back), divergence and least_divergence (mean and least D(0), nats), gain and difficulty (the
        judges' mean loss_difference and long_context_loss, nats), position (tokens), log_token_count (natural
        log of count + 1), source, "MEASURED of MODEL" (nats).
    """
    names = [name for name in (SPARSITY, "gain", *_INSTEAD) if name in sparsity]
    of_judge = {
        name: sparsity.pivot(index=KEYS, columns="judge", values=name).astype("float64") for name in names
    }
    far, stakes = of_judge[SPARSITY], of_judge["gain"]
    of_judges = pd.concat([rows_of(losses, judge) for judge in sparsity["judge"].unique()])
    held = of_judges.groupby(KEYS).agg(
        gain=("loss_difference", "mean"), difficulty=("long_context_loss", "mean"),
        position=("num_long_context_tokens", "first"), token_id=("target_token_id", "first"),
    )  # fmt: skip
    token_ids = held.pop("token_id")
    if token_counts_V is not None:
        held["log_token_count"] = np.log(token_counts_V[token_ids] + 1.0)
    of_models = pd.concat([rows_of(losses, model) for model in models])
    outcomes = of_models.pivot(index=KEYS, columns="model", values=measured).astype("float64")
    known = complete_rows(held.join(outcomes.add_prefix(f"{measured} of ")), f"targets with {measured}")
    found = far.add_prefix(f"{SPARSITY} of ")
    found = found.assign(divergence=stakes.mean(axis=1), least_divergence=stakes.min(axis=1))
    for name in _INSTEAD:
        if name in of_judge and of_judge[name].notna().any(axis=None):
            found = found.join(of_judge[name].add_prefix(f"{name} of "))
    what = f"targets with {SPARSITY} and with {measured}"
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
    judges, choosers = set(rows["judge"]), rows["model"].iloc[0].split("+")
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
    losses, of_data = read_artefact(results, "loss_differences"), dict[str, Any]()
    if data is not None or (results.parent / "data" / MANIFEST_FILE).is_file():
        of_data = held_of_data(MeasuredText.open(results, "loss_differences", data).data)
    models = [*chain(*trainings.values()), *long]
    return outcome_targets(sparsity, losses, measured=GAP.measured, models=models, **of_data), trainings, long


def held_of_data(data: TokenizedData) -> dict[str, Any]:
    """What `outcome_targets` takes of the tokenized data: token_counts_V and sources."""
    urls = {document.document_id: document.url or "" for document in data.evaluation_documents()}
    sources = {name: "Wikipedia" if "wikipedia.org/" in url else "C4" for name, url in urls.items()}
    return {"token_counts_V": training_token_counts(data), "sources": sources}


def by_role(
    targets: pd.DataFrame, measured: str, *, short: Sequence[str], long: Sequence[str], placebo: str
) -> pd.DataFrame:
    """What `outcome_targets` gives, as the table of that name: lists over the judges, and a role's seeds."""
    of_models = of_each(targets, measured)
    lists = {"short_trained": of_models[list(short)], "long_trained": of_models[list(long)]}
    lists |= {name: of_each(targets, name) for name in (SPARSITY, *_INSTEAD)}
    as_lists = {name: list(values.to_numpy(dtype="float64")) for name, values in lists.items()}
    return targets.assign(measured=measured, placebo=of_models[placebo], **as_lists)


def of_measured(table: pd.DataFrame, measured: str) -> tuple[pd.DataFrame, list[str], list[str]]:
    """Rows of the table outcome_targets as `outcome_targets` gives them, one of its `measured`.

    Models are called by role and number: these names follow, of the short- and of the long-trained.
    """
    rows = table[table["measured"] == measured].reset_index(drop=True)
    wide, names = {f"{measured} of {PLACEBO}": rows["placebo"].astype("float64")}, {}
    for role in ("short_trained", "long_trained", SPARSITY, *_INSTEAD):
        values = np.stack(rows[role].to_list()).astype("float64")
        what, whose = (measured, role) if role.endswith("_trained") else (role, "judge")
        names[role] = [f"{whose} {index}" for index in range(values.shape[1])]
        wide |= {f"{what} of {name}": values[:, index] for index, name in enumerate(names[role])}
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
        self, regressors_TJ: np.ndarray, controls_TC: np.ndarray, texts_T: np.ndarray,
        weights_T: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Name what the slope is on, as each judge has it, and what is held constant beside an intercept.

        Controls may determine each other. `texts_T`: any labels; `weights_T`: None where all weigh the same.
        """
        codes_T = np.unique(texts_T, return_inverse=True)[1]
        self._order = np.argsort(codes_T, kind="stable")  # from here on a text's targets are neighbours
        self._starts_G = np.flatnonzero(np.diff(codes_T[self._order], prepend=-1))
        self.num_texts, self.num_judges = len(self._starts_G), regressors_TJ.shape[1]
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
        squares_G, projected_GP = self._by_text(adjusted_T**2), self._by_text(adjusted_T[:, None] * basis_TP)
        lengths_G, inner_PP = (projected_GP**2).sum(axis=1), projected_GP.T @ projected_GP
        mean = (squares_G - lengths_G).sum()
        half_variance = squares_G @ squares_G - 2 * squares_G @ lengths_G + (inner_PP**2).sum()
        return slope_T, adjusted_T, basis_TP, float(mean**2 / half_variance)

    def instrumented(self, outcomes: pd.DataFrame) -> Slopes:
        """Slopes by two-stage least squares: each judge's value is the instrument of every other's.

        A judge's error draws the slopes of `least_squares` to 0, and not these. All ordered pairs of judges
        are stacked (Gillen, Snowberg, Yariv 2019); the covariance is Liang and Zeger's times G / (G - 1).
        """
        outcomes_TM, sum_T = self._ordered(outcomes.to_numpy()), self._regressors_TJ.sum(axis=1)
        products_T = sum_T**2 - (self._regressors_TJ**2).sum(axis=1)  # of two judges, over ordered pairs
        slope_T = (self.num_judges - 1) * sum_T / products_T.sum()
        slopes_M = slope_T @ outcomes_TM
        scores_TM = slope_T[:, None] * self._beyond_controls(outcomes_TM)
        scores_GM = self._by_text(scores_TM - np.outer(products_T / products_T.sum(), slopes_M))
        covariance_MM = self.num_texts / (self.num_texts - 1) * scores_GM.T @ scores_GM
        return Slopes(outcomes.columns.tolist(), slopes_M, covariance_MM, self.num_texts - 1)

    def slope_and_rest(self, outcome_T: np.ndarray) -> tuple[float, np.ndarray]:
        """The slope of one outcome, and what slope and controls leave of it, as given: float64 [T]."""
        slope_T, _, basis_TP, _ = self._adjusted
        values_T1, rest_T = self._ordered(outcome_T[:, None]), np.empty(len(outcome_T))
        left_T1 = values_T1 - basis_TP @ (basis_TP.T @ values_T1)
        rest_T[self._order] = (left_T1 / self._root_T1)[:, 0]
        return float(slope_T @ values_T1[:, 0]), rest_T


def design_of(targets: pd.DataFrame, outcome: Outcome, weights_T: np.ndarray | None = None) -> Design:
    """The regression of an outcome; `targets` are of `outcome_targets`, and each judge has its sparsity."""
    sparsity_TJ, controls_TC = of_each(targets, SPARSITY).to_numpy(), controls_of(targets)
    if outcome.is_share:
        stake_T1 = targets[["divergence"]].to_numpy()
        sparsity_TJ = stake_T1 * (sparsity_TJ - sparsity_TJ.mean())
        controls_TC = np.hstack([controls_TC, stake_T1])
    return Design(sparsity_TJ, controls_TC, targets["document_id"].to_numpy(), weights_T)


Row = dict[Hashable, Any]


def contrast(found: Slopes, first: Sequence[str], second: Sequence[str]) -> Row:
    """The mean slope over all pairs of a model of `first` and one of `second`, as columns of `outcomes`.

    Where both are single models, how seeds differ is not known and not in the interval.
    """
    from scipy.stats import t  # late: it is slow to load

    roles = [[found.models.index(model) for model in models] for models in (first, second)]
    weights_M = np.array([(m in first) / len(first) - (m in second) / len(second) for m in found.models])
    text_variance = weights_M @ found.covariance_MM @ weights_M
    seed_variance, squares = 0.0, text_variance**2 / found.degrees_of_freedom
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
    slope, error, degrees_of_freedom = weights_M @ found.slopes_M, np.sqrt(variance), variance**2 / squares
    half = t.ppf(0.975, degrees_of_freedom) * error
    return {
        **interval_columns("slope", Interval(slope, slope - half, slope + half)),
        "text_error": np.sqrt(text_variance), "seed_error": np.sqrt(seed_variance),
        "degrees_of_freedom": degrees_of_freedom,
        "p_value": 2 * t.sf(abs(slope) / error, degrees_of_freedom),
        "pair_slopes": np.subtract.outer(*(found.slopes_M[models] for models in roles)).ravel().tolist(),
    }  # fmt: skip


def contrasts(
    design: Design, outcomes: pd.DataFrame, *, short: Sequence[str], long: Sequence[str], placebo: str | None
) -> list[Row]:
    """`contrast` of the short-trained and the placebo with the long-trained; the former instrumented too."""
    found = design.least_squares(outcomes)
    rows = [{"compared": SHORT_TRAINED, "estimator": LEAST_SQUARES, **contrast(found, short, long)}]
    if placebo is not None:
        rows.append({"compared": PLACEBO, "estimator": LEAST_SQUARES, **contrast(found, [placebo], long)})
    if design.num_judges > 1:
        found = design.instrumented(outcomes)
        rows.append({"compared": SHORT_TRAINED, "estimator": INSTRUMENTED, **contrast(found, short, long)})
    return rows


def outcome_rows(
    targets: pd.DataFrame, outcome: Outcome, *, short: Sequence[str], long: Sequence[str],
    placebo: str | None = None, variant: str = PLANNED, least_divergence: float = LEAST_DIVERGENCE,
    weighs_stake: bool = False,
) -> list[Row]:  # fmt: skip
    """`contrasts` of the targets of `outcome_targets`, with counts and how far two judges agree.

    Targets without a sparsity to each judge, or with less at stake, are counted and left out; `targets` may
    be fewer than were read.

    Args:
        variant: what the rows are called; PLANNED decides.
        least_divergence: D(0) that each judge must have of a target, nats.
        weighs_stake: whether targets weigh as much as their D(0).
    """
    known = with_sparsity(targets, least_divergence)
    sparsity, num_documents = of_each(known, SPARSITY), known["document_id"].nunique()
    if num_documents < FEWEST_DOCUMENTS:
        what = f"{SPARSITY} and {outcome.measured}"
        raise InputError(f"{num_documents} texts have {what}, and an interval needs {FEWEST_DOCUMENTS}")
    pairs = np.triu_indices(sparsity.shape[1], 1)
    common = {
        "outcome": outcome.name, "variant": variant, "smallest_effect": outcome.smallest_effect,
        "num_targets": len(known), "num_documents": num_documents, "num_left_out": len(targets) - len(known),
        **{kind: float(sparsity.corr(kind).to_numpy()[pairs].mean()) for kind in ("pearson", "spearman")},
    }  # fmt: skip
    weights_T = known["divergence"].to_numpy() if weighs_stake else None
    design, outcomes = design_of(known, outcome, weights_T), of_each(known, outcome.measured)
    return [common | row for row in contrasts(design, outcomes, short=short, long=long, placebo=placebo)]


def variants(targets: pd.DataFrame, outcome: Outcome, **roles: Any) -> list[Row]:
    """The short-trained models' rows of `outcome_rows`, otherwise than planned; none of them decides.

    Args:
        targets: with "log2_half_sparsity of JUDGE" and "mean_log2_k_by_loss of JUDGE" where they are known,
            and "follows" of `tokens/kinds.py` for the variant away from repeated phrases.
        roles: short and long, as `outcome_rows` takes them.
    """
    rows = []
    for least in (0.0, 0.05, 0.2):
        name = f"D(0) of at least {least} nats" if least else "any D(0)"
        rows += outcome_rows(targets, outcome, variant=name, least_divergence=least, **roles)
    rows += outcome_rows(targets, outcome, variant="weighed by the stake", weighs_stake=True, **roles)
    if 0 < (targets["source"] == "Wikipedia").sum() < len(targets):
        c4 = targets[targets["source"] == "C4"]
        rows += outcome_rows(c4, outcome, variant="without Wikipedia", **roles)
    if "follows" in targets:
        calm = targets[targets["follows"] == NO_REPEAT]
        rows += outcome_rows(calm, outcome, variant="not after a repeated bigram", **roles)
    for column, name in (("log2_half_sparsity", "k* at 0.5"), (f"{SPARSITY}_by_loss", "by the loss")):
        if len(other := of_each(targets, column).columns):
            renamed = {f"{column} of {judge}": f"{SPARSITY} of {judge}" for judge in other}
            instead = targets.drop(columns=list(renamed.values())).rename(columns=renamed)
            rows += outcome_rows(instead, outcome, variant=name, **roles)
    return [row for row in rows if row["estimator"] == LEAST_SQUARES]


def binned(
    targets: pd.DataFrame, outcome: Outcome, *, short: Sequence[str], long: Sequence[str],
    placebo: str | None = None, num_bins: int = 8,
) -> pd.DataFrame:  # fmt: skip
    """The outcome against mean_log2_k with the controls held: a row a bin of equally many targets.

    Partial residuals: what the regression leaves, with the slope's part and the outcome's mean.

    Returns:
        compared, mean_log2_k (the bin's mean), outcome with its interval over texts, num_targets,
        num_documents; short-trained first, then the placebo where there is one.
    """
    known = with_sparsity(targets)
    design, outcomes = design_of(known, outcome), of_each(known, outcome.measured)
    sparsity = of_each(known, SPARSITY).mean(axis=1)
    bins, rows = pd.qcut(sparsity, num_bins, labels=False, duplicates="drop"), []
    roles = {SHORT_TRAINED: list(short)} | ({} if placebo is None else {PLACEBO: [placebo]})
    for compared, models in roles.items():
        gap = outcomes[models].mean(axis=1) - outcomes[list(long)].mean(axis=1)
        slope, rest_T = design.slope_and_rest(gap.to_numpy())
        held = gap.mean() + slope * (sparsity - sparsity.mean()) + rest_T
        for _, places in held.groupby(bins).groups.items():
            texts = known.loc[places, "document_id"]
            interval = interval_over_documents(texts, held[places])
            rows.append({
                "compared": compared, SPARSITY: sparsity[places].mean(), "num_targets": len(places),
                "num_documents": texts.nunique(), **interval_columns("outcome", interval),
            })  # fmt: skip
    return pd.DataFrame(rows)


_SAID = {
    "": "Do short-trained models lose more where more tokens are needed?",
    "support": "Short-trained models lose more where more tokens are needed",
    "refuted at this size": "Short-trained models do not lose more where more tokens are needed",
}
"""Decision -> the title that tells it; what is open, `_what_is_open` tells."""


def _what_is_open(rows: Mapping[Hashable, Row]) -> str:
    """Of `rows`, by outcome, whose interval excludes the smallest effect of interest, and whose does not."""
    above, below = (
        [outcome.name for outcome in (GAP, HARM) if sign * rows[outcome.name][f"slope_{end}"] > 0]
        for sign, end in ((1, "low"), (-1, "high"))
    )
    if above and below:
        return f"Open: the slope of the {above[0]} is above 0, that of the {below[0]} below"
    of_names: dict[bool, list[str]] = {True: [], False: []}
    for outcome in (GAP, HARM):
        of_names[rows[outcome.name]["slope_high"] < outcome.smallest_effect].append(outcome.name)
    excluded, possible = (" and ".join(names) for names in of_names.values())
    if excluded and possible:
        return f"Open: a rise that would matter is excluded for the {excluded}, not for the {possible}"
    return "Open: not every rise that would matter is excluded"


def outcome_figure(
    of_outcomes: Mapping[Outcome, pd.DataFrame], table: pd.DataFrame, models: str = ""
) -> Figure:
    """The figure of the project: a panel an outcome, `binned`, beside what would be the smallest effect.

    Args:
        table: of `outcome_rows`, whose slopes the panels tell; of `with_decision` the title tells that too.
        models: who is compared, in words.
    """
    figure, axes = drawing.panels(len(of_outcomes), 3.0)
    planned = table[_is_main(table)]
    main = planned.set_index("outcome", drop=False).to_dict("index")
    for ax, (outcome, rows) in zip(axes, of_outcomes.items(), strict=True):
        lines = dict(iter(rows.groupby("compared", sort=False)))
        places, middle = lines[SHORT_TRAINED][SPARSITY], lines[SHORT_TRAINED]["outcome"].mean()
        steps = outcome.smallest_effect * (places - places.mean())
        ax.fill_between(places, middle - steps, middle + steps, color=drawing.GREY, alpha=0.25, linewidth=0)
        style = drawing.TRAINED_POSE
        styles = {SHORT_TRAINED: style.measured, PLACEBO: drawing.TRAINED_LONG.null}
        ends = [
            drawing.draw_line(ax, line[SPARSITY], line, "outcome", styles[compared], compared)
            for compared, line in lines.items()
        ]
        slope = interval_of(main[outcome.name], "slope")
        ax.set_title(f"{outcome.name}\n{slope} nats per doubling", loc="left")
        within = ",\nmeasured in a shorter context" if outcome is HARM else ""
        ax.set_xlabel(f"tokens needed (mean log2 k, doublings){within}")
        drawing.label_line_ends(ax, ends)
    axes[0].set_ylabel("difference from long-trained (nats)")
    decided = table["decision"].iloc[0] if "decision" in table else ""
    drawing.put_title(
        figure, _SAID.get(decided) or _what_is_open(main),
        models, drawing.sample_size(planned),
        "without targets that have too little at stake",
        "stake, gain, difficulty, frequency, position and source held equal", drawing.BARS,
        "brackets: of slopes, over documents and seeds",
        "grey: slopes as large as the smallest effect of interest",
    )  # fmt: skip
    return figure


def _is_main(table: pd.DataFrame) -> pd.Series:
    """Whether each row is of an outcome as planned, least squares, of the short-trained models."""
    is_main = (table["compared"] == SHORT_TRAINED) & (table["estimator"] == LEAST_SQUARES)
    return is_main & (table["variant"] == PLANNED)


def with_decision(rows: Sequence[Row]) -> pd.DataFrame:
    """The table of the three outcomes' rows, with Holm's p-values of the three, and the decision."""
    from statsmodels.stats.multitest import multipletests  # late, as above

    table = pd.DataFrame(rows)
    is_main = _is_main(table)
    table.loc[is_main, "holm_p_value"] = multipletests(table.loc[is_main, "p_value"], method="holm")[1]
    return table.assign(decision=decision(table))


def decision(table: pd.DataFrame) -> str:
    """What the three outcomes say together, by the rule that was written down before.

    "refuted at this size": all three intervals end below the smallest effects of interest, be one of them
    above 0 or not. "support": the share or the harm has its interval above 0, also by Holm's p-value, and the
    placebo's interval of the same outcome holds 0; and the gap's interval is not below 0. Else "open".
    """
    planned = table[(table["estimator"] == LEAST_SQUARES) & (table["variant"] == PLANNED)]
    rows = planned.set_index(["outcome", "compared"]).to_dict("index")
    main = {outcome: rows[outcome.name, SHORT_TRAINED] for outcome in (GAP, SHARE, HARM)}
    if all(row["slope_high"] < outcome.smallest_effect for outcome, row in main.items()):
        return "refuted at this size"
    for outcome in (SHARE, HARM):
        row, placebo = main[outcome], rows[outcome.name, PLACEBO]
        is_above_0 = row["slope_low"] > 0 and row["holm_p_value"] <= 0.05
        if is_above_0 and placebo["slope_low"] <= 0 <= placebo["slope_high"] and main[GAP]["slope_high"] >= 0:
            return "support"
    return "open"
