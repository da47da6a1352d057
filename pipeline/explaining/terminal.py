"""An explanation for a terminal: the text, tokens that need far context coloured, and where they look.

Nothing in a text is obeyed: escape sequences and what turns the direction of writing are shown as numbers.
"""

from collections.abc import Iterator

import numpy as np

from pipeline.explaining.explanation import Explanation
from pipeline.explaining.measuring import OfRule
from pipeline.results.terminal_table import as_table, printable

NUM_NAMED = 10
"""Targets whose sources are named: those that gain most."""
_MOST_SOURCES = 4
_JOINERS = "\n\t\u200c\u200d"
"""Not printable, and harmless: without the last two, emoji and Arabic and Indic words would fall apart."""
_LEVELS_NATS = (0.1, 0.5, 1.0, 2.0)
_COLOURS = (153, 117, 75, 33)
"""Of the 256 that terminals have: blues, darker for each level."""
_INK, _PLAIN = "\x1b[38;5;16m", "\x1b[0m"


def told(explanation: Explanation, *, is_coloured: bool) -> str:
    """The text, a legend, and a table of the targets that gain most for each rule."""
    parts = [_text(explanation, is_coloured), _legend(explanation, is_coloured), _totals(explanation)]
    parts += [_sources(explanation, rule) for rule in explanation.measurements.of_rule]
    return "\n".join(parts)


def _text(explanation: Explanation, is_coloured: bool) -> str:
    gains = dict(zip(explanation.part.lengths.targets_T.tolist(), explanation.gains_T.tolist(), strict=True))
    shown = [
        _marked(_harmless(piece), gains.get(place, 0.0), is_coloured)
        for place, piece in enumerate(explanation.pieces_L)
    ]
    return "".join(shown).rstrip("\n") + "\n"


def _marked(piece: str, gain: float, is_coloured: bool) -> str:
    """A token, its level shown by a colour, or without colours by brackets."""
    level = int(np.searchsorted(_LEVELS_NATS, gain, side="right"))
    if not level or not piece:
        return piece
    word = piece.lstrip(" ") or piece
    blanks = piece[: len(piece) - len(word)]
    if not is_coloured:
        return f"{blanks}[{word}]" if level > 1 else piece
    return f"{blanks}\x1b[48;5;{_COLOURS[level - 1]}m{_INK}{word}{_PLAIN}"


def _harmless(text: str) -> str:
    return "".join(char if char in _JOINERS else printable(char) for char in text)


def _legend(explanation: Explanation, is_coloured: bool) -> str:
    if is_coloured:
        shades = " ".join(
            f"\x1b[48;5;{colour}m{_INK}{level:g}{_PLAIN}"
            for level, colour in zip(_LEVELS_NATS, _COLOURS, strict=True)
        )
        shown = f"Coloured: the loss falls by at least {shades} nats"
    else:
        shown = f"In [brackets]: the loss falls by at least {_LEVELS_NATS[1]:g} nats"
    short = explanation.part.lengths.short_context_length
    return f"{shown} when everything before a token is seen, and not only the {short} tokens before it.\n"


def _totals(explanation: Explanation) -> str:
    """Means over all targets: a target picked for its gain is to be seen as picked."""
    measured, gains_T = explanation.measurements, explanation.gains_T
    lines = [
        f"All {len(gains_T)} targets: the far context gains {gains_T.mean():.3f} nats on average (expected"
        f" {measured.short.divergences.mean():.3f}), of which"
        f" {explanation.specific_gains_T.mean():.3f} only this text gives and no foreign one.\n"
    ]
    lines += [_recovered(explanation, rule, of) for rule, of in measured.of_rule.items()]
    return "".join(lines)


def _recovered(explanation: Explanation, rule: str, of_rule: OfRule) -> str:
    """What the largest studied k recovers, as sums: by the prediction, and by what came."""
    measured, k = explanation.measurements, explanation.part.ks[-1]
    expected = 1 - of_rule.own.sparse_TJ.divergences[:, -1].sum() / measured.short.divergences.sum()
    short_sum = measured.short.losses.sum()
    recovered = short_sum - of_rule.own.sparse_TJ.losses[:, -1].sum()
    line = (
        f"{k} far tokens by {rule} bring back {expected:.0%} of the expected gain, and {recovered:.1f} of"
        f" {explanation.gains_T.sum():.1f} nats"
    )
    if of_rule.null is not None:
        of_null = short_sum - of_rule.null.sparse_TJ.losses[:, -1].sum()
        line += f"; {k} of a foreign text, chosen alike, {of_null:.1f}"
    return line + ".\n"


def _sources(explanation: Explanation, rule: str) -> str:
    of_rule = explanation.measurements.of_rule[rule]
    picked = [
        target
        for target in np.argsort(-explanation.gains_T, kind="stable")[:NUM_NAMED].tolist()
        if explanation.gains_T[target] >= explanation.asked.minimum_gain
    ]
    if not picked:
        return f"No target gains {explanation.asked.minimum_gain:g} nats from the far context.\n"
    rows = [
        [
            int(explanation.targets_T[target]),
            _quoted(explanation.pieces_L[explanation.part.lengths.targets_T[target]]),
            f"{explanation.gains_T[target]:+.2f}",
            f"{explanation.measurements.short.divergences[target]:.2f}",
            f"{explanation.specific_gains_T[target]:+.2f}",
            _k_star(of_rule, target, explanation.part.ks[-1]),
            ", ".join(_named_sources(explanation, of_rule, target)),
        ]
        for target in picked
    ]
    names = ["position", "token", "gain", "expected", "specific", "k*", "sources, and how many tokens before"]
    heading = f"The {len(picked)} targets that gain most, which their answer picked; sources by {rule}:\n"
    return heading + as_table(names, rows, widest_cell=None)


def _named_sources(explanation: Explanation, of_rule: OfRule, target: int) -> Iterator[str]:
    """The k* tokens that suffice, or the first few where no studied k does."""
    place = int(explanation.part.lengths.targets_T[target])
    num_shown = min(of_rule.k_star_T[target] or _MOST_SOURCES, _MOST_SOURCES)
    for source in of_rule.own.positions_TK[target, :num_shown].tolist():
        yield f"{_quoted(explanation.pieces_L[source])} {place - source}"


def _k_star(of_rule: OfRule, target: int, largest_k: int) -> str:
    k_star = of_rule.k_star_T[target]
    if k_star is not None:
        return str(k_star)
    return f">{largest_k}" if of_rule.is_censored_T[target] else "-"


def _quoted(piece: str) -> str:
    if not piece:
        return "part of a character"
    word = piece.strip(" ")
    return f"“{printable(word)}”" if word else f"{len(piece)} blanks" if len(piece) > 1 else "a blank"
