"""The few far tokens that carry a prediction, and what is lost by keeping only them.

For each checkpoint and each target t of the evaluation documents:
  1. what its prediction is with everything before it in the chunk (long context), with the s tokens before it
     (short context), and how far these are apart: the loss difference, and the divergence
     KL(p(.|long) || p(.|short)), which never sees the answer;
  2. the k far tokens that each selection rule ranks first. A rule is a search
       leave_one_out   take one token from the long context: loss(t | long without i) - loss(t | long)
       add_one_in      add one to the short context
       greedy          add_one_in repeated, given those already chosen
       banzhaf         mean effect over --num-subsets random subsets of the far context
       surrogate       weights of a sparse linear model, fitted to such subsets (ContextCite)
       context_length_probing
                       what the context's reaching back to a token changes
       gradient        estimate of leave_one_out by a gate on the attention to each token
       attention       largest attention from the target's query
       attention_rollout
                       the same through all layers
       learned_attention
                       attention of heads, weighted; the weights are fitted to leaving tokens out of
                       training text (AT2)
       input_x_gradient, integrated_gradients
                       gradients by the tokens' embeddings, of captum (pip install '.[attribution]')
       random, nearest the controls
     and a criterion: the target's loss (the plain name), which sees the answer, or the divergence (the name
     with _divergence; not of attention and the controls), which does not;
  3. loss and divergence with the short context and those k tokens, nothing else visible anywhere in the
     network; of the controls at every power of two up to the whole far context;
  4. the same with another document's tokens at the same positions: the null. k tokens chosen among hundreds
     do much even where none matters; only the excess over the null is an effect. Of searches that build up
     the prediction the null is mimicry: foreign tokens chosen to reproduce this document's prediction;
  5. dependency sparsity k*: the least k that recovers most of the gain, by losses and by divergence.

--intervention says what stands where a token is left out:
  remove      nothing
  substitute  a token drawn from the training tokens (of rules that leave one out; sparse contexts hold their
              own tokens only)
  background  a foreign document's tokens: S_k is put into a foreign far context, and only what this
              document's tokens add to it counts; means over --num-backgrounds foreign documents; the default,
              which stood the trial of the measures together with leave_one_out_divergence

--judge-with CHECKPOINT …  also tells losses and divergences of these models with the tokens that the first
chose: what a search fitted to one model, another does not have.

writes   <results>/{influential_tokens,influences,sparse_context_losses,dependency_sparsity}/model=<name>/
         *.parquet                                            columns: pipeline/RESULTS.md
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
    from pipeline.cli import start

    start(__file__)

import argparse

from pipeline.cli import finite_float, fraction, positive_int, random_seed, stage_parser, whole_number
from pipeline.measuring.flags import (
    KEPT_FRACTION,
    LEARNING_CHUNKS,
    MOST_SUBSETS,
    NUM_SUBSETS,
    ContextLengths,
    add_evaluation_arguments,
)
from pipeline.measuring.rules import (
    BACKGROUND,
    DEFAULT_INTERVENTION,
    DEFAULT_KS,
    DEFAULT_RULES,
    INTERVENTIONS,
    RULES,
    SUBSTITUTE,
    refuse_rules,
    studied_numbers,
)
from pipeline.text.folder import TokenizedData, UnigramDistribution

ENGINE = "left_out_at_kept_position_ids"
"""How contexts are made, as results name it: what is not in a context is no row of the sequence."""


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add_evaluation_arguments(stage)
    add = stage.add_argument
    # fmt: off
    add("--short-context-length", type=positive_int, required=True, help="s, in tokens")
    add("--k", type=positive_int, nargs="+", default=list(DEFAULT_KS),
        help="numbers of influential tokens studied")
    add("--rules", nargs="+", default=list(DEFAULT_RULES), help=f"selection rules, of: {', '.join(RULES)}")
    add("--intervention", choices=INTERVENTIONS, default=DEFAULT_INTERVENTION,
        help="what stands where a token is left out: nothing, a token drawn from the training tokens, or"
        " another document's in a foreign far context")
    add("--num-backgrounds", type=positive_int, default=1,
        help="foreign documents that --intervention background takes the mean over")
    add("--judge-with", nargs="+", default=[], metavar="MODEL",
        help="other checkpoints of the same tokenizer, named as --checkpoints are, that the chosen tokens are"
        " tried on too; none if not given")
    add("--num-subsets", type=whole_number(2, MOST_SUBSETS), default=NUM_SUBSETS,
        help="random subsets of the far context that the rules banzhaf* average over and surrogate* are"
        " fitted to; an even number")
    add("--kept-fraction", type=fraction, default=KEPT_FRACTION,
        help="how likely a far token is to be in a subset of the rules surrogate*")
    add("--learning-chunks", type=positive_int, default=LEARNING_CHUNKS,
        help="chunks of training tokens that the weights of the rules learned_attention* are fitted to, once"
        " a model")
    add("--recovery-fraction", type=fraction, default=0.9, help="k* recovers this much of the gain")
    add("--minimum-gain", type=finite_float, default=0.1,
        help="gain of the long context, in nats, below which a target has no k*: there is nothing to recover")
    add("--seed", type=random_seed, default=0, help="of rules and interventions that draw")
    # fmt: on
    return stage


def check(arguments: argparse.Namespace) -> ContextLengths:
    """Which tokens are predicted; lengths, rules and k that do not fit together are refused.

    Raises:
        InputError: names the flag.
    """
    lengths = ContextLengths(
        arguments.short_context_length, arguments.long_context_length, arguments.targets_per_chunk
    )
    arguments.k = sorted(set(arguments.k))
    refuse_rules(
        arguments.rules, intervention=arguments.intervention, largest_k=arguments.k[-1],
        smallest_far_context=int(lengths.num_far_tokens_T[0]), num_subsets=arguments.num_subsets,
        num_backgrounds=arguments.num_backgrounds,
    )  # fmt: skip
    return lengths


def main(arguments: argparse.Namespace) -> None:
    """Measure every chunk of every checkpoint."""
    lengths = check(arguments)
    unigram = None
    if arguments.intervention == SUBSTITUTE:
        unigram = UnigramDistribution.of_training_tokens(TokenizedData.open(arguments.data))
    # Imported late, for a --help, and a refusal, at once.
    from pipeline.measuring.sparsity import Request, measure_chunk
    from pipeline.measuring.stage import LEARNING_RULES, LoadedModel, evaluate_checkpoints, head_weights_of

    num_far = int(lengths.num_far_tokens_T[0])
    request = Request(
        lengths=lengths, largest_k=arguments.k[-1],
        numbers_of_rule={rule: studied_numbers(rule, arguments.k, num_far) for rule in arguments.rules},
        recovery_fraction=arguments.recovery_fraction, minimum_gain=arguments.minimum_gain,
        seed=arguments.seed, num_subsets=arguments.num_subsets, kept_fraction=arguments.kept_fraction,
        unigram=unigram,
    )  # fmt: skip

    def prepare(loaded: LoadedModel, checkpoint_sha256: str, dtype: str) -> None:
        weights = head_weights_of(loaded, arguments, lengths, checkpoint_sha256, dtype)
        request.head_weights[loaded.name] = weights

    # A chunk comes with the same chunk of the documents after it: of its null, then of its backgrounds.
    num_backgrounds = arguments.num_backgrounds if arguments.intervention == BACKGROUND else 0
    evaluate_checkpoints(
        arguments, "influential_tokens", _settings(arguments, unigram),
        lambda loaded, chunk, judges: measure_chunk(loaded, chunk, judges, request),
        other_models={"--judge-with": arguments.judge_with}, num_other_documents=1 + num_backgrounds,
        prepare=prepare if set(LEARNING_RULES) & set(arguments.rules) else None,
    )  # fmt: skip


def _settings(arguments: argparse.Namespace, unigram: UnigramDistribution | None) -> dict[str, object]:
    """What decides the numbers; null where the rules and the intervention do not ask for it."""
    names = (
        "short_context_length", "k", "rules", "recovery_fraction", "minimum_gain", "seed", "intervention",
    )  # fmt: skip
    draws_subsets = any(rule.startswith(("banzhaf", "surrogate")) for rule in arguments.rules)
    learns = any(rule.startswith("learned_attention") for rule in arguments.rules)
    is_fitted = any(rule.startswith("surrogate") for rule in arguments.rules)
    return {name: getattr(arguments, name) for name in names} | {
        "unigram_sha256": None if unigram is None else unigram.sha256,
        "engine": ENGINE,
        "num_subsets": arguments.num_subsets if draws_subsets else None,
        "learning_chunks": arguments.learning_chunks if learns else None,
        "kept_fraction": arguments.kept_fraction if is_fitted else None,
        "num_backgrounds": arguments.num_backgrounds if arguments.intervention == BACKGROUND else None,
    }
