"""Write results as one page to look at: every target in its text, and the tokens that its prediction needs.

    python analysis/explorer.py runs/demo/results --out runs/demo/explorer.html

The page is one file without any outside part: it opens from disk, in any browser, without a network. Targets
are shaded by L_short - L_long. A click, or the arrow keys, choose one: its k influential tokens light up, and
beside the text stand their influence and distance and how the loss falls from the short to the long context.
Model, selection rule, distant context (own, or the null) and k can be switched; documents are searched and
sorted by gain.

It needs the stages loss_differences and influential_tokens and, for the text, the tokenized data that they
ran on. The page stays below 20 MB: documents beyond that are left out, which the page says, as it says what
else it does not hold. Fewer --models or --rules leave room for more documents.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pipeline.cli import InputError, file_path, folder_path, logger, positive_int, progress, stage_parser
from pipeline.explorer_page.writing import NATS, Record, bytes_of_parts, numbers_of, page_of, to_json
from pipeline.results.files import refuse_replacing, write_atomically

if TYPE_CHECKING:
    from pipeline.text.tokenizer import DocumentTokenizer

MAX_BYTES = 20_000_000
_HEADER_BYTES = 50_000
"""Room for all but the page itself and the documents."""
_BYTES_OF_ELEMENT = 64
"""What the page takes around a document."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    stage = stage_parser(__doc__)
    add = stage.add_argument
    add("results", type=folder_path, metavar="RESULTS", help="a results folder")
    add("--out", type=file_path, required=True, help="the page to write; one that is there is replaced")
    add(
        "--data",
        type=folder_path,
        help="folder of tokenize_c4.py that was measured (default: data beside RESULTS)",
    )
    add("--max-documents", type=positive_int, default=200, help="documents shown, the first by their hash")
    add("--models", nargs="+", help="models shown (default: all)")
    add("--rules", nargs="+", help="selection rules shown (default: all)")
    return stage


def main(arguments: argparse.Namespace) -> None:
    """Write the page."""
    # Imported late, for a --help at once.
    from analysis.explorer_records import choose, records
    from analysis.read import data_of

    refuse_replacing([arguments.out], [arguments.results, arguments.data])
    shown = choose(arguments.results, arguments.models, arguments.rules)
    data = data_of(arguments.results, arguments.data, "loss_differences", "influential_tokens")
    tokenizer = data.tokenizer()
    wanted = shown.document_ids[: arguments.max_documents]
    every = progress(records(shown, wanted, data, tokenizer), "explorer", "document", len(wanted))
    documents, null_pieces = fitting(every, tokenizer, MAX_BYTES - bytes_of_parts() - _HEADER_BYTES)
    if not documents:
        raise InputError(
            f"document {wanted[0]} alone takes more than {MAX_BYTES / 1e6:.0f} MB; choose fewer --models or"
            " --rules"
        )
    num_available = len(shown.document_ids)
    left_out = [
        f"{num_available - len(documents):,} of {num_available:,} documents with both losses and influential"
        " tokens: shown are the first in the order of their hashes, a random sample (--max-documents; fewer"
        " --models or --rules leave room for more).",
        "The text outside of the measured chunks.",
        "The influence of distant tokens that no rule selected (artefact influences).",
        "The text of the null's other documents, but for the tokens selected there.",
    ]
    header = {
        "results": str(arguments.results),
        "models": shown.models,
        "rules": shown.rules,
        **shown.settings,
        "unit_nats": NATS,
        "left_out": left_out,
        "null_pieces": null_pieces,
    }
    text = page_of(header, documents)
    write_atomically(arguments.out, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    logger.info("%s: %d documents, %.1f MB", arguments.out, len(documents), len(text.encode()) / 1e6)


def fitting(
    every: Iterable[Record], tokenizer: "DocumentTokenizer", max_bytes: int
) -> tuple[list[tuple[Record, str]], dict[int, str]]:
    """The first records that fit into `max_bytes`.

    Returns:
        Each record with its JSON, and the text of every other document's token that they name, by its ID.
    """
    from analysis.explorer_records import null_token_ids

    documents: list[tuple[Record, str]] = []
    null_pieces: dict[int, str] = {}
    for record in every:
        encoded = to_json(record)
        new = {id_: tokenizer.pieces([id_])[0] for id_ in sorted(null_token_ids(record) - null_pieces.keys())}
        parts = encoded, to_json(numbers_of(record)), to_json(new)
        max_bytes -= _BYTES_OF_ELEMENT + sum(len(part.encode()) for part in parts)
        if max_bytes < 0:
            break
        documents.append((record, encoded))
        null_pieces |= new
    return documents, null_pieces
