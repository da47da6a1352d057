"""Linear regressions of a target's generalization gap on its dependency sparsity, by statsmodels.

Targets of one document are not independent. The first estimate leaves the coefficients of least squares and
makes their standard errors robust to that (documents are clusters); the second gives every document an
intercept of its own, drawn from a normal distribution (a random effect), and weighs the targets accordingly.

Shapes: T targets, C controls, P parameters (intercept, sparsity, controls).
"""

import warnings
from dataclasses import dataclass

import numpy as np

from pipeline.results.bootstrap import Interval

FEWEST_DOCUMENTS = 10
"""Standard errors over fewer clusters are too small to be called robust (Cameron and Miller 2015)."""
_NOT_ESTIMATED = Interval(np.nan, np.nan, np.nan)
_SPARSITY = 1  # its place among the parameters


@dataclass(frozen=True)
class RandomEffects:
    """A regression in which every document has an intercept of its own."""

    slope: Interval
    """Of the gap on sparsity, nats a unit of sparsity; 95 %."""
    document_variance: float
    """Between the intercepts of documents, nats squared."""
    residual_variance: float
    """Within documents, nats squared."""


def cluster_robust_slope(
    gaps_T: np.ndarray, sparsity_T: np.ndarray, controls_TC: np.ndarray, documents_T: np.ndarray
) -> Interval:
    """Least-squares slope of the gap on sparsity, its 95 % interval robust to dependence within documents.

    Args:
        gaps_T: generalization gap of each target, nats.
        sparsity_T: the coded k*; the slope is a unit of it.
        controls_TC: what is held constant; columns without variance are left out.
        documents_T: whose document each target is, any labels.

    Returns:
        NaN for fewer than `FEWEST_DOCUMENTS` documents, or where sparsity is a linear function of the
        controls. The interval is Student's with as many degrees of freedom as documents less one, the
        covariance Liang and Zeger's (1986) with the correction G / (G - 1) · (T - 1) / (T - P).
    """
    # Imported late, here and below: statsmodels takes seconds, and few who read figures fit a regression.
    from statsmodels.regression.linear_model import OLS

    design_TP, clusters_T = _design(sparsity_T, controls_TC), _codes(documents_T)
    if not _is_estimable(design_TP, clusters_T):
        return _NOT_ESTIMATED
    fit = OLS(gaps_T, design_TP).fit(cov_type="cluster", cov_kwds={"groups": clusters_T}, use_t=True)
    low, high = fit.conf_int()[_SPARSITY]
    return Interval(float(fit.params[_SPARSITY]), float(low), float(high))


def random_effects_slope(
    gaps_T: np.ndarray, sparsity_T: np.ndarray, controls_TC: np.ndarray, documents_T: np.ndarray
) -> RandomEffects:
    """Slope of the gap on sparsity where every document has a random intercept, by restricted likelihood.

    Args:
        gaps_T, sparsity_T, controls_TC, documents_T: as `cluster_robust_slope` takes them.

    Returns:
        NaN where that is, and where the likelihood's maximum was not found. A document variance of 0 is a
        result: the documents differ no more than their targets do.
    """
    from statsmodels.regression.mixed_linear_model import MixedLM
    from statsmodels.tools.sm_exceptions import ConvergenceWarning

    design_TP, clusters_T = _design(sparsity_T, controls_TC), _codes(documents_T)
    if not _is_estimable(design_TP, clusters_T):
        return RandomEffects(_NOT_ESTIMATED, np.nan, np.nan)
    with warnings.catch_warnings():
        # A variance at its bound, 0, is no failure; whether the maximum was found is asked below.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", message="Random effects covariance is singular")
        # Powell's method takes no gradient: statsmodels' own fails where a variance is at its bound.
        fit = MixedLM(gaps_T, design_TP, groups=clusters_T).fit(reml=True, method=["powell"])
    low, high = fit.conf_int()[_SPARSITY]
    if not (fit.converged and np.isfinite(low)):
        return RandomEffects(_NOT_ESTIMATED, np.nan, np.nan)
    slope = Interval(float(fit.params[_SPARSITY]), float(low), float(high))
    return RandomEffects(slope, float(fit.cov_re[0, 0]), float(fit.scale))


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
