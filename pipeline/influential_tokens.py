"""The few distant tokens that carry a prediction, and what is lost by keeping only them.

For each checkpoint and each target t of the evaluation documents:
  1. loss and prediction with everything before it in the chunk (long context), and with the s tokens before
     it (short context). The divergence KL(p(.|long) || p(.|short)) compares these without seeing the answer;
  2. the k distant tokens that each rule ranks first, by the loss or (names with _divergence) by the KL;
  3. loss and divergence with the short context and those k tokens: among the distant tokens of other
     documents than the one that stood in while they were chosen, or with nothing else visible anywhere in the
     network (--ablation mask); of the controls, random and recency, at every power of two up to the whole
     distant context;
  4. the same with another document's tokens at the same positions: the null, which tells how much of that is
     an effect;
  5. how many tokens it takes: mean_log2_k, in doublings, which every target with a gain has; and k*, the
     least k that recovers 90 % of the gain; by losses and by divergence.

pipeline/README.md says what each rule and ablation does and costs, and why there is a null. Here a model
tries its own choice; evaluate_tokens.py tries it on others.

writes   <results>/{influential_tokens,influences,sparse_context_losses,dependency_sparsity}/<model>/*.parquet
         columns: pipeline/RESULTS.md
resumes  run the same command again; complete shards are kept, other settings are refused

full size, on one GPU:
  python pipeline/influential_tokens.py --data runs/c4/data --checkpoints runs/c4/models/long-seed0 \\
      --results runs/c4/results --short-context-length 64 --long-context-length 1024 --targets-per-chunk 64

on a laptop, after `make demo` (half a minute):
  python pipeline/influential_tokens.py --data runs/demo/data --checkpoints runs/demo/models/long-seed0 \\
      --results runs/try/results --short-context-length 16 --long-context-length 256 --max-documents 8
"""

import argparse

from pipeline.cli import (
    file_path,
    finite_float,
    positive_fraction,
    positive_int,
    random_seed,
    run_stage,
    stage_parser,
    whole_number,
)
from pipeline.measuring.flags import (
    BLOCKS,
    LONGEST_EXACT,
    MINIMUM_GAIN,
    RECOVERY_FRACTION,
    ContextLengths,
    add_evaluation_arguments,
)
from pipeline.measuring.rules import (
    ABLATIONS,
    DEFAULT_ABLATION,
    DEFAULT_KS,
    DEFAULT_RULES,
    RULES,
    SEARCH_SWAPS,
    SWAP,
    TRIAL_SWAPS,
    Measuring,
    load_rule_file,
)


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add_evaluation_arguments(stage)
    add = stage.add_argument
    # fmt: off
    add("--short-context-length", type=positive_int, required=True, help="s, in tokens")
    add("--k", type=positive_int, nargs="+",
        help=f"numbers of influential tokens studied (default: {', '.join(map(str, DEFAULT_KS))},"
        " as far as the distant context goes)")
    add("--rules", nargs="+", default=DEFAULT_RULES,
        help=f"selection rules, of: {', '.join(RULES)} (default: {', '.join(DEFAULT_RULES)})")
    add("--rule-file", type=file_path, nargs="+", default=[], metavar="FILE",
        help="Python files with selection rules of your own; analysis/examples/kv_cache_rules.py shows two")
    add("--ablation", choices=ABLATIONS, default=DEFAULT_ABLATION,
        help="what stands where a token is left out: nothing, or another document's token")
    add("--search-swaps", type=whole_number(0), default=SEARCH_SWAPS, metavar="N",
        help="under --ablation swap: other documents that stand in while tokens are chosen, effects being"
        " means over them; 0: tokens are removed")
    add("--trial-swaps", type=positive_int, default=TRIAL_SWAPS, metavar="N",
        help="under --ablation swap: other documents that chosen tokens are then tried among")
    add("--null-fraction", type=positive_fraction, default=1.0,
        help="of the documents, those with a null; rules that say nothing without one are measured on these"
        " only")
    add("--screen", type=positive_int, metavar="N",
        help="hierarchical leave_one_out*: blocks of distant tokens left out per round; those that matter are"
        f" split down to single tokens (default: every token, up to {LONGEST_EXACT:,} distant tokens; beyond,"
        f" {BLOCKS} and one per target)")
    add("--minimum-gain", type=finite_float, default=MINIMUM_GAIN,
        help="gain of the distant context, in nats, below which a target has no k* and no mean_log2_k")
    add("--seed", type=random_seed, default=0, help="of rules and ablations that draw")
    # fmt: on
    return stage


def check(arguments: argparse.Namespace) -> Measuring:
    """What is to be measured; lengths, rules and k that do not fit together are refused."""
    for path in arguments.rule_file:
        load_rule_file(path)
    lengths = ContextLengths.of(vars(arguments))
    return Measuring(
        lengths=lengths,
        rules=list(dict.fromkeys(arguments.rules)),
        ks=sorted(set(arguments.k or [k for k in DEFAULT_KS if k <= lengths.num_far_tokens_T[0]])),
        ablation=arguments.ablation,
        search_swaps=arguments.search_swaps,
        trial_swaps=arguments.trial_swaps,
        null_fraction=arguments.null_fraction,
        minimum_gain=arguments.minimum_gain,
        screen=arguments.screen,
        seed=arguments.seed,
    )


def main(arguments: argparse.Namespace) -> None:
    """Measure every chunk of every checkpoint."""
    measuring = check(arguments)
    # Imported late, for a --help, and a refusal, at once.
    from pipeline.measuring.sparsity import measure_chunk
    from pipeline.measuring.stage import measure_documents

    is_swap = measuring.ablation == SWAP
    settings = {
        "short_context_length": measuring.lengths.short_context_length,
        "k": measuring.ks,
        "rules": measuring.rules,
        "recovery_fraction": RECOVERY_FRACTION,
        "minimum_gain": measuring.minimum_gain,
        "seed": measuring.seed,
        "ablation": measuring.ablation,
        # What is really done: --screen has no effect on short contexts, or without leave-one-out.
        "screen": measuring.num_blocks,
        "search_swaps": measuring.search_swaps if is_swap else None,
        "trial_swaps": measuring.trial_swaps if is_swap else None,
        "null_fraction": measuring.null_fraction if measuring.null_fraction < 1 else None,
    }
    measure_documents(
        arguments,
        "influential_tokens",
        settings,
        lambda model, chunk: measure_chunk(model, chunk, measuring),
        rule_files=arguments.rule_file,
        num_other_documents=measuring.num_others,
    )


if __name__ == "__main__":
    run_stage(parser(), main)
