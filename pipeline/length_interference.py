"""What distant tokens do to a prediction, by their number, their distance and their text.

The near context of a target, the tokens right before it, is read alone and behind distant tokens that are
placed freely (--placements): the text's own or another's, at the position IDs of a longer context or squeezed
into those of a shorter one. For each target and placement: the loss, and the KL from the prediction by the
near tokens alone, or by the full context (--compared-with). With another text's distant tokens the former is
the length interference: what length does where there is nothing to be learnt from it. Distant texts are the
same for all targets, and are read once.

A placement is KIND:NUMBER[/SPAN][@START]. own:192 puts the 192 tokens before the near ones where they stand;
swap:512@10752 puts 512 tokens of another text at the IDs 0 to 511 and lets the near ones begin at ID 10,752;
swap:192/32 squeezes 192 tokens into 32 IDs; last:4 leaves only the last four near tokens. own:all is the full
context: all that is before the near tokens in the chunk; own:all+1024 moves the near tokens away from it by
1,024 IDs, and nothing else.

writes   <results>/length_interference/<model>/*.parquet      columns: pipeline/RESULTS.md
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
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from sparsity_length.cli import Asked, InputError, run_stage, stage_parser
from sparsity_length.measuring.settings import Placing, add_stage_arguments
from sparsity_length.text.folder import TokenizedData


def parser() -> argparse.ArgumentParser:
    """The stage's command line."""
    stage = stage_parser(__doc__)
    add_stage_arguments(stage)
    Placing.add_flags(stage)
    return stage


def check(arguments: argparse.Namespace) -> Placing:
    """What is predicted, and the placements; refuse those that cannot be read, or need more than a chunk."""
    return Placing.of(vars(arguments))


def _distant_texts(arguments: argparse.Namespace, num_tokens: int) -> dict[str, np.ndarray]:
    """The first tokens of the documents named, or of the last three with so many."""
    tokens_of = {
        document.document_id: document.token_ids[:num_tokens].astype(np.int64)
        for document in TokenizedData.open(arguments.data).evaluation_documents()
        if len(document.token_ids) >= num_tokens
    }
    # The last by hash: --max-documents takes the first, so the two seldom meet.
    names = arguments.distant_documents or [*tokens_of][-3:]
    if not names or not set(names) <= set(tokens_of):
        raise InputError(f"swap needs texts of {num_tokens:,} tokens; --distant-documents may name such")
    return {name: tokens_of[name] for name in names}


def left(arguments: argparse.Namespace, asked: Asked) -> tuple[bool, None]:
    """Refuse what does not fit; which shards are missing is seen once the models are there."""
    check(arguments)
    return True, None


def main(arguments: argparse.Namespace) -> None:
    """Measure every chunk of every checkpoint."""
    placing = check(arguments)
    # Imported late, for a --help, and a refusal, at once.
    from sparsity_length.measuring.placed import measure_placements, read_distant
    from sparsity_length.measuring.stage import measure_documents

    swaps = placing.distant_reads
    texts = _distant_texts(arguments, max(swaps)[0]) if swaps else {}
    read = lru_cache(maxsize=1)(partial(read_distant, texts, swaps))  # the next model's push them out
    measure_documents(
        arguments,
        "length_interference",
        replace(placing, distant_documents=tuple(texts) or None),
        lambda model, chunk: measure_placements(model, chunk, placing, read(model)),
        # IDs may lie far beyond the chunk: tables of positions must reach the last near token.
        num_positions=placing.num_positions,
    )


if __name__ == "__main__":
    run_stage(parser(), main)
