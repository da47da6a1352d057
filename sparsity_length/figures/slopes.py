"""Slopes on the tokens that a prediction needs, controls held constant, with errors over texts and seeds.

Targets of a text are not independent, nor are a seed's. A model's slope is linear in its outcome, so that of
a pair of seeds is a difference, a_p - b_q, and the variance of its mean over all pairs is

    V = V_text + (S²_a - E_a)+ / n_a + (S²_b - E_b)+ / n_b

V_text: over texts, the seeds as they are (CR2: Bell and McCaffrey 2002; Pustejovsky and Tipton 2018). S²: the
variance between the seeds' slopes of a role, a crossed random effect. E: what texts explain of it, the mean
V_text of one seed minus the mean covariance of two, which is taken off as in two-way clustering (Cameron,
Gelbach and Miller 2011). ( )+ is 0 if it is negative; a role of one seed has the other role's S² - E. The
interval is Student's with Satterthwaite's degrees of freedom, from Bell and McCaffrey's of V_text and, of S²,
the number of seeds minus 1.

Shapes: T targets, G texts, M models, J evaluators, C controls, P parameters.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from patsy import cr
from scipy.linalg import orth
from scipy.stats import t

from sparsity_length.figures.read import interval_columns
from sparsity_length.results.statistics import Interval

KEYS = ["document_id", "target_position"]
"""The columns that name a target of these regressions."""
RULE = "leave_one_out_divergence"
"""The rule by whose choice needed tokens are counted."""
SPARSITY = "mean_log2_k"
LEAST_DIVERGENCE = 0.1
"""Total effect to each evaluator, nats, below which there is nothing to recover."""
FEWEST_DOCUMENTS = 10
"""Standard errors over fewer clusters are too small to be called robust (Cameron and Miller 2015)."""
_NOTHING = 1e-9  # relative: what rounding leaves of a column that others determine
Row = dict[Hashable, Any]


def of_each(targets: pd.DataFrame, name: str) -> pd.DataFrame:
    """The columns "NAME of MODEL" of a table of targets, called by the models."""
    columns = [column for column in map(str, targets) if column.startswith(f"{name} of ")]
    return targets[columns].rename(columns=lambda column: column.removeprefix(f"{name} of "))


def with_sparsity(targets: pd.DataFrame) -> pd.DataFrame:
    """The targets that have a sparsity, and a total effect of 0.1 nats or more, to each evaluator."""
    is_known = of_each(targets, SPARSITY).notna().all(axis=1)
    return targets[is_known & (targets["least_divergence"] >= LEAST_DIVERGENCE)].reset_index(drop=True)


def controls_of(targets: pd.DataFrame, names: Sequence[str], splines: Sequence[str]) -> np.ndarray:
    """Controls of these names: float64 [T, C].

    Natural splines of those in `splines` (knots at the ends and at both terciles, straight beyond them);
    straight lines of others, and a step per category.
    """
    # Each column is 1 at its own knot and 0 at the others. They sum to 1, so each spline has an intercept.
    columns = [np.asarray(cr(targets[name].to_numpy(), df=4)) for name in names if name in splines]
    lines = [name for name in names if name not in splines]
    if lines:  # pandas refuses to encode a table without columns
        columns.append(pd.get_dummies(targets[lines]).to_numpy("float64"))
    return np.hstack(columns) if columns else np.empty((len(targets), 0))


def full_rank(columns_TC: np.ndarray) -> np.ndarray:
    """Orthonormal columns that span these and an intercept, which may determine each other."""
    # The dummy of the only source is constant, and would be divided by 0.
    varying_TC = columns_TC[:, np.ptp(columns_TC, axis=0) > 0]
    # `orth` cuts relative to the largest singular value: a column in small units would count as redundant.
    varying_TC = (varying_TC - varying_TC.mean(axis=0)) / varying_TC.std(axis=0)
    with_intercept_TC = np.column_stack([np.ones(len(columns_TC)), varying_TC])
    return orth(with_intercept_TC, _NOTHING)


class Slopes(NamedTuple):
    """Slopes of each model's own outcome, all by one design."""

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
        """Name what the slope is on, as each evaluator has it, and what is held constant beside an intercept.

        Controls may determine each other. `texts_T`: any labels; `weights_T`: None if all weigh the same.
        """
        self._places_G = list(pd.Series(texts_T).groupby(texts_T).indices.values())
        # Weighted least squares is the ordinary one of rows times the roots of their weights.
        self._root_T1 = np.ones((len(texts_T), 1)) if weights_T is None else np.sqrt(weights_T)[:, None]
        held_TC = self._root_T1 * full_rank(controls_TC)
        basis_TC = np.linalg.qr(held_TC)[0]
        mean_T1 = self._root_T1 * regressors_TJ.mean(axis=1, keepdims=True)
        # Frisch-Waugh-Lovell: the slope is that on what the controls leave of the regressor.
        mean_T = (mean_T1 - basis_TC @ (basis_TC.T @ mean_T1))[:, 0]
        self._slope_T = mean_T / (mean_T @ mean_T)
        """The w of slope = w'y."""
        # Orthonormal, so the hat matrix is H = QQ', and only its blocks of one text are ever formed.
        self._basis_TP = np.column_stack([basis_TC, mean_T / np.sqrt(mean_T @ mean_T)])

    def _rest(self, values_TX: np.ndarray) -> np.ndarray:
        return values_TX - self._basis_TP @ (self._basis_TP.T @ values_TX)

    def least_squares(self, outcomes: pd.DataFrame) -> Slopes:
        """Slopes on the evaluators' mean, with CR2 covariance; `outcomes` has one column per model."""
        outcomes_TM = self._root_T1 * outcomes.to_numpy()
        rest_TM = self._rest(outcomes_TM)
        adjusted_G, degrees_of_freedom = self._adjusted
        # A score per text and model: models read the same texts, so their slopes covary.
        scores_GM = np.array([a @ rest_TM[of] for a, of in zip(adjusted_G, self._places_G, strict=True)])
        slopes_M = self._slope_T @ outcomes_TM
        return Slopes(outcomes.columns.tolist(), slopes_M, scores_GM.T @ scores_GM, degrees_of_freedom)

    @cached_property
    def _adjusted(self) -> tuple[list[np.ndarray], float]:
        """CR2's (I - H_gg)^(-1/2) w of each text, and Bell and McCaffrey's degrees of freedom."""
        adjusted_G = []
        for of in self._places_G:
            own_TP = self._basis_TP[of]
            values_T, vectors_TT = np.linalg.eigh(np.eye(len(of)) - own_TP @ own_TP.T)
            # By the generalized inverse: 0 for what the controls determine.
            roots_T = np.where(values_T > _NOTHING, np.maximum(values_T, _NOTHING) ** -0.5, 0)
            adjusted_G.append(vectors_TT @ (roots_T * (vectors_TT.T @ self._slope_T[of])))
        # V is Σ (p_g'y)², p_g'p_h = δ_gh a_g'a_g - q_g'q_h: its mean and variance for independent targets.
        squares_G = np.array([a @ a for a in adjusted_G])
        projected_GP = np.array(
            [a @ self._basis_TP[of] for a, of in zip(adjusted_G, self._places_G, strict=True)]
        )
        inner_GG = np.diag(squares_G) - projected_GP @ projected_GP.T
        return adjusted_G, float(np.trace(inner_GG) ** 2 / (inner_GG**2).sum())

    def slope_and_rest(self, outcome_T: np.ndarray) -> tuple[float, np.ndarray]:
        """The slope of one outcome, and what slope and controls leave of it, as given: float64 [T]."""
        values_T1 = self._root_T1 * outcome_T[:, None]
        return float(self._slope_T @ values_T1[:, 0]), (self._rest(values_T1) / self._root_T1)[:, 0]


def single(found: Slopes) -> Row:
    """The slope of the only outcome, with its interval over texts and p-value, as columns."""
    return _columns(
        float(found.slopes_M[0]), float(found.covariance_MM[0, 0] ** 0.5), found.degrees_of_freedom
    )


def pseudo_values(targets: pd.DataFrame, slope: Callable[[pd.DataFrame], Row]) -> pd.Series:
    """The jackknife's pseudo-value of a slope for each text: their mean is the slope minus its bias."""
    texts = targets["document_id"]
    without = pd.Series({name: slope(targets[texts != name])["slope"] for name in texts.unique()})
    return len(without) * slope(targets)["slope"] - (len(without) - 1) * without


def _columns(slope: float, error: float, degrees_of_freedom: float) -> Row:
    half = t.ppf(0.975, degrees_of_freedom) * error
    p_value = 2 * t.sf(abs(slope) / error, degrees_of_freedom)
    return {**interval_columns("slope", Interval(slope, slope - half, slope + half)), "p_value": p_value}


def contrast(found: Slopes, first: Sequence[str], second: Sequence[str]) -> Row:
    """The mean slope over all pairs of a model of `first` and one of `second`, as columns of `outcomes`.

    If `second` is empty, it is the mean over the models of `first`. If both are single models, how seeds
    differ is not known and not in the interval.
    """
    roles = [[found.models.index(model) for model in models] for models in (first, second)]
    # The product with the slopes is the mean over all pairs.
    num_second = max(len(second), 1)
    weights_M = np.array([(m in first) / len(first) - (m in second) / num_second for m in found.models])
    text_variance = weights_M @ found.covariance_MM @ weights_M
    seed_variance = 0.0
    # Satterthwaite: V² over the sum of the components' squares, each over its own degrees of freedom.
    squares = text_variance**2 / found.degrees_of_freedom
    for models, others in (roles, roles[::-1]):
        if (num_models := len(models)) > 1:
            share = 1 / num_models + (1 if len(others) == 1 else 0)  # a single one differs as these do
            spread = found.slopes_M[models].var(ddof=1)
            covariance_MM = found.covariance_MM[np.ix_(models, models)]
            # E, as the mean variance minus the mean covariance of two: (n tr C - sum C) / (n (n - 1)).
            own = num_models * np.trace(covariance_MM) - covariance_MM.sum()
            if (beyond := spread - own / (num_models * (num_models - 1))) > 0:
                seed_variance += share * beyond
                squares += (share * spread) ** 2 / (num_models - 1)
    variance = text_variance + seed_variance
    slope = weights_M @ found.slopes_M
    degrees_of_freedom = variance**2 / squares
    return {
        **_columns(slope, np.sqrt(variance), degrees_of_freedom),
        "text_error": np.sqrt(text_variance),
        "seed_error": np.sqrt(seed_variance),
        "degrees_of_freedom": degrees_of_freedom,
        "pair_slopes": np.subtract.outer(*(found.slopes_M[models] for models in roles)).ravel().tolist(),
    }


def design_of(known: pd.DataFrame) -> Design:
    """The regression on the evaluators' mean sparsity; `known`: of `with_sparsity`.

    Held constant: splines of log D(0), what the distant context is worth to the evaluators by the divergence,
    and of their gain by the loss; straight lines of their loss under the long context, the target token's log
    frequency, its position and the source of the text, as far as the table has them.
    """
    # The logarithm is finite: `with_sparsity` leaves out what is below 0.1 nats.
    held = known.assign(divergence=np.log(known["divergence"]))
    names = ("divergence", "gain", "difficulty", "log_token_count", "position", "source")
    controls_TC = controls_of(held, [name for name in names if name in held], ("divergence", "gain"))
    return Design(of_each(known, SPARSITY).to_numpy(), controls_TC, known["document_id"].to_numpy())
