"""The flags of every measuring stage, which tokens are predicted, and what is placed before them.

No torch here: --help and a wrong flag answer at once.

Shapes: T targets.
"""

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.cli import InputError, folder_path, positive_int, whole_number
from pipeline.models.rope import RopeScaling

RECOVERY_FRACTION = 0.9
"""Fraction of the gain that k* recovers."""
MINIMUM_GAIN = 0.1
"""Nats of gain below which there is nothing to recover."""
LONGEST_EXACT = 2048
"""Tokens of the long context up to which rules leave_one_out* leave out every distant token by default."""
BLOCKS = 32
"""Blocks that a round leaves out by default, beside one for each target."""
LAST = "last"
NEAR = "near"
"""Kinds of placement beside own and swap, distant tokens of the same text and of another: fewer near tokens,
and near tokens alone."""
# Defaults of explain.
NUM_TARGETS = 12
NUM_SOURCES = 4
EXPLAIN_SHORT_CONTEXT_LENGTH = 16


@dataclass(frozen=True)
class ContextLengths:
    """Which tokens are predicted, and what they see; InputError where a distant context would be empty."""

    short_context_length: int
    """s: the short context of target t is exactly the s tokens [t - s, t)."""
    long_context_length: int
    """ℓ: documents are cut into chunks of ℓ tokens."""
    targets_per_chunk: int
    """m: the last m positions of a chunk are targets, and see everything before them in the chunk."""
    target_stride: int = 1
    """Only every so-many-th of the last m positions is a target, the last among them."""

    def __post_init__(self) -> None:
        first = self.targets_T[0]
        if self.short_context_length >= first:
            raise InputError(
                f"the short context ({self.short_context_length} tokens) leaves no distant context: must be"
                f" shorter than the {first} tokens of the long context before the first target"
            )

    @classmethod
    def of(cls, settings: Mapping[str, Any], short_context_length: int | None = None) -> "ContextLengths":
        """Read a command line's arguments, or the settings of results, by the names of the flags."""
        return cls(
            short_context_length or settings["short_context_length"],
            settings["long_context_length"],
            settings["targets_per_chunk"],
            settings.get("target_stride") or 1,
        )

    @property
    def targets_T(self) -> np.ndarray:
        """The targets' places in their chunk: int64 [T]."""
        # Counted back from the last position: of 16 with stride 5 those at L - 16, L - 11, L - 6, L - 1.
        last = self.long_context_length - 1
        return np.sort(np.arange(last, last - self.targets_per_chunk, -self.target_stride))

    @property
    def num_targets(self) -> int:
        """T."""
        return len(self.targets_T)

    @property
    def num_far_tokens_T(self) -> np.ndarray:
        """Distant-context tokens of each target: the distant context of t is [0, t - s)."""
        return self.targets_T - self.short_context_length


@dataclass(frozen=True)
class Placement:
    """Distant tokens before the near ones: `own:192`, `swap:512@10752`, `swap:192/32`, or `last:4`.

    KIND:NUMBER[/SPAN][@START]: NUMBER distant tokens stand at the position IDs 0 to SPAN - 1, evenly, several
    at one ID where SPAN is smaller; the near tokens begin at ID START. Left out, SPAN is NUMBER, and START is
    SPAN: all IDs without gaps. `last:N` is the last N of the near tokens, and nothing else.
    """

    name: str
    kind: str
    num_distant: int
    span: int
    near_start: int

    @classmethod
    def parse(cls, name: str) -> "Placement":
        """Read a placement; InputError says what is wrong with it."""
        found = re.fullmatch(r"(own|swap|last):([1-9]\d{0,8})(?:/([1-9]\d{0,8}))?(?:@(\d{1,9}))?", name)
        if found is None or (found[1] == LAST and (found[3] or found[4])):
            raise InputError(
                f"--placements: '{name}' is none; examples: own:192, swap:512@10752, swap:192/32, last:4"
            )
        number = int(found[2])
        span = int(found[3] or number)
        start = int(found[4] or span)
        if start < span:
            raise InputError(
                f"--placements {name}: the near tokens begin at ID {start}, among the distant ones"
            )
        return cls(name, found[1], number, span, start)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how a model is loaded."""
    add = parser.add_argument
    # fmt: off
    add("--dtype", choices=("float32", "bfloat16"), default="float32",
        help="of weights and computation; bfloat16 may choose other tokens that matter about as much")
    add("--device",
        help="torch device; cuda where there is one, else cpu, if not given; under torchrun or `accelerate"
        " launch`, cuda means each process' own GPU")
    add("--rope", type=RopeScaling.parse, metavar="KIND:FACTOR",
        help="scale the RoPE of a Hugging Face model when it is loaded, such as yarn:2 (YaRN) (default: as it"
        " was trained)")
    add("--trust-remote-code", action="store_true",
        help="run the Python files that come with a Hugging Face model; never done unless asked for")
    # fmt: on


def add_stage_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that every measuring stage has: models, results, and who measures what."""
    add = parser.add_argument
    # fmt: off
    add("--data", type=folder_path, required=True,
        help="folder written by tokenize_c4.py; its evaluation documents are used")
    add("--checkpoints", nargs="+", required=True, metavar="MODEL",
        help="run folders of pretrain.py (their last step), OLMo's step<N>-unsharded folders, folders of"
        " Hugging Face causal LMs, or their names on the hub, NAME or NAME@REVISION")
    add_model_arguments(parser)
    add("--device-map",
        help="of Hugging Face models, instead of --device: auto spreads the layers over all devices")
    add("--results", type=folder_path, required=True, help="results folder; complete shards in it are kept")
    add("--documents-per-shard", type=positive_int,
        help="documents a shard, which is a Parquet file; a killed run resumes there (default: 1 up to 127"
        " documents, 2 from 128, and so on up to 32)")
    add("--task-index", type=whole_number(0), default=0, metavar="I",
        help="which of --num-tasks this is, counted from 0. Under torchrun or `accelerate launch` the"
        " processes, one a GPU, divide the task")
    add("--num-tasks", type=positive_int, default=1, metavar="N",
        help="tasks that the documents are split among")
    add("--status", action="store_true",
        help="measure nothing: print how many shards there are; exit code 0 if none is missing, 1 if any, 2"
        " for bad input")
    # fmt: on


def add_evaluation_arguments(parser: argparse.ArgumentParser) -> None:
    """Add these, and the flags that say which tokens are predicted."""
    add_stage_arguments(parser)
    add = parser.add_argument
    # fmt: off
    add("--long-context-length", type=positive_int, required=True, help="chunk length ℓ, in tokens")
    add("--targets-per-chunk", type=positive_int, default=16,
        help="m: the last m positions of a chunk are predicted, each from all before it in the chunk")
    add("--target-stride", type=positive_int, default=1, metavar="S",
        help="of these positions predict only every S-th, the last among them")
    add("--max-documents", type=positive_int,
        help="use the first documents only (their order is a hash's) (default: all)")
    add("--max-chunks-per-document", type=positive_int,
        help="use the first chunks of a document only, so that no long one rules the mean (default: all)")
    # fmt: on
