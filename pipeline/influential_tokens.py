"""The few far tokens that carry a prediction, and what is lost by keeping only them.

For each checkpoint and each target t of the evaluation documents:
  1. influence of every far-context token: loss(t | long without it) - loss(t | long), one forward pass a
     removed token for all targets of a chunk together (only where an asked rule leaves tokens out);
  2. the k tokens that each selection rule ranks first:
       leave_one_out   largest influence, as in 1
       leave_one_out_search
                       largest influence among the tokens that cheap estimates put first, the only ones
                       left out: exact for these, null for the rest, within --search-budget
       divergence      largest change of the whole prediction in the same passes; never sees the target
       add_one_in      largest loss(t | short) - loss(t | short and i)
       greedy          add_one_in repeated, given those already chosen
       gradient        first-order estimate of leave_one_out: a gate on the attention to each token
       attention       largest attention from the target's query; never sees the target
       random, nearest the controls
     With --intervention substitute a left-out token is not removed but replaced by a token drawn from the
     training tokens (leave_one_out, leave_one_out_search, divergence). Short and sparse contexts hold
     their own tokens only, whatever the intervention;
  3. loss(t | short context and those k tokens), nothing else visible anywhere in the network;
  4. the same three with the far context of another document at the same positions: the null. Selection
     looks at the answer, so k tokens chosen among hundreds lower the loss even where none matters; only
     the excess over the null is an effect;
  5. dependency sparsity k*: the least k that recovers most of what the long context gains.

writes   <results>/{influential_tokens,influences,sparse_context_losses,dependency_sparsity}/model=<name>/
         *.parquet                                            columns: RESULTS.md
resumes  run the same command again; complete shards are kept, other settings are refused
shares   --task-index I --num-tasks N for one of N tasks; a process a GPU under torchrun; the same files
needs    data of tokenize_c4.py; checkpoints of pretrain.py, any unsharded OLMo checkpoint with RoPE, or a
         Hugging Face causal LM, as a folder or by its name on the hub

full size, on one GPU:
  python pipeline/influential_tokens.py --data runs/c4/data --checkpoints runs/c4/models/long-seed0 \\
      --results runs/c4/results --short-context-length 64 --long-context-length 1024 --targets-per-chunk 64

on a laptop, after `make demo` (half a minute):
  python pipeline/influential_tokens.py --data runs/demo/data --checkpoints runs/demo/models/long-seed0 \\
      --results runs/try/results --short-context-length 16 --long-context-length 256 --max-documents 8
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.start import start

    start(__file__)

import argparse
from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import InputError
from pipeline.influence.context_lengths import ContextLengths
from pipeline.influence.rules import DEFAULT_RULES, LEAVE_ONE_OUT_RULES, RULES, find_rule
from pipeline.measuring.flags import add_evaluation_arguments
from pipeline.stage import finite_float, fraction, positive_float, positive_int, random_seed, stage_parser
from pipeline.text.tokenized_data import TokenizedData
from pipeline.text.unigram import UnigramDistribution

if TYPE_CHECKING:
    from pipeline.influence.batching import Batching
    from pipeline.models.causal_lm import CausalLM
    from pipeline.text.chunks import Chunk, Columns

INTERVENTIONS = ("remove", "substitute")
ENGINE = "left_out_at_kept_position_ids"
"""How contexts are made, as results name it: what is not in a context is no row of the sequence."""


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add_evaluation_arguments(stage)
    add = stage.add_argument
    add("--short-context-length", type=positive_int, required=True, help="s, in tokens")
    add(
        "--k",
        type=positive_int,
        nargs="+",
        default=[1, 2, 4, 8, 16],
        help="numbers of influential tokens studied",
    )
    add("--rules", nargs="+", default=list(DEFAULT_RULES), help=f"selection rules, of: {', '.join(RULES)}")
    add(
        "--intervention", choices=INTERVENTIONS, default="remove",
        help="what leaving a token out means: removed, or replaced by a token drawn from the training tokens",
    )  # fmt: skip
    add(
        "--search-budget", type=positive_float, default=0.2,
        help="token-forwards that the rule leave_one_out_search may take, as a share of leave_one_out's",
    )  # fmt: skip
    add(
        "--recovery-fraction", type=fraction, default=0.9, help="k* recovers this much of the loss difference"
    )
    add(
        "--minimum-gain", type=finite_float, default=0.1,
        help="loss difference, in nats, below which a target has no k*: there is nothing to recover",
    )  # fmt: skip
    add("--seed", type=random_seed, default=0, help="of rules and interventions that draw")
    return stage


def main(arguments: argparse.Namespace) -> None:
    """Measure every chunk of every checkpoint."""
    lengths = ContextLengths(
        arguments.short_context_length, arguments.long_context_length, arguments.targets_per_chunk
    )
    arguments.k = sorted(set(arguments.k))
    smallest_far_context = int(lengths.num_far_tokens_T[0])
    if arguments.k[-1] > smallest_far_context:
        raise InputError(
            f"--k {arguments.k[-1]} is more than the {smallest_far_context} far-context tokens of the first"
            " target; choose a smaller k, a longer long context or fewer targets a chunk"
        )
    for rule in arguments.rules:
        find_rule(rule)
    unigram = _substitutes(arguments)
    settings = {
        name: getattr(arguments, name)
        for name in (
            "short_context_length", "k", "rules", "recovery_fraction", "minimum_gain", "seed", "intervention",
        )
    }  # fmt: skip
    arguments.search_budget = _search_budget(arguments, lengths)
    settings |= {
        "unigram_sha256": None if unigram is None else unigram.sha256,
        "search_budget": arguments.search_budget,
        "engine": ENGINE,
    }
    from pipeline.measuring.evaluate_checkpoints import evaluate_checkpoints  # late, for a --help at once

    evaluate_checkpoints(
        arguments,
        "influential_tokens",
        settings,
        lambda model, chunk, batching: _measure(model, chunk, batching, lengths, arguments, unigram),
    )


def _substitutes(arguments: argparse.Namespace) -> UnigramDistribution | None:
    """What left-out tokens are replaced by; None where they are removed.

    Raises:
        InputError: no asked rule leaves a token out, or there are no tokens to draw from.
    """
    if arguments.intervention == "remove":
        return None
    if not set(LEAVE_ONE_OUT_RULES) & set(arguments.rules):
        raise InputError(
            "--intervention substitute would change nothing: of --rules only"
            f" {', '.join(LEAVE_ONE_OUT_RULES)} leave tokens out; add one, or say --intervention remove"
        )
    return UnigramDistribution.of_training_tokens(TokenizedData.open(arguments.data))


def _search_budget(arguments: argparse.Namespace, lengths: ContextLengths) -> float | None:
    """None where no rule searches.

    Raises:
        InputError: it is too small for the largest k.
    """
    if "leave_one_out_search" not in arguments.rules:
        return None
    from pipeline.influence.leave_one_out_search import refuse_small_budget

    is_substituted = arguments.intervention == "substitute"
    refuse_small_budget(arguments.search_budget, lengths, arguments.k[-1], is_substituted)
    return arguments.search_budget


def _measure(
    model: "CausalLM",
    chunk: "Chunk",
    batching: "Batching",
    lengths: ContextLengths,
    arguments: argparse.Namespace,
    unigram: UnigramDistribution | None,
) -> "dict[str, Columns]":
    from pipeline.influence.context_loss import window_losses
    from pipeline.influence.selection import OWN, far_contexts, selected_positions, sparse_context_losses
    from pipeline.influence.sparsity import dependency_sparsity
    from pipeline.measuring.rows import influence_rows, selection_rows, sparse_loss_rows, sparsity_rows
    from pipeline.text.chunks import append_columns

    chunk_L, targets_T = chunk.token_ids_L, lengths.targets_T
    seed = [arguments.seed, int(chunk.document_id, 16), chunk.chunk_index]
    contexts = far_contexts(
        model, chunk_L, chunk.null_token_ids_L, lengths, batching,
        with_divergence="divergence" in arguments.rules,
        substitute_ids_L=None if unigram is None else unigram.draw(len(chunk_L), [*seed, 1]),
        search_budget=arguments.search_budget,
    )  # fmt: skip
    selections = {
        context.name: {
            rule: selected_positions(context, rule, lengths, arguments.k[-1], seed)
            for rule in arguments.rules
        }
        for context in contexts
    }
    short_T = window_losses(model, chunk_L, targets_T, lengths.short_context_length, batching)
    long_T = contexts[0].long_losses_T
    tables: dict[str, Columns] = {}
    for context in contexts:
        append_columns(tables, influence_rows(chunk, targets_T, context))
        positions_of_rule = selections[context.name]
        sparse_of_rule = sparse_context_losses(context, positions_of_rule, arguments.k)
        for rule, positions_TK in positions_of_rule.items():
            sparse_TJ = sparse_of_rule[rule]
            append_columns(tables, selection_rows(chunk, targets_T, rule, context, positions_TK))
            losses_T = (short_T, long_T)
            append_columns(
                tables, sparse_loss_rows(chunk, targets_T, rule, context, losses_T, arguments.k, sparse_TJ)
            )
            if context.name == OWN:
                sparsity = dependency_sparsity(
                    short_T, long_T, sparse_TJ, np.array(arguments.k),
                    recovery_fraction=arguments.recovery_fraction, minimum_gain=arguments.minimum_gain,
                )  # fmt: skip
                append_columns(tables, sparsity_rows(chunk, targets_T, rule, short_T - long_T, sparsity))
    return tables
