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

    from pipeline.measuring.placed import DistantTexts, Placement
    from pipeline.measuring.stage import LoadedModel
    from pipeline.models.interface import Prefix
    from pipeline.results.schemas import Columns
    from pipeline.text.chunks import Chunk
    from pipeline.text.folder import TokenizedData


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add_evaluation_arguments(stage)
    add = stage.add_argument
    add("--near-context-length", type=positive_int, required=True, metavar="N",
        help="near tokens: exactly the N before each target")  # fmt: skip
    add("--share-near", action="store_true",
        help="the targets of a chunk share one near context, its last N tokens, and see those before them;"
        " fewer tokens are read, and earlier targets see fewer of them")  # fmt: skip
    add("--placements", nargs="+", required=True, metavar="KIND:NUMBER", help="see above")
    add("--distant-documents", nargs="+", metavar="ID",
        help="documents whose first tokens are the distant ones of swap (default: the last three, by hash,"
        " that are long enough)")  # fmt: skip
    return stage


def check(arguments: argparse.Namespace) -> "list[Placement]":
    """The placements; refuse those that cannot be read, or need more tokens than a chunk has."""
    from pipeline.measuring.placed import LAST, OWN, Placement

    placements = [Placement.parse(name) for name in dict.fromkeys(arguments.placements)]
    near, targets = arguments.near_context_length, arguments.targets_per_chunk
    # Of the last target all others of the chunk are before it, of the first those before the targets.
    before = arguments.long_context_length - (1 if arguments.share_near else targets)
    own = max([placement.num_distant for placement in placements if placement.kind == OWN], default=0)
    if near + own > before or (arguments.share_near and targets > near):
        raise InputError(
            f"{own} distant and {near} near tokens do not fit: {before} tokens of the chunk are before"
            f" the {'last' if arguments.share_near else 'first'} of its {targets} targets; choose a larger"
            " --long-context-length"
        )
    if long := [placement.name for placement in placements if placement.kind == LAST
                and placement.num_distant >= near]:  # fmt: skip
        raise InputError(f"--placements {long[0]}: fewer than the {near} near tokens, or nothing changes")
    return placements


def _distant_texts(data: "TokenizedData", names: "Sequence[str] | None", num_tokens: int) -> "DistantTexts":
    """The first tokens of the documents named, or of the last three with so many; none are needed for 0."""
    if num_tokens == 0:
        return {}
    tokens_of = {document.document_id: document.token_ids for document in data.evaluation_documents()}
    long_enough = [name for name, token_ids in tokens_of.items() if len(token_ids) >= num_tokens]
    names = long_enough[-3:] if names is None else names
    for name in names:
        if name not in long_enough:
            has = f"has {len(tokens_of[name]):,} tokens" if name in tokens_of else f"is not in {data.folder}"
            raise InputError(f"--distant-documents: {name} {has}; swap needs {num_tokens:,} of each")
    if not names:
        raise InputError(f"no document of {data.folder} has the {num_tokens:,} tokens that swap needs")
    return {name: tokens_of[name][:num_tokens].astype("int64") for name in names}


def main(arguments: argparse.Namespace) -> None:
    """Measure every chunk of every checkpoint."""
    placements = check(arguments)

    # Imported late, for a --help, and a refusal, at once.
    import numpy as np

    from pipeline.measuring.placed import SWAP, NearContexts, placement_columns, read_distant
    from pipeline.measuring.stage import measure_documents
    from pipeline.text.folder import TokenizedData

    swaps = [placement for placement in placements if placement.kind == SWAP]
    texts = _distant_texts(
        TokenizedData.open(arguments.data), arguments.distant_documents,
        max((placement.num_distant for placement in swaps), default=0),
    )  # fmt: skip
    lengths = ContextLengths.of(vars(arguments), 1)
    near = NearContexts.of(lengths.targets_T, arguments.near_context_length, are_shared=arguments.share_near)
    read: dict[tuple[int, str, int, int], Prefix] = {}

    def measure(loaded: "LoadedModel", chunk: "Chunk", _: "LoadedModel | None") -> "dict[str, Columns]":
        def distant_of(placement: "Placement") -> "dict[str, Prefix]":
            found = {}
            for document_id, token_ids in texts.items():
                if document_id == chunk.document_id:
                    continue  # a text is not its own distraction
                key = id(loaded.model), document_id, placement.num_distant, placement.span
                if key not in read:
                    read[key] = read_distant(loaded.model, token_ids[: placement.num_distant], placement)
                found[document_id] = read[key]
            return found

        columns = placement_columns(
            loaded.model, chunk.token_ids_L, near, placements, loaded.batching, distant_of
        )
        targets = np.array(columns.pop("target"))
        token_ids = chunk.token_ids_L[targets].tolist()
        of_targets = chunk.target_columns(targets) | {"target_token_id": token_ids}
        return {"length_interference": of_targets | columns}

    settings = {
        "near_context_length": arguments.near_context_length,
        "share_near": arguments.share_near,
        "placements": [placement.name for placement in placements],
        "distant_documents": [*texts],
    }
    num_positions = arguments.near_context_length + max(placement.near_start for placement in placements)
    measure_documents(
        arguments,
        "length_interference",
        settings,
        measure,
        num_positions=max(arguments.long_context_length, num_positions),
    )
