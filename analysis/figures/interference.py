"""Do predictions that need few tokens withstand unseen distances better? Slopes of length interference.

The outcome of a target is h, the length interference: KL(p(.|near tokens) || p(.|another text's distant
tokens, near tokens)), mean over distant texts, where the distant tokens stand at a distance that the model
was never trained on. The predictor is `mean_log2_k` within the near tokens. Three slopes per doubling:

    ratio   log E[h]       ~ mean_log2_k + controls     Poisson quasi-likelihood
    nats    h / mean(h)    ~ mean_log2_k + controls     least squares
    share   h / stake, over its mean                    least squares; stake: KL(near || its last 4 tokens)

Controls: natural splines of the entropy, of the logarithms of the total effect, of the stake and of h at a
trained distance; the log frequency of the token, the loss, the source. Clusters are texts, with CR2 and
Student's interval (`outcomes.Design`; of the Poisson regression at its last weighted step). Plan and rule:
analysis/LOG.md.

Shapes: T targets, C controls.
"""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from patsy import dmatrix
from scipy import stats
from statsmodels.stats.multitest import multipletests

from analysis.gap.outcomes import SPARSITY, SPLINE_DEGREES, Design
from analysis.read import rows_by

RATIO = "ratio"
NATS = "nats"
SHARE = "share"
PRIMARIES = (RATIO, NATS, SHARE)
SMALLEST_EFFECT = 0.05
"""SESOI: 5% of the mean h per doubling."""
LEAST_EFFECT = 0.05
"""Total effect within the near context below which `mean_log2_k` says little, nats."""
NUM_PERMUTATIONS = 200
_SPLINES = ("entropy", "log_total_effect", "log_stake", "log_trained")
_ITERATIONS = 50


def controls_of(targets: pd.DataFrame, leave_out: str | None = None) -> np.ndarray:
    """What every slope holds constant: float64 [T, C]; `leave_out` names one of the splines."""
    splines = [
        dmatrix(f"cr(x, df={SPLINE_DEGREES}) - 1", {"x": targets[name]})
        for name in _SPLINES
        if name != leave_out
    ]
    lines = pd.get_dummies(targets[["log_token_count", "loss", "source"]]).to_numpy(dtype="float64")
    return np.hstack([*splines, lines])


def slope(
    targets: pd.DataFrame, outcome: str, kind: str, *, leave_out: str | None = None
) -> dict[Hashable, float]:
    """Slope of one kind on `mean_log2_k`, with its interval and p-value, as columns.

    Args:
        targets: columns mean_log2_k, document_id, stake, those of the controls, and `outcome` (nats, from 0).
        kind: of `PRIMARIES`.
        leave_out: a spline that is not held constant: h at the trained distance where that is the outcome.
    """
    h_T = targets[outcome].to_numpy(dtype="float64")
    texts_T = targets["document_id"].to_numpy()
    regressors_T1 = targets[[SPARSITY]].to_numpy()
    controls_TC = controls_of(targets, leave_out)
    weights_T = None
    if kind == RATIO:
        weights_T, h_T = _poisson_step(h_T, np.column_stack([regressors_T1, controls_TC]))
    else:
        h_T = h_T / targets["stake"].to_numpy() if kind == SHARE else h_T
        h_T = h_T / h_T.mean()
    found = Design(regressors_T1, controls_TC, texts_T, weights_T).least_squares(pd.DataFrame({"h": h_T}))
    estimate = float(found.slopes_M[0])
    error = float(found.covariance_MM[0, 0] ** 0.5)
    half = float(stats.t.ppf(0.975, found.degrees_of_freedom)) * error
    p_value = 2 * stats.t.sf(abs(estimate) / error, found.degrees_of_freedom)
    return {
        "slope": estimate,
        "slope_low": estimate - half,
        "slope_high": estimate + half,
        "p_value": p_value,
    }


def _poisson_step(h_T: np.ndarray, columns_TC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights and working response of the last step of the Poisson regression: a weighted least squares."""
    basis_TC, sizes_C, _ = np.linalg.svd(
        np.column_stack([np.ones(len(h_T)), (columns_TC - columns_TC.mean(0))]), full_matrices=False
    )
    basis_TC = basis_TC[:, sizes_C > 1e-9 * sizes_C[0]]
    eta_T = np.full(len(h_T), np.log(h_T.mean()))
    for _ in range(_ITERATIONS):
        mu_T = np.exp(eta_T)
        response_T = eta_T + (h_T - mu_T) / mu_T
        root_T1 = np.sqrt(mu_T)[:, None]
        fit_C = np.linalg.lstsq(root_T1 * basis_TC, root_T1[:, 0] * response_T, rcond=None)[0]
        change = np.abs(basis_TC @ fit_C - eta_T).max()
        eta_T = basis_TC @ fit_C
        if change < 1e-10:
            break
    mu_T = np.exp(eta_T)
    return mu_T, eta_T + (h_T - mu_T) / mu_T


def slopes(targets: pd.DataFrame, primary: str, trained: str, others: Mapping[str, str]) -> pd.DataFrame:
    """All planned rows: variant, kind, slope with interval, p_value, holm_p_value of the primaries, counts.

    Args:
        targets: as `slope` takes them, with `total_effect` (nats), all of them; those below `LEAST_EFFECT`
            are left out of every row but "all targets".
        primary, trained: columns of h at the unseen distance that decides, and at a trained one, the negative
            control.
        others: variant -> column of h at another distance or number, described by the ratio alone.
    """
    known = targets[targets["total_effect"] >= LEAST_EFFECT].reset_index(drop=True)
    low, high = known[SPARSITY].quantile([1 / 8, 7 / 8])
    rows = list[dict[Hashable, Any]]()

    def add(variant: str, kind: str, of: pd.DataFrame, outcome: str, leave_out: str | None = None) -> None:
        found = slope(of, outcome, kind, leave_out=leave_out)
        rows.append(
            {
                "variant": variant,
                "kind": kind,
                "mean": float(of[outcome].mean()),
                **found,
                "num_targets": len(of),
                "num_documents": of["document_id"].nunique(),
            }
        )

    for kind in PRIMARIES:
        add("as planned", kind, known, primary)
    add("lowest eighth left out", RATIO, known[known[SPARSITY] > low], primary)
    add("highest eighth left out", RATIO, known[known[SPARSITY] < high], primary)
    add("all targets", RATIO, targets, primary)
    for kind in PRIMARIES:
        add("negative control", kind, known, trained, "log_trained")
    add("without the trained distance held constant", RATIO, known, primary, "log_trained")
    for variant, outcome in others.items():
        add(variant, RATIO, known, outcome)
    table = pd.DataFrame(rows)
    decides = table["variant"] == "as planned"
    table.loc[decides, "holm_p_value"] = multipletests(table.loc[decides, "p_value"], method="holm")[1]
    return table


def permuted(targets: pd.DataFrame, outcome: str, seed: int = 0) -> np.ndarray:
    """Ratio slopes with `mean_log2_k` permuted within text and decile of h at the trained distance."""
    generator = np.random.default_rng(seed)
    known = targets[targets["total_effect"] >= LEAST_EFFECT].reset_index(drop=True)
    deciles = pd.qcut(known["log_trained"], 10, labels=False, duplicates="drop")
    groups = list(known.groupby([known["document_id"], deciles]).groups.values())
    found = []
    for _ in range(NUM_PERMUTATIONS):
        sparsity_T = known[SPARSITY].to_numpy().copy()
        for places in groups:
            sparsity_T[places] = generator.permutation(sparsity_T[places])
        found.append(slope(known.assign(**{SPARSITY: sparsity_T}), outcome, RATIO)["slope"])
    return np.array(found)


def verdict(table: pd.DataFrame) -> str:
    """By the rule written down before: "supported", "refuted", "opposite" or "open".

    Supported: ratio and nats above 0 by Holm, the share not below 0, both shape rows above 0; length-specific
    if the ratio lies above the negative control's, too. Refuted: all three end below the smallest effect.
    Opposite: ratio and nats below 0 by Holm.
    """
    rows = rows_by(table, "variant", "kind")
    planned = {kind: rows["as planned", kind] for kind in PRIMARIES}
    is_clear = all(planned[kind]["holm_p_value"] <= 0.05 for kind in (RATIO, NATS))
    shapes = [rows[f"{end} eighth left out", RATIO] for end in ("lowest", "highest")]
    are_above = all(planned[kind]["slope"] > 0 for kind in (RATIO, NATS))
    has_shape = planned[SHARE]["slope_high"] >= 0 and all(row["slope_low"] > 0 for row in shapes)
    if is_clear and are_above and has_shape:
        control = rows["negative control", RATIO]
        is_specific = planned[RATIO]["slope_low"] > control["slope_high"]
        return "supported, length-specific" if is_specific else "supported"
    if is_clear and all(planned[kind]["slope"] < 0 for kind in (RATIO, NATS)):
        return "opposite"
    if all(row["slope_high"] < SMALLEST_EFFECT for row in planned.values()):
        return "refuted"
    return "open"
