"""One text explained within a budget of time; told in words, as a page, as frames and as JSON.

Shapes: N tokens of the text, L measured tokens, T targets, B swaps.
"""

import argparse
import html
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.cli import InputError, logger
from pipeline.explorer_page.writing import explained_page
from pipeline.measuring.contexts import PackedSequence, Rows, read_prefix
from pipeline.measuring.given import GivenModel, counted
from pipeline.measuring.sources import (
    COARSE_TOKENS,
    REFINING,
    Passes,
    Search,
    Span,
    Trial,
    all_losses,
    near_starts,
    unit_starts,
)
from pipeline.measuring.stage import LoadedModel, failures_in_words
from pipeline.models.interface import CausalLM, Predictions, num_positions_of
from pipeline.results.files import write_atomically
from pipeline.results.table import as_table, printable
from pipeline.text.chunks import without_bos
from pipeline.text.sources import first_passages
from pipeline.text.tokenizer import DocumentTokenizer, TokenizedText, tokenized_text

LONG_CONTEXT_LENGTH = 1024
"""Where nothing else is asked for, and the model has as many positions."""
NUM_SWAPPED = 4
"""Swapped contexts that sources are tried in."""
_JOINERS = "\n\t\u200c\u200d"
"""Not printable, and harmless: without the last two, emoji and Arabic and Indic words would fall apart."""
_LEVELS_NATS, _COLORS = (0.1, 0.5, 1.0, 2.0), (153, 117, 75, 33)
"""Of the 256 colors that terminals have: blues, darker for each level."""
_MARGIN = 1.25
"""For rows that run in vain, as passes of several lengths are batched."""
_LONGEST_NAMED = 60
"""Characters of a source, or half of them from each end."""
_TIMED_TOKENS, _TIMED_PREDICTIONS = 256, 64
_LEAST_EFFECT = 0.05
"""Nats of total effect; of less, or of one below 0, no fraction is told."""


class Clock:
    """How long is left, and what passes cost, told by a sample and then by the passes that have run."""

    def __init__(self, seconds: float | None, passes: Passes, token_ids_S: np.ndarray) -> None:
        self._budget, self._passes, model = seconds, passes, passes.model
        num_rows = len(token_ids_S)
        queries_1T = np.arange(num_rows)[None, -_TIMED_PREDICTIONS:]
        rows = Rows(token_ids_S[None], np.arange(num_rows)[None], None, queries_1T).on_device(model.device)
        model.hidden_states(*rows)  # the first pass is slower than those after it
        self._started = self._began = time.monotonic()
        self._counted = passes.num_tokens
        hidden_TD = model.hidden_states(*rows)[0]
        float(hidden_TD.sum())  # a GPU is waited for
        passes.num_tokens += num_rows
        read = time.monotonic()
        self._sample = read - self._started, num_rows
        float(Predictions.of(model.logits(hidden_TD)).entropies_T.sum())
        self.seconds_per_prediction = (time.monotonic() - read) / len(hidden_TD)
        """Of the vocabulary, beside the pass that a prediction is read from."""

    @property
    def seconds_per_token(self) -> float:
        """Of the sample, and of the forward tokens since the search has begun."""
        return (time.monotonic() - self._began) / max(1, self._passes.num_tokens - self._counted)

    def begin_search(self) -> None:
        """Forget what the losses cost: they predict every token, and the search a few."""
        seconds, num_tokens = self._sample
        self._began = time.monotonic() - seconds
        self._counted = self._passes.num_tokens - num_tokens

    def fits(self, num_tokens: float) -> bool:
        """Whether so many more forward tokens fit into the budget."""
        spent = time.monotonic() - self._started
        return self._budget is None or spent + _MARGIN * num_tokens * self.seconds_per_token <= self._budget


@dataclass(frozen=True, eq=False)
class Target:
    """A prediction and its sources."""

    position: int
    """The token's place in the text."""
    trial: Trial
    sources: list[tuple[Span, float, float]]
    """Tokens [start, end) of the text, their effect, and how swapping them changes the loss, nats."""

    @property
    def has_source(self) -> bool:
        """Whether its sources are distinguishable from the null baseline."""
        return bool(self.sources) and self.trial.is_distinguishable


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """A text, and what was measured of it: frames, a page, and in words by `print`."""

    name: str
    model: str
    dtype: str
    text: TokenizedText
    """Without BOS, which belongs to the model; with --at or --position cut behind that token."""
    first_token: int
    """Place in the text's tokens of the first that is measured."""
    lengths: tuple[int, int]
    """The near tokens of a target, at least and at most."""
    unit: str
    losses: pd.DataFrame
    """A row for each predicted token; `sparsity_length.explain` lists the columns."""
    targets: list[Target]
    """Those whose sources were searched, in the text's order."""
    contrast: tuple[str, str, float] | None
    """With --instead the two continuations, and the difference of their log-probabilities, nats."""
    num_forward_tokens: int

    @cached_property
    def html(self) -> str:
        """The page of the text."""
        return explained_page(self.record)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        page = html.escape(self.html)
        return f'<iframe srcdoc="{page}" width="100%" height="800" frameborder="0"></iframe>'

    def __str__(self) -> str:
        return in_words(self, is_colored=False)

    def save(self, path: str | Path = "explained.html", kind: str | None = None) -> Path:
        """Write the page, or what was measured as json or csv; the path's ending says which, or `kind`.

        A file that exists is replaced.
        """
        path = Path(path)
        kind = kind or path.suffix[1:]
        if kind == "csv":
            content = self.frame.to_csv(index=False)
        elif kind == "json":
            content = json.dumps(self.record, ensure_ascii=False, indent=1)
        else:
            content = self.html
        write_atomically(path, lambda temporary: temporary.write_text(content, encoding="utf-8"))
        return path

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each target and source; `sparsity_length.explain` lists the columns."""
        columns: dict[str, str] = {
            "position": "int64", "token": "object", "byte_start": "int64", "byte_end": "int64",
            "total_effect": "float64", "recovered": "float64", "no_single_source": "bool", "rank": "int64",
            "source_position": "int64", "source_end": "int64", "source": "object",
            "source_byte_start": "int64", "source_byte_end": "int64", "effect": "float64",
            "loss_effect": "float64",
        }  # fmt: skip
        bytes_N2 = self.text.bytes_N2
        rows = []
        for target in self.targets:
            of_target = [
                target.position, self.token(target), *bytes_N2[target.position],
                float(target.trial.total_B.mean()), target.trial.recovered, not target.has_source,
            ]  # fmt: skip
            for rank, ((start, end), effect, loss_effect) in enumerate(target.sources, start=1):
                place = bytes_N2[start, 0], bytes_N2[end - 1, 1]
                rows.append(
                    [*of_target, rank, start, end, self.written(start, end), *place, effect, loss_effect]
                )
        return pd.DataFrame(rows, columns=list(columns)).astype(columns)

    def token(self, target: Target) -> str:
        """The text of a target's token, whole characters."""
        return self.written(target.position, target.position + 1)

    def written(self, start: int, end: int) -> str:
        """The text of the tokens [start, end), whole characters."""
        characters = self.text.characters_N2
        return self.text.text[characters[start, 0] : characters[end - 1, 1]]

    @cached_property
    def record(self) -> dict[str, Any]:
        """All that was measured, of JSON values."""
        losses = self.losses.drop(columns=["token", "token_id", "byte_start", "byte_end"])
        of_sources = ["rank", "source_position", "source_end", "source", "effect", "loss_effect"]
        frame = self.frame.round(4)
        return {
            "name": self.name, "model": self.model, "dtype": self.dtype, "unit": self.unit,
            "near_tokens": list(self.lengths), "contrast": self.contrast, "ablation": "swap",
            "num_swapped_contexts": NUM_SWAPPED, "num_forward_tokens": self.num_forward_tokens,
            "first_token": self.first_token, "summary": summary(self),
            "pieces": self.text.pieces[self.first_token :],
            "losses": losses.astype("float64").round(4).to_dict("list"),
            "targets": [
                {
                    "position": target.position, "token": self.token(target),
                    "total_effect": round(float(target.trial.total_B.mean()), 4),
                    "recovered": round(target.trial.recovered, 4), "no_single_source": not target.has_source,
                    "sources": frame[frame["position"] == target.position][of_sources].to_dict("records"),
                }
                for target in self.targets
            ],
        }  # fmt: skip


@dataclass(frozen=True)
class _Wanted:
    """What is to be explained of a text: tokens [first, end) of it may be targets, behind all before."""

    text: TokenizedText
    bos_token_ids: tuple[int, ...]
    first: int
    end: int
    is_one: bool


def explained(text: Any, arguments: argparse.Namespace) -> Explanation:
    """Explain a text; `arguments` are of `pipeline.explain`, with swap_text, a string or None."""
    given = GivenModel(
        arguments.model, device=arguments.device, dtype=arguments.dtype, revision=arguments.revision,
        trust_remote_code=arguments.trust_remote_code,
    )  # fmt: skip
    tokenizer = given.tokenizer(
        arguments.tokenizer, bos=arguments.bos, special_tokens=arguments.special_tokens
    )
    is_chat = not isinstance(text, str) and isinstance(text[0], Mapping)
    begins_answer = is_chat and arguments.generate is not None
    bos_token_ids, tokens = without_bos(tokenized_text(text, tokenizer, begins_answer=begins_answer))
    tokenizer.warn_of(tokens.noted, len(tokens.token_ids_N))
    wanted = _Wanted(tokens, bos_token_ids, 0, len(tokens.token_ids_N), False)
    if is_chat and not begins_answer:
        wanted = _answer_of(text, wanted)
    num_positions = positions_left(given, bos_token_ids)
    most = arguments.long_context_length or min(LONG_CONTEXT_LENGTH, num_positions or LONG_CONTEXT_LENGTH)
    longest = min(most, wanted.end + (arguments.generate or 0))
    foreign = swap_text(arguments.swap_text, NUM_SWAPPED * longest, tokenizer, longest)
    with given.ready(longest, [tokens.token_ids_N, foreign.token_ids_N], tokenizer, bos_token_ids) as loaded:
        if arguments.generate is not None:
            answer = _generated(loaded.model, tokens.token_ids_N[-most + 1 :], arguments.generate, tokenizer)
            ids_N = np.concatenate([bos_token_ids, tokens.token_ids_N, answer]).astype(np.int64)
            _, read = without_bos(tokenizer.read(ids_N))
            num_read = len(read.token_ids_N)
            wanted = _Wanted(read, bos_token_ids, num_read - len(answer), num_read, False)
        if arguments.at is not None or arguments.position is not None:
            position = arguments.position
            if position is None:
                position = _position_of(arguments.at, wanted.text)
            elif position >= len(wanted.text.token_ids_N):
                raise InputError(
                    f"--position {position} is outside: the text has tokens 0 to"
                    f" {len(wanted.text.token_ids_N) - 1}"
                )
            wanted = _Wanted(wanted.text, bos_token_ids, position, position + 1, True)
        length = min(most, wanted.end)
        with failures_in_words(given.name, length, wanted.end - length):
            return _measured(loaded, wanted, length, foreign.token_ids_N, tokenizer, arguments)


def _answer_of(messages: Sequence[Mapping[str, Any]], wanted: _Wanted) -> _Wanted:
    """The last message's tokens, which are the answer."""
    last = messages[-1]
    if last.get("role") != "assistant":
        raise InputError(
            f"the chat ends with a message of the role '{last.get('role')}', and no answer to explain;"
            " --generate N lets the model answer first"
        )
    content = str(last.get("content")).strip()
    start = wanted.text.text.rfind(content)
    if not content or start < 0:
        raise InputError("the answer is empty, or the chat template does not write it as it is")
    ends_N = wanted.text.characters_N2[:, 1]
    first = int(np.searchsorted(ends_N, start, side="right"))
    return _Wanted(
        wanted.text,
        wanted.bos_token_ids,
        first,
        1 + int(np.searchsorted(ends_N, start + len(content))),
        False,
    )


def _position_of(word: str, text: TokenizedText) -> int:
    """The token in which the only occurrence of a word begins."""
    found = [match.start() for match in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", text.text)]
    ends_N = text.characters_N2[:, 1]
    places = [int(np.searchsorted(ends_N, start, side="right")) for start in found]
    if not places:
        raise InputError(f"--at '{printable(word)}' does not occur in the text")
    if len(places) > 1:
        named = [
            f"{place} (“{printable(text.text[max(0, start - 20) : start + len(word)])}”)"
            for place, start in list(zip(places, found, strict=True))[:8]
        ]
        more = f" and {len(places) - 8} more" if len(places) > 8 else ""
        raise InputError(
            f"--at '{printable(word)}' occurs {len(places)} times; say which by --position:"
            f" {', '.join(named)}{more}; or give more words before it"
        )
    return places[0]


def _generated(
    model: CausalLM, token_ids_N: np.ndarray, num_tokens: int, tokenizer: DocumentTokenizer
) -> list[int]:
    """The likeliest next tokens, one after another, until one ends the text."""
    prefix = read_prefix(model, token_ids_N[:-1])
    answer = [int(token_ids_N[-1])]
    while len(answer) <= num_tokens:
        positions_1S = len(token_ids_N) - 1 + np.arange(len(answer))[None]
        rows = Rows(np.array([answer]), positions_1S, None, np.array([[len(answer) - 1]]))
        token_id = int(model.logits(model.hidden_states(*rows.on_device(model.device), prefix)[0]).argmax())
        if tokenizer.ends_text(token_id):
            break
        answer.append(token_id)
    if len(answer) == 1:
        raise InputError("the model ends the text at once, so there is no answer to explain")
    return answer[1:]


def _measured(
    loaded: LoadedModel, wanted: _Wanted, length: int, other_N: np.ndarray, tokenizer: DocumentTokenizer,
    arguments: argparse.Namespace,
) -> Explanation:  # fmt: skip
    """Measure the losses of the text's targets, and search and try the sources of those that are chosen."""
    text = wanted.text
    first_token = wanted.end - length
    short = arguments.short_context_length
    if first_token:
        logger.warning(
            "the text has %d tokens up to there, of which the last %d are measured (--long-context-length N"
            " sets another number)", wanted.end, length,
        )  # fmt: skip
    # Models without BOS use whatever stands first as an attention sink.
    sink = 0 if wanted.bos_token_ids else 1
    first = max(short + sink + 1, wanted.first - first_token)
    if first >= length:
        raise InputError(
            f"--short-context-length {short} leaves none of the {wanted.end - 1} tokens before the last one"
            " distant: give a longer text, or a smaller --short-context-length"
        )
    ids_L = text.token_ids_N[first_token : wanted.end]
    starts = np.linspace(0, len(other_N) - length, NUM_SWAPPED).astype(int)
    swaps_BL = np.stack([other_N[start : start + length] for start in starts])
    shared = 1 if wanted.is_one else max(1, short // 2)
    near_T = near_starts(first, length, short, shared)
    passes = Passes(loaded.model, loaded.batching)
    clock = Clock(arguments.budget, passes, ids_L[:_TIMED_TOKENS])
    num_windows = 2 * (short + shared - 1) * len(np.unique(near_T))
    _say_what_fits(clock, arguments, 2 * length + num_windows, length, len(near_T), wanted.is_one)
    with counted([loaded], "explain", 0) as bar:
        bar.total = None
        losses = all_losses(passes, ids_L, swaps_BL[0], near_T, short)
        clock.begin_search()
        if wanted.is_one or arguments.targets is None:
            chosen = np.arange(len(near_T))
        else:
            chosen = np.sort(np.argsort(-losses.swapped_divergence, kind="stable")[: arguments.targets])
        boundaries, sentences = (
            _from(unit_starts(text, unit) - first_token, sink) for unit in (arguments.unit, "sentence")
        )
        while True:
            sequence, weights, contrast = _sequence(
                ids_L, first + chosen, near_T[chosen], text, wanted, tokenizer, arguments
            )
            search = Search(
                passes, sequence, _continued(swaps_BL, len(sequence.token_ids_S)), boundaries,
                sentences, arguments.sources, weights,
                is_exact=arguments.targets is None and arguments.budget is None and not wanted.is_one,
            )  # fmt: skip
            if len(chosen) == 1 or clock.fits(search.likely_tokens):
                break
            chosen = chosen[chosen != chosen[losses.swapped_divergence[chosen].argmin()]]
        search.run(clock.fits)
        tried = list(range(1 if weights is not None else len(chosen)))
        while len(tried) > 1 and not clock.fits(search.trial_tokens(tried)):
            tried.remove(min(tried, key=lambda number: losses.swapped_divergence[chosen[number]]))
        trials = search.tried(tried)
    if not wanted.is_one and len(tried) < min(arguments.targets or len(near_T), len(near_T)):
        logger.warning("--budget suffices for the sources of %d predictions", len(tried))
    targets = [
        Target(
            first_token + first + int(chosen[number]), trial,
            [
                ((first_token + span[0], first_token + span[1]), search.effect(number, span),
                 float(search.loss_effects[span][number]))
                for span in search.sources(number)
            ],
        )
        for number, trial in zip(tried, trials, strict=True)
    ]  # fmt: skip
    places_T = first_token + first + np.arange(len(near_T))
    starts_T, ends_T = text.bytes_N2[places_T].T
    frame = pd.DataFrame({
        "position": places_T, "token": [text.pieces[place] for place in places_T],
        "token_id": text.token_ids_N[places_T], "byte_start": starts_T, "byte_end": ends_T,
        "near_position": first_token + near_T, "full_loss": losses.full, "short_loss": losses.short,
        "swapped_loss": losses.swapped, "short_divergence": losses.short_divergence,
        "swapped_divergence": losses.swapped_divergence,
    })  # fmt: skip
    if contrast is not None and weights is not None:
        contrast = (*contrast[:2], float(-(search.full.losses_T @ weights[0])))
    shown = TokenizedText(
        text.text[: int(text.characters_N2[wanted.end - 1, 1])], text.token_ids_N[: wanted.end],
        text.characters_N2[: wanted.end],
    )  # fmt: skip
    dtype = str(loaded.model.dtype).removeprefix("torch.")
    return Explanation(
        getattr(arguments, "name", None) or "the text", loaded.name, dtype, shown, first_token,
        (short, short + shared - 1), arguments.unit, frame, targets, contrast, passes.num_tokens,
    )  # fmt: skip


def _say_what_fits(
    clock: Clock, arguments: argparse.Namespace, num_losses: int, length: int, num_targets: int, is_one: bool
) -> None:
    """Say about how long it takes; refuse a budget that not even the losses and one target fit."""
    one = _likely_tokens(np.array([length]))
    speed = clock.seconds_per_token
    # Three predictions of each token: with its full, its short and a swapped context.
    of_losses = num_losses * speed + 3 * num_targets * clock.seconds_per_prediction
    if not clock.fits(of_losses / speed + one):
        raise InputError(
            f"--budget {arguments.budget:g}s is too short: losses take some {of_losses:.0f} seconds,"
            f" the sources of one prediction {one * speed:.0f} more; give more, or a smaller"
            " --long-context-length"
        )
    wanted = 1 if is_one else min(arguments.targets or num_targets, num_targets)
    search = _likely_tokens(np.linspace(length / 2, length, wanted))
    if arguments.targets is None and not is_one:  # every unit, and every target's trial
        search = length * length / 2 + (1 + NUM_SWAPPED) * wanted * length / 2
    seconds = min(of_losses + search * speed, arguments.budget or float("inf"))
    logger.info(
        "%d tokens: losses in about %.0f seconds, sources of %d predictions in about %.0f in all",
        length,
        of_losses,
        wanted,
        seconds,
    )


def _likely_tokens(places_T: np.ndarray) -> float:
    """Forward tokens of the sources of targets at these places: roughly what `Search.likely_tokens` says."""
    longest = float(places_T.max())
    return longest * longest / (2 * COARSE_TOKENS) + float(places_T.sum()) / 2 * (REFINING + NUM_SWAPPED)


def _from(starts: np.ndarray, least: int) -> np.ndarray:
    """The places from `least` on, and itself."""
    return np.unique(np.append(starts[starts >= least], least))


def _continued(swaps_BL: np.ndarray, length: int) -> np.ndarray:
    """As long as the sequence; what is filled in stands behind all distant tokens."""
    return np.pad(swaps_BL, ((0, 0), (0, max(0, length - swaps_BL.shape[1]))), mode="edge")


def _sequence(
    ids_L: np.ndarray, targets_T: np.ndarray, near_T: np.ndarray, text: TokenizedText, wanted: _Wanted,
    tokenizer: DocumentTokenizer, arguments: argparse.Namespace,
) -> tuple[PackedSequence, np.ndarray | None, tuple[str, str, float] | None]:  # fmt: skip
    """What is read and predicted; with --instead how both continuations' losses count, and their texts."""
    if arguments.instead is None:
        stop = int(targets_T[-1])
        which = slice(0, len(targets_T))
        sequence = PackedSequence(
            ids_L[:stop], np.arange(stop), None, targets_T - 1, ids_L[targets_T], near_T, which
        )
        return sequence, None, None
    first_token = wanted.end - len(ids_L)
    fork, own, other, names = _continuations(text, wanted.end - 1, tokenizer, arguments.instead)
    target = fork - first_token
    # Behind the context stand both continuations, neither of which sees the other.
    num_own, num_other = len(own) - 1, len(other) - 1
    num_rows = 1 + num_own + num_other
    sees = np.ones((num_rows, target + num_own + num_other), dtype=bool)
    sees[:, target:] = False
    sees[1 : 1 + num_own, target : target + num_own] = np.tri(num_own, dtype=bool)
    sees[1 + num_own :, target + num_own :] = np.tri(num_other, dtype=bool)
    own_rows = np.concatenate([[target - 1], target + np.arange(num_own)])
    other_rows = np.concatenate([[target - 1], target + num_own + np.arange(num_other)])
    sequence = PackedSequence(
        np.concatenate([ids_L[:target], own[:-1], other[:-1]]).astype(np.int64),
        np.concatenate([np.arange(target), target + np.arange(num_own), target + np.arange(num_other)]),
        sees if num_rows > 1 else None,
        np.concatenate([own_rows, other_rows]), np.concatenate([own, other]).astype(np.int64),
        np.full(len(own) + len(other), min(int(near_T[0]), target - 1)), slice(0, len(own) + len(other)),
    )  # fmt: skip
    weights_1Q = np.concatenate([np.ones(len(own)), -np.ones(len(other))])[None].astype(np.float32)
    return sequence, weights_1Q, (*names, 0.0)


def _continuations(
    text: TokenizedText, target: int, tokenizer: DocumentTokenizer, instead: str
) -> tuple[int, np.ndarray, np.ndarray, tuple[str, str]]:
    """Where the tokens part if another word stands at a target; what comes from there on, and both words."""
    start, end = text.characters_N2[target].tolist()
    blanks = len(text.text[start:end]) - len(text.text[start:end].lstrip())
    begin = start + blanks
    match = re.compile(r"\w+|[^\w\s]+").match(text.text, begin)
    word_end = max(end, match.end() if match else end)
    last = int(np.searchsorted(text.characters_N2[:, 1], word_end))
    own = text.text[begin:word_end]
    if not instead.strip():
        raise InputError("--instead is empty; give the word that might have come")
    _, whole = without_bos(tokenizer.read(text.text[:begin] + instead.strip()))
    # A blank that is a token of its own before one word may be of the other word's first token.
    size = min(target, len(whole.token_ids_N))
    differ = np.flatnonzero(text.token_ids_N[:size] != whole.token_ids_N[:size])
    fork = int(differ[0]) if len(differ) else size
    own_N, other_N = text.token_ids_N[fork : last + 1], whole.token_ids_N[fork:]
    if np.array_equal(own_N, other_N):
        raise InputError(f"--instead '{printable(instead)}' is what stands there; give another word")
    return fork, own_N, other_N, (own, instead.strip())


def positions_left(given: GivenModel, bos_token_ids: Sequence[int]) -> int | None:
    """The most tokens of a chunk behind BOS, as many as the model was made for; None where it doesn't say."""
    num_positions = given.num_positions
    return num_positions and num_positions - num_positions_of(0, len(bos_token_ids))


def swap_text(
    text: str | None, num_tokens: int, tokenizer: DocumentTokenizer, fewest: int | None = None
) -> TokenizedText:
    """The swapped text, or English passages, of at least so many tokens, or the `fewest`; without BOS."""
    if text is not None:
        _, given = without_bos(tokenized_text(text, tokenizer))
        if len(given.token_ids_N) < (fewest or num_tokens):
            raise InputError(
                f"the swapped text has {len(given.token_ids_N)} tokens, and {fewest or num_tokens} are"
                " measured; give a longer one, or a smaller --long-context-length"
            )
        return given
    num_characters = 4 * num_tokens  # about what a token of English has
    while True:
        passages = "\n\n".join(first_passages(num_characters))
        _, foreign = without_bos(tokenized_text(passages, tokenizer))
        if len(foreign.token_ids_N) >= num_tokens:
            return foreign
        if len(passages) < num_characters:
            raise InputError(
                f"the bundled passages have fewer than {num_tokens} tokens; give --swap-text-file a text"
            )
        num_characters *= 2


def summary(explanation: Explanation) -> list[str]:
    """What was found, in sentences whose numbers add up as they are shown."""
    losses = explanation.losses
    targets = explanation.targets
    least, most = explanation.lengths
    near = f"{least}" if least == most else f"{least} to {most}"
    full, short, swapped = (
        round(float(losses[f"{name}_loss"].mean()), 3) for name in ("full", "short", "swapped")
    )
    predictions = "1 prediction" if len(losses) == 1 else f"{len(losses)} predictions, mean"
    sentences = [
        f"{predictions}: loss {full:.3f} nats with the full context; {short:.3f} with the last {near} tokens"
        f" alone ({short - full:+.3f}); {swapped:.3f} with another document's tokens before these"
        f" ({swapped - full:+.3f})."
    ]
    if explanation.contrast is not None:
        own, other, difference = explanation.contrast
        sentences.append(
            f"log p(“{printable(own)}”) − log p(“{printable(other)}”) = {difference:+.2f} nats with the full"
            " context; effects are what it falls by."
        )
    if not targets:
        return [*sentences, "No prediction depends on the distant context."]
    total = sum(round(float(target.trial.total_B.mean()), 2) for target in targets)
    left = sum(round(float(target.trial.remaining_B.mean()), 2) for target in targets)
    num_none = sum(not target.has_source for target in targets)
    which = "this prediction" if len(targets) == 1 else f"the {len(targets)} explained predictions"
    whose = "Its" if len(targets) == 1 else "Their"
    largest = max(len(target.sources) for target in targets)
    share = (total - left) / total if total else 0.0
    recovers = f" {whose} top {largest} sources recover {share:.0%} of it; {left:.2f} remain."
    sentences.append(
        f"Total effect of the distant context on {which}: {total:.2f} nats, the mean of {NUM_SWAPPED} swapped"
        f" contexts.{recovers if total >= _LEAST_EFFECT else ''}"
    )
    if num_none:
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
    effects = dict(zip(explanation.losses["position"], explanation.losses["swapped_divergence"], strict=True))
    shown = []
    for place in range(explanation.first_token, len(explanation.text.pieces)):
        piece = explanation.text.pieces[place]
        harmless = "".join(char if char in _JOINERS else printable(char) for char in piece)
        shown.append(_marked(harmless, effects.get(place, 0.0), is_colored))
    legend = (
        f"In [brackets]: distant tokens change the prediction by {_LEVELS_NATS[1]:g} nats (KL) or more.\n"
    )
    if is_colored:
        shades = " ".join(_marked(f"{level:g}", level, is_colored) for level in _LEVELS_NATS)
        legend = f"Colored: distant tokens change the prediction by {shades} nats (KL) or more.\n"
    parts = ["".join(shown).rstrip("\n") + "\n", legend, "\n".join(summary(explanation)) + "\n"]
    if explanation.targets:
        parts.append(_table(explanation))
    return "\n".join(parts)


def _marked(piece: str, effect: float, is_colored: bool) -> str:
    """A token, its level shown by a color, or without colors by brackets."""
    level = int(np.searchsorted(_LEVELS_NATS, effect, side="right"))
    if not level or not piece:
        return piece
    word = piece.lstrip(" ") or piece
    blanks = piece[: len(piece) - len(word)]
    if not is_colored:
        return f"{blanks}[{word}]" if level > 1 else piece
    return f"{blanks}\x1b[48;5;{_COLORS[level - 1]}m\x1b[38;5;16m{word}\x1b[0m"


def _table(explanation: Explanation) -> str:
    lines: list[list[object]] = []
    in_order = sorted(explanation.targets, key=lambda target: -target.trial.total_B.mean())
    for target in in_order:
        named = [
            f"{_quoted(explanation.written(*span))} {target.position - span[0]} ({effect:+.2f})"
            for span, effect, _ in target.sources
        ]
        recovered = f"{target.trial.recovered:.0%}" if target.has_source else "no single source"
        if target.trial.total_B.mean() < _LEAST_EFFECT:
            recovered = "-"
        lines.append([
            target.position, _quoted(explanation.token(target)),
            f"{target.trial.total_B.mean():.2f}", recovered, ", ".join(named),
        ])  # fmt: skip
    names = ["position", "token", "total effect", "recovered", "sources: how many tokens before, and effect"]
    return as_table(names, lines)


def _quoted(piece: str) -> str:
    if not piece:
        return "part of a character"
    word = " ".join(printable(part) for part in piece.split())
    if len(word) > _LONGEST_NAMED:
        half = _LONGEST_NAMED // 2
        word = f"{word[:half].rstrip()} … {word[-half:].lstrip()}"
    return f"“{word}”" if word else "line break" if "\n" in piece else "blank"
