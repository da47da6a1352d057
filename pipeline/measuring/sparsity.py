"""Everything that is measured of one chunk: what the rules choose, what that is worth, and how few tokens do.

Tables are column -> values, in the document's coordinates.

Shapes: T targets, F distant-context positions, K largest k of a rule, J studied values of k.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pipeline.measuring.contexts import Measured
from pipeline.measuring.far_context import FarContext, far_contexts, sparse_contexts
from pipeline.measuring.flags import RECOVERY_FRACTION
from pipeline.measuring.rules import (
    LEAVE_ONE_OUT_RULES,
    RULES,
    SWAP,
    Measuring,
    find_rule,
    selected_positions,
)
from pipeline.measuring.stage import LoadedModel
from pipeline.results.schemas import DIVERGENCE, LOSS, OWN, Columns, append_columns
from pipeline.text.chunks import Chunk

Contexts = Mapping[str, FarContext]
Choices = dict[str, dict[str, np.ndarray]]
"""Distant context -> rule -> the chunk's chosen positions, most influential first: int64 [T, K]."""


def contexts_of(loaded: LoadedModel, chunk: Chunk, measuring: Measuring) -> Contexts:
    """The chunk's own distant context and its null, as a model reads them; nothing is measured yet."""
    return far_contexts(
        loaded.model,
        measuring.lengths,
        loaded.batching,
        chunk.token_ids_L,
        chunk.other_token_ids_NL[0],
        # The first is the null: as a swap too, it would be its own baseline.
        swap_ids_BL=chunk.other_token_ids_NL[1:] if measuring.ablation == SWAP else (None,),
        screen=measuring.num_blocks,
        seed=measuring.seed_of(chunk.document_id, chunk.chunk_index),
    )


def measure_chunk(loaded: LoadedModel, chunk: Chunk, measuring: Measuring) -> dict[str, Columns]:
    """What the rules choose, and what that is worth to the model that chose: artefact -> columns."""
    contexts = contexts_of(loaded, chunk, measuring)
    choices = chosen_positions(contexts, chunk, measuring)
    chosen = chosen_tokens(contexts, chunk, choices, measuring)
    return chosen | tried_tokens(loaded.name, contexts, chunk, choices, measuring)


def chosen_positions(
    contexts: Contexts, chunk: Chunk, measuring: Measuring, among: Iterable[str] = RULES
) -> Choices:
    """What each rule, of those `among`, chooses in each distant context."""
    seed = measuring.seed_of(chunk.document_id, chunk.chunk_index)
    return {
        name: {
            rule: selected_positions(context, rule, measuring.numbers_of(rule)[-1], seed)
            for rule in measuring.rules_in(name, chunk.document_id)
            if rule in among
        }
        for name, context in contexts.items()
    }


def chosen_tokens(
    contexts: Contexts, chunk: Chunk, choices: Choices, measuring: Measuring
) -> dict[str, Columns]:
    """A row a target, rule and rank, and all influences if every token was left out: artefact -> columns."""
    tables: dict[str, Columns] = {}
    targets_T = measuring.lengths.targets_T
    for name, context in contexts.items():
        leaves_out = any(rule in choices[name] for rule in LEAVE_ONE_OUT_RULES)
        if leaves_out and measuring.num_blocks is None:
            # Without a screen NaN stands only behind a target's distant context, so indices stay positions.
            of_each = [row_F[~np.isnan(row_F)].tolist() for row_F in context.influence.losses]
            _append(tables, "influences", chunk, targets_T, 1, distant_context=name, influences=of_each)
        for rule, ranked_TK in choices[name].items():
            # Controls and screened rules are ranked far beyond the k that were asked for.
            positions_TK = ranked_TK[:, : measuring.ks[-1]]
            num_ranks = positions_TK.shape[1]
            influence_TK = None
            if leaves_out:
                influence_TK = np.take_along_axis(context.influence.losses, positions_TK, axis=1)
                # None of tokens that were not left out alone.
                influence_TK = np.where(np.isnan(influence_TK), np.array(None), influence_TK)
            _append(
                tables,
                "influential_tokens",
                chunk,
                targets_T,
                num_ranks,
                rule=rule,
                distant_context=name,
                null_kind=None if name == OWN else find_rule(rule).null,
                rank=np.broadcast_to(np.arange(1, num_ranks + 1), positions_TK.shape),
                context_position=chunk.start + positions_TK,
                distance=targets_T[:, None] - positions_TK,
                context_token_id=context.token_ids_L[positions_TK],
                influence=influence_TK,
            )
    return tables


def mean_log2_k(shares_NJ: np.ndarray, ks_J: np.ndarray, num_far_N: np.ndarray) -> np.ndarray:
    """How many tokens it takes, in doublings, on average over what is asked back: float64 [N].

    The mean over thresholds in (0, 1) of log2 k*(threshold), which is the integral of 1 - r over log2 k from
    1 token to all F. r is the share that comes back, clipped to [0, 1] and never falling: straight lines in
    log2 k between the studied k, and 1 at F. 0: one token does everything; log2 F: nothing comes back before
    the last token.

    Args:
        shares_NJ: of what the distant context is worth, the share that the first k tokens recover.
        ks_J: the studied k, ascending, none above F.
        num_far_N: F.
    """
    # More tokens may recover less than fewer did; k* is the first that suffices, hence the maximum.
    rising_NJ = np.maximum.accumulate(np.clip(shares_NJ, 0, 1), axis=1)
    # All distant tokens recover everything by definition; a measured 0.9999 would leave a remainder.
    rising_NJ = np.where(ks_J >= num_far_N[:, None], 1, rising_NJ)
    one_N = np.ones(len(num_far_N))
    # What fewer tokens than were studied recover is not known: as much as none, at one token.
    shares_NJ = np.column_stack([0 * one_N, rising_NJ, one_N])
    log2_ks_NJ = np.log2(np.column_stack([one_N, np.broadcast_to(ks_J, rising_NJ.shape), num_far_N]))
    # The trapezoidal rule is exact for straight lines.
    missing_NJ = 1 - (shares_NJ[:, 1:] + shares_NJ[:, :-1]) / 2
    integral_N: np.ndarray = (missing_NJ * np.diff(log2_ks_NJ, axis=1)).sum(1)
    return integral_N


def minimal_sufficient_k(
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
    ablation `swap` a swapped distant context stands in the place of none. All in nats.

    Returns:
        k_star_T: None where the gain is below the minimum, or no studied k reaches it.
        is_censored_T: bool, the latter case.
    """
    # A product, not a ratio, so that gains near 0 need no division.
    reaches_TJ = recovered_TJ >= recovery_fraction * gains_T[:, None]
    helps_T = gains_T >= minimum_gain
    is_found_T = helps_T & reaches_TJ.any(axis=1)
    # argmax finds the first True; if there is none it says 0, which `is_found_T` blanks.
    k_star_T = np.where(is_found_T, studied_k_J[reaches_TJ.argmax(axis=1)], np.array(None))
    return k_star_T.tolist(), helps_T & ~is_found_T


def tried_tokens(
    evaluator: str, contexts: Contexts, chunk: Chunk, choices: Choices, measuring: Measuring
) -> dict[str, Columns]:
    """What chosen tokens are worth to a model, whoever chose them, and how few do: artefact -> columns.

    Args:
        contexts: as the model reads them.
        choices: a rule is studied at as many tokens as it has chosen.
    """
    own = contexts[OWN]
    targets_T = measuring.lengths.targets_T
    of_target = {
        "short_context_loss": own.short.losses,
        "long_context_loss": own.long_losses_T,
        "short_context_divergence": own.short.divergences,
    }
    if measuring.ablation == SWAP:
        swapped = own.baselines.over_swaps
        of_target["swapped_loss"] = swapped.losses
        of_target["swapped_divergence"] = swapped.divergences
    tables: dict[str, Columns] = {}
    for name, of_rules in choices.items():
        numbers_of_rule = {
            rule: [k for k in measuring.numbers_of(rule) if k <= positions_TK.shape[1]]
            for rule, positions_TK in of_rules.items()
        }
        sparse = sparse_contexts(contexts[name], of_rules, numbers_of_rule)
        for rule, of_swaps in sparse.items():
            numbers = numbers_of_rule[rule]
            found = of_swaps.over_swaps
            _append(
                tables,
                "sparse_context_losses",
                chunk,
                targets_T,
                len(numbers),
                rule=rule,
                distant_context=name,
                null_kind=None if name == OWN else find_rule(rule).null,
                evaluator=evaluator,
                k=np.broadcast_to(numbers, found.losses.shape),
                sparse_context_loss=found.losses,
                sparse_context_divergence=found.divergences,
                **{column: np.repeat(values_T, len(numbers)) for column, values_T in of_target.items()},
            )
        if name == OWN:
            _append_sparsity(tables, evaluator, chunk, own, sparse, numbers_of_rule, measuring)
    return tables


def _append_sparsity(
    tables: dict[str, Columns],
    evaluator: str,
    chunk: Chunk,
    own: FarContext,
    sparse: Mapping[str, Measured],
    numbers_of_rule: Mapping[str, list[int]],
    measuring: Measuring,
) -> None:
    """Append a row a target, rule and criterion: how few tokens do."""
    losses, divergences = own.baselines
    # Under the long context the divergence is 0, so that all of it is to be recovered.
    for place, (criterion, baseline_TB, gains_TB) in enumerate(
        ((LOSS, losses, losses - own.long_losses_T[:, None]), (DIVERGENCE, divergences, divergences))
    ):
        gains_T = gains_TB.mean(-1)
        for rule, found in sparse.items():
            recovered_TJB = baseline_TB[:, None] - found[place]
            ks_J = np.array(numbers_of_rule[rule])
            (k_50, _), (k_90, is_censored_T) = (
                minimal_sufficient_k(
                    gains_T,
                    recovered_TJB.mean(-1),
                    ks_J,
                    recovery_fraction=fraction,
                    minimum_gain=measuring.minimum_gain,
                )
                for fraction in (0.5, RECOVERY_FRACTION)
            )
            _append(
                tables,
                "dependency_sparsity",
                chunk,
                measuring.lengths.targets_T,
                1,
                rule=rule,
                evaluator=evaluator,
                criterion=criterion,
                gain=gains_T,
                loss_difference=own.short.losses - own.long_losses_T,
                is_censored=is_censored_T,
                k_90=k_90,
                k_50=k_50,
                **_mean_log2_k(recovered_TJB, gains_TB, ks_J, measuring),
            )


def _mean_log2_k(
    recovered_TJB: np.ndarray, gains_TB: np.ndarray, ks_J: np.ndarray, measuring: Measuring
) -> Columns:
    """`mean_log2_k` of each target, mean over swapped contexts, and in each.

    Null where the gain is below the minimum, and in a swapped context that gives no gain.
    """
    num_far_T = measuring.lengths.num_far_tokens_T
    none = np.array(None)
    has_gain_TB = (gains_TB > 0) & (gains_TB.mean(-1) >= measuring.minimum_gain)[:, None]
    # Gains of 0 divide to NaN or infinity, and the mask keeps those out of the mean.
    with np.errstate(divide="ignore", invalid="ignore"):
        shares_BTJ = np.moveaxis(recovered_TJB / gains_TB[:, None], -1, 0)
        of_each_TB = np.stack([mean_log2_k(shares_TJ, ks_J, num_far_T) for shares_TJ in shares_BTJ], axis=-1)
        means_T = np.where(has_gain_TB, of_each_TB, 0).sum(-1) / has_gain_TB.sum(-1)
    return {
        "mean_log2_k": np.where(has_gain_TB.any(-1), means_T, none).tolist(),
        "mean_log2_k_of_swaps": [
            row_B if any(value is not None for value in row_B) else None
            for row_B in np.where(has_gain_TB, of_each_TB, none).tolist()
        ],
    }


def _append(
    tables: dict[str, Columns],
    artefact: str,
    chunk: Chunk,
    targets_T: np.ndarray,
    rows_per_target: int,
    **columns: str | list[Any] | np.ndarray | None,
) -> None:
    """Append rows: what names a target, repeated, and `columns`, values row by row, or one for all rows."""
    table = chunk.target_columns(np.repeat(targets_T, rows_per_target))
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            values = values.ravel().tolist()
        table[name] = values if isinstance(values, list) else [values] * rows_per_target * len(targets_T)
    append_columns(tables, {artefact: table})
