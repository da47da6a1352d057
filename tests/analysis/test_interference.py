"""Slopes of length interference: planted ones are found, and statsmodels agrees."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from analysis.figures import interference


def targets_of(ratio: float, seed: int = 0, num_texts: int = 60) -> pd.DataFrame:
    """Interference rises by `ratio` per doubling, on log scale, and with entropy and the total effect."""
    rng = np.random.default_rng(seed)
    texts = np.repeat(np.arange(num_texts), 16)
    size = len(texts)
    entropy = rng.uniform(0, 5, size)
    effect = rng.exponential(0.5, size)
    stake = rng.exponential(1.0, size)
    sparsity = 3 + 0.5 * np.log(effect) + rng.normal(0, 1, size)
    mean = np.exp(
        -2 + ratio * sparsity + 0.2 * entropy + 0.3 * np.log(stake) + 0.2 * rng.normal(size=num_texts)[texts]
    )
    return pd.DataFrame(
        {
            "document_id": texts.astype(str),
            "mean_log2_k": sparsity,
            "entropy": entropy,
            "total_effect": effect,
            "log_total_effect": np.log(effect),
            "stake": stake,
            "log_stake": np.log(stake),
            "log_trained": rng.normal(-3, 1, size),
            "log_token_count": rng.normal(8, 2, size),
            "loss": rng.exponential(3, size),
            "source": rng.choice(["C4", "Wikipedia"], num_texts)[texts],
            "far": mean * rng.gamma(2, 0.5, size),
            "near": rng.gamma(2, 0.02, size),
        }
    )


@pytest.mark.parametrize("planted", [0.0, 0.2, -0.2])
def test_planted_slopes_are_found(planted: float) -> None:
    found = interference.slope(targets_of(planted), "far", "ratio")
    assert found["slope_low"] < planted < found["slope_high"]
    assert found["slope_high"] - found["slope_low"] < 0.2
    table = interference.slopes(targets_of(planted), "far", "near", {})
    assert (
        interference.verdict(table).split(",")[0]
        in {0.2: ("supported",), -0.2: ("opposite",), 0.0: ("refuted", "open")}[planted]
    )


def test_the_ratio_is_statsmodels_poisson_slope() -> None:
    targets = targets_of(0.1)
    controls = interference.controls_of(targets)
    basis, sizes, _ = np.linalg.svd(np.column_stack([np.ones(len(controls)), controls]), full_matrices=False)
    columns = np.column_stack([targets["mean_log2_k"], basis[:, sizes > 1e-9 * sizes[0]]])
    fit = sm.GLM(targets["far"], columns, family=sm.families.Poisson()).fit(
        cov_type="cluster", cov_kwds={"groups": targets["document_id"].astype(int)}
    )
    found = interference.slope(targets, "far", "ratio")
    assert found["slope"] == pytest.approx(fit.params.iloc[0], abs=1e-6)
    # CR2 is a little wider than the plain sandwich.
    half = (found["slope_high"] - found["slope_low"]) / 2
    assert half == pytest.approx(1.98 * fit.bse.iloc[0], rel=0.15)
