"""The flags that every measuring stage has. No torch here: --help and a wrong flag answer at once."""

import argparse

from pipeline.influence.context_lengths import TARGETS_PER_CHUNK
from pipeline.measuring.tasks import add_share_arguments
from pipeline.stage import folder_path, positive_float, positive_int

DTYPES = ("float32", "bfloat16", "auto")
"""As torch calls them."""
DOCUMENTS_PER_SHARD = 32
"""Of a result, where it is not asked for another number."""
_GIBIBYTE = 1 << 30


def add_evaluation_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that every measuring stage has."""
    add = parser.add_argument
    add(
        "--data",
        type=folder_path,
        required=True,
        help="folder written by tokenize_c4.py; its evaluation documents are used",
    )
    add(
        "--checkpoints", nargs="+", required=True, metavar="MODEL",
        help="run folders of pretrain.py (their last step), OLMo's step<N>-unsharded folders, folders of"
        " Hugging Face causal LMs, or their names on the hub",
    )  # fmt: skip
    _add_loading_arguments(parser)
    add("--results", type=folder_path, required=True, help="results folder; complete shards in it are kept")
    add("--long-context-length", type=positive_int, required=True, help="chunk length ℓ, in tokens")
    add(
        "--targets-per-chunk", type=positive_int, default=TARGETS_PER_CHUNK,
        help="m: the last m positions of a chunk are predicted, each from all before it in the chunk",
    )  # fmt: skip
    add(
        "--max-documents",
        type=positive_int,
        help="use the first documents only (their order is a hash's); all if not given",
    )
    add(
        "--max-chunks-per-document", type=positive_int,
        help="use the first chunks of a document only, so that no long one rules the mean; all if not given",
    )  # fmt: skip
    add(
        "--documents-per-shard",
        type=positive_int,
        default=DOCUMENTS_PER_SHARD,
        help="documents a shard, which is a Parquet file; a killed run resumes there",
    )
    add(
        "--memory-budget", type=gibibytes, metavar="GIB",
        help="GiB that a forward pass may take beyond the model; if not given 1 on a CPU and a quarter of"
        " a GPU's, or half of what is free where that is less",
    )  # fmt: skip
    add(
        "--tokens-per-batch", type=positive_int,
        help="tokens a forward pass may hold, within that budget; what is fastest on the device if not given."
        " Losses depend on it in their last bits only",
    )  # fmt: skip
    add_share_arguments(parser)


def _add_loading_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--revision", help="branch, tag or commit of models on the hub; their main branch if not given")
    add(
        "--dtype", choices=DTYPES, default="float32",
        help="of weights and computation; auto takes the faster of the two on this machine, measured in a"
        " second, or what results already begun have",
    )  # fmt: skip
    add(
        "--device",
        help="torch device; cuda where there is one, else cpu, if not given; under torchrun or `accelerate"
        " launch`, cuda means each process' own GPU",
    )
    add(
        "--device-map",
        help="of Hugging Face models, instead of --device: auto spreads the layers over all devices",
    )
    add(
        "--trust-remote-code",
        action="store_true",
        help="run the Python files that come with a Hugging Face model; never done unless asked for",
    )


def gibibytes(text: str) -> float:
    """An argparse type: a positive number of GiB, as bytes."""
    return positive_float(text) * _GIBIBYTE
