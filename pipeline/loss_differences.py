"""Measure every target's loss with a short and a long context, or at several context lengths.

For each checkpoint and each target t of the evaluation documents:
  long_context_loss       the loss given everything before t in its chunk
  short_context_loss      the loss given exactly the s tokens before t, read alone for each target
  loss_difference         short - long, positive if the long context helps
  swapped_context_loss    the loss if another document's tokens replace the distant ones
  document_specific_gain  swapped - long, the gain that only this document's tokens give
The program also measures KL(p(.|long) || p(.|short)) and KL(p(.|long) || p(.|swapped)), the expected gains,
which are target-agnostic. Every token keeps its position ID.

With --context-lengths, the program measures length losses: for each length c, loss(t | exactly the c tokens
before t) and KL(p(.|long) || p(.|c)), for the same targets at every c. The notebook length_losses plots their
means. `sparsity losses` is another name of this program.

pipeline/RECIPES.md covers Hugging Face models and LongPPL (Fang et al. 2024).

Output: <results>/loss_differences/<model>/*.parquet, or <results>/length_losses/… (columns:
pipeline/RESULTS.md).
Resume: run the same command again. Complete shards are kept; results made with other settings are refused.

At full size, on one GPU:
  sparsity loss_differences --data runs/c4/data --checkpoints runs/c4/models/* --results runs/c4/results \\
      --short-context-length 64 --long-context-length 1024 --targets-per-chunk 64

On a laptop, after `make demo` (takes seconds):
  sparsity loss_differences --data runs/demo/data --checkpoints runs/demo/models/long-seed0 \\
      --results runs/try/results --long-context-length 128 --max-documents 16
  sparsity losses --data runs/demo/data --checkpoints runs/demo/models/short-pose \\
      --results runs/try/results --context-lengths 8 32 112 --long-context-length 128 --max-documents 16
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
