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

from sparsity_length.measuring.settings import BesideShort, ByLength, Chunked, measuring_stage


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add which tokens are predicted, from which contexts."""
    Chunked.add_flags(parser)
    either = parser.add_mutually_exclusive_group()
    BesideShort.add_flags(either, "short_context_length")
    ByLength.add_flags(either, "context_lengths")


def settings(arguments: argparse.Namespace) -> BesideShort | ByLength:
    """Which tokens are predicted, from which contexts; refuse lengths that do not fit."""
    kind = BesideShort if arguments.context_lengths is None else ByLength
    return kind.of(vars(arguments))


STAGE = measuring_stage(__doc__, add_flags, settings, "sparsity_length.measuring.measurements:losses")


if __name__ == "__main__":
    STAGE.main()
