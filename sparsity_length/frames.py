"""Texts through the code that measures documents, as frames.

Shapes: N tokens of a text, L those of a chunk, T targets, K the largest k, J studied values of k.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pipeline.cli import InputError, logger, progress, unknown_name
from pipeline.measuring.explanation import LONG_CONTEXT_LENGTH, positions_left
from pipeline.measuring.explanation import swap_text as swap_tokens
from pipeline.measuring.far_context import FarContext
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.given import GivenModel, counted
from pipeline.measuring.rules import ABLATIONS, SWAP, Measuring, find_rule
from pipeline.measuring.sparsity import chosen_positions, chosen_tokens, contexts_of, tried_tokens
from pipeline.measuring.stage import failures_in_words
from pipeline.results.schemas import DIVERGENCE, OTHER_DOCUMENT, OWN, Columns
from pipeline.text.chunks import Chunk, without_bos
from pipeline.text.tokenizer import (
    DocumentTokenizer,
    NoTokensError,
    Text,
    TokenizedText,
    is_one_text,
    tokenized_text,
)

_TOKEN = ("text", "position", "token", "token_id", "byte_start", "byte_end")
_VALUES = ("long_context_loss", "short_context_loss", "loss_difference", "divergence")


class Span(NamedTuple):
    """Tokens of a text that are read as one chunk."""

    text: int
    start: int
    token_ids_L: np.ndarray
    lengths: ContextLengths


class _Texts:
    """Texts as the model's tokenizer reads them; None of those without a token."""

    def __init__(
        self, texts: Text | Iterable[Text], given: GivenModel, tokenizer: Any, reading: Mapping[str, Any]
    ) -> None:
        is_table = isinstance(texts, Mapping) or hasattr(texts, "columns")
        if is_table or not isinstance(texts, Iterable):
            hint = "one column of it" if is_table else "a string or a list of strings"
            raise InputError(f"texts are of type {type(texts).__name__}; give {hint}")
        each: list[Any] = [texts] if is_one_text(texts) else list(texts)
        if not all(is_one_text(text) or np.size(text) == 0 for text in each):
            raise InputError("some of the texts are no strings, token IDs or messages")
        self.tokenizer = given.tokenizer(tokenizer, **reading)
        read = [_read(text, self.tokenizer) for text in each]
        begun = {bos_token_ids for bos_token_ids, _ in filter(None, read)}
        if len(begun) > 1:
            raise InputError("some texts begin with BOS and others do not; give all of them with it, or none")
        self.bos_token_ids = begun.pop() if begun else ()
        """Before every context; the texts are without it."""
        self.read = [None if of_text is None else of_text[1] for of_text in read]
        none_0 = np.empty(0, dtype=np.int64)
        self.ids = [none_0 if text is None else text.token_ids_N for text in self.read]
        if num_empty := sum(text is None for text in self.read):
            logger.warning("%d of %d texts have no token, and no row", num_empty, len(self.read))
        noted = sum((text.noted for text in self.read if text is not None), Counter[str]())
        self.tokenizer.warn_of(noted, sum(map(len, self.ids)))

    def spans(
        self, text: int, short: int, num_far: int, length: int, num_targets: int | None = None
    ) -> Iterator[Span]:
        """Chunks in which each target with so many distant tokens, or of the last targets, is predicted once.

        Where the text is longer than a chunk, half of one stands before each target, or all that there is.
        """
        ids_N, num = self.ids[text], len(self.ids[text])
        target = max(short + num_far, num - (num_targets or num))
        while target < num:
            start = max(0, min(target - max(length // 2, short + num_far), num - length))
            end = min(start + length, num)
            yield Span(text, start, ids_N[start:end], ContextLengths(short, end - start, end - target))
            target = end

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


def _read(text: Text, tokenizer: DocumentTokenizer) -> tuple[tuple[int, ...], TokenizedText] | None:
    try:
        return without_bos(tokenized_text(text, tokenizer)) if len(text) else None
    except NoTokensError:
        return None


def _length(given: GivenModel, read: _Texts, wanted: int | None, short: int, num_far: int) -> int:
    """Length of a chunk; refuses one without a target that has so many distant tokens before it."""
    fewest = short + num_far
    num_positions = positions_left(given, read.bos_token_ids)
    length = wanted or min(LONG_CONTEXT_LENGTH, num_positions or LONG_CONTEXT_LENGTH)
    if length <= fewest:
        raise InputError(
            f"a long context of {length} tokens has no target with {fewest} tokens before it; choose a longer"
            " one, a shorter short context, or a smaller k"
        )
    return length


def losses_frame(
    texts: Text | Iterable[Text], model: Any, tokenizer: Any, options: Mapping[str, Any],
    reading: Mapping[str, Any], *, short_context_length: int, long_context_length: int | None,
) -> pd.DataFrame:  # fmt: skip
    """See `sparsity_length.losses`."""
    given, short = GivenModel(model, **options), short_context_length
    read = _Texts(texts, given, tokenizer, reading)
    length = _length(given, read, long_context_length, short, 1)
    spans = [span for text in range(len(read.ids)) for span in read.spans(text, short, 1, length)]
    measured = [np.full((len(ids_N), len(_VALUES)), np.nan, dtype=np.float32) for ids_N in read.ids]
    num_seen = [np.zeros(len(ids_N), dtype=np.int64) for ids_N in read.ids]
    total = sum(span.lengths.num_targets * short for span in spans)
    ready = given.ready(length, read.ids, read.tokenizer, read.bos_token_ids)
    with ready as loaded, counted([loaded], "losses", total):
        for text, start, ids_L, lengths in spans:
            with failures_in_words(given.name, len(ids_L), start, f" of text {text}"):
                own = FarContext(loaded.model, lengths, loaded.batching, ids_L, ids_L)
                long_T, short_T = own.long_losses_T, own.short.losses
                values = long_T, short_T, short_T - long_T, own.short.divergences
            measured[text][start + lengths.targets_T] = np.stack(values, axis=-1)
            num_seen[text][start + lengths.targets_T] = lengths.targets_T
    frames = []
    for text, of_text in enumerate(measured):
        if len(of_text):
            columns = read.token_columns(text, np.arange(len(of_text)))
            columns |= {
                "num_long_context_tokens": num_seen[text],
                **dict(zip(_VALUES, of_text.T, strict=True)),
            }
            frames.append(pd.DataFrame(columns))
    return _together(frames, [*_TOKEN, "num_long_context_tokens", *_VALUES])


def _together(frames: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(columns))


def influential_frame(
    texts: Text | Iterable[Text], model: Any, tokenizer: Any, options: Mapping[str, Any],
    reading: Mapping[str, Any], *, short_context_length: int, long_context_length: int | None,
    num_targets: int | None, k: Sequence[int], rule: str, evaluators: Sequence[Any], ablation: str,
    num_swaps: int, swap_text: str | None, screen: int | None, seed: int,
) -> pd.DataFrame:  # fmt: skip
    """See `sparsity_length.influential_tokens`."""
    ks, short = sorted(set(k)), short_context_length
    if ablation not in ABLATIONS:
        raise unknown_name("ablation", ablation, ABLATIONS)
    find_rule(rule)
    given = GivenModel(model, **options)
    of_evaluators = [
        GivenModel(one, **(options if isinstance(one, str | Path) else {})) for one in evaluators
    ]
    read = _Texts(texts, given, tokenizer, reading)
    length = _length(given, read, long_context_length, short, ks[0])
    work: list[tuple[Span, Measuring]] = []
    for text, ids_N in enumerate(read.ids):
        fitting = [k for k in ks if short + k < min(len(ids_N), length)]
        for span in read.spans(text, short, fitting[-1], length, num_targets) if fitting else ():
            measuring = Measuring(
                lengths=span.lengths,
                rules=[rule],
                ks=fitting,
                ablation=ablation,
                num_swaps=num_swaps,
                every_null=False,
                screen=screen,
                seed=seed,
            )
            work.append((span, measuring))
    num_tokens = sum(map(len, read.ids))
    if num_left_out := num_tokens - sum(span.lengths.num_targets for span, _ in work):
        logger.warning(
            "%d of %d tokens have no row: fewer than s plus the largest k (%d) stand before them, or they"
            " were not asked for", num_left_out, num_tokens, short + ks[-1],
        )  # fmt: skip
    longest = max((len(span.token_ids_L) for span, _ in work), default=0)
    num_others = 1 + (num_swaps if ablation == SWAP else 0)
    others_N = np.empty(0, dtype=np.int64)
    if work:
        others_N = swap_tokens(swap_text, num_others * longest, read.tokenizer).token_ids_N
    others_NL = others_N[: num_others * longest].reshape(num_others, longest)
    frames = []
    with ExitStack() as stack:
        fed = [*read.ids, others_N]
        loaded = [
            stack.enter_context(one.ready(length, fed, read.tokenizer, read.bos_token_ids))
            for one in (given, *of_evaluators)
        ]
        names = [one.name for one in loaded]
        # An evaluator's rows are found by its name: of several models of one name it becomes another.
        loaded[1:] = [
            replace(one, name=f"{one.name} (evaluator {place})") if names.count(one.name) > 1 else one
            for place, one in enumerate(loaded[1:])
        ]
        numbered = enumerate(progress(work, "influential_tokens", "chunk"))
        for number, ((text, start, ids_L, _), measuring) in numbered:
            # The ID is of the text, so that rules that draw do it anew for each.
            chunk = Chunk(f"{text:016x}", number, ids_L, others_NL[:, : len(ids_L)], start)
            where = f" of text {text}"
            with failures_in_words(given.name, len(ids_L), start, where):
                contexts = contexts_of(loaded[0], chunk, measuring)
                choices = chosen_positions(contexts, chunk, measuring)
                tables = chosen_tokens(contexts, chunk, choices, measuring)
                moved = None
                if measuring.leaves_out(OWN, chunk.document_id):
                    moved = np.take_along_axis(contexts[OWN].divergence_TF, choices[OWN][rule], axis=1)
            for one in loaded[1:] or loaded:
                with failures_in_words(one.name, len(ids_L), start, where):
                    of_one = contexts if one is loaded[0] else contexts_of(one, chunk, measuring)
                    tried = tried_tokens(one.name, of_one, chunk, choices, measuring)
                frames.append(_frame(read, text, tables | tried, moved, measuring.ks))
    return _together(frames, _COLUMNS)


_COLUMNS = (
    "text", "evaluator", "position", "token", "byte_start", "byte_end", "rank", "source_position",
    "source_token", "influence", "divergence", "long_context_loss", "short_context_loss", "baseline_loss",
    "baseline_divergence", "sparse_context_loss", "sparse_context_divergence", "null_sparse_context_loss",
    "null_sparse_context_divergence", "mean_log2_k",
)  # fmt: skip


def _frame(
    read: _Texts, text: int, columns_of: Mapping[str, Columns], moved_TK: np.ndarray | None, ks: Sequence[int]
) -> pd.DataFrame:
    """The rows of a chunk and evaluator; `moved_TK`: how far leaving out a choice moves predictions."""
    chosen, sparse, k_stars = (
        pd.DataFrame(columns_of[name])
        for name in ("influential_tokens", "sparse_context_losses", "dependency_sparsity")
    )
    chosen, sparse = chosen[chosen["distant_context"] == OWN], sparse[sparse["k"].isin(ks)]
    k_stars = k_stars[k_stars["criterion"] == DIVERGENCE]
    shape_TK = len(k_stars), len(chosen) // len(k_stars)
    targets, sources = chosen["target_position"].to_numpy(), chosen["context_position"].to_numpy()

    def of_target(column: str) -> np.ndarray:
        """A value that all k of a target share."""
        values_N = sparse.loc[sparse["distant_context"] == OWN, column].to_numpy(np.float32)
        return np.repeat(values_N[:: len(ks)], shape_TK[1])

    def at_ranks(column: str, distant_context: str) -> np.ndarray:
        """Values of each studied k, in the rows of these ranks."""
        values_N = sparse.loc[sparse["distant_context"] == distant_context, column].to_numpy()
        values_TK = np.full(shape_TK, np.nan, dtype=np.float32)
        if len(values_N):
            values_TK[:, np.array(ks) - 1] = values_N.reshape(-1, len(ks))
        return values_TK.ravel()

    baseline = "swapped" if "swapped_loss" in sparse else "short_context"
    loss, divergence = "sparse_context_loss", "sparse_context_divergence"
    divergences_TK = np.full(shape_TK, np.nan) if moved_TK is None else moved_TK[:, : shape_TK[1]]
    columns = read.token_columns(text, targets) | {
        "evaluator": sparse["evaluator"].iloc[0],
        "rank": chosen["rank"].to_numpy(),
        "source_position": sources,
        "source_token": read.token_columns(text, sources)["token"],
        "influence": chosen["influence"].to_numpy(np.float32),
        "divergence": divergences_TK.ravel().astype(np.float32),
        "long_context_loss": of_target("long_context_loss"),
        "short_context_loss": of_target("short_context_loss"),
        "baseline_loss": of_target(f"{baseline}_loss"),
        "baseline_divergence": of_target(f"{baseline}_divergence"),
        loss: at_ranks(loss, OWN),
        divergence: at_ranks(divergence, OWN),
        f"null_{loss}": at_ranks(loss, OTHER_DOCUMENT),
        f"null_{divergence}": at_ranks(divergence, OTHER_DOCUMENT),
        "mean_log2_k": np.repeat(k_stars["mean_log2_k"].to_numpy(np.float32), shape_TK[1]),
    }
    return pd.DataFrame({name: columns[name] for name in _COLUMNS})
