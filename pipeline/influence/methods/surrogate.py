"""ContextCite: a sparse linear model that stands in for the language model on subsets of the far context.

Cohen-Wang, Shah, Georgiev and Madry 2024, "ContextCite: Attributing Model Generation to Context", arXiv
2409.00729. Of N random subsets, each token in with the same probability, all targets of a chunk are measured
in the same passes. For each target a Lasso is fitted, with the package's penalty and its standardized
features: whether each far token is in the subset -> the logit of the target's probability, or minus the
divergence. The score of a token is its weight. Theirs has sentences as sources, ours tokens; with fewer
subsets than tokens the penalty picks the few.

Shapes: T targets, F far-context positions (of the last target), N subsets.
"""

import logging
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso

from pipeline.influence.context_loss import Measured
from pipeline.influence.far_context import FarContext

PENALTY = 0.01
"""Of the sum of weights' sizes, features being standardized."""
MOST_ROUNDS = 1000
"""Of coordinate descent."""
_SUREST = 2.0**-24
"""Nats: a loss below float32's last bit is taken for this, as its logit would be infinite."""
logger = logging.getLogger("pipeline")


def surrogate(context: FarContext) -> np.ndarray:
    """How much each far token raises the logit of the target's probability: [T, F].

    It looks at the target, though no single context can be fitted. Cost: N (F + m s) / m for N subsets, with
    F the last target's.
    """
    return _weights(context, logits_of_losses(context.once(_measured_in_subsets).losses))


def surrogate_divergence(context: FarContext) -> np.ndarray:
    """How much each far token brings the prediction nearer to that of the long context: [T, F], nats.

    Blind to the target; it fits the prediction, on average. Cost: the passes of surrogate, shared.
    """
    return _weights(context, -context.once(_measured_in_subsets).divergences.astype(np.float64))


def subsets_of(context: FarContext) -> np.ndarray:
    """The random subsets, whether each far position is in: bool [N, F]."""
    measurement, num_far = context.measurement, int(context.num_far_tokens_T[-1])
    draws_NF = np.random.default_rng([*measurement.seed, 4]).random((measurement.num_subsets, num_far))
    return draws_NF < measurement.kept_fraction


def _measured_in_subsets(context: FarContext) -> Measured:
    return context.in_subsets(context.once(subsets_of))


def logits_of_losses(losses: np.ndarray) -> np.ndarray:
    """Ln p - ln (1 - p) of probabilities that are given as losses, -ln p in nats."""
    losses = np.maximum(losses.astype(np.float64), _SUREST)
    return -losses - np.log(-np.expm1(-losses))


def _weights(context: FarContext, outputs_NT: np.ndarray) -> np.ndarray:
    kept_NF, num_far_T = context.once(subsets_of), context.num_far_tokens_T
    weights_TF = np.full((len(num_far_T), kept_NF.shape[1]), np.nan)
    for target, outputs_N in enumerate(outputs_NT.T):
        num_far = int(num_far_T[target])
        weights_F, is_converged = sparse_weights(kept_NF[:, :num_far], outputs_N)
        weights_TF[target, :num_far] = weights_F
        if not is_converged:
            logger.warning(
                "the linear model of rule surrogate has not converged in %d rounds for the target at place %d"
                " of %s (far context: %s); its last weights are taken",
                MOST_ROUNDS, context.lengths.targets_T[target], context.measurement.where, context.name,
            )  # fmt: skip
    return weights_TF


def sparse_weights(kept_NF: np.ndarray, outputs_N: np.ndarray) -> tuple[np.ndarray, bool]:
    """The weight of each token, in units of the output: float64 [F]; and whether the fit has converged."""
    spread_F = kept_NF.std(0)
    spread_F[spread_F == 0] = 1  # always in, or never: nothing is to be told of it
    lasso = Lasso(alpha=PENALTY, max_iter=MOST_ROUNDS)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ConvergenceWarning)
        lasso.fit((kept_NF - kept_NF.mean(0)) / spread_F, outputs_N)
    is_converged = not any(issubclass(one.category, ConvergenceWarning) for one in told)
    return lasso.coef_ / spread_F, is_converged
