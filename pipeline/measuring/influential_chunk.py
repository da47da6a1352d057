"""Everything that influential_tokens measures of one chunk: what is chosen, and what it is worth.

Shapes: T targets, K largest k of a rule, J studied values of k.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.influence.context_lengths import ContextLengths
from pipeline.influence.context_loss import Measured
from pipeline.influence.far_context import FarContext, Measurement
from pipeline.influence.rules import find_rule, studied_numbers
from pipeline.influence.selection import far_contexts, selected_positions, sparse_contexts
from pipeline.influence.sparsity import dependency_sparsity
from pipeline.measuring.evaluate_checkpoints import LoadedModel
from pipeline.measuring.rows import (
    Judgement,
    influence_rows,
    selection_rows,
    sparse_loss_rows,
    sparsity_rows,
)
from pipeline.models.causal_lm import NotFiniteLossError
from pipeline.results.columns import Columns, append_columns
from pipeline.results.names import OWN
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
    recovery_fraction: float
    minimum_gain: float
    seed: int

    @classmethod
    def of(
        cls, arguments: argparse.Namespace, lengths: ContextLengths, unigram: UnigramDistribution | None
    ) -> "Asked":
        """Of the stage's own flags, checked."""
        smallest = int(lengths.num_far_tokens_T[0])
        numbers = {rule: studied_numbers(rule, arguments.k, smallest) for rule in arguments.rules}
        return cls(
            lengths, max(arguments.k), numbers, unigram, arguments.search_budget, arguments.num_subsets,
            arguments.recovery_fraction, arguments.minimum_gain, arguments.seed,
        )  # fmt: skip

    def far_contexts(self, loaded: LoadedModel, chunk: Chunk) -> dict[str, FarContext]:
        """The chunk's own far context and its null, to be measured by a model."""
        seed = self.seed_of(chunk)
        measurement = Measurement(
            loaded.model, self.lengths, loaded.batching,
            search_budget=self.search_budget, num_subsets=self.num_subsets, seed=seed,
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
                append_columns(tables, _sparsities(chunk, rule, judgement, sparse[rule], asked))
    return tables


def _sparsities(
    chunk: Chunk, rule: str, judgement: Judgement, sparse_TJ: Measured, asked: Asked
) -> dict[str, Columns]:
    """k* by either criterion: by the loss, and by the divergence, which is 0 under the long context."""
    tables: dict[str, Columns] = {}
    baseline, numbers_J = judgement.baseline, np.array(asked.numbers_of_rule[rule])
    of_criterion = {
        "loss": (baseline.losses, judgement.long_losses_T, sparse_TJ.losses),
        "divergence": (baseline.divergences, np.zeros_like(baseline.divergences), sparse_TJ.divergences),
    }
    for criterion, (without_T, with_all_T, with_some_TJ) in of_criterion.items():
        gains_T = without_T - with_all_T
        sparsity = dependency_sparsity(
            gains_T,
            without_T[:, None] - with_some_TJ,
            numbers_J,
            recovery_fraction=asked.recovery_fraction,
            minimum_gain=asked.minimum_gain,
        )
        rows = sparsity_rows(
            chunk, asked.lengths.targets_T, find_rule(rule), judgement, criterion, gains_T, sparsity
        )
        append_columns(tables, rows)
    return tables
