"""Slopes on the tokens that a prediction needs, controls held constant, with errors over texts and seeds.

Targets of a text are not independent, nor are a seed's. A model's slope is linear in its outcome, so that of
a pair of seeds is a difference, a_p - b_q, and the variance of its mean over all pairs is

    V = V_text + (S²_a - E_a)+ / n_a + (S²_b - E_b)+ / n_b

V_text: over texts, the seeds as they are (CR2: Bell and McCaffrey 2002; Pustejovsky and Tipton 2018). S²: the
variance between the seeds' slopes of a role, a crossed random effect. E: what texts explain of it, the mean
V_text of one seed less the mean covariance of two, which is taken off as in two-way clustering (Cameron,
Gelbach and Miller 2011). ( )+ is 0 where it is negative; a role of one seed has the other role's S² - E. The
interval is Student's with Satterthwaite's degrees of freedom, from Bell and McCaffrey's of V_text and, of S²,
the seeds less one.

Shapes: T targets, G texts, M models, J evaluators, C controls, P parameters.
"""

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.read import interval_columns, interval_over_documents, sample_counts
from pipeline.results.statistics import Interval

SPARSITY = "mean_log2_k"
SPLINE_DEGREES = 4
"""Of each natural spline: knots at the ends and at both terciles, straight beyond them."""
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
    """The targets that have a sparsity, and 0.1 nats or more at stake, to each evaluator."""
    is_known = of_each(targets, SPARSITY).notna().all(axis=1)
    return targets[is_known & (targets["least_divergence"] >= LEAST_DIVERGENCE)].reset_index(drop=True)


def spline(values: pd.Series | np.ndarray) -> np.ndarray:
    """A natural spline of a control: float64 [T, C]."""
    from patsy import dmatrix  # late: few who read figures fit a regression

    return np.asarray(dmatrix(f"cr(x, df={SPLINE_DEGREES}) - 1", {"x": np.asarray(values)}))


def controls_of(targets: pd.DataFrame) -> np.ndarray:
    """What every outcome holds constant: float64 [T, C].

    Splines of log D(0), what the distant context is worth to the evaluators by the divergence, and of their
    gain by the loss; straight lines of their loss under the long context, the target token's log frequency,
    its position and the source of the text, as far as the table has them.
    """
    names = [name for name in ("difficulty", "log_token_count", "position", "source") if name in targets]
    lines = pd.get_dummies(targets[names]).to_numpy(dtype="float64")
    return np.hstack([spline(np.log(targets["divergence"])), spline(targets["gain"]), lines])


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
        """Slopes on the evaluators' mean, with CR2 covariance; `outcomes` has a column a model."""
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


def single(found: Slopes) -> Row:
    """The slope of the only outcome, with its interval over texts and p-value, as columns."""
    error = float(found.covariance_MM[0, 0] ** 0.5)
    return _columns(float(found.slopes_M[0]), error, found.degrees_of_freedom)


def _columns(slope: float, error: float, degrees_of_freedom: float) -> Row:
    from scipy.stats import t  # late: it is slow to load

    half = t.ppf(0.975, degrees_of_freedom) * error
    p_value = 2 * t.sf(abs(slope) / error, degrees_of_freedom)
    return {**interval_columns("slope", Interval(slope, slope - half, slope + half)), "p_value": p_value}


def contrast(found: Slopes, first: Sequence[str], second: Sequence[str]) -> Row:
    """The mean slope over all pairs of a model of `first` and one of `second`, as columns of `outcomes`.

    Where both are single models, how seeds differ is not known and not in the interval.
    """
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
    degrees_of_freedom = variance**2 / squares
    return {
        **_columns(slope, np.sqrt(variance), degrees_of_freedom),
        "text_error": np.sqrt(text_variance),
        "seed_error": np.sqrt(seed_variance),
        "degrees_of_freedom": degrees_of_freedom,
        "pair_slopes": np.subtract.outer(*(found.slopes_M[models] for models in roles)).ravel().tolist(),
    }


def design_of(known: pd.DataFrame, *further_controls: np.ndarray) -> Design:
    """The regression on the evaluators' mean sparsity with all controls held constant."""
    controls_TC = np.column_stack([controls_of(known), *further_controls])
    return Design(of_each(known, SPARSITY).to_numpy(), controls_TC, known["document_id"].to_numpy())


def eighths(documents: pd.Series, sparsity: pd.Series, values: pd.Series, name: str) -> pd.DataFrame:
    """Means of values over eighths of the targets by their sparsity: a row an eighth.

    Columns mean_log2_k (the eighth's mean), num_targets, num_documents, `name` with its interval.
    """
    rows = []
    for places in values.groupby(pd.qcut(sparsity, 8, labels=False, duplicates="drop")).groups.values():
        interval = interval_over_documents(documents[places], values[places])
        counts = sample_counts(documents[places].to_frame("document_id"))
        rows.append({SPARSITY: sparsity[places].mean()} | counts | interval_columns(name, interval))
    return pd.DataFrame(rows)


def partial_residuals(known: pd.DataFrame, outcome: pd.Series) -> pd.DataFrame:
    """An outcome against mean_log2_k with the controls held constant: `eighths`, column `gap`.

    What the regression leaves, with the slope's part and the outcome's mean.
    """
    sparsity = of_each(known, SPARSITY).mean(axis=1)
    slope, rest_T = design_of(known).slope_and_rest(outcome.to_numpy())
    held = outcome.mean() + slope * (sparsity - sparsity.mean()) + rest_T
    return eighths(known["document_id"], sparsity, held, "gap")
