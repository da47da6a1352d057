"""Dependency sparsity k*: how few far tokens a prediction needs.

Shapes: T targets, J studied values of k.
"""

import numpy as np


def dependency_sparsity(
    short_losses_T: np.ndarray,
    long_losses_T: np.ndarray,
    sparse_losses_TJ: np.ndarray,
    studied_k_J: np.ndarray,
    *,
    recovery_fraction: float,
    minimum_gain: float,
) -> tuple[list[int | None], np.ndarray]:
    """The least studied k with L_short - L_{short+k} >= recovery_fraction * (L_short - L_long).

    Args:
        short_losses_T, long_losses_T, sparse_losses_TJ: losses, nats; column j belongs to studied_k_J[j].
        studied_k_J: ascending.
        recovery_fraction: how much of the gain counts as recovered, 0 to 1 (README.md: 0.9).
        minimum_gain: nats; where L_short - L_long is below it there is nothing to recover.

    Returns:
        dependency_sparsity_T: None where the gain is below the minimum, or no studied k reaches it.
        is_censored_T: bool, the latter case.
    """
    gains_T = short_losses_T - long_losses_T
    reaches_TJ = (short_losses_T[:, None] - sparse_losses_TJ) >= recovery_fraction * gains_T[:, None]
    helps_T, reaches_T = gains_T >= minimum_gain, reaches_TJ.any(axis=1)
    least_k_T = studied_k_J[reaches_TJ.argmax(axis=1)]
    found_T = helps_T & reaches_T
    return [
        int(k) if found else None for k, found in zip(least_k_T, found_T, strict=True)
    ], helps_T & ~reaches_T
