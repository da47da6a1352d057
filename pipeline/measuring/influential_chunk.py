"""Everything that influential_tokens measures of one chunk: what is chosen, and what it is worth.

Shapes: T targets, K largest k of a rule, J studied values of k.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.influence.context_lengths import ContextLengths
from pipeline.influence.context_loss import Measured
from pipeline.influence.far_context import FarContext
from pipeline.influence.measurement import HeadWeights, Measurement
from pipeline.influence.rationale import RATIONALE_RULES, rationale_sizes
from pipeline.influence.rules import find_rule, studied_numbers
from pipeline.influence.selection import far_contexts, selected_positions, sparse_contexts
from pipeline.influence.sparsity import dependency_sparsity
from pipeline.measuring.evaluate_checkpoints import LoadedModel
from pipeline.measuring.rows import (
    Judgement,
    Sparsity,
    influence_rows,
    selection_rows,
    sparse_loss_rows,
    sparsity_rows,
)
from pipeline.models.causal_lm import NotFiniteLossError
from pipeline.results.columns import Columns, append_columns
from pipeline.results.names import DIVERGENCE, LOSS, OWN
from pipeline.text.chunks import Chunk
from pipeline.text.unigram import UnigramDistribution


@dataclass(frozen=True, eq=False)
class Asked:
    """What the command line of influential_tokens asks for."""

    lengths: ContextLengths
    largest_k: int
    numbers_of_rule: Mapping[str, Sequence[int]]
    """Rule -> the numbers of tokens that it is studied at."""
    unigram: UnigramDistribution | None
    """What left-out tokens are replaced by under `substitute`."""
    search_budget: float | None
    num_subsets: int
    kept_fraction: float
    num_candidates: int | None
    recovery_fraction: float
    minimum_gain: float
    seed: int
    head_weights: dict[str, HeadWeights] = field(default_factory=dict)
    """Model -> what rules learned_attention* need of it."""

    @classmethod
    def of(
        cls, arguments: argparse.Namespace, lengths: ContextLengths, unigram: UnigramDistribution | None
    ) -> "Asked":
        """Of the stage's own flags, checked."""
        smallest = int(lengths.num_far_tokens_T[0])
        numbers = {rule: studied_numbers(rule, arguments.k, smallest) for rule in arguments.rules}
        return cls(
            lengths, max(arguments.k), numbers, unigram, arguments.search_budget, arguments.num_subsets,
            arguments.kept_fraction, arguments.num_candidates, arguments.recovery_fraction,
            arguments.minimum_gain, arguments.seed,
        )  # fmt: skip

    def far_contexts(self, loaded: LoadedModel, chunk: Chunk) -> dict[str, FarContext]:
        """The chunk's own far context and its null, to be measured by a model."""
        seed = self.seed_of(chunk)
        measurement = Measurement(
            loaded.model, self.lengths, loaded.batching,
            search_budget=self.search_budget, num_subsets=self.num_subsets,
            kept_fraction=self.kept_fraction, head_weights=self.head_weights.get(loaded.name),
            num_candidates=self.num_candidates, seed=seed,
            where=f"chunk {chunk.chunk_index} of document {chunk.document_id}",
        )  # fmt: skip
        chunk_L, backgrounds = chunk.token_ids_L, chunk.other_token_ids_NL[1:]
        return far_contexts(
            measurement,
            chunk_L,
            chunk.null_token_ids_L,
            substitute_ids_L=None if self.unigram is None else self.unigram.draw(len(chunk_L), [*seed, 1]),
            background_ids_BL=backgrounds if len(backgrounds) else None,
        )

    def seed_of(self, chunk: Chunk) -> tuple[int, ...]:
        """Of all that is drawn for a chunk, whichever model measures it."""
        return (self.seed, int(chunk.document_id, 16), chunk.chunk_index)


Chosen = Mapping[str, Mapping[str, np.ndarray]]
"""Far context -> rule -> positions [T, K], most influential first."""


def measure_chunk(
    loaded: LoadedModel, chunk: Chunk, judges: Sequence[LoadedModel], asked: Asked
) -> dict[str, Columns]:
    """The tokens that a model's rules choose, and losses and divergences with them, its own and the judges'.

    Raises:
        NotFiniteLossError: a model gives what is no number; it is named.
    """
    contexts = asked.far_contexts(loaded, chunk)
    targets_T, seed = asked.lengths.targets_T, asked.seed_of(chunk)
    tables: dict[str, Columns] = {}
    chosen: dict[str, dict[str, np.ndarray]] = {}
    for name, context in contexts.items():
        chosen[name] = {
            rule: selected_positions(context, rule, numbers[-1], seed)
            for rule, numbers in asked.numbers_of_rule.items()
        }
        append_columns(tables, influence_rows(chunk, targets_T, context))
        for rule, positions_TK in chosen[name].items():
            first_TK = positions_TK[:, : asked.largest_k]
            append_columns(tables, selection_rows(chunk, targets_T, find_rule(rule), context, first_TK))
    for judge in (loaded, *judges):
        of_judge = contexts if judge is loaded else asked.far_contexts(judge, chunk)
        try:
            append_columns(tables, _judged(judge.name, chunk, of_judge, chosen, asked))
        except NotFiniteLossError as error:
            error.model_name = judge.name
            raise
    return tables


def _judged(
    judge: str, chunk: Chunk, contexts: Mapping[str, FarContext], chosen: Chosen, asked: Asked
) -> dict[str, Columns]:
    """What the chosen tokens are worth to a model, and the k* of the own ones."""
    own, targets_T = contexts[OWN], asked.lengths.targets_T
    judgement = Judgement(judge, own.short, own.long_losses_T, own.background)
    tables: dict[str, Columns] = {}
    for name, context in contexts.items():
        sparse = sparse_contexts(context, chosen[name], asked.numbers_of_rule)
        for rule, numbers in asked.numbers_of_rule.items():
            rows = sparse_loss_rows(
                chunk, targets_T, find_rule(rule), context, judgement, numbers, sparse[rule]
            )
            append_columns(tables, rows)
        if context is own:
            sizes = {
                rule: rationale_sizes(own, chosen[name][rule][:, : asked.largest_k])
                for rule in RATIONALE_RULES
                if rule in chosen[name] and judgement.background is None
            }
            append_columns(tables, _sparsities(chunk, judgement, sparse, sizes, asked))
    return tables


def _sparsities(
    chunk: Chunk,
    judgement: Judgement,
    sparse: Mapping[str, Measured],
    sizes: Mapping[str, list[int | None]],
    asked: Asked,
) -> dict[str, Columns]:
    """k* of every rule by either criterion, and the measures that stand beside it."""
    tables: dict[str, Columns] = {}
    unknown: list[int | None] = [None] * asked.lengths.targets_per_chunk
    for criterion, (gains_T, recovered_of_rule) in _of_criteria(judgement, sparse).items():
        k_stars = {
            rule: dependency_sparsity(
                gains_T,
                recovered_TJ,
                np.array(asked.numbers_of_rule[rule]),
                recovery_fraction=asked.recovery_fraction,
                minimum_gain=asked.minimum_gain,
            )
            for rule, recovered_TJ in recovered_of_rule.items()
        }
        nearest_T = k_stars["nearest"][0] if "nearest" in k_stars else unknown
        short = asked.lengths.short_context_length
        shortest_T = [None if k_star is None else short + k_star for k_star in nearest_T]
        for rule, (k_star_T, is_censored_T) in k_stars.items():
            sparsity = Sparsity(gains_T, k_star_T, is_censored_T, sizes.get(rule, unknown), shortest_T)
            rows = sparsity_rows(
                chunk, asked.lengths.targets_T, find_rule(rule), judgement, criterion, sparsity
            )
            append_columns(tables, rows)
    return tables


def _of_criteria(
    judgement: Judgement, sparse: Mapping[str, Measured]
) -> dict[str, tuple[np.ndarray, dict[str, np.ndarray]]]:
    """By either criterion the gain of each target, [T], and what each rule recovers of it, [T, J].

    By the divergence, which is 0 under the long context, all of it is to be recovered.
    """
    losses_T, divergences_T = judgement.baseline
    of_losses = {rule: losses_T[:, None] - found.losses for rule, found in sparse.items()}
    of_divergences = {rule: divergences_T[:, None] - found.divergences for rule, found in sparse.items()}
    return {
        LOSS: (losses_T - judgement.long_losses_T, of_losses),
        DIVERGENCE: (divergences_T, of_divergences),
    }
