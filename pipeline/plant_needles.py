"""Plant facts in documents, far before a question that asks for them.

Each document has one of --document-lengths and ends with a question. The answer is in a planted sentence, the
needle, at one of --depths. A control document has the same question but no needle; its haystack is longer
instead, so all lengths are equal. A text keeps its needle at every depth and length:

  … The magic number of Oslo is 48213. … What is the magic number of Oslo? The magic number of Oslo is 48213

--templates offers other facts: "The secret word of the baker is lantern", "The color of the door is blue".

The answer's tokens are the last targets of the document. The tokens that they depend on are known: the answer
in the needle.

Output: <out>/length-<tokens>/data/ as written by tokenize_c4, without training text. Its needles/*.parquet
says where each needle is (columns: pipeline/RESULTS.md).
Resume: run the same command again. Complete folders are kept; folders made with other settings are refused.

With the text of `make demo` (pipeline/RECIPES.md shows how to measure the documents):
  sparsity plant_needles --data runs/demo/data --out runs/needles --document-lengths 128 256 \\
      --max-documents 20
"""

import argparse

from sparsity_length.cli import Stage, folder_path, late, number, positive_int, random_seed
from sparsity_length.text.needles import DEPTHS, TEMPLATES

_FACTS = f"kinds of facts to plant in each text, from: {', '.join(TEMPLATES)}"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the texts, and which needles are planted in them."""
    add = parser.add_argument
    add(
        "--data",
        type=folder_path,
        required=True,
        help="folder written by tokenize_c4, which supplies the texts",
    )
    add("--out", type=folder_path, required=True, help="folder in which to write length-<tokens>/data")
    add(
        "--document-lengths",
        type=positive_int,
        nargs="+",
        required=True,
        help="lengths of the documents, in tokens",
    )
    add("--max-documents", type=positive_int, default=400, help="largest number of texts to use")
    add("--templates", nargs="+", choices=TEMPLATES, default=["number"], metavar="FACT", help=_FACTS)
    add(
        "--depths",
        type=number(float, 0, 1),
        nargs="+",
        default=list(DEPTHS),
        help="fractions of the haystack before the needle, from 0 to 1",
    )
    add("--seed", type=random_seed, default=0, help="random seed of the facts")


STAGE = Stage(
    __doc__,
    add_flags,
    run=late("sparsity_length.text.needles:plant"),
    left=late("sparsity_length.text.needles:left"),
)


if __name__ == "__main__":
    STAGE.main()
