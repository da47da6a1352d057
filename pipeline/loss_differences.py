"""Loss of every target under its short and its long context.

For each checkpoint and each target t of the evaluation documents: long_context_loss (everything before t
in its chunk), short_context_loss (exactly the s tokens before t, a window of its own for each target), and
loss_difference = short - long, positive where the long context helps. Every token keeps its position ID.
Also swapped_context_loss, with another document's tokens as the distant context: document_specific_gain =
swapped - long is what only this document's tokens give. And KL(p(.|long) || p(.|short or swapped)), the
expected gains, which are target-agnostic.

With --context-lengths it measures length losses instead: for each length c, loss(t | exactly the c tokens
before t), the same targets at every c, and KL(p(.|long) || p(.|c)). The notebook length_losses draws means.
Hugging Face models, LongPPL (Fang et al. 2024): pipeline/RECIPES.md.

writes   <results>/loss_differences/<model>/*.parquet, or length_losses; columns: pipeline/RESULTS.md
resumes  run the same command again; complete shards are kept, other settings are refused

full size, on one GPU:
  python pipeline/loss_differences.py --data runs/c4/data --checkpoints runs/c4/models/* \\
      --results runs/c4/results --short-context-length 64 --long-context-length 1024 --targets-per-chunk 64

on a laptop, after `make demo` (seconds):
  python pipeline/loss_differences.py --data runs/demo/data --checkpoints runs/demo/models/long-seed0 \\
      --results runs/try/results --short-context-length 16 --long-context-length 256 --max-documents 16
  python pipeline/loss_differences.py --data runs/demo/data --checkpoints runs/demo/models/short-pose \\
      --results runs/try/results --context-lengths 8 32 128 --long-context-length 256 --max-documents 16
"""

import argparse

from pipeline.cli import InputError, positive_int, run_stage, stage_parser
from pipeline.measuring.flags import ContextLengths, add_evaluation_arguments


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add_evaluation_arguments(stage)
    # fmt: off
    add = stage.add_mutually_exclusive_group(required=True).add_argument
    add("--short-context-length", type=positive_int, help="s, in tokens")
    add("--context-lengths", type=positive_int, nargs="*", metavar="C",
        help="measure the losses at these context lengths, in tokens; if none is named: 8, 12, 16, 24, …"
        " doubling in two steps up to what the first target has before it")
    # fmt: on
    return stage


def default_context_lengths(longest: int) -> list[int]:
    """8, 12, 16, 24, 32, … below `longest`, then `longest` itself."""
    steps = (base << doublings for doublings in range(longest.bit_length()) for base in (8, 12))
    return [*(length for length in steps if length < longest), longest]


def check(arguments: argparse.Namespace) -> tuple[ContextLengths, list[int]]:
    """Which tokens are predicted, and the context lengths, if any; refuse lengths that do not fit."""
    if arguments.context_lengths is None:
        return ContextLengths.of(vars(arguments)), []
    # There is no short context here: one token fits wherever there is anything to measure.
    lengths = ContextLengths.of(vars(arguments), 1)
    longest = int(lengths.targets_T[0])
    context_lengths = sorted(set(arguments.context_lengths or default_context_lengths(longest)))
    if context_lengths[-1] > longest:
        raise InputError(
            f"--context-lengths {context_lengths[-1]}: the first target of a chunk has {longest} tokens"
            " before it, and every length is measured on every target"
        )
    return lengths, context_lengths


def main(arguments: argparse.Namespace) -> None:
    """Measure every chunk of every checkpoint."""
    lengths, context_lengths = check(arguments)
    # Imported late, for a --help, and a refusal, at once.
    from pipeline.measuring.sparsity import measure_differences, measure_lengths
    from pipeline.measuring.stage import measure_documents

    if context_lengths:
        measure_documents(
            arguments,
            "length_losses",
            {"context_lengths": context_lengths},
            lambda model, chunk: measure_lengths(model, chunk, lengths, context_lengths),
            num_other_documents=0,
        )
    else:
        measure_documents(
            arguments,
            "loss_differences",
            {"short_context_length": lengths.short_context_length},
            lambda model, chunk: measure_differences(model, chunk, lengths),
        )


if __name__ == "__main__":
    run_stage(parser(), main)
