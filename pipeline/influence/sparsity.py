"""Dependency sparsity k*: how few far tokens a prediction needs.

Shapes: T targets, J studied values of k.
"""

import numpy as np


def dependency_sparsity(
    gains_T: np.ndarray,
    recovered_TJ: np.ndarray,
    studied_k_J: np.ndarray,
    *,
    recovery_fraction: float,
    minimum_gain: float,
) -> tuple[list[int | None], np.ndarray]:
    """The least studied k that recovers `recovery_fraction` of the gain.

    By the losses the gain is L_short - L_long, and L_short - L_{short+k} of it is recovered; by the
    divergence it is divergence(t | short), and that less divergence(t | short and S_k). Under the
    intervention `background` a foreign far context stands in the place of none.

    Args:
        gains_T: what the long context gains, nats.
        recovered_TJ: how much of it k tokens recover, nats; column j belongs to studied_k_J[j].
        studied_k_J: ascending.
        recovery_fraction: how much of the gain counts as recovered, 0 to 1 (pipeline/README.md: 0.9).
        minimum_gain: nats; where the gain is below it there is nothing to recover.

    Returns:
        dependency_sparsity_T: None where the gain is below the minimum, or no studied k reaches it.
        is_censored_T: bool, the latter case.
    """
    reaches_TJ = recovered_TJ >= recovery_fraction * gains_T[:, None]
    helps_T, reaches_T = gains_T >= minimum_gain, reaches_TJ.any(axis=1)
    least_k_T = studied_k_J[reaches_TJ.argmax(axis=1)]
    found_T = helps_T & reaches_T
    return [
        int(k) if found else None for k, found in zip(least_k_T, found_T, strict=True)
    ], helps_T & ~reaches_T
