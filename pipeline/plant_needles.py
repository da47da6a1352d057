"""Text whose truth is known: a sentence that tells a fact, far before the question that asks for it.

Documents of each of --document-lengths end with a question whose answer stands in a sentence at one of
--depths and nowhere else on purpose; one beside them lacks it, the control. The same text keeps its needle at
every depth and length:

  … The magic number of Oslo is 48213. … What is the magic number of Oslo? The magic number of Oslo is 48213

--templates asks for other facts, too: the secret word of the baker is lantern; the color of the door is blue.

The answer's tokens are the document's last targets, and the same in the needle are what their prediction
needs. The haystack of the control is longer by as much as the needle, so lengths are equal.

writes   <out>/length-<tokens>/data/              as tokenize_c4, without training text
         and below it needles/*.parquet           where each needle is: pipeline/RESULTS.md
resumes  run the same command again; complete folders are kept, other settings are refused

In the text of `make demo`; what is then measured is in pipeline/RECIPES.md:
  python pipeline/plant_needles.py --data runs/demo/data --out runs/needles --document-lengths 128 256 \\
      --max-documents 20
"""

import argparse

from sparsity_length.cli import Stage, folder_path, late, number, positive_int, random_seed
from sparsity_length.text.needles import DEPTHS, TEMPLATES


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the texts, and which needles are planted in them."""
    add = parser.add_argument
    add("--data", type=folder_path, required=True, help="folder written by tokenize_c4.py: the texts")
    add("--out", type=folder_path, required=True, help="length-<tokens>/data is written here")
    add("--document-lengths", type=positive_int, nargs="+", required=True, help="tokens of the documents")
    add("--max-documents", type=positive_int, default=400, help="texts, at most")
    add("--templates", nargs="+", choices=TEMPLATES, default=["number"], help="facts that each text tells")
    add(
        "--depths",
        type=number(float, 0, 1),
        nargs="+",
        default=list(DEPTHS),
        help="parts of the haystack before the needle",
    )
    add("--seed", type=random_seed, default=0, help="of keys and answers")


STAGE = Stage(
    __doc__,
    add_flags,
    run=late("sparsity_length.text.needles:plant"),
    left=late("sparsity_length.text.needles:left"),
)


if __name__ == "__main__":
    STAGE.main()
