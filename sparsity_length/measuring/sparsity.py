"""Everything that is measured of one chunk: losses, what the rules choose, what that is worth, and how few
tokens do.

Tables are column -> values, in the document's coordinates.

Shapes: L chunk, T targets, F distant-context positions, K largest k of a rule, J studied values of
k, B swaps.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sparsity_length.measuring.contexts import Batching, Measured, measured_windows
from sparsity_length.measuring.far_context import FarContext, far_contexts, sparse_contexts
from sparsity_length.measuring.rules import (
    CONTROLS,
    LEAVE_ONE_OUT_RULES,
    RULES,
    find_rule,
)
from sparsity_length.measuring.selecting import Selecting
from sparsity_length.measuring.settings import RECOVERY_FRACTION, ByLength, ContextLengths
from sparsity_length.models.interface import CausalLM
from sparsity_length.results.schemas import DIVERGENCE, LOSS, OWN, Columns
from sparsity_length.text.chunks import Chunk

Contexts = Mapping[str, FarContext]
Choices = dict[str, dict[str, tuple[np.ndarray, list[int]]]]
"""Distant context -> rule -> the chunk's chosen positions, most influential first, int64 [T, K]; and the J
numbers of them that are studied."""


def measure_lengths(model: CausalLM, chunk: Chunk, asked: ByLength) -> Iterator[tuple[str, Columns]]:
    """Losses of the targets at each context length."""
    chunk_L = chunk.token_ids_L
    lengths = asked.lengths
    context_lengths = asked.context_lengths or ()
    batching = Batching.for_model(model)
    long = FarContext(model, lengths, batching, chunk_L, chunk_L).predictions
    measured = [
        measured_windows(model, chunk_L, lengths.targets_T, length, batching, long)
        for length in context_lengths
    ]
    columns = {
        "context_length": [*context_lengths],
        "num_targets": lengths.num_targets,
        "mean_loss": [of_length.losses.mean() for of_length in measured],
        "mean_divergence": [of_length.divergences.mean() for of_length in measured],
        "losses": [of_length.losses for of_length in measured],
        "divergences": [of_length.divergences for of_length in measured],
    }
    yield "length_losses", columns


def measure_differences(
    model: CausalLM, chunk: Chunk, lengths: ContextLengths
) -> Iterator[tuple[str, Columns]]:
    """Losses of the targets in their short, long and swapped contexts."""
    chunk_L = chunk.token_ids_L
    # No tokens are chosen, so no null is needed, and its document can be the swap.
    swap_ids_1L = chunk.other_token_ids_NL
    own = FarContext(model, lengths, Batching.for_model(model), chunk_L, chunk_L, trial_swaps_BL=swap_ids_1L)
    swapped = own.baselines.over_swaps
    columns = {
        "target_position": chunk.start + lengths.targets_T,
        "target_token_id": chunk_L[lengths.targets_T],
        "num_long_context_tokens": lengths.targets_T,
        "short_context_loss": own.short.losses,
        "long_context_loss": own.long_losses_T,
        "loss_difference": own.short.losses - own.long_losses_T,
        "swapped_context_loss": swapped.losses,
        "document_specific_gain": swapped.losses - own.long_losses_T,
        "long_context_entropy": own.predictions.entropies_T,
        "short_context_divergence": own.short.divergences,
        "swapped_context_divergence": swapped.divergences,
    }
    yield "loss_differences", columns


def measure_chunk(
    model: CausalLM, chunk: Chunk, selecting: Selecting, *, every_null: bool = True
) -> Iterator[tuple[str, Columns]]:
    """What the rules choose, and what that is worth to the model that chose.

    `every_null` as of `Selecting.rules_in`.
    """
    contexts = contexts_of(model, chunk, selecting)
    choices = chosen_positions(contexts, chunk, selecting, every_null=every_null)
    yield from chosen_tokens(contexts, chunk, choices, selecting)
    yield from tried_tokens(contexts, chunk, choices, selecting)


def try_choices(
    model: CausalLM,
    chunk: Chunk,
    selecting: Selecting,
    choices: Mapping[tuple[Any, ...], np.ndarray],
    searched: slice = slice(0),
) -> Iterator[tuple[str, Columns]]:
    """What another model's choices are worth.

    `choices` has positions for each document, chunk, distant context and rule; `searched` are the places of
    the search's documents among a chunk's others, in none of which a choice is tried.
    """
    chunk = replace(chunk, other_token_ids_NL=np.delete(chunk.other_token_ids_NL, searched, axis=0))
    contexts = contexts_of(model, chunk, selecting)
    # Ranked again from the same seed: tables of the choices end at the largest --k, and controls are studied
    # up to the whole distant context.
    chosen = chosen_positions(contexts, chunk, selecting, CONTROLS)
    for name, of_rules in chosen.items():
        for rule in selecting.rules_in(name, chunk.document_id):
            if rule not in CONTROLS:
                positions_TK = choices[chunk.document_id, chunk.chunk_index, name, rule]
                numbers = [k for k in selecting.numbers_of(rule) if k <= positions_TK.shape[1]]
                of_rules[rule] = positions_TK, numbers
    yield from tried_tokens(contexts, chunk, chosen, selecting)


def contexts_of(model: CausalLM, chunk: Chunk, selecting: Selecting) -> Contexts:
    """The chunk's own distant context and its null, as a model reads them; nothing is measured yet."""
    # The first is the null: as a swap too, it would be its own baseline. Trials come before searches, so that
    # a choice by other searches is tried in the same documents.
    num_trials = selecting.trial_swaps or 0
    null_L, trial_swaps_BL, search_swaps_BL = np.split(chunk.other_token_ids_NL, [1, 1 + num_trials])
    return far_contexts(
        model,
        selecting.lengths,
        Batching.for_model(model),
        chunk.token_ids_L,
        null_L[0],
        search_swaps_BL=search_swaps_BL if len(search_swaps_BL) else (None,),
        trial_swaps_BL=trial_swaps_BL if len(trial_swaps_BL) else (None,),
        screen=selecting.screen,
        seed=selecting.seed_of(chunk.document_id, chunk.chunk_index),
    )


def chosen_positions(
    contexts: Contexts,
    chunk: Chunk,
    selecting: Selecting,
    among: Iterable[str] = RULES,
    *,
    every_null: bool = True,
) -> Choices:
    """What each rule, of those `among`, chooses in each distant context; `every_null` as of `rules_in`."""
    choices: Choices = {}
    for name, context in contexts.items():
        choices[name] = {}
        for rule in selecting.rules_in(name, chunk.document_id, every_null=every_null):
            if rule in among:
                numbers = selecting.numbers_of(rule)
                choices[name][rule] = find_rule(rule).rank(context, numbers[-1]), numbers
    return choices


def chosen_tokens(
    contexts: Contexts, chunk: Chunk, choices: Choices, selecting: Selecting
) -> Iterator[tuple[str, Columns]]:
    """One row per target, rule and rank, and all influences if every token was left out."""
    targets_T = selecting.lengths.targets_T
    for name, context in contexts.items():
        leaves_out = any(rule in choices[name] for rule in LEAVE_ONE_OUT_RULES)
        # NaN of tokens that were not left out alone.
        influence_TF = (
            context.influence.losses
            if leaves_out
            else np.full((len(targets_T), context.num_far_tokens_T[-1]), np.nan)
        )
        # A screen with room for every token leaves out each.
        if leaves_out and (selecting.screen or np.inf) >= context.num_far_tokens_T[-1]:
            of_targets = {
                "target_position": chunk.start + targets_T,
                "distant_context": name,
                # Without a screen NaN stands only behind a target's distant context: indices stay positions.
                "influences": [row_F[~np.isnan(row_F)] for row_F in influence_TF],
            }
            yield "influences", of_targets
        for rule, (ranked_TK, _) in choices[name].items():
            # Controls and screened rules are ranked far beyond the k that were asked for.
            positions_TK = ranked_TK[:, : selecting.ks[-1]]
            num_ranks = positions_TK.shape[1]
            columns = {
                "target_position": chunk.start + np.repeat(targets_T, num_ranks),
                "rule": rule,
                "distant_context": name,
                "null_kind": None if name == OWN else find_rule(rule).null,
                "rank": np.broadcast_to(np.arange(1, num_ranks + 1), positions_TK.shape),
                "context_position": chunk.start + positions_TK,
                "distance": targets_T[:, None] - positions_TK,
                "context_token_id": context.token_ids_L[positions_TK],
                "influence": np.take_along_axis(influence_TF, positions_TK, axis=1),
            }
            yield "influential_tokens", columns


def mean_log2_k(shares_NJ: np.ndarray, ks_J: np.ndarray, num_far_N: np.ndarray) -> np.ndarray:
    """Needed tokens in doublings, averaged over recovered fractions: float64 [N].

    The mean over thresholds in (0, 1) of log2 k*(threshold), which is the integral of 1 - r over log2 k from
    1 token to all F. r is the recovered fraction, clipped to [0, 1] and never falling: straight lines in
    log2 k between the studied k, and 1 at F. 0: one token suffices; log2 F: nothing is recovered before
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
) -> tuple[np.ndarray, np.ndarray]:
    """The least studied k that recovers `recovery_fraction` of the gain.

    By the losses the gain is L_short - L_long, and L_short - L_{short+k} of it is recovered; by the
    divergence it is divergence(t | short), and that minus divergence(t | short and S_k). Under the
    ablation `swap`, short stands for it with a swapped distant context. All in nats.

    Returns:
        k_star_T: NaN if the gain is below the minimum, or no studied k reaches it.
        is_censored_T: bool, the latter case.
    """
    # A product, not a ratio, so that gains near 0 need no division.
    reaches_TJ = recovered_TJ >= recovery_fraction * gains_T[:, None]
    helps_T = gains_T >= minimum_gain
    is_found_T = helps_T & reaches_TJ.any(axis=1)
    # argmax finds the first True; if there is none it says 0, which `is_found_T` blanks.
    k_star_T = np.where(is_found_T, studied_k_J[reaches_TJ.argmax(axis=1)], np.nan)
    return k_star_T, helps_T & ~is_found_T


def tried_tokens(
    contexts: Contexts, chunk: Chunk, choices: Choices, selecting: Selecting
) -> Iterator[tuple[str, Columns]]:
    """What chosen tokens are worth to a model, whoever chose them, and how few do.

    `contexts` are as the model reads them.
    """
    own = contexts[OWN]
    of_target = {
        "target_position": chunk.start + selecting.lengths.targets_T,
        "short_context_loss": own.short.losses,
        "long_context_loss": own.long_losses_T,
        "short_context_divergence": own.short.divergences,
    }
    if selecting.trial_swaps:
        swapped = own.baselines.over_swaps
        of_target |= {"swapped_loss": swapped.losses, "swapped_divergence": swapped.divergences}
    for name, of_rules in choices.items():
        sparse = sparse_contexts(contexts[name], of_rules)
        for rule, (_, numbers) in of_rules.items():
            found = sparse[rule].over_swaps
            columns = {
                **{column: np.repeat(values_T, len(numbers)) for column, values_T in of_target.items()},
                "rule": rule,
                "distant_context": name,
                "null_kind": None if name == OWN else find_rule(rule).null,
                "k": np.broadcast_to(numbers, found.losses.shape),
                "sparse_context_loss": found.losses,
                "sparse_context_divergence": found.divergences,
            }
            yield "sparse_context_losses", columns
        if name == OWN:
            yield from _sparsity(chunk, own, sparse, of_rules, selecting)


def _sparsity(
    chunk: Chunk,
    own: FarContext,
    sparse: Mapping[str, Measured],
    choices: Mapping[str, tuple[np.ndarray, list[int]]],
    selecting: Selecting,
) -> Iterator[tuple[str, Columns]]:
    """One row per target, rule and criterion: how few tokens do."""
    losses, divergences = own.baselines
    of_criteria = (
        (LOSS, losses, losses - own.long_losses_T[:, None]),
        # Under the long context the divergence is 0, so that all of it is to be recovered.
        (DIVERGENCE, divergences, divergences),
    )
    for place, (criterion, baseline_TB, gains_TB) in enumerate(of_criteria):
        gains_T = gains_TB.mean(-1)
        least_k = partial(minimal_sufficient_k, gains_T, minimum_gain=selecting.minimum_gain)
        for rule, found in sparse.items():
            recovered_TJB = baseline_TB[:, None] - found[place]
            recovered_TJ = recovered_TJB.mean(-1)
            ks_J = np.array(choices[rule][1])
            k_50, _ = least_k(recovered_TJ, ks_J, recovery_fraction=0.5)
            k_90, is_censored_T = least_k(recovered_TJ, ks_J, recovery_fraction=RECOVERY_FRACTION)
            columns = {
                "target_position": chunk.start + selecting.lengths.targets_T,
                "rule": rule,
                "criterion": criterion,
                "gain": gains_T,
                "loss_difference": own.short.losses - own.long_losses_T,
                "is_censored": is_censored_T,
                "k_90": k_90,
                "k_50": k_50,
                **_mean_log2_k(recovered_TJB, gains_TB, ks_J, selecting),
            }
            yield "dependency_sparsity", columns


def _mean_log2_k(
    recovered_TJB: np.ndarray, gains_TB: np.ndarray, ks_J: np.ndarray, selecting: Selecting
) -> Columns:
    """`mean_log2_k` of each target, mean over swapped contexts, and in each.

    Null if the gain is below the minimum, and in a swapped context that gives no gain.
    """
    is_worth_T = gains_TB.mean(-1) >= selecting.minimum_gain
    has_gain_TB = (gains_TB > 0) & is_worth_T[:, None]
    # Gains of 0 divide to NaN or infinity, and the mask keeps those out of the mean.
    with np.errstate(divide="ignore", invalid="ignore"):
        shares_BTJ = np.moveaxis(recovered_TJB / gains_TB[:, None], -1, 0)
        of_each_BT = [
            mean_log2_k(shares_TJ, ks_J, selecting.lengths.num_far_tokens_T) for shares_TJ in shares_BTJ
        ]
        of_each_TB = np.where(has_gain_TB, np.transpose(of_each_BT), np.nan)
        means_T = np.nansum(of_each_TB, -1) / has_gain_TB.sum(-1)
    of_swaps = [None if np.isnan(row_B).all() else row_B for row_B in of_each_TB]
    return {"mean_log2_k": means_T, "mean_log2_k_of_swaps": of_swaps}
