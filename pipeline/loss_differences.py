"""Loss of every target under its short and its long context.

For each checkpoint and each target t of the evaluation documents: long_context_loss (everything before t
in its chunk), short_context_loss (exactly the s tokens before t, a window of its own for each target), and
loss_difference = short - long, positive where the long context helps. Every token keeps its position ID.
Also foreign_context_loss, with another document's tokens as the far context: specific_gain = foreign - long
is what only this document's tokens give. And the divergences KL(p(.|long) || p(.|short or foreign)), which do
not see the answer: the expected gains. Hugging Face models, LongPPL (Fang et al. 2024): pipeline/RECIPES.md.

writes   <results>/loss_differences/model=<name>/*.parquet      columns: pipeline/RESULTS.md
resumes  run the same command again; complete shards are kept, other settings are refused

full size, on one GPU:
  python pipeline/loss_differences.py --data runs/c4/data --checkpoints runs/c4/models/* \\
      --results runs/c4/results --short-context-length 64 --long-context-length 1024 --targets-per-chunk 64

on a laptop, after `make demo` (seconds):
  python pipeline/loss_differences.py --data runs/demo/data --checkpoints runs/demo/models/long-seed0 \\
      --results runs/try/results --short-context-length 16 --long-context-length 256 --max-documents 16
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
    stage.add_argument("--short-context-length", type=positive_int, required=True, help="s, in tokens")
    stage.add_argument(
        "--reference-model", metavar="MODEL",
        help="a checkpoint of the same tokenizer, named as --checkpoints are, that every prediction under the"
        " long context is compared with: a long-trained seed, for the expected gap (default: none)",
    )  # fmt: skip
    stage.add_argument(
        "--near-context-length", type=positive_int, metavar="W",
        help="also measure what foreign tokens before the last W do to the prediction from the last W alone:"
        " the harm of length; W is the length that a model was trained at (default: not measured)",
    )  # fmt: skip
    stage.add_argument("--num-backgrounds", type=positive_int, default=4,
        help="foreign documents that --near-context-length takes the mean over")  # fmt: skip
    return stage


def check(arguments: argparse.Namespace) -> ContextLengths:
    """Which tokens are predicted, and what they see; refuse lengths that do not fit together."""
    lengths = ContextLengths(
        arguments.short_context_length,
        arguments.long_context_length,
        arguments.targets_per_chunk,
        arguments.target_stride,
    )
    near = arguments.near_context_length
    if near is not None and near >= lengths.first_target:
        raise InputError(
            f"--near-context-length {near} leaves no place for foreign tokens: the first target has"
            f" {lengths.first_target} tokens before it; choose a smaller one"
        )
    return lengths


def main(arguments: argparse.Namespace) -> None:
    """Measure every chunk of every checkpoint."""
    lengths = check(arguments)

    # Imported late, for a --help, and a refusal, at once.
    from pipeline.measuring.contexts import (  # fmt: skip
        Measurement,
        full_pass,
        measured_in_sequence,
        own_context,
    )
    from pipeline.measuring.far_context import FarContext
    from pipeline.measuring.sparsity import compared_losses, length_harm
    from pipeline.measuring.stage import MeasuringStage
    from pipeline.models.interface import NotFiniteLossError

    reference = [] if arguments.reference_model is None else [arguments.reference_model]

    near = arguments.near_context_length
    num_backgrounds = 0 if near is None else arguments.num_backgrounds

    def measure(
        models: "Sequence[LoadedModel]", chunk: "Chunk", references: "Sequence[LoadedModel]"
    ) -> "dict[str, Columns]":
        (loaded,) = models
        chunk_L, sequence = chunk.token_ids_L, own_context(chunk.token_ids_L, lengths)
        own = FarContext(Measurement(loaded.model, lengths, loaded.batching), chunk_L, chunk_L)
        columns = compared_losses(chunk, own)
        if near is not None:
            harm_TB = length_harm(own, near, chunk.other_token_ids_NL[1:])
            columns["length_harm"] = harm_TB.mean(-1).tolist()
            columns["length_harm_of_backgrounds"] = harm_TB.tolist()
        if reference:  # which is not among the references where it is the model itself
            columns["reference_divergence"] = [0.0] * lengths.num_targets
        for other in references:
            sizes = stage.data.vocabulary_size, loaded.model.vocabulary_size, other.model.vocabulary_size
            one, reference_model = (compared.model.cut_to(min(sizes)) for compared in (loaded, other))
            try:
                predictions = full_pass(reference_model, sequence).predictions
            except NotFiniteLossError as error:
                error.model_name = other.name
                raise
            divergences = measured_in_sequence(one, sequence, predictions).divergences
            columns["reference_divergence"] = divergences.tolist()
        return {"loss_differences": columns}

    settings = {
        "short_context_length": lengths.short_context_length,
        "near_context_length": near, "num_backgrounds": num_backgrounds or None,
    }  # fmt: skip
    stage = MeasuringStage(
        arguments, "loss_differences", settings, measure, other_models={"--reference-model": reference},
        num_other_documents=1 + num_backgrounds,
    )  # fmt: skip
    stage.run()
