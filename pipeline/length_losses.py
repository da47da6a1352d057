"""Loss against context length: how much each model gains, or suffers, from longer contexts.

For each checkpoint and each context length c from 8 tokens to the long context: loss(t | exactly the c
tokens before t), the same targets at every c, every token at its own position ID; and how far the prediction
is from that under the long context, KL(p(.|long) || p(.|c)), which does not see the answer. The notebook
length_losses draws the means.

writes   <results>/length_losses/model=<name>/*.parquet      columns: pipeline/RESULTS.md
resumes  run the same command again; complete shards are kept, other settings are refused

full size, on one GPU:
  python pipeline/length_losses.py --data runs/c4/data --checkpoints runs/c4/models/* \\
      --results runs/c4/results --long-context-length 1024 --targets-per-chunk 64

on a laptop, after `make demo` (seconds):
  python pipeline/length_losses.py --data runs/demo/data --checkpoints runs/demo/models/short-pose \\
      --results runs/try/results --long-context-length 256 --max-documents 16
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
from typing import TYPE_CHECKING

from pipeline.cli import InputError, positive_int, stage_parser
from pipeline.measuring.flags import ContextLengths, add_evaluation_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.measuring.stage import LoadedModel
    from pipeline.results.schemas import Columns
    from pipeline.text.chunks import Chunk


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add_evaluation_arguments(stage)
    stage.add_argument("--context-lengths", type=positive_int, nargs="+",
        help="context lengths, in tokens; if not given, 8, 12, 16, 24, … doubling in two steps up to what the"
        " first target has before it")  # fmt: skip
    return stage


def default_context_lengths(longest: int) -> list[int]:
    """8, 12, 16, 24, 32, … below `longest`, then `longest` itself."""
    steps = (base << doublings for doublings in range(longest.bit_length()) for base in (8, 12))
    return [*(length for length in steps if length < longest), longest]


def check(arguments: argparse.Namespace) -> ContextLengths:
    """Which tokens are predicted; context lengths that do not fit the chunk are set or refused."""
    # There is no short context here: one token fits wherever there is anything to measure.
    lengths = ContextLengths(
        1, arguments.long_context_length, arguments.targets_per_chunk, arguments.target_stride
    )
    requested = arguments.context_lengths or default_context_lengths(lengths.first_target)
    arguments.context_lengths = sorted(set(requested))
    if arguments.context_lengths[-1] > lengths.first_target:
        raise InputError(
            f"--context-lengths {arguments.context_lengths[-1]}: the first target of a chunk has"
            f" {lengths.first_target} tokens before it, and every length is measured on every target"
        )
    return lengths


def main(arguments: argparse.Namespace) -> None:
    """Measure every chunk of every checkpoint."""
    lengths = check(arguments)
    context_lengths = arguments.context_lengths

    # Imported late, for a --help, and a refusal, at once.
    from pipeline.measuring.contexts import full_pass, measured_windows, own_context
    from pipeline.measuring.stage import MeasuringStage

    def measure(
        models: "Sequence[LoadedModel]", chunk: "Chunk", _: "Sequence[LoadedModel]"
    ) -> "dict[str, Columns]":
        (loaded,) = models
        chunk_L, targets_T = chunk.token_ids_L, lengths.targets_T
        long = full_pass(loaded.model, own_context(chunk_L, lengths)).predictions
        measured = [
            measured_windows(loaded.model, chunk_L, targets_T, context_length, loaded.batching, long)
            for context_length in context_lengths
        ]
        columns: Columns = {
            "document_id": [chunk.document_id] * len(context_lengths),
            "chunk_index": [chunk.chunk_index] * len(context_lengths),
            "context_length": context_lengths,
            "num_targets": [lengths.num_targets] * len(context_lengths),
            "mean_loss": [float(of_length.losses.mean()) for of_length in measured],
            "mean_divergence": [float(of_length.divergences.mean()) for of_length in measured],
            "losses": [of_length.losses.tolist() for of_length in measured],
            "divergences": [of_length.divergences.tolist() for of_length in measured],
        }
        return {"length_losses": columns}

    settings = {"context_lengths": context_lengths}
    MeasuringStage(arguments, "length_losses", settings, measure, has_null=lambda document_id: False).run()
