"""The library's functions: texts through the code that measures documents, as frames.

Shapes: N tokens of a text, L those of a chunk, T targets, J context lengths.
"""

import inspect
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from sparsity_length.cli import InputError, logger, positive_int, progress
from sparsity_length.measuring import explanation
from sparsity_length.measuring.contexts import Batching, measured_windows
from sparsity_length.measuring.far_context import FarContext
from sparsity_length.measuring.rules import (
    DEFAULT_ABLATION,
    DEFAULT_KS,
    DEFAULT_RULES,
    SEARCH_SWAPS,
    TRIAL_SWAPS,
)
from sparsity_length.measuring.selecting import Selecting
from sparsity_length.measuring.settings import (
    SHORT_CONTEXT_LENGTH,
    BesideShort,
    ByLength,
    Chunked,
    ContextLengths,
)
from sparsity_length.measuring.sparsity import measure_chunk
from sparsity_length.measuring.stage import failures_in_words
from sparsity_length.models.given import LONG_CONTEXT_LENGTH, GivenModel
from sparsity_length.models.settings import Loading
from sparsity_length.pages.explained import Explanation
from sparsity_length.results.schemas import DIVERGENCE, OTHER_DOCUMENT, OWN
from sparsity_length.results.write import tables_of
from sparsity_length.settings import Settings, setting
from sparsity_length.text.chunks import Chunk
from sparsity_length.text.tokenizer import Texts, TokenizedText, is_one_text, swap_tokens

if TYPE_CHECKING:
    from tqdm.auto import tqdm

_VALUES = ["long_context_loss", "short_context_loss", "loss_difference", "divergence"]
_NO_LOSSES = pd.DataFrame(
    {
        **dict.fromkeys(("text", "position", "num_long_context_tokens"), np.empty(0, np.int64)),
        "long_context_loss": np.empty(0, np.float32),
        "context_length": np.empty(0, np.int64),
        **dict.fromkeys(("loss", "divergence"), np.empty(0, np.float32)),
    }
)
"""What `losses` measures, without a row."""
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


Asked = ParamSpec("Asked")
Found = TypeVar("Found")


def _in_python_words(function: Callable[Asked, Found]) -> Callable[Asked, Found]:
    """The function, whose messages name its arguments, and not the flags of the same names."""
    names = {name.replace("_", "-"): name for name in inspect.signature(function).parameters}
    flag = re.compile(rf"--({'|'.join(names)})(?![\w-])")

    def renamed(message: str) -> str:
        return flag.sub(lambda found: names[found[1]], message)

    def rename(record: logging.LogRecord) -> bool:
        record.msg = renamed(record.msg)
        return True

    @wraps(function)
    def call(*values: Asked.args, **named: Asked.kwargs) -> Found:
        logger.addFilter(rename)
        try:
            return function(*values, **named)
        except InputError as error:
            raise InputError(renamed(str(error))) from error
        finally:
            logger.removeFilter(rename)

    return call


@_in_python_words
def losses(
    texts: "Texts",
    model: Any,
    tokenizer: Any = None,
    *,
    short_context_length: int = SHORT_CONTEXT_LENGTH,
    context_lengths: int | Iterable[int] | None = None,
    long_context_length: int | None = None,
    num_targets: int | None = None,
    bos: str = "auto",
    special_tokens: bool = False,
    dtype: str = "float32",
    device: str | None = None,
    rope: str | None = None,
) -> pd.DataFrame:
    """The loss of each token with everything before it, and with only the tokens right before it.

    With `context_lengths`, such as (8, 32, 128, 512), the loss against context length instead: `plot` draws
    it, and `summary` gives its means.

    Every short context is a window of its own, so each token takes the time of s + 1 forward tokens, or of
    1 + the sum of `context_lengths`. On one CPU core SmolLM2-135M takes about 20 seconds for a text of 256
    tokens at s = 16, and 40 times as long for each token at the lengths above: `num_targets` measures fewer.
    The bar shows what is left.

    Args:
        short_context_length: s; the short context of a token is exactly the s tokens before it.
        context_lengths: measure each token with exactly so many tokens before it, at the position IDs that
            they have in the long context; `short_context_length` is then not used.
        long_context_length: tokens of a chunk; None: 1,024, or 512 more than the longest of
            `context_lengths`, or as many as the model has positions. In a text of one chunk each token sees
            everything before it. In a longer one it sees at least half a chunk.
        num_targets: measure the last so many tokens of each text only; None: all.
        dtype, device: of a model that is loaded here. "bfloat16" takes half the memory and may choose other
            tokens that matter about as much. A model that needs more is loaded by you.
        rope: changes the RoPE of a model that is loaded here: "yarn:2", "stair:512:50"; None: as trained.
        bos, special_tokens: "auto" puts before a text what the tokenizer puts there, "none" nothing; whether
            control tokens in a text are read as such.

    Returns:
        A frame with one row for each token of each text, with the columns
            text: the text's place among those given, from 0;
            position, token, token_id: its place among the text's tokens, its characters, its ID;
            byte_start, byte_end: its place in the text's UTF-8;
            num_long_context_tokens: how many tokens its long context has;
            long_context_loss, short_context_loss: nats;
            loss_difference: short minus long; positive if the long context helps;
            divergence: KL(p(.|long) || p(.|short)), the expected loss difference: it never sees the token.
        The last four are NaN, and num_long_context_tokens is 0, of tokens that are not measured. Each text's
        first s + 1 never are: their short context is not whole, or it is the long one.

        With `context_lengths` one row for each measured token and context length. The same tokens are
        measured at every length: those with the longest one, and at least two tokens, before them. Behind
        long_context_loss the columns are then
            context_length: how many tokens right before it the token sees;
            loss: with these, nats;
            divergence: KL(p(.|long) || p(.|these)), nats.
    """
    short = BesideShort.checked(short_context_length=short_context_length)["short_context_length"]
    asked = ByLength.checked(context_lengths=context_lengths)["context_lengths"]
    if asked == ():
        raise InputError("context_lengths: no value is given")
    context_lengths = sorted({*(asked or [short])})
    # Tokens before the first target; by length, the longest context may be all that there is.
    before = max(2, context_lengths[-1]) if asked else short + 1
    given = GivenModel(model, Loading.of({"dtype": dtype, "device": device, "rope": rope}))
    read = _Texts(texts, given, tokenizer, bos, special_tokens)
    length = _length(long_context_length, given, read, before)
    chunks = [
        chunk for text in range(len(read.ids)) for chunk in read.chunks(text, 1, before, length, num_targets)
    ]
    num_without = len(read.ids) - len({text for text, *_ in chunks})
    if asked and num_without:
        sentence = f"no token of {num_without} of {len(read.ids)} texts has {before} tokens before it"
        if not chunks:
            raise InputError(f"context_lengths: {sentence}; name shorter ones")
        logger.warning("%s; these texts are left out", sentence)
    ready = given.ready(length, read.ids, read.tokenizer, read.bos_token_ids)
    batching = Batching.for_model(ready)
    frames = [_NO_LOSSES]
    num_tokens = sum(lengths.num_targets for *_, lengths in chunks) * sum(context_lengths)
    with progress(None, "losses", "token", num_tokens) as bar:
        for text, start, lengths in chunks:
            ids_L = read.ids[text][start : start + lengths.long_context_length]
            own = FarContext(ready, lengths, batching, ids_L, ids_L)
            with failures_in_words(given.name, start, f" of text {text}"):
                for frame in _losses_by_length(own, context_lengths, bar):
                    # Chunks overlap in what is read; each token is a target in one of them.
                    frames.append(frame.assign(text=text, position=start + frame["position"]))
    measured = pd.concat(frames, ignore_index=True)
    tokens = pd.concat(
        [
            pd.DataFrame({"text": text, **of_text.columns(np.arange(len(of_text.token_ids_N)))})
            for text, of_text in enumerate(read.texts)
        ],
        ignore_index=True,
    )
    if asked:
        return tokens.merge(measured, on=["text", "position"])
    frame = tokens.merge(measured, "left", ["text", "position"])
    frame["num_long_context_tokens"] = frame["num_long_context_tokens"].fillna(0).astype("int64")
    frame["short_context_loss"] = frame["loss"]
    frame["loss_difference"] = frame["short_context_loss"] - frame["long_context_loss"]
    return frame[[*tokens, "num_long_context_tokens", *_VALUES]]


def _losses_by_length(own: FarContext, context_lengths: Iterable[int], bar: "tqdm") -> Iterator[pd.DataFrame]:
    """The rows of a chunk's targets at one context length after another; positions are the chunk's."""
    targets_T = own.lengths.targets_T
    for length in context_lengths:
        measured = []
        # The batches in which all windows at once would be read, so that the bar moves with each.
        for batch in own.batching.of_many(len(targets_T), length):
            index_N = np.arange(len(targets_T))[batch]
            of_batch = measured_windows(
                own.model,
                own.chunk_L,
                targets_T[batch],
                length,
                own.batching,
                own.predictions,
                index_N=index_N,
            )
            measured.append(of_batch)
            bar.update(length * len(index_N))
        losses_T, divergences_T = np.concatenate(measured, axis=1)
        yield pd.DataFrame(
            {
                "position": targets_T,
                "num_long_context_tokens": targets_T,
                "long_context_loss": own.long_losses_T,
                "context_length": length,
                "loss": losses_T,
                "divergence": divergences_T,
            }
        )


@_in_python_words
def influential_tokens(
    texts: "Texts",
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
        short_context_length, long_context_length, num_targets, dtype and so on: as of `losses`. Time grows
            with the number of targets, and with the square of the length of a chunk.
        screen: of the tokens before each run of neighboring targets, how many the rules leave_one_out and
            leave_one_out_divergence leave out, those with the largest estimated effects on any of them, so
            that time grows about linearly; None: every token of a chunk up to 2,048 tokens, 32 beyond.
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
            influence: what leaving this one out costs, nats of loss; NaN if the rule leaves none out, or
                the screen not this one alone;
            long_context_loss, short_context_loss: of the target;
            baseline_loss, baseline_divergence: before a source is there: under the swapped distant context,
                or under the short context alone; the divergence is from the prediction with the long context;
            sparse_context_loss, sparse_context_divergence: with the sources of ranks 1 to this one together;
                in the rows whose rank is one of k, else NaN;
            null_sparse_context_loss, null_sparse_context_divergence: the same of sources chosen in another
                text; NaN of rules that say enough without that null;
            mean_log2_k: how many sources the target takes, in doublings; NaN if the long context moves its
                prediction by less than 0.1 nats.
        A target has a row only if s plus the largest k tokens stand before it.
    """
    asked = Selecting.checked(
        short_context_length=short_context_length,
        k=DEFAULT_KS if k is None else k,
        rules=(rule,),
        ablation=ablation,
        search_swaps=search_swaps,
        trial_swaps=trial_swaps,
        screen=screen,
        seed=seed,
    )
    ks = sorted({*asked.pop("k")})
    short = asked["short_context_length"]
    given = GivenModel(model, Loading.of({"dtype": dtype, "device": device, "rope": rope}))
    read = _Texts(texts, given, tokenizer, bos, special_tokens)
    length = _length(long_context_length, given, read)
    work: list[tuple[int, int, Selecting]] = []
    for text, ids_N in enumerate(read.ids):
        # A short text is studied at the k that it has room for; with none, `chunks` finds no target.
        fitting = [k for k in ks if short + k < min(len(ids_N), length)] or ks[:1]
        before = short + fitting[-1]
        for _, start, lengths in read.chunks(text, short, before, length, num_targets):
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


@_in_python_words
@wraps(explanation.explain)
def explain(text: Any, model: Any, *others: Any, **settings: Any) -> Explanation | list[Explanation]:
    """`explanation.explain` of one text, or a list of what it gives for each of many."""
    texts = _many(text)
    if is_one_text(text):
        return explanation.explain(text, model, *others, **settings)
    given = GivenModel(model, Loading.of(settings))
    settings = {name: value for name, value in settings.items() if name not in Loading.names()}
    explanations = []
    for number, one in enumerate(texts):
        try:
            explanations.append(explanation.explain(one, given, *others, **settings))
        except InputError as error:
            raise InputError(f"text {number}: {error}") from error
    return explanations


def _many(texts: Any) -> list[Any]:
    """One text or many as a list; InputError if there is none, or what would be read as columns' names."""
    is_other = isinstance(texts, bytes | Mapping) or hasattr(texts, "columns")
    if is_other or not isinstance(texts, Iterable) or getattr(texts, "ndim", 1) == 0:
        raise InputError(
            f"texts are of type {type(texts).__name__}; give a string, a list of them, or one column of a"
            " table"
        )
    found = [texts] if is_one_text(texts) else list(texts)
    if not found:
        raise InputError("the text is empty, or there are no messages: there is nothing to measure")
    return found


def _length(asked: int | None, given: GivenModel, read: "_Texts", before: int = 0) -> int:
    """Tokens of a chunk: as asked for, or the default, with room for 512 targets behind those before."""
    if asked is None:
        return given.default_length(read.bos_token_ids, before + LONG_CONTEXT_LENGTH // 2)
    length: int = Chunked.checked(long_context_length=asked)["long_context_length"]
    return length


@dataclass(frozen=True, kw_only=True)
class _Targets(Settings):
    """How many tokens of a text are measured."""

    num_targets: int | None = setting(positive_int, "the last so many; all if None", None)


class _Texts:
    """Texts as the model's tokenizer reads them, without BOS."""

    def __init__(self, texts: Any, given: GivenModel, tokenizer: Any, bos: str, special_tokens: bool) -> None:
        self.tokenizer = given.tokenizer(tokenizer, bos=bos, special_tokens=special_tokens)
        self.texts = [self.tokenizer.read(text) for text in _many(texts)]
        token_ids = np.concatenate([read.token_ids_N for read in self.texts])
        self.tokenizer.warn_of_unknown(self.tokenizer.num_unknown(token_ids), len(token_ids))
        # An empty list of token IDs shows no BOS, and says nothing of the other texts.
        begun = {read.bos_token_ids for read in self.texts if len(read.token_ids_N)}
        if len(begun) > 1:
            raise InputError("some texts begin with BOS and others do not; give all of them with it, or none")
        self.bos_token_ids: tuple[int, ...] = begun.pop() if begun else ()
        """Before every context; the texts are without it."""
        self.ids = [read.token_ids_N for read in self.texts]

    def chunks(
        self, text: int, short: int, before: int, length: int, num_targets: int | None = None
    ) -> Iterator[tuple[int, int, ContextLengths]]:
        """Chunks in which each target with so many tokens `before` it, or of the last, is predicted once.

        If the text is longer than a chunk, half of one stands before each target, or all that there is.
        """
        num_targets = _Targets(num_targets=num_targets).num_targets
        num = len(self.ids[text])
        if length <= before:
            raise InputError(
                f"a long context of {length} tokens has no target with {before} tokens before it; give fewer"
                " tokens of short context, of k or of context_lengths, or a larger long_context_length"
            )
        target = max(before, num - (num if num_targets is None else num_targets))
        while target < num:
            # 1,500 tokens in chunks of 1,024: [0, 1024), then [476, 1500), whose targets begin at 1,024.
            start = max(0, min(target - max(length // 2, before), num - length))
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
    # If nothing was swapped, tokens are added to the short context.
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
    sources = tokens.columns(frame["context_position"].to_numpy())
    return frame.assign(
        **tokens.columns(frame["target_position"].to_numpy()),
        text=text,
        source_position=sources["position"],
        source_token=sources["token"],
    )[_INFLUENTIAL]
