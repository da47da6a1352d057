"""Everything that is measured of one chunk: what the rules choose, what that is worth, and how few tokens do.

`measure_chunk` gives the tables of the stage influential_tokens and of a text that is explained,
`compared_losses` those of the stage loss_differences: column -> values, in the document's coordinates.

Shapes: T targets, F far-context positions, K largest k of a rule, J studied values of k.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from pipeline.measuring.contexts import HeadWeights, Measured, Measurement, measured_in_foreign_context
from pipeline.measuring.far_context import FarContext, far_contexts, sparse_contexts
from pipeline.measuring.flags import KEPT_FRACTION, NUM_SUBSETS, ContextLengths
from pipeline.measuring.rules import find_rule, selected_positions
from pipeline.measuring.stage import LoadedModel
from pipeline.models.interface import NotFiniteLossError
from pipeline.results.schemas import DIVERGENCE, LOSS, OWN, Columns, append_columns
from pipeline.text.chunks import Chunk
from pipeline.text.folder import UnigramDistribution


@dataclass(frozen=True, eq=False, kw_only=True)
class Request:
    """What is to be measured of every chunk."""

    lengths: ContextLengths
    largest_k: int
    numbers_of_rule: Mapping[str, Sequence[int]]
    """Rule -> the numbers of tokens that it is studied at, ascending."""
    recovery_fraction: float
    """k* recovers this much of the gain."""
    minimum_gain: float
    """Nats; where the gain is below it there is nothing to recover."""
    seed: int
    num_subsets: int = NUM_SUBSETS
    kept_fraction: float = KEPT_FRACTION
    unigram: UnigramDistribution | None = None
    """What left-out tokens are replaced by under `substitute`."""
    every_null: bool = True
    """Whether every rule is measured in the null; else those only that say nothing without theirs."""
    every_influence: bool = True
    """Whether the table `influences` is made: that of every far token on every target."""
    head_weights: dict[str, HeadWeights] = field(default_factory=dict)
    """Model -> what the rules learned_attention* need of it."""

    def numbers_in(self, far_context: str) -> dict[str, Sequence[int]]:
        """`numbers_of_rule` of the rules that choose in this far context."""
        return {
            rule: numbers
            for rule, numbers in self.numbers_of_rule.items()
            if far_context == OWN or self.every_null or find_rule(rule).needs_null
        }

    def seed_of(self, chunk: Chunk) -> tuple[int, ...]:
        """Of all that is drawn for a chunk, whichever model measures it; a text alone is no document's."""
        return (self.seed, *([int(chunk.document_id, 16), chunk.chunk_index] if chunk.document_id else []))

    def far_contexts(self, loaded: LoadedModel, chunk: Chunk) -> dict[str, FarContext]:
        """The chunk's own far context and its null; nothing is measured yet."""
        seed = self.seed_of(chunk)
        measurement = Measurement(
            loaded.model, self.lengths, loaded.batching, num_subsets=self.num_subsets,
            kept_fraction=self.kept_fraction, head_weights=self.head_weights.get(loaded.name), seed=seed,
            where=f"chunk {chunk.chunk_index} of document {chunk.document_id}",
        )  # fmt: skip
        chunk_L, backgrounds = chunk.token_ids_L, chunk.other_token_ids_NL[1:]
        substitute_ids_L = None if self.unigram is None else self.unigram.draw(len(chunk_L), [*seed, 1])
        return far_contexts(
            measurement, chunk_L, chunk.null_token_ids_L, substitute_ids_L=substitute_ids_L,
            background_ids_BL=backgrounds if len(backgrounds) else None,
        )  # fmt: skip


def measure_chunk(
    loaded: LoadedModel, chunk: Chunk, judges: Sequence[LoadedModel], request: Request,
    contexts: Mapping[str, FarContext] | None = None,
) -> dict[str, Columns]:  # fmt: skip
    """The tokens that a model's rules choose, and losses and divergences with them, its own and the judges'.

    Args:
        contexts: of `request.far_contexts`, where the caller asks them for more.

    Returns:
        Artefact -> column -> values.

    Raises:
        NotFiniteLossError: a model gives what is no number; it is named.
    """
    contexts = contexts or request.far_contexts(loaded, chunk)
    targets_T, seed = request.lengths.targets_T, request.seed_of(chunk)
    every_T = np.arange(len(targets_T))[:, None]
    tables: dict[str, Columns] = {}
    chosen: dict[str, dict[str, np.ndarray]] = {}  # far context -> rule -> positions [T, K], as they rank
    for name, context in contexts.items():
        chosen[name] = {
            rule: selected_positions(context, rule, numbers[-1], seed)
            for rule, numbers in request.numbers_in(name).items()
        }
        influence_TF = context.every_influence_TF
        if request.every_influence and influence_TF is not None:
            far_only = [row_F[~np.isnan(row_F)].tolist() for row_F in influence_TF]
            influences = _rows(chunk, targets_T, 1, far_context=name) | {"influences": far_only}
            append_columns(tables, {"influences": influences})
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
    for judge in (loaded, *judges):
        of_judge = contexts if judge is loaded else request.far_contexts(judge, chunk)
        try:
            append_columns(tables, _evaluated(judge.name, chunk, of_judge, chosen, request))
        except NotFiniteLossError as error:
            error.model_name = judge.name
            raise
    return tables


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
        "short_context_divergence": short.divergences.tolist(),
        "foreign_context_divergence": foreign.divergences.tolist(),
    }


def dependency_sparsity(
    gains_T: np.ndarray, recovered_TJ: np.ndarray, studied_k_J: np.ndarray, *,
    recovery_fraction: float, minimum_gain: float,
) -> tuple[list[int | None], np.ndarray]:  # fmt: skip
    """The least studied k that recovers `recovery_fraction` of the gain.

    By the losses the gain is L_short - L_long, and L_short - L_{short+k} of it is recovered; by the
    divergence it is divergence(t | short), and that less divergence(t | short and S_k). Under the
    intervention `background` a foreign far context stands in the place of none.

    Args:
        gains_T: what the long context gains, nats.
        recovered_TJ: how much of it k tokens recover, nats; column j belongs to studied_k_J[j], ascending.
        minimum_gain: nats; where the gain is below it there is nothing to recover.

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
    judge: str, chunk: Chunk, contexts: Mapping[str, FarContext],
    chosen: Mapping[str, Mapping[str, np.ndarray]], request: Request,
) -> dict[str, Columns]:  # fmt: skip
    """What the chosen tokens are worth to a model, and the k* of the own ones."""
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
    for name, context in contexts.items():
        sparse = sparse_contexts(context, chosen[name], request.numbers_in(name))
        for rule, found in sparse.items():
            numbers = request.numbers_of_rule[rule]
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
    """A row a target, rule and criterion: k*, and how long a context of nearest tokens does as well."""
    tables: dict[str, Columns] = {}
    targets_T, baseline = request.lengths.targets_T, own.background or own.short
    for criterion, values_of in ((LOSS, attrgetter("losses")), (DIVERGENCE, attrgetter("divergences"))):
        baseline_T = values_of(baseline)
        # Under the long context the divergence is 0, so that all of it is to be recovered.
        gains_T = baseline_T - own.long_losses_T if criterion == LOSS else baseline_T
        k_stars = {
            rule: dependency_sparsity(
                gains_T, baseline_T[:, None] - values_of(found), np.array(request.numbers_of_rule[rule]),
                recovery_fraction=request.recovery_fraction, minimum_gain=request.minimum_gain,
            )
            for rule, found in sparse.items()
        }  # fmt: skip
        nearest_T = k_stars["nearest"][0] if "nearest" in k_stars else [None] * len(targets_T)
        short = request.lengths.short_context_length
        for rule, (k_star_T, is_censored_T) in k_stars.items():
            columns = _rows(
                chunk, targets_T, 1, rule=rule, judge=judge, criterion=criterion, gain=gains_T,
                loss_difference=own.short.losses - own.long_losses_T, is_censored=is_censored_T,
            )  # fmt: skip
            columns["dependency_sparsity"] = k_star_T
            columns["minimum_context_length"] = [None if k is None else short + k for k in nearest_T]
            append_columns(tables, {"dependency_sparsity": columns})
    return tables


def _rows(
    chunk: Chunk, targets_T: np.ndarray, rows_per_target: int, **columns: str | np.ndarray | None
) -> Columns:
    """The columns that name a target, repeated, and `columns`: arrays row by row, or one value for all."""
    num_rows = rows_per_target * len(targets_T)
    table = chunk.target_columns(np.repeat(targets_T, rows_per_target))
    for name, values in columns.items():
        table[name] = values.ravel().tolist() if isinstance(values, np.ndarray) else [values] * num_rows
    return table
