"""One text explained within a budget of time; told in words, as a page, as frames and as JSON.

Shapes: N tokens of the text, L measured tokens, Q predicted tokens, T targets, B swaps.
"""

import argparse
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.linalg import block_diag

from pipeline.cli import InputError, logger, progress
from pipeline.explorer_page import html_page
from pipeline.measuring.contexts import PackedSequence, Rows, read_prefix
from pipeline.measuring.given import GivenModel
from pipeline.measuring.sources import (
    COARSE_TOKENS,
    Passes,
    Search,
    all_losses,
    is_distinguishable,
    likely_tokens,
    near_starts,
    unit_starts,
)
from pipeline.measuring.stage import LoadedModel, failures_in_words
from pipeline.models.interface import CausalLM, num_positions_of
from pipeline.results.files import write_text
from pipeline.results.table import as_table, printable
from pipeline.text.sources import first_passages
from pipeline.text.tokenizer import DocumentTokenizer, TokenizedText

LONG_CONTEXT_LENGTH = 1024
"""The default, if the model has as many positions."""
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
_LEAST_EFFECT = 0.05
"""Nats of total effect; of less, or of one below 0, no fraction is told."""
_COLUMNS = (
    "position",
    "token",
    "byte_start",
    "byte_end",
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
    """A row for each predicted token; `sparsity_length.explain` lists the columns."""
    targets: list[dict[str, Any]]
    """The predictions whose sources were searched, in the text's order, each with a list of its sources; by
    the names of `frame`."""

    @cached_property
    def html(self) -> str:
        """The page of the text."""
        return html_page("explained.html", ["explained.js"], "explained.css", self.record)

    def _repr_html_(self) -> str:
        """The page as a notebook shows it."""
        page = html.escape(self.html)
        return f'<iframe srcdoc="{page}" width="100%" height="800" frameborder="0"></iframe>'

    def __str__(self) -> str:
        return in_words(self, is_colored=False)

    def save(self, path: str | Path = "explained.html", kind: str | None = None) -> Path:
        """Write the page, or what was measured as json or csv; the path's ending says which, or `kind`.

        A file that exists is replaced.
        """
        path = Path(path)
        content = self.html
        if (kind or path.suffix[1:]) == "csv":
            content = self.frame.to_csv(index=False)
        if (kind or path.suffix[1:]) == "json":
            content = json.dumps(self.record, ensure_ascii=False, indent=1)
        write_text(path, content)
        return path

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each target and source; `sparsity_length.explain` lists the columns."""
        rows = [{**target, **source} for target in self.targets for source in target["sources"]]
        return pd.DataFrame(rows, columns=_COLUMNS)

    @cached_property
    def record(self) -> dict[str, Any]:
        """All that was measured, of JSON values, rounded to four decimals."""
        losses = self.losses.drop(columns=["token", "token_id", "byte_start", "byte_end"])
        exact = {
            **self.facts,
            "first_token": self.first_token,
            "summary": summary(self),
            "pieces": self.text.pieces[self.first_token :],
            "losses": losses.to_dict("list"),
            "targets": self.targets,
        }
        # Parsing again reaches the numbers of every nested list and dictionary.
        rounded: dict[str, Any] = json.loads(
            json.dumps(exact), parse_float=lambda number: round(float(number), 4)
        )
        return rounded


def explained(text: Any, arguments: argparse.Namespace) -> Explanation:
    """Explain a text; `arguments` are of `pipeline.explain`, with swap_text, a string or None."""
    given = GivenModel(
        arguments.model,
        device=arguments.device,
        dtype=arguments.dtype,
        trust_remote_code=arguments.trust_remote_code,
    )
    tokenizer = given.tokenizer(
        arguments.tokenizer, bos=arguments.bos, special_tokens=arguments.special_tokens
    )
    is_chat = not isinstance(text, str) and len(text) > 0 and isinstance(text[0], Mapping)
    begins_answer = is_chat and arguments.generate is not None
    tokens = tokenizer.read(text, begins_answer=begins_answer)
    bos_token_ids = tokens.bos_token_ids
    num_tokens = len(tokens.token_ids_N)
    first, end = _answer_of(text, tokens) if is_chat and not begins_answer else (0, num_tokens)
    most = arguments.long_context_length or default_length(given, bos_token_ids)
    longest = min(most, end + (arguments.generate or 0))
    other_N = swap_text(arguments.swap_text, NUM_TEXTS * longest, tokenizer).token_ids_N
    loaded = given.ready(longest, [tokens.token_ids_N, other_N], tokenizer, bos_token_ids)
    if arguments.generate is not None:
        # Room for the answer among the position IDs that the model was loaded for.
        prompt_N = tokens.token_ids_N[-max(1, most - arguments.generate) :]
        answer = _generated(loaded.model, prompt_N, arguments.generate, tokenizer)
        # From IDs: encoding the decoded answer might give other tokens than the model wrote.
        ids_N = np.concatenate([bos_token_ids, tokens.token_ids_N, answer]).astype(np.int64)
        tokens = tokenizer.read(ids_N)
        first, end = num_tokens, num_tokens + len(answer)
    position = arguments.position
    if arguments.at is not None:
        position = _position_of(arguments.at, tokens)
    if position is not None:
        last = len(tokens.token_ids_N) - 1
        if not 0 <= position <= last:
            raise InputError(f"--position {position} is outside: the text has tokens 0 to {last}")
        first, end = position, position + 1
    length = min(most, end)
    with failures_in_words(given.name, end - length):
        return _measured(
            loaded,
            tokens,
            first,
            end,
            length,
            other_N,
            tokenizer,
            arguments,
            sink=0 if bos_token_ids else 1,
            is_one=position is not None,
        )


def _answer_of(messages: Sequence[Mapping[str, Any]], text: TokenizedText) -> tuple[int, int]:
    """The last message's tokens, [first, end)."""
    content = str(messages[-1]["content"]).strip()
    # An earlier message may say the same, so the last occurrence counts.
    start = text.text.rfind(content)
    if not content or start < 0:
        raise InputError("the last message is empty, or the chat template does not write it as it is")
    ends_N = text.characters_N2[:, 1]
    # The first token that ends behind `start` holds that character.
    first = np.searchsorted(ends_N, start, side="right")
    return int(first), 1 + int(np.searchsorted(ends_N, start + len(content)))


def _position_of(word: str, text: TokenizedText) -> int:
    """The token in which the only occurrence of a word begins."""
    # Not \b, which would be wrong for a word that begins or ends with punctuation.
    found = [match.start() for match in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text.text)]
    places: list[int] = np.searchsorted(text.characters_N2[:, 1], found, side="right").tolist()
    if not places:
        raise InputError(f"--at '{printable(word)}' does not occur in the text")
    if len(places) > 1:
        named = [
            f"{place} (“{printable(text.text[max(0, start - 20) : start + len(word)])}”)"
            for place, start in zip(places[:8], found, strict=False)
        ]
        raise InputError(
            f"--at '{printable(word)}' occurs {len(places)} times; say which by --position:"
            f" {', '.join(named)}{' …' if len(places) > 8 else ''}"
        )
    return places[0]


def _generated(
    model: CausalLM, token_ids_N: np.ndarray, num_tokens: int, tokenizer: DocumentTokenizer
) -> list[int]:
    """The likeliest next tokens, one after another, until one ends the text."""
    num_read = len(token_ids_N) - 1
    # The prefix does not grow: each step reads the last token and the answer so far again, which is
    # quadratic in the length of the answer only.
    prefix = read_prefix(model, token_ids_N[:-1])
    answer = [int(token_ids_N[-1])]
    while len(answer) <= num_tokens:
        places_1S = np.arange(len(answer))[None]
        rows = Rows(np.array([answer]), num_read + places_1S, None, places_1S[:, -1:])
        token_id = int(model.logits(model.hidden_states(*rows.on_device(model.device), prefix)[0]).argmax())
        if token_id == tokenizer.eos_token_id:
            break
        answer.append(token_id)
    return answer[1:]


def _measured(
    loaded: LoadedModel,
    text: TokenizedText,
    first: int,
    end: int,
    length: int,
    other_N: np.ndarray,
    tokenizer: DocumentTokenizer,
    arguments: argparse.Namespace,
    *,
    sink: int,
    is_one: bool,
) -> Explanation:
    """Measure the losses of tokens [first, end), and search and try the sources of those that are chosen.

    `sink` is 1 if the text's first token serves as an attention sink, as it does in models without BOS.
    """
    begin = end - length
    short = arguments.short_context_length
    if begin:
        logger.warning(
            "the text has %d tokens up to there, of which the last %d are measured (--long-context-length N"
            " sets another number)",
            end,
            length,
        )
    first = max(short + sink + 1, first - begin)
    if first >= length:
        raise InputError(
            f"--short-context-length {short} leaves none of the {end - 1} tokens before the last one"
            " distant: give a longer text, or a smaller --short-context-length"
        )
    ids_L = text.token_ids_N[begin:end]
    # Swapped contexts share no token: the trial's test takes them as independent.
    starts = np.linspace(0, len(other_N) - length, NUM_TEXTS).astype(int)
    swaps_BL = np.stack([other_N[start : start + length] for start in starts])
    shared = 1 if is_one else max(1, short // 2)
    # Neighbors share a window: the first of them sees `short` near tokens, each other one more.
    near_T = near_starts(length, first, short, shared)
    is_exact = arguments.targets is None and arguments.budget is None and not is_one
    num_wanted = 1 if is_one else min(arguments.targets or len(near_T), len(near_T))
    # The first pass is slower than those after it, and tells no speed.
    read_prefix(loaded.model, ids_L[:64])
    passes = Passes(loaded.model, loaded.batching, arguments.budget)
    hidden_TD, _ = passes.read(ids_L[:-1], len(near_T))
    float(hidden_TD.sum())  # a GPU is waited for
    likely = length**2 / 2 + NUM_SWAPPED * num_wanted * length / 2
    if not is_exact:
        likely = likely_tokens(np.linspace(length / 2, length, num_wanted), NUM_SWAPPED)
    # The swapped distant tokens, at most a text long, and each window alone and behind them.
    num_losses = length + 2 * (short + shared - 1) * len(np.unique(near_T))
    least = num_losses + likely_tokens(np.array([length]), NUM_SWAPPED)
    if not passes.fits(least):
        raise InputError(
            f"--budget {arguments.budget:g}s is too short: losses and the sources of one prediction take some"
            f" {passes.seconds(least):.0f} seconds; give more, or a smaller --long-context-length"
        )
    logger.info(
        "%d tokens: losses in about %.0f seconds, sources of %d predictions in about %.0f in all",
        length,
        passes.seconds(num_losses),
        num_wanted,
        min(passes.seconds(num_losses + likely), arguments.budget or float("inf")),
    )
    passes.bar = progress(None, "explain", "token")
    losses = all_losses(passes, hidden_TD, ids_L, swaps_BL[0], near_T, short)
    # By KL, not by loss: which predictions are explained must not depend on the target tokens.
    by_effect = losses["swapped_divergence"].nlargest(num_wanted).index.to_numpy()
    while len(by_effect) > 1 and not passes.fits(likely_tokens(first + by_effect, NUM_SWAPPED)):
        by_effect = by_effect[:-1]
    chosen = np.sort(by_effect)
    targets_T = first + chosen
    sequence = PackedSequence(
        ids_L[:-1], np.arange(length - 1), None, targets_T - 1, ids_L[targets_T], near_T[chosen], slice(None)
    )
    weights_Q = None
    if arguments.instead is not None:
        sequence, weights_Q, words = _contrasted(
            ids_L, text, end, int(near_T[0]), tokenizer, arguments.instead
        )
    # What is filled in stands behind all distant tokens.
    swaps_BS = np.pad(swaps_BL, ((0, 0), (0, len(sequence.token_ids_S))), mode="edge")
    units, sentences = (unit_starts(text, unit) - begin for unit in (arguments.unit, "sentence"))
    search = Search(
        passes,
        sequence,
        swaps_BS,
        # A unit that began before, or at an attention sink, is cut to what may be a source.
        np.unique([*units[units > sink], sink]),
        sentences,
        arguments.sources,
        weights_Q,
        0 if is_exact else COARSE_TOKENS,
    )
    search.run()
    targets = _targets(search, text, begin, begin + targets_T)
    passes.bar.close()
    if len(targets) < num_wanted:
        logger.warning("--budget suffices for the sources of %d of %d predictions", len(targets), num_wanted)
    facts = {
        "name": getattr(arguments, "name", "the text"),
        "model": loaded.name,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "unit": arguments.unit,
        "near_tokens": [short, short + shared - 1],
        "ablation": "swap",
        "num_swapped_contexts": NUM_SWAPPED,
        "num_forward_tokens": passes.num_tokens,
        "contrast": None,
    }
    if weights_Q is not None:
        # Losses are -ln p, so minus their weighted sum is log p(own) - log p(other).
        facts["contrast"] = [*words, -float(search.full.losses_T @ weights_Q)]
    cut = text.characters_N2[:end]
    shown = TokenizedText(text.text[: int(cut[-1, 1])], text.token_ids_N[:end], cut)
    places_T = begin + first + losses.index.to_numpy()
    starts_T, ends_T = shown.bytes_N2[places_T].T
    of_tokens = pd.DataFrame(
        {
            "position": places_T,
            "token": np.array(shown.pieces, dtype=object)[places_T],
            "token_id": shown.token_ids_N[places_T],
            "byte_start": starts_T,
            "byte_end": ends_T,
            "near_position": begin + near_T,
        }
    )
    return Explanation(facts, shown, begin, of_tokens.join(losses), targets)


def _targets(
    search: Search, text: TokenizedText, begin: int, positions_T: np.ndarray
) -> list[dict[str, Any]]:
    """The targets of a search, tried, by the names of `Explanation.frame`."""

    def named(name: str, start: int, end: int, of: str = "") -> dict[str, Any]:
        """The text of tokens, whole characters, and its place."""
        first, last = text.characters_N2[[start, end - 1], [0, 1]]
        byte_start, byte_end = text.bytes_N2[[start, end - 1], [0, 1]].tolist()
        return {name: text.text[first:last], f"{of}byte_start": byte_start, f"{of}byte_end": byte_end}

    targets = []
    for target, (total_B, remaining_B) in enumerate(search.tried()):
        position = int(positions_T[target])
        total = float(total_B.mean())
        sources = []
        for rank, span in enumerate(search.sources(target), start=1):
            start, end = begin + span[0], begin + span[1]
            sources.append(
                {
                    "rank": rank,
                    "source_position": start,
                    "source_end": end,
                    **named("source", start, end, "source_"),
                    "effect": search.effects_T[target][span],
                }
            )
        targets.append(
            {
                "position": position,
                **named("token", position, position + 1),
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
    instead: str,
) -> tuple[PackedSequence, np.ndarray, tuple[str, str]]:
    """Both continuations behind their context; how their tokens' losses count; and both words."""
    target = end - 1
    start, stop = text.characters_N2[target].tolist()
    begin = stop - len(text.text[start:stop].lstrip())
    word = re.compile(r"\w*|[^\w\s]*").match(text.text, begin)
    word_end = max(stop, word.end() if word else stop)
    last = int(np.searchsorted(text.characters_N2[:, 1], word_end))
    instead = instead.strip()
    # Control tokens of a chat are such, whatever is said of those that a text spells.
    whole = tokenizer.read(text.text[:begin] + instead, special_tokens=text.has_special_tokens)
    # A blank that is a token of its own before one word may be of the other word's first token.
    size = min(target, len(whole.token_ids_N))
    differ = np.flatnonzero(text.token_ids_N[:size] != whole.token_ids_N[:size])
    fork = int(differ[0]) if len(differ) else size
    own = text.token_ids_N[fork : last + 1]
    other = whole.token_ids_N[fork:]
    first = fork - (end - len(ids_L))
    behind = [np.arange(len(words) - 1) for words in (own, other)]
    # Neither continuation sees the other; the last row of their context predicts the first token of both.
    sees = block_diag(*(np.tri(len(places), dtype=bool) for places in behind))
    visible_WS = np.zeros((1 + len(sees), first + len(sees)), dtype=bool)
    visible_WS[:, :first] = True
    visible_WS[1:, first:] = sees
    rows = [first - 1, *(first + behind[0]), first - 1, *(first + len(behind[0]) + behind[1])]
    sequence = PackedSequence(
        # The last token of each continuation is predicted and never an input.
        np.concatenate([ids_L[:first], own[:-1], other[:-1]]).astype(np.int64),
        # Both continuations stand at the same IDs, each as if it alone followed.
        np.concatenate([np.arange(first), *(first + places for places in behind)]),
        visible_WS,
        np.array(rows),
        np.concatenate([own, other]).astype(np.int64),
        # A fork before the target must not make the row that predicts both a distant one.
        np.full(len(rows), min(near, first - 1)),
        slice(None),
    )
    weights_Q = np.repeat([1, -1], [len(own), len(other)]).astype(np.float32)
    return sequence, weights_Q, (text.text[begin:word_end], instead)


def default_length(given: GivenModel, bos_token_ids: Sequence[int]) -> int:
    """Tokens of a chunk behind BOS by default: as many as the model was made for, at most 1,024."""
    if given.num_positions is None:
        return LONG_CONTEXT_LENGTH
    return min(LONG_CONTEXT_LENGTH, given.num_positions - num_positions_of(0, len(bos_token_ids)))


def swap_text(text: str | None, num_tokens: int, tokenizer: DocumentTokenizer) -> TokenizedText:
    """The swapped text, or English passages, of at least so many tokens; without BOS."""
    if text is None:
        text = "\n\n".join(first_passages(16 * num_tokens))  # no tokenizer's tokens are as long as this
    other = tokenizer.read(text)
    if len(other.token_ids_N) < num_tokens:
        raise InputError(
            f"the swapped text has {len(other.token_ids_N)} tokens, and {num_tokens} are needed; give a"
            " longer one, or a smaller --long-context-length"
        )
    return other


def summary(explanation: Explanation) -> list[str]:
    """Sentences on what was found, whose numbers add up as they are shown."""
    losses = explanation.losses
    targets = explanation.targets
    least, most = explanation.facts["near_tokens"]
    near = f"{least}" if least == most else f"{least} to {most}"
    full, short, swapped = losses[["full_loss", "short_loss", "swapped_loss"]].mean().round(3)
    predictions = "1 prediction" if len(losses) == 1 else f"{len(losses)} predictions, mean"
    sentences = [
        f"{predictions}: loss {full:.3f} nats with the full context; {short:.3f} with the last {near} tokens"
        f" alone ({short - full:+.3f}); {swapped:.3f} with another document's tokens before these"
        f" ({swapped - full:+.3f})."
    ]
    if explanation.facts["contrast"] is not None:
        own, other, difference = explanation.facts["contrast"]
        sentences.append(
            f"log p(“{printable(own)}”) − log p(“{printable(other)}”) = {difference:+.2f} nats with the full"
            " context; effects are what it falls by."
        )
    # Rounded before adding, so that the rows of the table add up to the total shown.
    total = sum(round(target["total_effect"], 2) for target in targets)
    left = sum(round(target["total_effect"] * (1 - target["recovered"]), 2) for target in targets)
    which = "this prediction" if len(targets) == 1 else f"the {len(targets)} explained predictions"
    found = (
        f"Total effect of the distant context on {which}: {total:.2f} nats, the mean of {NUM_SWAPPED} swapped"
        " contexts."
    )
    if total >= _LEAST_EFFECT:
        largest = max(len(target["sources"]) for target in targets)
        found += f" The top {largest} sources recover {(total - left) / total:.0%} of it; {left:.2f} remain."
    sentences.append(found)
    if num_none := sum(target["no_single_source"] for target in targets):
        sentences.append(
            f"{num_none} of {len(targets)} without a single source: what the top sources recover is not"
            " distinguishable from another document's tokens in their places."
        )
    return sentences


def in_words(explanation: Explanation, *, is_colored: bool) -> str:
    """The text, a legend, the summary, and a table of the targets and their sources.

    Nothing in a text is obeyed: escape sequences, and what turns the direction of writing, are shown
    as numbers.
    """

    def marked(piece: str, effect: float) -> str:
        """A token, its level shown by a color."""
        word = "".join(char if char in _JOINERS else printable(char) for char in piece.lstrip(" "))
        blanks = " " * (len(piece) - len(piece.lstrip(" ")))
        colors = [color for level, color in _COLORS.items() if effect >= level]
        if word and is_colored and colors:
            word = f"\x1b[48;5;{colors[-1]}m\x1b[38;5;16m{word}\x1b[0m"
        return blanks + word

    effects = dict(zip(explanation.losses["position"], explanation.losses["swapped_divergence"], strict=True))
    first = explanation.first_token
    pieces = enumerate(explanation.text.pieces[first:], start=first)
    parts = ["".join(marked(piece, effects.get(place, 0.0)) for place, piece in pieces).rstrip("\n")]
    if is_colored:
        shades = " ".join(marked(f"{level:g}", level) for level in _COLORS)
        parts.append(f"Colored: distant tokens change the prediction by {shades} nats (KL) or more.")
    parts.append("\n".join(summary(explanation)))
    lines: list[list[object]] = []
    for target in sorted(explanation.targets, key=lambda target: -target["total_effect"]):
        recovered = "no single source" if target["no_single_source"] else f"{target['recovered']:.0%}"
        sources = [
            f"{_quoted(source['source'])} {target['position'] - source['source_position']}"
            f" ({source['effect']:+.2f})"
            for source in target["sources"]
        ]
        lines.append(
            [
                target["position"],
                _quoted(target["token"]),
                f"{target['total_effect']:.2f}",
                recovered if target["total_effect"] >= _LEAST_EFFECT else "-",
                ", ".join(sources),
            ]
        )
    names = ["position", "token", "total effect", "recovered", "sources: how many tokens before, and effect"]
    return "\n\n".join([*parts, as_table(names, lines)])


def _quoted(piece: str) -> str:
    """A piece of text on one line, or what it is if nothing of it shows."""
    word = " ".join(printable(part) for part in piece.split())
    if len(word) > _LONGEST_NAMED:
        word = f"{word[: _LONGEST_NAMED // 2].rstrip()} … {word[-_LONGEST_NAMED // 2 :].lstrip()}"
    if word:
        return f"“{word}”"
    return "line break" if "\n" in piece else "blank" if piece else "part of a character"
