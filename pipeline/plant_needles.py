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

from sparsity_length.cli import Stage
from sparsity_length.text.needles import Planting, left, plant

STAGE = Stage(
    __doc__,
    Planting.add_flags,
    run=Planting.given_to(plant),
    settings=Planting.asked,
    left=Planting.given_to(left),
)


if __name__ == "__main__":
    STAGE.main()
