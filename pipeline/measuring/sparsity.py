"""Dependency sparsity k*: how few far tokens a prediction needs.

Shapes: T targets, J studied values of k.

The rows that influential_tokens writes for one chunk, in the document's coordinates.

Each function returns artefact -> column -> values. Shapes: T targets, F far-context positions, K largest k,
J studied values of k.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.measuring.contexts import Measured
from pipeline.measuring.far_context import FarContext
from pipeline.measuring.rules import Rule
from pipeline.results.schemas import OWN, Columns
from pipeline.text.chunks import Chunk


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


def influence_rows(chunk: Chunk, targets_T: np.ndarray, context: FarContext) -> dict[str, Columns]:
    """A row a target: the influence of every token of its far context. None where no rule asked for all."""
    if context.every_influence_TF is None:
        return {}
    far_only = [row_F[~np.isnan(row_F)].tolist() for row_F in context.every_influence_TF]
    columns = _rows(chunk, targets_T, 1, far_context=context.name) | {"influences": far_only}
    return {"influences": columns}


def selection_rows(
    chunk: Chunk, targets_T: np.ndarray, rule: Rule, context: FarContext, positions_TK: np.ndarray
) -> dict[str, Columns]:
    """A row a target and rank: the selected token, with its influence where some rule measured that."""
    influence_TF = context.every_influence_TF
    if influence_TF is None:
        influences: list[float | None] = [None] * positions_TK.size
    else:
        influences = np.take_along_axis(influence_TF, positions_TK, axis=1).ravel().tolist()
    columns = _rows(
        chunk,
        targets_T,
        positions_TK.shape[1],
        rule=rule.name,
        far_context=context.name,
        rank=np.broadcast_to(np.arange(1, positions_TK.shape[1] + 1), positions_TK.shape),
        context_position=chunk.start + positions_TK,
        distance=targets_T[:, None] - positions_TK,
        context_token_id=context.token_ids_L[positions_TK],
    )
    how = _how_chosen(context, rule, positions_TK.size)
    return {"influential_tokens": columns | how | {"influence": influences}}


@dataclass(frozen=True, eq=False)
class Judgement:
    """A model that tries chosen tokens, and what it has without them and with all: [T] each, nats."""

    judge: str
    short: Measured
    """Under the short context."""
    long_losses_T: np.ndarray
    background: Measured | None
    """With a foreign far context; None under another intervention."""

    @property
    def baseline(self) -> Measured:
        """What the chosen tokens are added to."""
        return self.background or self.short


def sparse_loss_rows(
    chunk: Chunk,
    targets_T: np.ndarray,
    rule: Rule,
    context: FarContext,
    judgement: Judgement,
    studied_k_J: Sequence[int],
    sparse_TJ: Measured,
) -> dict[str, Columns]:
    """A row a target and k: losses and divergences under the short, long and sparse context."""
    num_k = len(studied_k_J)
    of_target = {
        "short_context_loss": judgement.short.losses,
        "long_context_loss": judgement.long_losses_T,
        "short_context_divergence": judgement.short.divergences,
    }
    if judgement.background is not None:
        of_target["background_loss"] = judgement.background.losses
        of_target["background_divergence"] = judgement.background.divergences
    columns = _rows(
        chunk,
        targets_T,
        num_k,
        rule=rule.name,
        far_context=context.name,
        judge=judgement.judge,
        k=np.broadcast_to(studied_k_J, sparse_TJ.losses.shape),
        sparse_context_loss=sparse_TJ.losses,
        sparse_context_divergence=sparse_TJ.divergences,
        **{name: np.repeat(values_T, num_k) for name, values_T in of_target.items()},
    )
    return {"sparse_context_losses": columns | _how_chosen(context, rule, len(columns["k"]))}


@dataclass(frozen=True, eq=False)
class Sparsity:
    """How few tokens each target needs, by one criterion; [T] each."""

    gains_T: np.ndarray
    """Nats: what is to be recovered."""
    k_star_T: list[int | None]
    is_censored_T: np.ndarray
    minimum_context_length_T: list[int | None]


def sparsity_rows(
    chunk: Chunk,
    targets_T: np.ndarray,
    rule: Rule,
    judgement: Judgement,
    criterion: str,
    sparsity: Sparsity,
) -> dict[str, Columns]:
    """A row a target: k* by one criterion, and the measures that stand beside it."""
    columns = _rows(
        chunk,
        targets_T,
        1,
        rule=rule.name,
        judge=judgement.judge,
        criterion=criterion,
        loss_difference=judgement.short.losses - judgement.long_losses_T,
        gain=sparsity.gains_T,
        is_censored=sparsity.is_censored_T,
    )
    columns |= {
        "dependency_sparsity": sparsity.k_star_T,
        "rationale_size": [None] * len(targets_T),
        "minimum_context_length": sparsity.minimum_context_length_T,
    }
    return {"dependency_sparsity": columns}


def _how_chosen(context: FarContext, rule: Rule, num_rows: int) -> Columns:
    return {
        "null_kind": [None if context.name == OWN else rule.null] * num_rows,
        "num_candidates": [None] * num_rows,
    }


def _rows(chunk: Chunk, targets_T: np.ndarray, rows_per_target: int, **columns: str | np.ndarray) -> Columns:
    """The columns that name a target, repeated, and `columns`: arrays row by row, or one word for all."""
    num_rows = rows_per_target * len(targets_T)
    table = chunk.target_columns(np.repeat(targets_T, rows_per_target))
    for name, values in columns.items():
        table[name] = [values] * num_rows if isinstance(values, str) else values.ravel().tolist()
    return table
