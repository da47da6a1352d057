"""One explained text: told in words, as a page, as frames and as JSON."""

import html
import json
import shlex
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sparsity_length.pages import html_page
from sparsity_length.results.files import write_text
from sparsity_length.results.table import printable
from sparsity_length.text.tokenizer import TokenizedText

LEAST_RECOVERED = 0.1
"""Fraction of the total effect that sources must recover to be called such, and that the swap of one alone
must have to call it needed."""
_HARMLESS = "\n\t\u200c\u200d\xa0\xad\u202f\u3000"
"""Not printable for Python: joiners, without which emoji and Arabic and Indic words would fall apart, and
blanks."""
_COLORS = {0.1: 153, 0.5: 117, 1.0: 75, 2.0: 33}
"""Nats -> of the 256 colors that terminals have: blues, darker for each level."""
_COLUMNS = (
    "position",
    "end",
    "token",
    "byte_start",
    "byte_end",
    "near_position",
    "long_context_loss",
    "short_context_loss",
    "baseline_loss",
    "probability",
    "probability_without",
    "probability_with_sources",
    "total_effect",
    "recovered",
    "no_source",
    "is_narrowed",
    "rank",
    "source_position",
    "source_end",
    "source",
    "source_byte_start",
    "source_byte_end",
    "effect",
    "probability_swapped",
    "is_needed",
    "recovered_so_far",
)
_WITHOUT_DISTANT = "without the distant part"


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """A text, and what was measured of it: frames, a page, and in words by `print`."""

    facts: dict[str, Any]
    """The text's name, the model, how it was measured; "wanted", the positions of the predictions to be
    explained; "contrast" with --instead: both continuations, and the difference of their log-probabilities,
    nats; "labels", tokens [start, end) around the messages of a chat, and the role that they name."""
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
        return self._page(None, None)

    def _page(self, command: str | None, file: str | None) -> str:
        again = {"command": command, "file": file}
        return html_page("explained.html", ["explained.js"], "explained.css", self.record | again)

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
        near = " to ".join(map(str, sorted({*self.facts["window_tokens"]})))
        columns = ["long_context_loss", "window_short_loss", "window_swapped_loss"]
        full, short, swapped = np.exp(self.losses[columns].mean())
        sentences = []
        if len(self.losses) > 1:
            sentences.append(
                f"Predicted tokens: {len(self.losses)}. Perplexity: {full:,.1f} {self._with_distant};"
                f" {short:,.1f} with the last {near} tokens alone; {swapped:,.1f} with another document's"
                " tokens before these."
            )
        if self.facts["note"]:
            sentences.append(self.facts["note"])
        if self.facts["contrast"] is not None:
            own, other, _ = self.facts["contrast"]
            sides = f"against “{printable(own)}”", f"for “{printable(own)}”"
            sentences += [
                f"As a whole, the distant text speaks {sides[target['total_effect'] > 0]}, compared with"
                f" “{printable(other)}”."
                for target in self.targets
            ]
        elif self.facts["is_whole"]:
            sentences += [
                f"“{printable(target['token'])}” is explained as a whole, as"
                f" {target['end'] - target['position']} tokens: the distant text makes it"
                f" {'more' if target['total_effect'] > 0 else 'less'} likely."
                for target in self.targets
            ]
        else:
            is_chosen = len(self.facts["wanted"]) < len(self.losses)
            sentences.append(
                f"Explained: {len(self.targets)} of {len(self.facts['wanted'])} predictions"
                f"{' that distant text changes most' if is_chosen else ''}."
            )
            if len(self.targets) < len(self.facts["wanted"]):
                sentences[-1] += " A longer --budget explains the others, --position N any other one."
        num_passages = sum(not target["is_narrowed"] for target in self.targets)
        if num_passages:
            sentences.append(
                f"{num_passages} of {len(self.targets)} with whole passages as sources, whose numbers are"
                f" estimates: a longer --budget narrows them down to {self.facts['unit']}s."
            )
        total = sum(target["total_effect"] for target in self.targets)
        recovered = sum(target["total_effect"] * target["recovered"] for target in self.targets)
        # Of less, or of a total below 0, a fraction says nothing.
        if total >= 0.05:
            most = max(len(target["sources"]) for target in self.targets)
            sentences.append(
                f"The sources, up to {most} for each, put back into other documents' text, recover"
                f" {'about ' if num_passages else ''}{recovered / total:.0%} of the effect."
            )
        if num_none := sum(target["no_source"] for target in self.targets):
            sentences.append(
                f"{num_none} of {len(self.targets)} without a source: what was found recovers less than"
                f" {LEAST_RECOVERED:.0%} of the effect."
            )
        return sentences

    def in_words(self, *, is_colored: bool = False) -> str:
        """The text, a legend, the summary, and a table of the targets and their sources.

        Nothing in a text is obeyed: escape sequences, and what turns the direction of writing, are shown
        as numbers.
        """

        def marked(piece: str, effect: float) -> str:
            """A token, its level shown by a color."""
            word = _shown(piece)
            colors = [color for level, color in _COLORS.items() if effect >= level]
            if is_colored and colors and word.strip():
                word = f"\x1b[48;5;{colors[-1]}m\x1b[38;5;16m{word}\x1b[0m"
            return word

        effects = dict(zip(self.losses["position"], self.losses["window_swapped_divergence"], strict=True))
        if self.facts["contrast"] is None and not self.facts["is_whole"]:
            effects |= {target["position"]: target["total_effect"] for target in self.targets}
        shown = ""
        for place, piece in enumerate(self._pieces[self.first_token :], start=self.first_token):
            shown += marked(piece, effects.get(place, 0.0))
        parts = [shown.strip("\n")]
        if is_colored:
            names = ("a little", "some", "much", "very much")
            shades = ", ".join(marked(name, level) for name, level in zip(names, _COLORS, strict=True))
            parts.append(f"Colored by how much distant tokens change the prediction: {shades}.")
        parts.append("\n".join(self.summary))
        by_effect = sorted(self.record["targets"], key=lambda target: -target["total_effect"])
        parts += [self._told(target) for target in by_effect]
        return "\n\n".join(parts) + "\n"

    @property
    def _with_distant(self) -> str:
        """What the full context is."""
        if not self.first_token:
            return "with the whole text"
        return f"with the last {len(self.text.token_ids_N) - self.first_token:,} tokens"

    @cached_property
    def _pieces(self) -> list[str]:
        """The text of each token as it is shown: in place of control tokens the role that they name."""
        pieces = [*self.text.pieces]
        for start, end, role in self.facts["labels"]:
            pieces[start] = f"\n[{role}] " if role else ""
            pieces[start + 1 : end] = [""] * (end - start - 1)
        return pieces

    def _told(self, target: dict[str, Any]) -> str:
        """A target and its sources, a line each."""
        place = f"{target['position']}  {_of_target(target)}"
        sources = "sources" if target["is_narrowed"] else "passages"
        about = "" if target["is_narrowed"] else "about "
        if self.facts["contrast"] is None:
            names = ("probability", "probability_without", "probability_with_sources")
            with_all, without, with_sources = (_percent(target[name]) for name in names)
            each = ", a token's geometric mean" if self.facts["is_whole"] else ""
        else:
            own, other, difference = self.facts["contrast"]
            left = target["total_effect"] * (1 - target["recovered"])
            place = f"{target['position']}  {_quoted(own)} is so many times as likely as {_quoted(other)}"
            with_all, without, with_sources = (
                _times(difference - fall) for fall in (0, target["total_effect"], left)
            )
            each = ""
        lines = [
            f"{place}: {with_all} {self._with_distant}, {without} {_WITHOUT_DISTANT}, {with_sources} with"
            f" these {sources} back{each}; {about}{_rounded(100 * target['recovered'])} recovered"
        ]
        if target["likeliest"] is not None:
            likeliest, without_distant = (
                ", ".join(f"{_quoted(token)} {_percent(probability)}" for token, probability in target[name])
                for name in ("likeliest", "likeliest_without")
            )
            lines.append(f"      likeliest {likeliest}; {_WITHOUT_DISTANT} {without_distant}")
        if target["no_source"]:
            lines.append(f"      no source: these recover less than {LEAST_RECOVERED:.0%} of the effect")
        for source in target["sources"]:
            alone = source["probability_swapped"]
            alone = "" if alone is None else f"; {_percent(alone)} if it alone is swapped"
            lines.append(
                f"  {source['rank']:>3}  {_quoted(source['source'])},"
                f" {target['position'] - source['source_position']} tokens before: about"
                f" {_rounded(100 * source['recovered_so_far'])} recovered, {_named(target, source)}{alone}"
            )
        return "\n".join(lines)

    def save(self, path: str | Path = "explained.html", command: str | None = None) -> None:
        """Write the page; a file that exists is replaced.

        Args:
            command: what explains the same text, to which flags can be added: the page shows it if a
                prediction is not explained.
        """
        write_text(Path(path), self._page(command, shlex.quote(str(path))))

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each target and source; `explain` lists the columns."""
        rows = [{**target, **source} for target in self.targets for source in target["sources"]]
        return pd.DataFrame(rows, columns=_COLUMNS)

    @cached_property
    def record(self) -> dict[str, Any]:
        """All that was measured, of JSON values, rounded to four significant digits."""
        losses = self.losses.drop(columns=["token", "token_id", "byte_start", "byte_end"])
        exact = {
            **self.facts,
            "first_token": self.first_token,
            "summary": self.summary,
            "before": "".join(self._pieces[: self.first_token]),
            "pieces": self.text.pieces[self.first_token :],
            "losses": losses.to_dict("list"),
            "targets": self.targets,
        }
        # Parsing again reaches the numbers of every nested list and dictionary.
        return json.loads(json.dumps(exact), parse_float=lambda number: float(f"{float(number):.4g}"))


def _percent(probability: float) -> str:
    """A probability in two digits: 93%, 4.2%, 0.05%."""
    if 0 < probability < 0.0001:
        return "<0.01%"
    digits = 1 if probability >= 0.00995 else 2
    return _rounded(100 * probability, 0 if probability >= 0.0995 else digits)


def _rounded(percent: float, digits: int = 0) -> str:
    """So many digits, and a half upwards, as the page rounds."""
    return f"{np.floor(percent * 10**digits + 0.5) / 10**digits:.{digits}f}%"


def _times(difference: float) -> str:
    """How many times as likely, of a difference of log-probabilities: 3.2 times, 0.012 times."""
    if abs(difference) > np.log(1e6):
        return "over a million times" if difference > 0 else "under a millionth"
    ratio = float(np.exp(difference))
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.2g} times"


def _named(target: dict[str, Any], source: dict[str, Any]) -> str:
    """What a source is to the prediction."""
    if target["no_source"]:
        return "no source"
    if source["is_needed"]:
        return "needed"
    # Divergences have no sign; what several tokens or a comparison get from a source has one.
    is_against = source["effect"] / target["total_effect"] <= -LEAST_RECOVERED
    return "against" if is_against else "redundant"


def _quoted(piece: str) -> str:
    """A piece of text on one line, or what it is if nothing of it is seen; as on the page."""
    if not piece or "\ufffd" in piece:
        return "part of a character"
    if not piece.strip():
        return "line break" if "\n" in piece else "blank"
    return f"“{' '.join(map(_shown, piece.split()))}”"


def _shown(text: str) -> str:
    """Text that a terminal does not obey, in the script in which it was written."""
    # A line that ends as Windows ends it is a line.
    return "".join(char if char in _HARMLESS else printable(char) for char in text.replace("\r", ""))


def _of_target(target: dict[str, Any]) -> str:
    """The token, or tokens, of a target."""
    return f"{'part of ' if target['is_part'] else ''}{_quoted(target['token'])}"
