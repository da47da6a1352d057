"""The settings and flags of every measuring stage, and what is placed before near tokens.

No torch here: --help and a wrong flag answer at once.

Shapes: T targets.
"""

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sparsity_length.cli import (
    InputError,
    Stage,
    file_path,
    folder_path,
    late,
    number,
    positive_int,
    whole_number,
    words,
)
from sparsity_length.measuring.rules import SWAP
from sparsity_length.models.settings import Loading
from sparsity_length.results.schemas import OWN
from sparsity_length.settings import Settings, setting, switch

RECOVERY_FRACTION = 0.9
"""Fraction of the gain that k* recovers."""
MINIMUM_GAIN = 0.1
"""Nats of gain below which there is nothing to recover."""
LONGEST_EXACT = 2048
"""Tokens of the long context up to which rules leave_one_out* leave out every distant token by default."""
SHORT_LIST = 32
"""Tokens before each run of neighboring targets that they leave out beyond that."""
LAST = "last"
NEAR = "near"
"""Kinds of placement beside own and swap, distant tokens of the same text and of another: fewer near tokens,
and near tokens alone."""
FULL = "full"
"""Everything before a target in its chunk, at its own position IDs."""
SHORT_CONTEXT_LENGTH = 16
NUM_TARGETS = 12
NUM_SOURCES = 4
LONGEST_BY_WORDS = 16
"""Tokens that are explained as a whole by words; more by sentences."""


@dataclass(frozen=True)
class ContextLengths:
    """Which tokens are predicted, and what they see; InputError if a distant context would be empty."""

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
                f"no distant context is left: with {self.targets_per_chunk} targets in"
                f" {self.long_context_length} tokens, {max(0, first)} are before the first target, and it"
                f" needs more than the short context of {self.short_context_length}"
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


@dataclass(frozen=True, kw_only=True)
class Chunked(Settings):
    """Which tokens of which documents are predicted, as every measuring stage asks."""

    long_context_length: int = setting(positive_int, "ℓ: documents are cut into chunks of this many tokens")
    targets_per_chunk: int = setting(
        positive_int,
        "m: predict the last m tokens of each chunk, each from everything before it in the chunk",
        16,
    )
    target_stride: int = setting(
        positive_int, "of these m tokens, predict only every S-th, including the last", 1, metavar="S"
    )
    max_documents: int | None = setting(
        positive_int, "use only the first N documents, in the order of their hashes (default: all)", None
    )
    max_chunks_per_document: int | None = setting(
        positive_int,
        "use only the first N chunks of each document, so that no long document dominates the mean"
        " (default: all)",
        None,
    )

    def lengths_beside(self, short_context_length: int) -> ContextLengths:
        """The predicted tokens behind so short a context; InputError if no distant context is left."""
        return ContextLengths(
            short_context_length, self.long_context_length, self.targets_per_chunk, self.target_stride
        )


@dataclass(frozen=True, kw_only=True)
class BesideShort(Chunked):
    """The same, with a short context."""

    short_context_length: int = setting(
        positive_int,
        "s: the number of tokens right before a target that are always visible",
        SHORT_CONTEXT_LENGTH,
    )

    @cached_property
    def lengths(self) -> ContextLengths:
        """Which tokens are predicted, and what they see."""
        return self.lengths_beside(self.short_context_length)

    def resolve(self) -> dict[str, Any]:
        """Refuse lengths that do not fit."""
        self.lengths  # noqa: B018, which raises
        return {}


@dataclass(frozen=True)
class Placement:
    """Distant tokens before the near ones: `own:192`, `swap:512@10752`, `swap:192/32`, `own:all+9`, `last:4`.

    KIND:NUMBER[/SPAN][@START]: NUMBER distant tokens stand at the position IDs 0 to SPAN - 1, evenly, several
    at one ID if SPAN is smaller; the near tokens begin at ID START. Left out, SPAN is NUMBER, and START is
    SPAN: all IDs without gaps. KIND:all[+GAP]: as many distant tokens as stand before the near ones in the
    chunk, all at their own IDs, and the near tokens GAP IDs farther away. `last:N` is the last N of the near
    tokens, and nothing else.
    """

    name: str
    kind: str
    num_distant: int
    """0: all that there are."""
    span: int
    near_start: int
    """If all distant tokens are read, counted from the ID behind the last of them, like `span`."""

    @property
    def gap(self) -> int:
        """IDs that are left out between distant and near tokens."""
        return self.near_start - self.span

    @classmethod
    def parse(cls, name: str) -> "Placement":
        """Read a placement; InputError says what is wrong with it."""
        if found := re.fullmatch(r"(own|swap):all(?:\+(\d{1,9}))?", name):
            return cls(name, found[1], 0, 0, int(found[2] or 0))
        found = re.fullmatch(r"(own|swap|last):([1-9]\d{0,8})(?:/([1-9]\d{0,8}))?(?:@(\d{1,9}))?", name)
        if found is None or (found[1] == LAST and (found[3] or found[4])):
            raise InputError(
                f"--placements: '{name}' is not a placement; examples: own:192, swap:512@10752, swap:192/32,"
                " own:all+1024, last:4"
            )
        number = int(found[2])
        span = int(found[3] or number)
        start = int(found[4] or span)
        if start < span:
            raise InputError(
                f"--placements {name}: the near tokens begin at ID {start}, among the distant ones"
            )
        return cls(name, found[1], number, span, start)


@dataclass(frozen=True, kw_only=True)
class Job(Settings):
    """What a measuring stage reads, where it writes, and its share of the work."""

    data: Path = setting(folder_path, "folder written by tokenize_c4; its evaluation documents are measured")
    checkpoints: tuple[str, ...] = setting(
        str,
        "models: run folders of pretrain (the last step is used), OLMo's step<N>-unsharded folders, folders"
        " of Hugging Face causal LMs, or their names on the hub, NAME or NAME@REVISION",
        many="+",
        metavar="MODEL",
    )
    results: Path = setting(folder_path, "results folder to write to; complete shards in it are kept")
    rule_file: tuple[Path, ...] | None = setting(
        file_path,
        "Python files with your own selection rules, such as analysis/examples/kv_cache_rules.py",
        None,
        many="+",
        metavar="FILE",
    )
    documents_per_shard: int | None = setting(
        positive_int,
        "documents per shard (one Parquet file per table); a killed run resumes after its last shard"
        " (default: one 64th of the documents, at least 1 and at most 32)",
        None,
    )
    task_index: int = setting(
        whole_number(0),
        "which of --num-tasks to do, counted from 0; under torchrun or `accelerate launch`, the processes"
        " (one per GPU) divide the task",
        0,
        metavar="I",
    )
    num_tasks: int = setting(positive_int, "number of tasks that share the documents", 1, metavar="N")
    status: bool = switch(
        "measure nothing; print how many shards are complete, and exit with 0 if none is missing, 1 if any"
        " is, 2 for bad input"
    )


def measuring_stage(
    manual: str | None,
    add_flags: Callable[[argparse.ArgumentParser], object],
    settings: Callable[[argparse.Namespace], Any],
    measurement: str,
) -> Stage:
    """A stage that measures every checkpoint on every chunk of every document.

    Args:
        add_flags: adds those that the stage has beside `Job`'s and `Loading`'s.
        settings: what the command line asks for; InputError.
        measurement: `module:function` that makes a `measuring.stage.Measurement` of a job and settings.
    """

    def add_all(parser: argparse.ArgumentParser) -> None:
        Job.add_flags(parser, *(name for name in Job.names() if name != "rule_file"))
        Loading.add_flags(parser)
        add_flags(parser)

    def work(arguments: argparse.Namespace) -> Any:
        job = Job.asked(arguments)
        asked = late(measurement)(job, settings(arguments))
        return late("sparsity_length.measuring.stage:Work")(job, Loading.asked(arguments), asked)

    return Stage(
        manual,
        add_all,
        run=lambda arguments: work(arguments).status() if arguments.status else work(arguments).run(),
        settings=lambda arguments, needed: settings(arguments),
        left=lambda arguments: work(arguments).left(),
    )


@dataclass(frozen=True, kw_only=True)
class ByLength(Chunked):
    """Losses at several context lengths."""

    context_lengths: tuple[int, ...] | None = setting(
        positive_int,
        "measure losses at these context lengths, in tokens, instead; without a length: at 8, 12, 16, 24, …"
        " (doubling every two steps) up to the number of tokens before the first target",
        None,
        many="*",
        metavar="C",
    )

    @cached_property
    def lengths(self) -> ContextLengths:
        """Which tokens are predicted; one token of context fits wherever there is anything to measure."""
        return self.lengths_beside(1)

    def resolve(self) -> dict[str, Any]:
        """The lengths, ascending; InputError of one that the first target does not have before it."""
        longest = int(self.lengths.targets_T[0])
        steps = (base << doublings for doublings in range(longest.bit_length()) for base in (8, 12))
        default = [*(length for length in steps if length < longest), longest]
        lengths = sorted({*(self.context_lengths or default)})
        if lengths[-1] > longest:
            raise InputError(
                f"--context-lengths {lengths[-1]}: the first target of a chunk has {longest} tokens before"
                " it, and every length is measured on every target"
            )
        return {"context_lengths": tuple(lengths)}


@dataclass(frozen=True, kw_only=True)
class Placing(Chunked):
    """Near tokens behind distant ones at chosen position IDs."""

    near_context_length: int = setting(
        positive_int, "the near context is exactly the N tokens before each target", metavar="N"
    )
    share_near: bool = switch(
        "let the targets of a chunk share one near context, its last N tokens: this is faster, but earlier"
        " targets see fewer near tokens"
    )
    placements: tuple[str, ...] = setting(
        str, "placements to measure, as explained above", many="+", metavar="KIND:NUMBER"
    )
    compared_with: str = setting(
        str,
        "the prediction that the KL is from: with the near tokens alone, or with the full context",
        NEAR,
        choices=(NEAR, FULL),
    )
    distant_documents: tuple[str, ...] | None = setting(
        str,
        "IDs of the documents whose first tokens are the distant tokens of swap (default: the last three, by"
        " hash, that are long enough)",
        None,
        many="+",
        metavar="ID",
    )

    @cached_property
    def lengths(self) -> ContextLengths:
        """Which tokens are predicted; there is no short context, and 1 is the least that there may be."""
        return self.lengths_beside(1)

    @cached_property
    def parsed(self) -> list[Placement]:
        """The placements."""
        return [Placement.parse(name) for name in self.placements]

    @property
    def most_distant(self) -> int:
        """Tokens of a chunk before the near ones of its last target."""
        return int(self.lengths.targets_T[-1]) - self.near_context_length

    @property
    def distant_reads(self) -> set[tuple[int, int]]:
        """How many tokens of a text the placements of kind `swap` read, and over how many IDs."""
        swaps = [one for one in self.parsed if one.kind == SWAP]
        return {(one.num_distant or self.most_distant, one.span or self.most_distant) for one in swaps}

    @property
    def num_positions(self) -> int:
        """Position IDs are below it."""
        placed = [one for one in self.parsed if one.kind != LAST]
        starts = [one.near_start + (0 if one.num_distant else self.most_distant) for one in placed]
        return max(self.long_context_length, self.near_context_length + max(starts, default=0))

    def resolve(self) -> dict[str, Any]:
        """Each placement once; InputError of those that cannot be read, or need more than a chunk."""
        self._set({"placements": tuple(dict.fromkeys(self.placements))})
        # Of all distant tokens there must be one.
        in_chunk = [one for one in self.parsed if one.kind == OWN or not one.num_distant]
        most_own = max((one.num_distant or 1 for one in in_chunk), default=0)
        most_last = max((one.num_distant for one in self.parsed if one.kind == LAST), default=0)
        # Shared near tokens end before the last target, and the first target sees as many fewer of them as it
        # stands before that one; others end before each target, so that the first one decides.
        targets_T = self.lengths.targets_T
        before = int(targets_T[-1 if self.share_near else 0])
        seen = self.near_context_length - (before - int(targets_T[0]))
        if self.near_context_length + most_own > before or most_last >= seen:
            raise InputError(
                f"{most_own} distant and {self.near_context_length} near tokens, or last:{most_last}, do not"
                f" fit: {before} tokens of the chunk are before the {'last' if self.share_near else 'first'}"
                f" target, and the first target sees {seen} near tokens; choose a larger"
                " --long-context-length"
            )
        return {}


UNITS = ("token", "word", "sentence", "paragraph")


def duration(given: str | float) -> float:
    """Seconds, of a number or of a text such as 90s, 2m or 1h."""
    if not isinstance(given, str):
        return number(float, 1)(given)
    found = re.fullmatch(r"0*([1-9]\d{0,8})([smh]?)", given)
    if found is None:
        raise InputError(f"{given} is not a duration above 0, such as 90s, 2m or 1h")
    return int(found[1]) * {"m": 60, "h": 3600}.get(found[2], 1)


def token_range(given: int | str) -> str:
    """Places of tokens, "N" or "A:B", the last one not included."""
    if not re.fullmatch(r"\d{1,9}(:\d{1,9})?", str(given)):
        raise argparse.ArgumentTypeError(f"{given} is neither a token N, from 0, nor a range of tokens A:B")
    return str(given)


def some_or_all(given: str | int) -> int | str:
    """A number from 1 on, or "all"."""
    return "all" if given == "all" else positive_int(given)


@dataclass(frozen=True, kw_only=True)
class Explaining(Settings):
    """What is explained of one text, and how."""

    targets: int | Literal["all"] = setting(
        some_or_all, "explain the N predictions with the largest total effect", NUM_TARGETS, metavar="N"
    )
    at: str | None = setting(
        words,
        "explain these words where they occur last (WORDS:2: the second time); if they are several tokens, as"
        " a whole. The text is cut behind them",
        None,
        metavar="WORDS",
    )
    position: int | str | None = setting(
        token_range,
        "explain the prediction of token N, counted from 0; or A:B, tokens A to B - 1 as a whole",
        None,
        metavar="N",
    )
    whole_answer: bool = switch(
        "explain the last message (--chat) or the model's answer (--generate) as a whole"
    )
    instead: str | None = setting(
        words,
        "with --at or --position: explain why the text has that word and not WORD",
        None,
        metavar="WORD",
    )
    generate: int | None = setting(
        positive_int,
        "let the model continue the text with up to N tokens (the most likely ones), and explain these",
        None,
        metavar="N",
    )
    unit: str | None = setting(
        str,
        "what a source is made of: one of these or, but for --all, several in a row (default: word; sentence"
        f" for a whole of more than {LONGEST_BY_WORDS} tokens)",
        None,
        choices=UNITS,
    )
    sources: int = setting(positive_int, "sources per prediction, at most", NUM_SOURCES, metavar="K")
    budget: float | None = setting(
        duration,
        "time limit, loading included, for example 90s, 2m or 1h (default: 2m; none with --all)",
        None,
        metavar="TIME",
    )
    short_context_length: int = setting(
        positive_int,
        "number of near tokens, which are never sources; the colors of a page are measured with more, up to a"
        " 32nd of the text's tokens",
        SHORT_CONTEXT_LENGTH,
    )
    long_context_length: int | None = setting(
        positive_int,
        "measure only the last N tokens (default: 1,024, or as many as the model has positions)",
        None,
    )

    def resolve(self) -> dict[str, Any]:
        """Refuse what says two things, or half of one."""
        if (self.at is not None) + (self.position is not None) + self.whole_answer > 1:
            raise InputError("at, position and whole_answer all say what to explain; give one of them")
        if self.instead is not None and self.at is None and self.position is None:
            raise InputError("--instead needs --at or --position, which say which word it would replace")
        return {}

    @property
    def places(self) -> tuple[int, int] | None:
        """The tokens [start, end) that `position` names."""
        if self.position is None:
            return None
        start, _, end = str(self.position).partition(":")
        return int(start), int(end or int(start) + 1)

    @property
    def targets_are_named(self) -> bool:
        """Whether words or places say what is explained."""
        return self.at is not None or self.position is not None

    @property
    def seconds(self) -> float | None:
        """The budget; None: every unit of every prediction is swapped, however long it takes."""
        return self.budget or (None if self.targets == "all" else 120)
