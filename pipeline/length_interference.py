"""What distant tokens do to a prediction, by their number, their distance and their text.

The near context of a target, the tokens right before it, is read alone and behind distant tokens that are
placed freely (--placements): the text's own or another's, at the position IDs of a longer context or squeezed
into those of a shorter one. For each target and placement: the loss, and the KL from the prediction by the
near tokens alone. With another text's distant tokens that KL is the length interference: what length does
where there is nothing to be learnt from it. Distant texts are the same for all targets, and are read once.

A placement is KIND:NUMBER[/SPAN][@START]. own:192 puts the 192 tokens before the near ones where they stand;
swap:512@10752 puts 512 tokens of another text at the IDs 0 to 511 and lets the near ones begin at ID 10,752;
swap:192/32 squeezes 192 tokens into 32 IDs; last:4 leaves only the last four near tokens.

writes   <results>/length_interference/model=<name>/*.parquet      columns: pipeline/RESULTS.md
resumes  run the same command again; complete shards are kept, other settings are refused

on one GPU, a model trained to 8,192 positions:
  python pipeline/length_interference.py --data runs/c4/data --checkpoints HuggingFaceTB/SmolLM2-135M \\
      --results runs/c4/results --long-context-length 513 --near-context-length 512 --share-near \\
      --targets-per-chunk 256 --target-stride 16 --placements swap:512@7680 swap:512@10752 swap:512@11776

on a laptop, after `make demo` (seconds):
  python pipeline/length_interference.py --data runs/demo/data --checkpoints runs/demo/models/long-seed0 \\
      --results runs/try/results --long-context-length 256 --near-context-length 32 --max-documents 16 \\
      --placements own:32 own:32@192 own:192/32 own:192 swap:32 swap:32@192 swap:192/32 swap:192
"""

import argparse
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from pipeline.cli import InputError, positive_int, run_stage, stage_parser
from pipeline.measuring.flags import LAST, OWN, SWAP, ContextLengths, Placement, add_evaluation_arguments
from pipeline.results.schemas import Columns, append_columns
from pipeline.text.chunks import Chunk
from pipeline.text.folder import TokenizedData

if TYPE_CHECKING:
    from pipeline.measuring.stage import LoadedModel
    from pipeline.models.interface import CausalLM, Prefix


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add_evaluation_arguments(stage)
    add = stage.add_argument
    # fmt: off
    add("--near-context-length", type=positive_int, required=True, metavar="N",
        help="near tokens: exactly the N before each target")
    add("--share-near", action="store_true",
        help="the targets of a chunk share one near context, its last N tokens, and see those before them;"
        " fewer tokens are read, and earlier targets see fewer of them")
    add("--placements", nargs="+", required=True, metavar="KIND:NUMBER", help="see above")
    add("--distant-documents", nargs="+", metavar="ID",
        help="documents whose first tokens are the distant ones of swap (default: the last three, by hash,"
        " that are long enough)")
    # fmt: on
    return stage


def check(arguments: argparse.Namespace) -> tuple[ContextLengths, list[Placement]]:
    """What is predicted, and the placements; refuse those that cannot be read, or need more than a chunk."""
    # The stage has no short context; 1 is the least that `ContextLengths` takes.
    lengths = ContextLengths.of(vars(arguments), 1)
    placements = [Placement.parse(name) for name in dict.fromkeys(arguments.placements)]
    most_own = max((one.num_distant for one in placements if one.kind == OWN), default=0)
    most_last = max((one.num_distant for one in placements if one.kind == LAST), default=0)
    near = arguments.near_context_length
    # Shared near tokens end before the last target, and the first target sees as many fewer of them as it
    # stands before that one; others end before each target, so that the first one decides.
    fewer = lengths.long_context_length - 1 - lengths.first_target if arguments.share_near else 0
    before = lengths.first_target + fewer
    seen = near - fewer
    if near + most_own > before or most_last >= seen:
        raise InputError(
            f"{most_own} distant and {near} near tokens, or last:{most_last}, do not fit: {before} tokens of"
            f" the chunk are before the {'last' if arguments.share_near else 'first'} target, and the first"
            f" target sees {seen} near tokens; choose a larger --long-context-length"
        )
    return lengths, placements


def _distant_texts(
    data: TokenizedData, names: Sequence[str] | None, num_tokens: int
) -> dict[str, np.ndarray]:
    """The first tokens of the documents named, or of the last three with so many."""
    tokens_of = {
        document.document_id: document.token_ids[:num_tokens].astype(np.int64)
        for document in data.evaluation_documents()
        if len(document.token_ids) >= num_tokens
    }
    # The last by hash: --max-documents takes the first, so the two seldom meet.
    names = names or [*tokens_of][-3:]
    if not names or not set(names) <= set(tokens_of):
        raise InputError(f"swap needs texts of {num_tokens:,} tokens; --distant-documents may name such")
    return {name: tokens_of[name] for name in names}


def main(arguments: argparse.Namespace) -> None:
    """Measure every chunk of every checkpoint."""
    lengths, placements = check(arguments)
    # Imported late, for a --help, and a refusal, at once.
    from pipeline.measuring.contexts import read_prefix
    from pipeline.measuring.placed import distant_ids, measured_placements
    from pipeline.measuring.stage import measure_documents

    swaps = {(placement.num_distant, placement.span) for placement in placements if placement.kind == SWAP}
    texts: dict[str, np.ndarray] = {}
    if swaps:
        data = TokenizedData.open(arguments.data)
        texts = _distant_texts(data, arguments.distant_documents, max(number for number, _ in swaps))
    targets_T = lengths.targets_T
    targets_BQ = targets_T[None] if arguments.share_near else targets_T[:, None]

    @lru_cache(maxsize=len(swaps) * len(texts))  # of one model: the next one's push them out
    def read(model: "CausalLM", document_id: str, num_distant: int, span: int) -> "Prefix":
        return read_prefix(model, texts[document_id][:num_distant], distant_ids(num_distant, span))

    def measure(loaded: "LoadedModel", chunk: Chunk) -> dict[str, Columns]:
        def distant_of(placement: Placement) -> "dict[str, Prefix]":
            return {
                document_id: read(loaded.model, document_id, placement.num_distant, placement.span)
                for document_id in texts
                if document_id != chunk.document_id  # a text is not its own distraction
            }

        tables: dict[str, Columns] = {}
        num_targets = lengths.num_targets
        for name, document_id, found, entropies_T in measured_placements(
            loaded.model,
            chunk.token_ids_L,
            targets_BQ,
            arguments.near_context_length,
            placements,
            loaded.batching,
            distant_of,
        ):
            columns = chunk.target_columns(targets_T) | {
                "target_token_id": chunk.token_ids_L[targets_T].tolist(),
                "placement": [name] * num_targets,
                "distant_document_id": [document_id] * num_targets,
                "loss": found.losses.tolist(),
                "divergence": found.divergences.tolist(),
                "entropy": [None] * num_targets if entropies_T is None else entropies_T.tolist(),
            }
            append_columns(tables, {"length_interference": columns})
        return tables

    settings = {
        "near_context_length": arguments.near_context_length,
        "share_near": arguments.share_near,
        "placements": [placement.name for placement in placements],
        "distant_documents": [*texts],
    }
    # IDs may lie far beyond the chunk: tables of positions must reach the last near token.
    num_positions = arguments.near_context_length + max(placement.near_start for placement in placements)
    measure_documents(
        arguments,
        "length_interference",
        settings,
        measure,
        num_positions=max(arguments.long_context_length, num_positions),
    )


if __name__ == "__main__":
    run_stage(parser(), main)
