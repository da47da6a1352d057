"""Choose texts by a hash of their content, equally many from each source.

  sparsity choose_texts --source 'c4=texts/c4-validation*' 'novels=texts/novels-train*' \\
      --per-source 40 --out runs/real/texts.jsonl

The texts are for a study of a pretrained model. From each source, the program takes the texts with at least
--least-characters characters, in the order of their IDs (the first digits of the SHA-256 of the text), so the
choice is effectively random. A long text, such as a novel, contributes --most-characters characters from its
middle, starting at a paragraph.

With --distant-characters, the next long enough text of each source is added as a distant text for
length_interference (--distant-documents), and its ID is printed.
"""

import argparse
import json
import sys

from sparsity_length.cli import InputError, Stage, file_path, positive_int, whole_number


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The program's command line."""
    add = parser.add_argument
    add(
        "--source",
        nargs="+",
        required=True,
        metavar="NAME=FILES",
        help="a name, and a glob pattern of files with its texts",
    )
    add("--per-source", type=positive_int, default=40, help="number of texts from each source")
    add("--least-characters", type=positive_int, default=3000, help="length of the shortest texts to choose")
    add(
        "--most-characters",
        type=positive_int,
        default=80_000,
        help="characters to take from the middle of longer texts",
    )
    add("--text-field", metavar="FIELD", help="field or column that holds the text (default: text)")
    add(
        "--distant-characters",
        type=positive_int,
        help="also add a distant text with at least N characters from each source",
    )
    add(
        "--leave-out-first",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="leave out the first N texts of each source, in file order, which a pilot has seen",
    )
    add(
        "--out",
        type=file_path,
        required=True,
        help="JSON-lines file to write; field url names the source",
    )


def passage(text: str, most: int) -> str:
    """The text or, of a longer one, about its middle, from the first paragraph there."""
    if len(text) <= most:
        return text
    middle = (len(text) - most) // 2
    # Moved to behind the next line break, if a whole passage is left there.
    line_break = text.find("\n", middle, len(text) - most)
    start = middle if line_break < 0 else line_break + 1
    return text[start : start + most]


def main(arguments: argparse.Namespace) -> None:
    """Write the texts, and print the IDs of the distant ones."""
    from sparsity_length.results.files import refuse_replacing, stream_of, write_text
    from sparsity_length.text.sources import Document, open_sources, read_documents

    lines = list[str]()
    distant = list[str]()
    for word in arguments.source:
        name, _, files = word.partition("=")
        sources = open_sources([files], c4_split="validation", text_field=arguments.text_field)
        refuse_replacing([arguments.out], [file for source in sources for file in source.files])
        texts = read_documents(sources)
        long_enough = [document for document in texts if len(document.text) >= arguments.least_characters]
        passages = [
            # The ID is the passage's, not the whole text's: the study's data will hold only the passage.
            Document.from_record({"text": passage(document.text, arguments.most_characters)})
            # In file order, before the hash reorders them: a pilot reads a file from its start.
            for document in long_enough[arguments.leave_out_first :]
        ]
        by_hash = sorted(passages, key=lambda document: document.document_id)
        chosen = by_hash[: arguments.per_source]
        if (least := arguments.distant_characters) is not None:
            rest = by_hash[arguments.per_source :]
            longer = [document for document in rest if len(document.text) >= least]
            chosen += longer[:1]
            distant += [document.document_id for document in longer[:1]]
        wanted = arguments.per_source + (least is not None)
        if len(chosen) < wanted:
            raise InputError(
                f"{name}: {len(chosen)} of {wanted} texts have {arguments.least_characters:,} characters;"
                " choose a smaller --per-source"
            )
        lines += [json.dumps({"text": document.text, "url": name}) for document in chosen]
    write_text(arguments.out, "\n".join([*lines, ""]))
    if distant:
        words = sys.stderr if stream_of(arguments.out) == 1 else sys.stdout
        words.write(f"--distant-documents {' '.join(distant)}\n")


STAGE = Stage(__doc__, add_flags, main)

if __name__ == "__main__":
    STAGE.main()
