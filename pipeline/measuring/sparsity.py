"""Everything that is measured of one chunk: what the rules choose, what that is worth, and how few tokens do.

Tables are column -> values, in the document's coordinates.

Shapes: T targets, F far-context positions, K largest k of a rule, J studied values of k.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
import torch

from pipeline.measuring.contexts import (
    Measured,
    Measurement,
    PassQueue,
    Rows,
    measured_in_foreign_context,
)
from pipeline.measuring.far_context import FarContext, far_contexts, sparse_contexts
from pipeline.measuring.flags import (
    MINIMUM_GAIN,
    RECOVERY_FRACTION,
    ContextLengths,
)
from pipeline.measuring.rules import (
    BACKGROUND,
    CONTROLS,
    LEAVE_ONE_OUT_RULES,
    REMOVE,
    find_rule,
    selected_positions,
)
from pipeline.measuring.stage import LoadedModel
from pipeline.models.interface import NotFiniteLossError, Predictions
from pipeline.results.schemas import DIVERGENCE, LOSS, OWN, Columns, append_columns
from pipeline.text.chunks import Chunk

Choices = Mapping[str, dict[str, np.ndarray]]
"""Far context -> rule -> the chunk's chosen positions, most influential first: int64 [T, K]."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Request:
    """What is to be measured of every chunk."""

    lengths: ContextLengths
    largest_k: int
    numbers_of_rule: Mapping[str, Sequence[int]]
    """Rule -> the numbers of tokens that it is studied at, ascending."""
    recovery_fraction: float = RECOVERY_FRACTION
    """k* recovers this much of the gain."""
    minimum_gain: float = MINIMUM_GAIN
    """Nats; where the gain is below it there is nothing to recover, and no sparsity."""
    seed: int = 0
    intervention: str = REMOVE
    num_backgrounds: int = 1
    """Foreign documents, under the intervention `background`."""
    screen: int | None = None
    """Blocks that a round of leave_one_out leaves out; None: every token (`flags.screen_of`)."""
    every_null: bool = True
    """Whether every rule is measured in the null; else those only that say nothing without theirs."""
    null_fraction: float = 1.0
    """Of the documents, those that have a null and controls; which ones, a hash of the text decides."""
    choosers_judge: bool = True
    """Whether the tokens are tried on the models that chose them too."""
    choices: Mapping[tuple[str, int], Choices] | None = None
    """Document and chunk -> what was chosen of it before. None: the rules choose."""
    every_influence: bool = True
    """Whether the table `influences` is made: that of every far token on every target."""

    def numbers_in(self, far_context: str, document_id: str = "") -> dict[str, Sequence[int]]:
        """`numbers_of_rule` of the rules that choose in this far context of a document."""
        # The end of a hash is anywhere in [0, 1); its beginning is what documents are ordered by.
        end = document_id[-8:] or "0"
        place = int(end, 16) / 16 ** len(end)
        has_null = place < self.null_fraction
        return {
            rule: numbers
            for rule, numbers in self.numbers_of_rule.items()
            if (has_null and (far_context == OWN or self.every_null or find_rule(rule).needs_null))
            or (far_context == OWN and find_rule(rule).says_something_alone)
        }

    def leaves_out(self, far_context: str, document_id: str = "") -> bool:
        """Whether a rule leaves out every far token of this far context, so that all influences are known."""
        return any(rule in LEAVE_ONE_OUT_RULES for rule in self.numbers_in(far_context, document_id))

    def seed_of(self, chunk: Chunk) -> tuple[int, ...]:
        """Of all that is drawn for a chunk, whichever model measures it; a text alone is no document's."""
        return (self.seed, *([int(chunk.document_id, 16), chunk.chunk_index] if chunk.document_id else []))

    def far_contexts(self, loaded: LoadedModel, chunk: Chunk) -> dict[str, FarContext]:
        """See `far_context.far_contexts`."""
        seed = self.seed_of(chunk)
        measurement = Measurement(loaded.model, self.lengths, loaded.batching, screen=self.screen, seed=seed)
        chunk_L, is_background = chunk.token_ids_L, self.intervention == BACKGROUND
        return far_contexts(
            measurement, chunk_L, chunk.null_token_ids_L,
            background_ids_BL=chunk.other_token_ids_NL[1:] if is_background else None,
        )  # fmt: skip


def measure_chunk(
    choosers: Sequence[LoadedModel], chunk: Chunk, judges: Sequence[LoadedModel], request: Request,
    contexts: Mapping[str, FarContext] | None = None,
) -> dict[str, Columns]:  # fmt: skip
    """What the rules choose, and losses and divergences of the judges: artefact -> column -> values.

    Args:
        choosers: the models whose mean scores choose; where `request.choices` has the tokens, the model that
            they are tried on.
        contexts: of `request.far_contexts` of the first chooser, where the caller asks them for more.
    """
    of_choosers: list[Mapping[str, FarContext]] = [contexts or request.far_contexts(choosers[0], chunk)]
    of_choosers += [request.far_contexts(chooser, chunk) for chooser in choosers[1:]]
    tables: dict[str, Columns] = {}
    chosen: dict[str, dict[str, np.ndarray]]
    if request.choices is None:
        chosen = _chosen(tables, chunk, of_choosers, request)
    else:
        chosen, seed = dict(request.choices[chunk.document_id, chunk.chunk_index]), request.seed_of(chunk)
        for name in chosen:
            numbers = request.numbers_in(name, chunk.document_id)
            chosen[name] = chosen[name] | {  # what the controls choose, for which no results need be read
                rule: selected_positions(of_choosers[0][name], rule, numbers[rule][-1], seed)
                for rule in CONTROLS
                if rule in numbers
            }
    judging: list[tuple[LoadedModel, Mapping[str, FarContext]]] = [
        (judge, request.far_contexts(judge, chunk)) for judge in judges
    ]
    if request.choosers_judge or not judges:
        judging = [*zip(choosers, of_choosers, strict=True), *judging]
    for judge, of_judge in judging:
        try:
            append_columns(tables, _evaluated(judge.name, chunk, of_judge, chosen, request))
        except NotFiniteLossError as error:
            error.model_name = judge.name
            raise
    return tables


def _chosen(
    tables: dict[str, Columns], chunk: Chunk, of_choosers: Sequence[Mapping[str, FarContext]],
    request: Request,
) -> dict[str, dict[str, np.ndarray]]:  # fmt: skip
    """What each rule chooses in each far context; rows that say so are appended to the tables."""
    targets_T, seed = request.lengths.targets_T, request.seed_of(chunk)
    every_T = np.arange(len(targets_T))[:, None]
    chosen: dict[str, dict[str, np.ndarray]] = {}
    for name in of_choosers[0]:
        context, *others = [contexts[name] for contexts in of_choosers]
        chosen[name] = {
            rule: selected_positions(context, rule, numbers[-1], seed, others)
            for rule, numbers in request.numbers_in(name, chunk.document_id).items()
        }
        influence_TF = context.influence_TF if request.leaves_out(name, chunk.document_id) else None
        if influence_TF is not None and others:
            influence_TF = np.mean([influence_TF, *(other.influence_TF for other in others)], axis=0)
        if request.every_influence and request.screen is None and influence_TF is not None:
            far_only = [row_F[~np.isnan(row_F)].tolist() for row_F in influence_TF]
            influences = _rows(chunk, targets_T, 1, far_context=name) | {"influences": far_only}
            append_columns(tables, {"influences": influences})
        if request.screen is not None and influence_TF is not None:
            is_unknown_TF, influence_TF = np.isnan(influence_TF), influence_TF.astype(object)
            influence_TF[is_unknown_TF] = None  # of tokens that were not left out alone
        for rule, ranked_TK in chosen[name].items():
            positions_TK = ranked_TK[:, : request.largest_k]
            num_ranks = positions_TK.shape[1]
            selected = _rows(
                chunk, targets_T, num_ranks, rule=rule, far_context=name, null_kind=_null_kind(name, rule),
                rank=np.broadcast_to(np.arange(1, num_ranks + 1), positions_TK.shape),
                context_position=chunk.start + positions_TK, distance=targets_T[:, None] - positions_TK,
                context_token_id=context.token_ids_L[positions_TK],
                influence=None if influence_TF is None else influence_TF[every_T, positions_TK],
            )  # fmt: skip
            append_columns(tables, {"influential_tokens": selected})
    return chosen


def compared_losses(chunk: Chunk, own: FarContext) -> Columns:
    """A row a target: losses under long, short and foreign context, divergences from the long one."""
    targets_T, long_losses_T, short = own.lengths.targets_T, own.long_losses_T, own.short
    foreign = measured_in_foreign_context(
        own.model, chunk.token_ids_L, chunk.null_token_ids_L, own.lengths, own.predictions
    )
    return chunk.target_columns(targets_T) | {
        "target_token_id": chunk.token_ids_L[targets_T].tolist(),
        "num_long_context_tokens": targets_T.tolist(),
        "short_context_loss": short.losses.tolist(),
        "long_context_loss": long_losses_T.tolist(),
        "loss_difference": (short.losses - long_losses_T).tolist(),
        "foreign_context_loss": foreign.losses.tolist(),
        "specific_gain": (foreign.losses - long_losses_T).tolist(),
        "long_context_entropy": own.predictions.entropies_T.tolist(),
        "short_context_divergence": short.divergences.tolist(),
        "foreign_context_divergence": foreign.divergences.tolist(),
    }


def length_harm(own: FarContext, near_context_length: int, background_ids_BL: np.ndarray) -> np.ndarray:
    """KL(p(.|last w tokens) || p(.|foreign far tokens, last w tokens)): float32 [T, B], nats.

    What foreign far tokens do to a prediction that does not need them: harm of length, and nothing else. w is
    the near context length, beyond which the tokens are another document's.
    """
    model, near = own.model, replace(own.lengths, short_context_length=near_context_length)
    places_TC = near.targets_T[:, None] + np.arange(-near_context_length, 0)
    batching, hidden = own.measurement.batching, []
    num_batches = len(batching.of_many(len(places_TC), near_context_length))
    for places_BC in np.array_split(places_TC, num_batches):
        queries_B1 = np.full((len(places_BC), 1), near_context_length - 1)
        rows = Rows(own.chunk_L[places_BC], places_BC, None, queries_B1)
        hidden.append(PassQueue(model, batching, None).hidden_states(rows)[:, 0])
    near_only = Predictions.of(model.logits(torch.cat(hidden)))
    return np.stack(
        [
            measured_in_foreign_context(model, own.chunk_L, background_L, near, near_only).divergences
            for background_L in background_ids_BL
        ],
        axis=-1,
    )


def mean_log2_k(shares_NJ: np.ndarray, ks_J: np.ndarray, num_far_N: np.ndarray) -> np.ndarray:
    """How many tokens it takes, in doublings, on average over what is asked back: float64 [N].

    The mean over thresholds in (0, 1) of log2 k*(threshold), which is the integral of 1 - r over log2 k from
    1 token to all F. r is the share that comes back, clipped to [0, 1] and never falling: straight lines in
    log2 k between the studied k, and 1 at F. 0: one token does everything; log2 F: nothing comes back before
    the last token.

    Args:
        shares_NJ: of what the far context is worth, the share that the first k tokens bring back.
        ks_J: the studied k, ascending, none above F.
        num_far_N: F.
    """
    rising_NJ = np.maximum.accumulate(np.clip(shares_NJ, 0, 1), axis=1)
    is_all_NJ = ks_J >= num_far_N[:, None]
    shares_NJ = np.column_stack([np.where(is_all_NJ, 1, rising_NJ), np.ones(len(num_far_N))])
    log2_ks_NJ = np.log2(np.column_stack([np.broadcast_to(ks_J, rising_NJ.shape), num_far_N]))
    if ks_J[0] > 1:  # what fewer tokens than were studied bring back is not known: as much as none
        shares_NJ = np.column_stack([np.zeros(len(num_far_N)), shares_NJ])
        log2_ks_NJ = np.column_stack([np.zeros(len(num_far_N)), log2_ks_NJ])
    missing_NJ = 1 - (shares_NJ[:, 1:] + shares_NJ[:, :-1]) / 2
    integral_N: np.ndarray = (missing_NJ * np.diff(log2_ks_NJ, axis=1)).sum(1)
    return integral_N


def dependency_sparsity(
    gains_T: np.ndarray, recovered_TJ: np.ndarray, studied_k_J: np.ndarray, *,
    recovery_fraction: float, minimum_gain: float,
) -> tuple[list[int | None], np.ndarray]:  # fmt: skip
    """The least studied k that recovers `recovery_fraction` of the gain.

    By the losses the gain is L_short - L_long, and L_short - L_{short+k} of it is recovered; by the
    divergence it is divergence(t | short), and that less divergence(t | short and S_k). Under the
    intervention `background` a foreign far context stands in the place of none. All in nats.

    Returns:
        dependency_sparsity_T: None where the gain is below the minimum, or no studied k reaches it.
        is_censored_T: bool, the latter case.
    """
    reaches_TJ = recovered_TJ >= recovery_fraction * gains_T[:, None]
    helps_T, reaches_T = gains_T >= minimum_gain, reaches_TJ.any(axis=1)
    least_k_T = studied_k_J[reaches_TJ.argmax(axis=1)]
    is_found_T = helps_T & reaches_T
    k_star_T = [int(k) if is_found else None for k, is_found in zip(least_k_T, is_found_T, strict=True)]
    return k_star_T, helps_T & ~reaches_T


def _null_kind(far_context: str, rule: str) -> str | None:
    return None if far_context == OWN else find_rule(rule).null


def _evaluated(
    judge: str, chunk: Chunk, contexts: Mapping[str, FarContext], chosen: Choices, request: Request
) -> dict[str, Columns]:
    """What the chosen tokens are worth to a model, and the sparsity of the own ones."""
    own, targets_T = contexts[OWN], request.lengths.targets_T
    of_target = {
        "short_context_loss": own.short.losses,
        "long_context_loss": own.long_losses_T,
        "short_context_divergence": own.short.divergences,
    }
    if own.background is not None:
        of_target["background_loss"] = own.background.losses
        of_target["background_divergence"] = own.background.divergences
    tables: dict[str, Columns] = {}
    for name, of_rules in chosen.items():
        numbers_of_rule = {rule: request.numbers_of_rule[rule] for rule in of_rules}
        sparse = sparse_contexts(contexts[name], of_rules, numbers_of_rule)
        for rule, of_backgrounds in sparse.items():
            numbers, found = request.numbers_of_rule[rule], of_backgrounds.over_backgrounds
            columns = _rows(
                chunk, targets_T, len(numbers), rule=rule, far_context=name, null_kind=_null_kind(name, rule),
                judge=judge, k=np.broadcast_to(numbers, found.losses.shape),
                sparse_context_loss=found.losses, sparse_context_divergence=found.divergences,
                **{column: np.repeat(values_T, len(numbers)) for column, values_T in of_target.items()},
            )  # fmt: skip
            append_columns(tables, {"sparse_context_losses": columns})
        if name == OWN:
            append_columns(tables, _sparsity_rows(judge, chunk, own, sparse, request))
    return tables


def _sparsity_rows(
    judge: str, chunk: Chunk, own: FarContext, sparse: Mapping[str, Measured], request: Request
) -> dict[str, Columns]:
    """A row a target, rule and criterion: how few tokens do, and how long a context of nearest ones does."""
    tables: dict[str, Columns] = {}
    targets_T, short = request.lengths.targets_T, request.lengths.short_context_length
    for criterion, values_of in ((LOSS, attrgetter("losses")), (DIVERGENCE, attrgetter("divergences"))):
        # Under the long context the divergence is 0, so that all of it is to be recovered.
        long_T1 = own.long_losses_T[:, None] if criterion == LOSS else 0
        baseline_TB = values_of(own.baselines)
        gains_TB = baseline_TB - long_T1
        gains_T = gains_TB.mean(-1)
        recovered = {rule: baseline_TB[:, None] - values_of(found) for rule, found in sparse.items()}
        k_stars = {
            rule: dependency_sparsity(
                gains_T, recovered_TJB.mean(-1), np.array(request.numbers_of_rule[rule]),
                recovery_fraction=request.recovery_fraction, minimum_gain=request.minimum_gain,
            )
            for rule, recovered_TJB in recovered.items()
        }  # fmt: skip
        nearest_T = k_stars["nearest"][0] if "nearest" in k_stars else [None] * len(targets_T)
        for rule, (k_star_T, is_censored_T) in k_stars.items():
            numbers = np.array(request.numbers_of_rule[rule])
            columns = _rows(
                chunk, targets_T, 1, rule=rule, judge=judge, criterion=criterion, gain=gains_T,
                loss_difference=own.short.losses - own.long_losses_T, is_censored=is_censored_T,
            )  # fmt: skip
            columns["dependency_sparsity"] = k_star_T
            columns["half_sparsity"], _ = dependency_sparsity(
                gains_T, recovered[rule].mean(-1), numbers, recovery_fraction=0.5,
                minimum_gain=request.minimum_gain,
            )  # fmt: skip
            columns["minimum_context_length"] = [None if k is None else short + k for k in nearest_T]
            columns |= _mean_log2_k(recovered[rule], gains_TB, numbers, request)
            append_columns(tables, {"dependency_sparsity": columns})
    return tables


def _mean_log2_k(
    recovered_TJB: np.ndarray, gains_TB: np.ndarray, ks_J: np.ndarray, request: Request
) -> Columns:
    """`mean_log2_k` of each target, mean over backgrounds, and of each background.

    Null where the gain is below the minimum, and of a background that gives no gain.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        shares_TJB = recovered_TJB / gains_TB[:, None]
    num_far_T = request.lengths.num_far_tokens_T
    of_each_TB = np.stack(
        [mean_log2_k(shares_TJ, ks_J, num_far_T) for shares_TJ in np.moveaxis(shares_TJB, -1, 0)], axis=-1
    )
    of_each_TB[(gains_TB <= 0) | (gains_TB.mean(-1) < request.minimum_gain)[:, None]] = np.nan
    rows = [[None if np.isnan(value) else float(value) for value in row_B] for row_B in of_each_TB]
    means = [[value for value in row if value is not None] for row in rows]
    return {
        "mean_log2_k": [float(np.mean(row)) if row else None for row in means],
        "mean_log2_k_of_backgrounds": [row if any(v is not None for v in row) else None for row in rows],
    }


def _rows(
    chunk: Chunk, targets_T: np.ndarray, rows_per_target: int, **columns: str | np.ndarray | None
) -> Columns:
    """The columns that name a target, repeated, and `columns`: arrays row by row, or one value for all."""
    num_rows = rows_per_target * len(targets_T)
    table = chunk.target_columns(np.repeat(targets_T, rows_per_target))
    for name, values in columns.items():
        table[name] = values.ravel().tolist() if isinstance(values, np.ndarray) else [values] * num_rows
    return table
