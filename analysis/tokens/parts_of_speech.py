"""Part of speech of tokens by HanTa (Wartena 2023), whose English model comes inside the package.

HanTa is a trigram tagger with a morphological model for unknown words, trained on the British National
Corpus (tags: CLAWS C5). It is the optional extra `parts-of-speech`; without it nothing here is computed. A
tagger errs: the categories that `words` computes need none. It sees whole sentences, the words after
a target too.
"""

import re
from collections.abc import Callable, Sequence

from analysis.tokens.words import first_characters

CLASSES: dict[str, tuple[str, ...]] = {
    "noun": ("NN",),
    "proper noun": ("NP",),
    "verb": ("VV",),
    "auxiliary": ("VB", "VD", "VH", "VM"),
    "adjective": ("AJ",),
    "adverb": ("AV", "XX"),
    "pronoun": ("PN", "DPS", "EX"),
    "determiner": ("AT", "DT"),
    "preposition": ("PR", "TO"),
    "conjunction": ("CJ",),
    "numeral": ("CRD", "ORD"),
    "other": (),
}
"""Class -> how the C5 tags that it takes begin; "other" takes what is left, punctuation among it."""
Tagger = Callable[[list[str]], list[str]]
"""The words of a sentence -> a C5 tag for each."""

# C5 tags the ending of a contraction by itself: do n't, John 's.
_UNIT = re.compile(
    r"\d+(?:[.,:/]\d+)*|[^\W_]+?(?=n['’]t\b)|n['’]t\b|['’](?:s|ll|ve|re|d|m)\b|[^\W_]+|[^\w\s]|_", re.I
)
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]]*\s+|\n+")
_MOST_UNITS = 100  # of one sentence for the tagger; lists on web pages have no full stops


def load_tagger() -> Tagger | None:
    """HanTa's English tagger; None where it is not installed."""
    try:
        from HanTa.HanoverTagger import HanoverTagger
    except ModuleNotFoundError:
        return None
    hanta = HanoverTagger("morphmodel_en.pgz")
    return lambda words: [tag for _, _, tag in hanta.tag_sent(words)]


def class_of(tag: str) -> str:
    """The class of a C5 tag, such as "noun" of NN2."""
    return next((name for name, starts in CLASSES.items() if tag.startswith(starts)), "other")


def of_tokens(pieces: Sequence[str], positions: Sequence[int], tagger: Tagger) -> list[str]:
    """The part of speech of the tokens at `positions`: that of the unit their first visible character is in.

    Args:
        pieces: the text of each token of a document, from its start.
        positions: of the tokens asked for; only their sentences are tagged.
        tagger: `load_tagger`'s.

    Returns:
        A class for each position; "other" for white space.
    """
    text, places = "".join(pieces), first_characters(pieces)
    wanted = {place for position in positions if (place := places[position]) is not None}
    class_at: dict[int, str] = {}
    start = 0
    for end in [*(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]:
        if any(start <= place < end for place in wanted):
            class_at |= _classes_in(text, start, end, tagger)
        start = end
    return ["other" if (place := places[position]) is None else class_at[place] for position in positions]


def _classes_in(text: str, start: int, end: int, tagger: Tagger) -> dict[int, str]:
    """The class of the unit at each place of a sentence that is no white space."""
    units = list(_UNIT.finditer(text, start, end))
    classes: dict[int, str] = {}
    for first in range(0, len(units), _MOST_UNITS):
        some = units[first : first + _MOST_UNITS]
        for unit, tag in zip(some, tagger([unit.group() for unit in some]), strict=True):
            classes |= dict.fromkeys(range(unit.start(), unit.end()), class_of(tag))
    return classes
