"""The library's functions: texts through the code that measures documents, as frames.

Shapes: N tokens of a text, L those of a chunk, T targets, K the largest k, J studied values of k.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from sparsity_length.cli import InputError, progress
from sparsity_length.measuring.contexts import Batching
from sparsity_length.measuring.explanation import default_length, swap_tokens, token_columns
from sparsity_length.measuring.far_context import FarContext
from sparsity_length.measuring.given import GivenModel
from sparsity_length.measuring.rules import (
    DEFAULT_ABLATION,
    DEFAULT_KS,
    DEFAULT_RULES,
    SEARCH_SWAPS,
    TRIAL_SWAPS,
)
from sparsity_length.measuring.selecting import Selecting
from sparsity_length.measuring.settings import SHORT_CONTEXT_LENGTH, BesideShort, Chunked, ContextLengths
from sparsity_length.measuring.sparsity import measure_chunk
from sparsity_length.measuring.stage import failures_in_words
from sparsity_length.results.schemas import DIVERGENCE, OTHER_DOCUMENT, OWN
from sparsity_length.results.write import tables_of
from sparsity_length.text.chunks import Chunk
from sparsity_length.text.tokenizer import Text, TokenizedText, is_one_text

_VALUES = ["long_context_loss", "short_context_loss", "loss_difference", "divergence"]
_TRIED = ["sparse_context_loss", "sparse_context_divergence"]
_OF_TARGET = ["long_context_loss", "short_context_loss", "baseline_loss", "baseline_divergence"]
_MEASURED = [
    "influence",
    *_OF_TARGET,
    *_TRIED,
    *(f"null_{name}" for name in _TRIED),
    "mean_log2_k",
]
_INFLUENTIAL = [
    "text",
    "position",
    "token",
    "byte_start",
    "byte_end",
    "rank",
    "source_position",
    "source_token",
    *_MEASURED,
]


def losses(
    texts: Text | Iterable[Text],
    model: Any,
    tokenizer: Any = None,
    *,
    short_context_length: int = SHORT_CONTEXT_LENGTH,
    long_context_length: int | None = None,
    bos: str = "auto",
    special_tokens: bool = False,
    dtype: str = "float32",
    device: str | None = None,
    rope: str | None = None,
) -> pd.DataFrame:
    """The loss of each token with everything before it, and with the few tokens right before it.

    Args:
        short_context_length: s; the short context of a token is exactly the s tokens before it.
        long_context_length: tokens of a chunk; None: 1,024, or as many as the model has positions. In a text
            of one chunk each token sees everything before it. In a longer one it sees at least half a chunk.
        dtype, device: of a model that is loaded here. "bfloat16" takes half the memory and may choose other
            tokens that matter about as much. A model that needs more is loaded by you.
        rope: scales the RoPE of a model that is loaded here, such as "yarn:2"; None: as it was trained.
        bos, special_tokens: "auto" puts before a text what the tokenizer puts there, "none" nothing; whether
            control tokens in a text are read as such.

    Returns:
        A frame, a row for each token of each text, with the columns
            text: the text's place among those given, from 0;
            position, token, token_id: its place among the text's tokens, its characters, its ID;
            byte_start, byte_end: its place in the text's UTF-8;
            num_long_context_tokens: how many tokens its long context has;
            long_context_loss, short_context_loss: nats;
            loss_difference: short less long; positive where the long context helps;
            divergence: KL(p(.|long) || p(.|short)), the expected loss difference: it never sees the token.
        The last four are NaN, and num_long_context_tokens is 0, of each text's first s + 1 tokens: their
        short context is not whole, or it is the long one.
    """
    BesideShort.checked(short_context_length=short_context_length)
    given = GivenModel(model, dtype=dtype, device=device, rope=rope)
    read = _Texts(texts, given, tokenizer, bos, special_tokens)
    length = _length(long_context_length, given, read)
    nothing = {"num_long_context_tokens": 0, **dict.fromkeys(_VALUES, np.float32(np.nan))}
    frames = [
        pd.DataFrame({"text": text, **token_columns(tokens, np.arange(len(tokens.token_ids_N))), **nothing})
        for text, tokens in enumerate(read.texts)
    ]
    chunks = [
        chunk for text in range(len(read.ids)) for chunk in read.chunks(text, short_context_length, 1, length)
    ]
    ready = given.ready(length, read.ids, read.tokenizer, read.bos_token_ids)
    for text, start, lengths in progress(chunks, "losses", "chunk"):
        ids_L = read.ids[text][start : start + lengths.long_context_length]
        with failures_in_words(given.name, start, f" of text {text}"):
            own = FarContext(ready, lengths, Batching.for_model(ready), ids_L, ids_L)
            gains_T = own.short.losses - own.long_losses_T
            values = own.long_losses_T, own.short.losses, gains_T, own.short.divergences
        # Chunks overlap in what is read; each token is a target in one of them.
        targets_T = start + lengths.targets_T
        frames[text].loc[targets_T, _VALUES] = np.stack(values, axis=-1)
        frames[text].loc[targets_T, "num_long_context_tokens"] = lengths.targets_T
    return pd.concat(frames, ignore_index=True)


def influential_tokens(
    texts: Text | Iterable[Text],
    model: Any,
    tokenizer: Any = None,
    *,
    short_context_length: int = SHORT_CONTEXT_LENGTH,
    long_context_length: int | None = None,
    num_targets: int | None = None,
    k: int | Iterable[int] | None = None,
    rule: str = DEFAULT_RULES[0],
    ablation: str = DEFAULT_ABLATION,
    search_swaps: int = SEARCH_SWAPS,
    trial_swaps: int = TRIAL_SWAPS,
    swap_text: str | None = None,
    screen: int | None = None,
    seed: int = 0,
    bos: str = "auto",
    special_tokens: bool = False,
    dtype: str = "float32",
    device: str | None = None,
    rope: str | None = None,
) -> pd.DataFrame:
    """The distant tokens that each prediction needs most, and how far it gets with them.

    Distant tokens are those before the short context. The ablation "swap" replaces what is left out by
    another text's tokens, and puts sources among these; "mask" removes it.

    Args:
        k: numbers of sources that are tried together; a text too short for the largest leaves it out. None:
            1, 2, 4, … 128.
        short_context_length, long_context_length, dtype and so on: as of `losses`.
        num_targets: predict the last so many tokens of each text only; None: all that have distant tokens
            enough. Time grows with it, and with the square of the length of a chunk.
        screen: blocks of distant tokens that a round of the rules leave_one_out and leave_one_out_divergence
            leaves out, those that matter being split, so that time grows about linearly; None: every token of
            a chunk up to 2,048 tokens, 32 blocks and one a target beyond.
        rule: which ranks the distant tokens; `sparsity influential_tokens --help` lists them.
        search_swaps, trial_swaps: under "swap", how many other texts stand in while sources are chosen (0:
            tokens are removed), and among how many others these are then tried; means over them.
        swap_text: is cut into the swapped contexts and the null baseline; None: bundled English passages.
        seed: of rules that draw.

    Returns:
        A frame, a row for each target and rank, with the columns
            text: the text's place among those given;
            position, token, byte_start, byte_end: the target, as of `losses`;
            rank: from 1, the source needed most, to the largest k;
            source_position, source_token: the distant token of this rank;
            influence: what leaving this one out costs, nats of loss; NaN where the rule leaves none out, or
                the screen not this one alone;
            long_context_loss, short_context_loss: of the target;
            baseline_loss, baseline_divergence: before a source is there: under the swapped distant context,
                or under the short context alone; the divergence is from the prediction with the long context;
            sparse_context_loss, sparse_context_divergence: with the sources of ranks 1 to this one together;
                in the rows whose rank is one of k, else NaN;
            null_sparse_context_loss, null_sparse_context_divergence: the same of sources chosen in another
                text; NaN of rules that say enough without that null;
            mean_log2_k: how many sources the target takes, in doublings; NaN where the long context moves its
                prediction by less than 0.1 nats.
        A target has a row only if s plus the largest k tokens stand before it.
    """
    asked = Selecting.checked(
        short_context_length=short_context_length,
        k=DEFAULT_KS if k is None else k,
        rules=rule,
        ablation=ablation,
        search_swaps=search_swaps,
        trial_swaps=trial_swaps,
        screen=screen,
        seed=seed,
    )
    ks = sorted({*asked.pop("k")})
    given = GivenModel(model, dtype=dtype, device=device, rope=rope)
    read = _Texts(texts, given, tokenizer, bos, special_tokens)
    length = _length(long_context_length, given, read)
    if num_targets is not None:
        Selecting.checked(targets_per_chunk=num_targets)
    work: list[tuple[int, int, Selecting]] = []
    for text, ids_N in enumerate(read.ids):
        # A short text is studied at the k that it has room for; with none, `chunks` finds no target.
        fitting = [k for k in ks if short_context_length + k < min(len(ids_N), length)] or ks[:1]
        for _, start, lengths in read.chunks(text, short_context_length, fitting[-1], length, num_targets):
            selecting = Selecting(
                long_context_length=lengths.long_context_length,
                targets_per_chunk=lengths.targets_per_chunk,
                k=tuple(fitting),
                **asked,
            )
            work.append((text, start, selecting))
    longest = max((selecting.long_context_length for *_, selecting in work), default=0)
    num_others = max((selecting.num_others for *_, selecting in work), default=1)
    others_N = swap_tokens(swap_text, num_others * longest, read.tokenizer)[: num_others * longest]
    # Disjoint pieces: the null, the trials and the searches share no token.
    others_NL = others_N.reshape(num_others, longest)
    ready = given.ready(length, [*read.ids, others_N], read.tokenizer, read.bos_token_ids)
    frames = []
    for number, (text, start, selecting) in enumerate(progress(work, "influential_tokens", "chunk")):
        ids_L = read.ids[text][start : start + selecting.long_context_length]
        # The ID is of the text, so that rules that draw do it anew for each.
        chunk = Chunk(f"{text:016x}", number, ids_L, others_NL[:, : len(ids_L)], start)
        with failures_in_words(given.name, start, f" of text {text}"):
            tables = tables_of(measure_chunk(ready, chunk, selecting, every_null=False))
        frames.append(_frame(text, read.texts[text], tables, selecting.ks))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=_INFLUENTIAL)


def _length(asked: int | None, given: GivenModel, read: "_Texts") -> int:
    """Tokens of a chunk: as asked for, or 1,024 or as many as the model has positions."""
    if asked is None:
        return default_length(given, read.bos_token_ids)
    length: int = Chunked.checked(long_context_length=asked)["long_context_length"]
    return length


class _Texts:
    """Texts as the model's tokenizer reads them, without BOS."""

    def __init__(self, texts: Any, given: GivenModel, tokenizer: Any, bos: str, special_tokens: bool) -> None:
        if isinstance(texts, Mapping) or hasattr(texts, "columns"):  # it would be read as its columns' names
            raise InputError(f"texts are of type {type(texts).__name__}; give one column of it")
        self.tokenizer = given.tokenizer(tokenizer, bos=bos, special_tokens=special_tokens)
        self.texts = [self.tokenizer.read(text) for text in ([texts] if is_one_text(texts) else texts)]
        # An empty list of token IDs shows no BOS, and says nothing of the other texts.
        begun = {read.bos_token_ids for read in self.texts if len(read.token_ids_N)}
        if len(begun) > 1:
            raise InputError("some texts begin with BOS and others do not; give all of them with it, or none")
        self.bos_token_ids: tuple[int, ...] = begun.pop() if begun else ()
        """Before every context; the texts are without it."""
        self.ids = [read.token_ids_N for read in self.texts]

    def chunks(
        self, text: int, short: int, num_far: int, length: int, num_targets: int | None = None
    ) -> Iterator[tuple[int, int, ContextLengths]]:
        """Chunks in which each target with so many distant tokens, or of the last targets, is predicted once.

        If the text is longer than a chunk, half of one stands before each target, or all that there is.
        """
        num = len(self.ids[text])
        if min(short, num_far) < 1 or length <= short + num_far:
            raise InputError(
                f"a long context of {length} tokens has no target with a short context of {short} and"
                f" {num_far} distant tokens before it; both are at least 1, and together less than that"
            )
        target = max(short + num_far, num - (num if num_targets is None else num_targets))
        while target < num:
            # 1,500 tokens in chunks of 1,024: [0, 1024), then [476, 1500), whose targets begin at 1,024.
            start = max(0, min(target - max(length // 2, short + num_far), num - length))
            end = min(start + length, num)
            yield text, start, ContextLengths(short, end - start, end - target)
            target = end


def _frame(
    text: int, tokens: TokenizedText, tables: Mapping[str, pa.Table], ks: Sequence[int]
) -> pd.DataFrame:
    """The rows of a chunk of a text."""
    key = ["target_position", "rank"]
    chosen = tables["influential_tokens"].to_pandas().query(f"distant_context == '{OWN}'")
    sparse = tables["sparse_context_losses"].to_pandas().rename(columns={"k": "rank"})
    # Where nothing was swapped, tokens are added to the short context.
    baseline = "short_context" if sparse["swapped_loss"].isna().all() else "swapped"
    sparse[["baseline_loss", "baseline_divergence"]] = sparse[[f"{baseline}_loss", f"{baseline}_divergence"]]
    # Controls and screened rules are studied at more k than were asked for.
    sparse = sparse[sparse["rank"].isin(ks)].set_index(key)
    own = sparse[sparse["distant_context"] == OWN]
    null = sparse[sparse["distant_context"] == OTHER_DOCUMENT]
    sparsity = tables["dependency_sparsity"].to_pandas().query(f"criterion == '{DIVERGENCE}'")
    # Values of a target repeat in the rows of all its ranks; the first will do.
    of_target = own.groupby("target_position")[_OF_TARGET].first()
    frame = (
        chosen[[*key, "context_position", "influence"]]
        .join(own[_TRIED], on=key)
        .join(null[_TRIED].add_prefix("null_"), on=key)
        .join(of_target, on="target_position")
        .join(sparsity.set_index("target_position")["mean_log2_k"], on="target_position")
        .astype(dict.fromkeys([*key, "context_position"], "int64") | dict.fromkeys(_MEASURED, "float32"))
    )
    sources = token_columns(tokens, frame["context_position"].to_numpy())
    return frame.assign(
        **token_columns(tokens, frame["target_position"].to_numpy()),
        text=text,
        source_position=sources["position"],
        source_token=sources["token"],
    )[_INFLUENTIAL]
