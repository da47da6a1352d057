"""The rows that influential_tokens writes for one chunk, in the document's coordinates.

Each function returns artefact -> column -> values. Shapes: T targets, F far-context positions, K largest k,
J studied values of k.
"""

from collections.abc import Sequence

import numpy as np

from pipeline.influence.far_context import FarContext
from pipeline.text.chunks import Chunk, Columns


def influence_rows(chunk: Chunk, targets_T: np.ndarray, context: FarContext) -> dict[str, Columns]:
    """A row a target: the influence of every token of its far context. None where no rule asked for all."""
    if context.every_influence_TF is None:
        return {}
    far_only = [row_F[~np.isnan(row_F)].tolist() for row_F in context.every_influence_TF]
    columns = _rows(chunk, targets_T, 1, far_context=context.name) | {"influences": far_only}
    return {"influences": columns}


def selection_rows(
    chunk: Chunk, targets_T: np.ndarray, rule: str, context: FarContext, positions_TK: np.ndarray
) -> dict[str, Columns]:
    """A row a target and rank: the selected token, with its influence where some rule measured that."""
    influence_TF = context.measured_influence_TF
    if influence_TF is None:
        influences: list[float | None] = [None] * positions_TK.size
    else:
        of_selected = np.take_along_axis(influence_TF, positions_TK, axis=1).ravel().tolist()
        influences = [None if np.isnan(influence) else influence for influence in of_selected]
    columns = _rows(
        chunk,
        targets_T,
        positions_TK.shape[1],
        rule=rule,
        far_context=context.name,
        rank=np.broadcast_to(np.arange(1, positions_TK.shape[1] + 1), positions_TK.shape),
        context_position=chunk.start + positions_TK,
        distance=targets_T[:, None] - positions_TK,
        context_token_id=context.token_ids_L[positions_TK],
    )
    return {"influential_tokens": columns | {"influence": influences}}


def sparse_loss_rows(
    chunk: Chunk,
    targets_T: np.ndarray,
    rule: str,
    context: FarContext,
    losses_T: tuple[np.ndarray, np.ndarray],
    studied_k_J: Sequence[int],
    sparse_losses_TJ: np.ndarray,
) -> dict[str, Columns]:
    """A row a target and k: the short, long (`losses_T`) and sparse-context loss."""
    short_T, long_T = losses_T
    columns = _rows(
        chunk,
        targets_T,
        len(studied_k_J),
        rule=rule,
        far_context=context.name,
        k=np.broadcast_to(studied_k_J, sparse_losses_TJ.shape),
        short_context_loss=np.repeat(short_T, len(studied_k_J)),
        long_context_loss=np.repeat(long_T, len(studied_k_J)),
        sparse_context_loss=sparse_losses_TJ,
    )
    return {"sparse_context_losses": columns}


def sparsity_rows(
    chunk: Chunk,
    targets_T: np.ndarray,
    rule: str,
    loss_differences_T: np.ndarray,
    sparsity: tuple[list[int | None], np.ndarray],
) -> dict[str, Columns]:
    """A row a target: k*, from what `dependency_sparsity` returned."""
    k_star_T, is_censored_T = sparsity
    columns = _rows(
        chunk, targets_T, 1, rule=rule, loss_difference=loss_differences_T, is_censored=is_censored_T
    )
    return {"dependency_sparsity": columns | {"dependency_sparsity": k_star_T}}


def _rows(chunk: Chunk, targets_T: np.ndarray, rows_per_target: int, **columns: str | np.ndarray) -> Columns:
    """The columns that name a target, repeated, and `columns`: arrays row by row, or one word for all."""
    num_rows = rows_per_target * len(targets_T)
    table = chunk.target_columns(np.repeat(targets_T, rows_per_target))
    for name, values in columns.items():
        table[name] = [values] * num_rows if isinstance(values, str) else values.ravel().tolist()
    return table
