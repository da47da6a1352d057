"""Texts through the code that measures documents, as frames.

Shapes: N tokens of a text, L those of a chunk, T targets, K the largest k, J studied values of k.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pipeline.cli import InputError, logger
from pipeline.measuring.contexts import Measurement, own_context
from pipeline.measuring.explanation import foreign_text, measured_tables, planned_tokens
from pipeline.measuring.far_context import FarContext
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.given import GivenModel, counted
from pipeline.measuring.rules import BACKGROUND, REMOVE, refuse_rules
from pipeline.measuring.sparsity import Request
from pipeline.measuring.stage import LoadedModel, failures_in_words
from pipeline.results.schemas import DIVERGENCE, OTHER_DOCUMENT, OWN
from pipeline.text.chunks import Chunk
from pipeline.text.tokenizer import NoTokensError, TokenizedText, tokenized_text

_LONG_CONTEXT_LENGTH = 1024
"""Where nothing else is asked for, and the model has as many positions."""
_TOKEN = ("text", "position", "token", "token_id", "byte_start", "byte_end")
_VALUES = ("long_context_loss", "short_context_loss", "loss_difference", "divergence")


class Span(NamedTuple):
    """The tokens [start, end) of a text, read as one chunk; those from `first_target` on are predicted."""

    text: int
    start: int
    end: int
    first_target: int

    def lengths(self, short_context_length: int) -> ContextLengths:
        """The same as the engine takes it."""
        return ContextLengths(short_context_length, self.end - self.start, self.end - self.first_target)


def spans_of(text: int, num_tokens: int, first_target: int, length: int, num_before: int) -> Iterator[Span]:
    """Chunks of at most `length` tokens, in which each target from the first on is predicted once.

    Where the text is longer than a chunk, at least `num_before` tokens stand before each target in its chunk,
    or all that there are.
    """
    while first_target < num_tokens:
        start = max(0, min(first_target - num_before, num_tokens - length))
        end = min(start + length, num_tokens)
        yield Span(text, start, end, first_target)
        first_target = end


class _Texts:
    """Texts and how the model's tokenizer reads them; None of those without a token."""

    def __init__(self, texts: str | Iterable[str], given: GivenModel, tokenizer: Any) -> None:
        if isinstance(texts, Mapping) or hasattr(texts, "columns"):
            raise InputError(f"texts are of type {type(texts).__name__}; give one column of it")
        try:
            strings = [texts] if isinstance(texts, str) else list(texts)
        except TypeError:
            raise InputError(
                f"texts are of type {type(texts).__name__}; give a string or a list of strings"
            ) from None
        for place, text in enumerate(strings):
            if not isinstance(text, str):
                raise InputError(
                    f"text {place} is of type {type(text).__name__}; give strings, such as one column"
                    " of a data set"
                )
        self.tokenizer = given.tokenizer(tokenizer)
        self.read = [_read(text, self.tokenizer) for text in strings]
        if num_empty := sum(text is None for text in self.read):
            logger.warning("%d of %d texts have no token, and no row", num_empty, len(self.read))

    @property
    def lengths(self) -> list[int]:
        """Tokens of each."""
        return [0 if text is None else len(text.token_ids_N) for text in self.read]

    @property
    def largest_token_id(self) -> int:
        """Of all texts."""
        return max((int(text.token_ids_N.max()) for text in self.read if text is not None), default=0)

    def token_columns(self, text: int, places: np.ndarray) -> dict[str, Any]:
        """The columns that name tokens of a text."""
        tokens = self.read[text]
        assert tokens is not None
        starts, ends = tokens.bytes_N2[places].T
        return {
            "text": np.full(len(places), text), "position": places,
            "token": np.array(tokens.pieces, dtype=object)[places], "token_id": tokens.token_ids_N[places],
            "byte_start": starts, "byte_end": ends,
        }  # fmt: skip


def _read(text: str, tokenizer: Any) -> TokenizedText | None:
    try:
        return tokenized_text(text, tokenizer) if text else None
    except NoTokensError:
        return None


def _length(given: GivenModel, wanted: int | None, short: int, num_far: int) -> int:
    """Of a chunk; refuses one that has no target with a short context and so many far tokens before it."""
    if short < 1:
        raise InputError(f"the short context has {short} tokens; give it at least one")
    fewest = short + num_far
    length = wanted or min(_LONG_CONTEXT_LENGTH, given.num_positions or _LONG_CONTEXT_LENGTH)
    if length <= fewest:
        raise InputError(
            f"a long context of {length} tokens has no target with {fewest} tokens before it; choose a longer"
            " one, a shorter short context, or a smaller k"
        )
    return length


def losses_frame(
    texts: str | Iterable[str], model: Any, tokenizer: Any, short_context_length: int,
    long_context_length: int | None, options: Mapping[str, Any],
) -> pd.DataFrame:  # fmt: skip
    """See `sparsity_length.losses`."""
    given, short = GivenModel(model, **options), short_context_length
    read = _Texts(texts, given, tokenizer)
    length = _length(given, long_context_length, short, 1)
    before = max(length // 2, short + 1)
    spans = [
        span
        for text, num in enumerate(read.lengths)
        for span in spans_of(text, num, short + 1, length, before)
    ]
    measured = [np.full((num, len(_VALUES)), np.nan, dtype=np.float32) for num in read.lengths]
    num_seen = [np.zeros(num, dtype=np.int64) for num in read.lengths]
    total = sum((span.end - span.first_target) * short for span in spans)
    longest = max((span.end - span.start for span in spans), default=length)
    with (
        given.ready(longest, read.largest_token_id) as loaded, counted([loaded], "losses", total)
    ):  # fmt: skip
        for span in spans:
            of_text = read.read[span.text]
            assert of_text is not None
            chunk_L, lengths = of_text.token_ids_N[span.start : span.end], span.lengths(short)
            with failures_in_words(given.name, len(chunk_L), span.start, f" of text {span.text}"):
                own = FarContext(
                    OWN, chunk_L, chunk_L, (own_context(chunk_L, lengths),),
                    Measurement(loaded.model, lengths, loaded.batching),
                )  # fmt: skip
                long_T, short_T = own.long_losses_T, own.short.losses
                columns = long_T, short_T, short_T - long_T, own.short.divergences
            measured[span.text][span.first_target : span.end] = np.stack(columns, axis=-1)
            num_seen[span.text][span.first_target : span.end] = lengths.targets_T
    frames = [
        pd.DataFrame(
            read.token_columns(text, np.arange(num))
            | {"num_long_context_tokens": num_seen[text]}
            | dict(zip(_VALUES, measured[text].T, strict=True))
        )
        for text, num in enumerate(read.lengths) if num
    ]  # fmt: skip
    if not frames:
        return pd.DataFrame(columns=[*_TOKEN, "num_long_context_tokens", *_VALUES])
    return pd.concat(frames, ignore_index=True)


def influential_frame(
    texts: str | Iterable[str], model: Any, tokenizer: Any, judges: Sequence[Any], options: Mapping[str, Any],
    *, ks: Sequence[int], short_context_length: int, long_context_length: int | None,
    num_targets: int | None, rule: str, intervention: str, num_backgrounds: int, foreign: str | None,
    seed: int,
) -> pd.DataFrame:  # fmt: skip
    """See `sparsity_length.influential_tokens`."""
    ks, short = sorted(set(ks)), short_context_length
    if not ks or ks[0] < 1:
        raise InputError(f"k is {ks}; give whole numbers of at least 1")
    if intervention not in (REMOVE, BACKGROUND) or rule.startswith("learned_attention"):
        raise InputError(
            f"intervention {intervention} and rule {rule}: these need training tokens, which only the program"
            f" influential_tokens has; choose {REMOVE} or {BACKGROUND}, and another rule"
        )
    refuse_rules(
        [rule], intervention=intervention, largest_k=ks[-1], smallest_far_context=ks[-1],
        num_backgrounds=num_backgrounds,
    )  # fmt: skip
    given = GivenModel(model, **options)
    of_judges = [GivenModel(one, **(options if isinstance(one, str | Path) else {})) for one in judges]
    read = _Texts(texts, given, tokenizer)
    length = _length(given, long_context_length, short, ks[0])
    requests: list[tuple[Span, Request]] = []
    for text, num in enumerate(read.lengths):
        fitting = tuple(k for k in ks if short + k < min(num, length))
        if fitting:
            first = max(short + fitting[-1], num - (num_targets or num))
            before = max(length // 2, short + fitting[-1])
            requests += [
                (span, _request(span.lengths(short), rule, fitting, seed, bool(judges)))
                for span in spans_of(text, num, first, length, before)
            ]
    num_predicted = sum(request.lengths.targets_per_chunk for _, request in requests)
    if num_others := sum(read.lengths) - num_predicted:
        logger.warning(
            "%d of %d tokens have no row: fewer than s plus the largest k (%d) stand before them, or they"
            " were not asked for", num_others, sum(read.lengths), short + ks[-1],
        )  # fmt: skip
    longest = max((span.end - span.start for span, _ in requests), default=length)
    num_others = 1 + (num_backgrounds if intervention == BACKGROUND else 0)
    others_NL = np.empty((num_others, 0), dtype=np.int64)
    if requests:
        ids_N = foreign_text(foreign, num_others * longest, read.tokenizer).token_ids_N
        others_NL = ids_N[: num_others * longest].reshape(num_others, longest)
    total = sum(
        planned_tokens(request, intervention, num_backgrounds, max(1, len(judges))) for _, request in requests
    )
    frames = []
    with ExitStack() as stack:
        chooser, *loaded = [
            stack.enter_context(one.ready(longest, read.largest_token_id)) for one in (given, *of_judges)
        ]
        loaded = [_named_apart(place, judge, (chooser, *loaded)) for place, judge in enumerate(loaded)]
        stack.enter_context(counted([chooser, *loaded], "influential_tokens", total))
        for number, (span, request) in enumerate(requests):
            of_text = read.read[span.text]
            assert of_text is not None
            # The ID is of the text, so that rules that draw do it anew for each.
            chunk = Chunk(
                f"{span.text:016x}", number, of_text.token_ids_N[span.start : span.end],
                others_NL[:, : span.end - span.start], span.start,
            )  # fmt: skip
            with failures_in_words(given.name, span.end - span.start, span.start, f" of text {span.text}"):
                contexts = request.far_contexts(chooser, chunk)
                tables = measured_tables(chooser, chunk, loaded, request, contexts)
            for judge in loaded or [chooser]:
                frames.append(_frame(read, span.text, tables, judge.name, request.numbers_of_rule[rule]))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(_COLUMNS))


_COLUMNS = (
    "text", "judge", "position", "token", "byte_start", "byte_end", "rank", "source_position", "source_token",
    "influence", "divergence", "long_context_loss", "short_context_loss", "baseline_loss",
    "baseline_divergence", "sparse_context_loss", "sparse_context_divergence", "null_sparse_context_loss",
    "null_sparse_context_divergence", "mean_log2_k",
)  # fmt: skip


def _request(lengths: ContextLengths, rule: str, ks: Sequence[int], seed: int, has_judges: bool) -> Request:
    return Request(
        lengths=lengths, largest_k=ks[-1], numbers_of_rule={rule: ks}, recovery_fraction=0.9,
        minimum_gain=0.1, seed=seed, every_null=False, every_influence=False, choosers_judge=not has_judges,
    )  # fmt: skip


def _named_apart(place: int, judge: LoadedModel, models: Sequence[LoadedModel]) -> LoadedModel:
    """The judge, with its place in its name where another model has that name too: rows are told by names."""
    is_alone = sum(judge.name == one.name for one in models) == 1
    return judge if is_alone else replace(judge, name=f"{judge.name} (judge {place})")


def _frame(
    read: _Texts, text: int, tables: Mapping[str, pd.DataFrame], judge: str, ks: Sequence[int]
) -> pd.DataFrame:
    """The rows of one chunk and judge."""
    chosen = tables["influential_tokens"]
    chosen = chosen[chosen["far_context"] == OWN]
    num_targets = chosen["target_position"].nunique()
    shape_TK = num_targets, len(chosen) // num_targets
    targets, sources = chosen["target_position"].to_numpy(), chosen["context_position"].to_numpy()
    of_judge, sparsity = (
        tables[name][tables[name]["judge"] == judge]
        for name in ("sparse_context_losses", "dependency_sparsity")
    )
    sparsity = sparsity[sparsity["criterion"] == DIVERGENCE]

    def of_target(column: str) -> np.ndarray:
        """A value that all k of a target share."""
        rows = of_judge[of_judge["far_context"] == OWN]
        values_T: np.ndarray = rows[column].to_numpy(np.float32).reshape(num_targets, -1)[:, 0]
        return values_T.repeat(shape_TK[1])

    def at_ranks(column: str, far_context: str) -> np.ndarray:
        """Values of each studied k, in the rows of these ranks."""
        rows = of_judge[of_judge["far_context"] == far_context]
        values_TK = np.full(shape_TK, np.nan, dtype=np.float32)
        if len(rows):
            values_TK[:, np.array(ks) - 1] = rows[column].to_numpy().reshape(num_targets, -1)
        return values_TK.ravel()

    baseline = "background" if "background_loss" in of_judge else "short_context"
    loss, divergence = "sparse_context_loss", "sparse_context_divergence"
    columns = read.token_columns(text, targets) | {
        "judge": np.full(len(chosen), judge, dtype=object), "rank": chosen["rank"].to_numpy(),
        "source_position": sources, "source_token": read.token_columns(text, sources)["token"],
        "influence": chosen["influence"].to_numpy(np.float32),
        "divergence": chosen["divergence"].to_numpy(np.float32),
        "long_context_loss": of_target("long_context_loss"),
        "short_context_loss": of_target("short_context_loss"),
        "baseline_loss": of_target(f"{baseline}_loss"),
        "baseline_divergence": of_target(f"{baseline}_divergence"),
        loss: at_ranks(loss, OWN), divergence: at_ranks(divergence, OWN),
        f"null_{loss}": at_ranks(loss, OTHER_DOCUMENT),
        f"null_{divergence}": at_ranks(divergence, OTHER_DOCUMENT),
        "mean_log2_k": sparsity["mean_log2_k"].to_numpy(np.float32).repeat(shape_TK[1]),
    }  # fmt: skip
    return pd.DataFrame({name: columns[name] for name in _COLUMNS})
