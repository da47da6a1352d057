"""Kinds of predicted tokens, from the text alone, and what they differ in: gain, excess, k*, gap; the figure.

Five aspects, a category of each for every target:

word_part       word start, continuation (of a word that an earlier token begins), no word
word_kind       number, function word, capitalized name, content word (below), punctuation (any other sign),
                white space. The token's first character that is no white space decides, and the whole word
                counts, also what of it comes after the token
repetition      the first that fits, comparing vocabulary IDs within the chunk:
                  repeated trigram      x_{t-2} x_{t-1} x_t stands in the far context
                  repeated bigram       x_{t-1} x_t does: induction can predict the target
                  repeated token        x_t does, after another token
                  short context only    x_t stands in the short context, and not in the far one
                  new                   x_t does not stand in the chunk before t
follows         a repeated bigram, where x_{t-2} x_{t-1} stands in the far context, else none; unlike
                repetition it does not look at x_t
part_of_speech  by HanTa (Wartena 2023), a trigram tagger trained on the British National Corpus (tags: CLAWS
                C5), which sees whole sentences, the words after a target too. Only where the extra
                `parts-of-speech` is installed

A word is a run of letters and digits with the apostrophes inside of it and, between digits, one of `. , : /`:
`don't`, `naïve`, `3,000`, `1990s`; `well-known` is two. Its kind is the first that fits:

    number            a digit is in it
    function word     it is in `FUNCTION_WORDS`, whole or without its ending `n't 's 'll 've 're 'd 'm`
    capitalized name  it begins with a capital, and not where a sentence, line, title or quotation may begin:
                      at the start, after a line break, an opening quotation mark or one of `. ! ? : …`
    content word      every other

A name that begins a sentence, or stands behind the full stop of `Mr.`, counts as a content word; of a
headline every capitalized word but the first as a name. Categories differ in more than their names say: a
difference is a description and no cause.
"""

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import drawing
from analysis.read import (
    TARGET,
    MeasuredText,
    generalization_gaps,
    interval_columns,
    interval_over_documents,
    joined_on_common,
    mean_columns,
    of_targets,
    rows_of,
    summarized,
)
from pipeline.results.files import read_parquet
from pipeline.results.schemas import SCHEMAS

_LIST = """
# determiners and quantifiers
a an the this that these those each every either neither some any no all both half few fewer less
least little many much more most several enough such another other others same own
# pronouns and possessives
i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it
its itself we us our ours ourselves they them their theirs themselves one oneself who whom whose
which what whoever whatever whichever someone somebody something anyone anybody anything everyone
everybody everything none nobody nothing there
# prepositions and particles
aboard about above across after against along among amongst around as at away back before behind
below beneath beside besides between beyond by despite down during except for from in inside into
like near of off on onto out outside over past per round since than through throughout till to
toward towards under underneath until unto up upon via with within without
# conjunctions
and but or nor yet so because although though unless whereas while whilst whether if lest once
# auxiliaries and modals
am is are was were be been being do does did doing done have has had having can could may might must
shall should will would ought cannot can't won't shan't ain't let
# negation, question and degree adverbs
not never ever also too very quite rather just only even still already again almost always often how
when where why here then thus hence therefore however else
"""
FUNCTION_WORDS = frozenset(
    word for line in _LIST.splitlines() if not line.startswith("#") for word in line.split()
)
"""Determiners, pronouns, prepositions, conjunctions, auxiliaries, particles and the adverbs of degree, place
and question that carry grammar rather than a topic; lower case, with a straight apostrophe."""


NUMBER = "number"
FUNCTION_WORD = "function word"
NAME = "capitalized name"
CONTENT_WORD = "content word"
_RUN = r"(?:[^\W_][\u0300-\u036f]*)+"  # letters and digits, with the accents that are characters of their own
_WORD = re.compile(rf"{_RUN}(?:['’]{_RUN}|(?<=\d)[.,:/](?=\d){_RUN})*")
_ENDING = re.compile(r"(?:n't|'(?:s|ll|ve|re|d|m))$")
_BEFORE_A_START = re.compile(r"(?:^|[\n.!?:…])[^\S\n]*[\"'“”‘’«(\[*#>–—-]*[^\S\n]*$|[\"“‘«]$")
_FURTHEST_START = 20  # characters looked back for the start of a sentence


@dataclass(frozen=True)
class Word:
    """A word of a text: the characters from `start` to before `end`."""

    start: int
    end: int
    kind: str


def words_of(text: str) -> Iterator[Word]:
    """The words of a text, in order."""
    for match in _WORD.finditer(text):
        yield Word(match.start(), match.end(), _kind(match.group(), text, match.start()))


def _kind(word: str, text: str, start: int) -> str:
    lower = word.lower().replace("’", "'")
    if any(character.isdigit() for character in word):
        return NUMBER
    if lower in FUNCTION_WORDS or _ENDING.sub("", lower) in FUNCTION_WORDS:
        return FUNCTION_WORD
    return NAME if word[0].isupper() and not may_start_sentence(text, start) else CONTENT_WORD


def may_start_sentence(text: str, place: int) -> bool:
    """Whether a sentence, line, title or quotation may begin at a place of a text."""
    first = max(0, place - _FURTHEST_START)
    before = text[first:place]
    # The pattern's ^ must mean the text's own start, not that of the characters looked back at.
    return _BEFORE_A_START.search(before if first == 0 else f"x{before}") is not None


def first_characters(pieces: Sequence[str]) -> list[int | None]:
    """Place in the joined text of each token's first character that is no white space; None where none is.

    A token with the piece "" brings only the first bytes of a character; it has the place of that character.
    """
    place = sum(map(len, pieces))
    first: int | None = None
    places: list[int | None] = []
    for piece in reversed(pieces):
        place -= len(piece)
        if piece:
            visible = piece.lstrip()
            first = place + len(piece) - len(visible) if visible else None
        places.append(first)
    return places[::-1]


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

    `pieces` are the texts of a document's tokens, from its start; only sentences asked for are tagged. White
    space is "other".
    """
    text = "".join(pieces)
    places = first_characters(pieces)
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


WORD_START = "word start"
CONTINUATION = "continuation"
NO_WORD = "no word"
PUNCTUATION = "punctuation"
WHITE_SPACE = "white space"
NEW = "new"
SHORT_ONLY = "short context only"
REPEATED = "repeated token"
REPEATED_BIGRAM = "repeated bigram"
REPEATED_TRIGRAM = "repeated trigram"
A_REPEATED_BIGRAM = "a repeated bigram"
NO_REPEAT = "none"
ASPECTS: dict[str, list[str]] = {
    "word_part": [WORD_START, CONTINUATION, NO_WORD],
    "word_kind": [CONTENT_WORD, FUNCTION_WORD, NAME, NUMBER, PUNCTUATION, WHITE_SPACE],
    "repetition": [NEW, SHORT_ONLY, REPEATED, REPEATED_BIGRAM, REPEATED_TRIGRAM],
    "follows": [A_REPEATED_BIGRAM, NO_REPEAT],
    "part_of_speech": list(CLASSES),
}
"""Aspect -> its categories, in the order of tables and figures."""
ENDS_OF_REPEATS = "ends of repeats"
OTHERS = "all other tokens"
AFTER_REPEATS = "after a repeated bigram"
AFTER_OTHERS = "after all other bigrams"
CATEGORIES_FILE = "token_categories.parquet"
_TOKENS_BEYOND = 32  # read after a chunk, so that its last word is whole


def word_categories(pieces: Sequence[str]) -> list[tuple[str, str]]:
    """(word_part, word_kind) of each token of a document, of which `pieces` are the texts from its start."""
    text = "".join(pieces)
    word_at = {place: word for word in words_of(text) for place in range(word.start, word.end)}
    categories = []
    before = None
    for place in first_characters(pieces):
        word = None if place is None else word_at.get(place)
        if word is None:
            categories.append((NO_WORD, WHITE_SPACE if place is None else PUNCTUATION))
        else:
            # The bytes of one character may be several tokens: only the first of them begins the word.
            is_start = place == word.start and before != place
            categories.append((WORD_START if is_start else CONTINUATION, word.kind))
        before = place
    return categories


def repetition(token_ids_L: np.ndarray, target: int, short_context_length: int) -> str:
    """Whether a chunk's target, alone or with the tokens before it, stands in its far context."""
    num_far = max(0, target - short_context_length)
    found = SHORT_ONLY if token_ids_L[target] in token_ids_L[num_far:target] else NEW
    for num_tokens, category in ((1, REPEATED), (2, REPEATED_BIGRAM), (3, REPEATED_TRIGRAM)):
        if target + 1 < num_tokens or num_far < num_tokens:
            break
        ends_here = token_ids_L[target + 1 - num_tokens : target + 1]
        windows = np.lib.stride_tricks.sliding_window_view(token_ids_L[:num_far], num_tokens)
        if not (windows == ends_here).all(axis=1).any():
            break
        found = category
    return found


def follows(token_ids_L: np.ndarray, target: int, short_context_length: int) -> str:
    """Whether the two tokens before a chunk's target stand in its far context, in that order."""
    far = token_ids_L[: max(0, target - short_context_length)]
    is_there = (far[:-1] == token_ids_L[target - 2]) & (far[1:] == token_ids_L[target - 1])
    return A_REPEATED_BIGRAM if target >= 2 and is_there.any() else NO_REPEAT


def categories_of_targets(text: MeasuredText) -> pd.DataFrame:
    """The columns of the schema `token_categories`, a row a target of the measured chunks.

    `part_of_speech` is null everywhere where no tagger is installed.
    """
    tokenizer = text.tokenizer
    tagger = load_tagger()
    rows: list[tuple[Any, ...]] = []
    for document, chunk in text.chunks():
        targets = text.targets_of(chunk)
        pieces = tokenizer.pieces(document.token_ids[: targets[-1] + 1 + _TOKENS_BEYOND].tolist())
        words = word_categories(pieces)
        tags = of_tokens(pieces, targets, tagger) if tagger else [None] * len(targets)
        for position, tag in zip(targets, tags, strict=True):
            of_chunk = chunk.token_ids_L, position - chunk.start, text.short_context_length
            kinds = *words[position], repetition(*of_chunk), follows(*of_chunk), tag
            rows.append((chunk.document_id, chunk.chunk_index, position, *kinds))
    return pd.DataFrame(rows, columns=[*TARGET, *ASPECTS])


def by_repeats(categories: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The targets that end a repeated bigram or trigram, which copying can predict, and all others."""
    is_repeat = categories["repetition"].isin((REPEATED_BIGRAM, REPEATED_TRIGRAM))
    return {ENDS_OF_REPEATS: categories[is_repeat], OTHERS: categories[~is_repeat]}


def read_categories(results: Path, data: Path | None = None) -> pd.DataFrame:
    """The categories of the targets that `loss_differences` measured.

    Where the text is not kept, the table that stands in its place is read: `token_categories.parquet` in the
    folder of the data, as the notebook wrote it.
    `data` is the folder of the tokenized data, that beside the results where None.
    """
    kept = (data or results.parent / "data") / CATEGORIES_FILE
    if kept.is_file():
        return read_parquet(kept, SCHEMAS["token_categories"].names).to_pandas()
    return categories_of_targets(MeasuredText.open(results, "loss_differences", data))


def by_category(
    rows: pd.DataFrame, categories: pd.DataFrame, statistic: Callable[[pd.DataFrame], pd.DataFrame]
) -> pd.DataFrame:
    """A statistic of the targets of each category.

    Returns:
        aspect, category, then the statistic's columns; aspects in the order of `ASPECTS`, as are categories.
        Nothing of categories without rows, nor of an aspect that is null.
    """
    tables = []
    labels = categories[[*TARGET, *ASPECTS]]
    labelled = joined_on_common(rows, labels, TARGET, "targets with a category", may_right_have_more=True)
    for aspect, names in ASPECTS.items():
        for name in names:
            chosen = labelled[labelled[aspect] == name]
            if len(chosen):
                table = statistic(chosen.drop(columns=list(ASPECTS)))
                table.insert(0, "category", name)
                table.insert(0, "aspect", aspect)
                tables.append(table)
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["aspect", "category"])


def with_shares(differences: pd.DataFrame, overall: "pd.Series[float]") -> pd.DataFrame:
    """What part of the targets and of their whole gain a category is: `share_of_targets`, `share_of_gain`."""
    share_of_targets = differences["num_targets"] / overall["num_targets"]
    share_of_gain = share_of_targets * differences["loss_difference"] / overall["loss_difference"]
    return differences.assign(share_of_targets=share_of_targets, share_of_gain=share_of_gain)


def gaps_by_category(
    loss_differences: pd.DataFrame,
    categories: pd.DataFrame,
    *,
    short_models: Sequence[str],
    reference_model: str,
) -> pd.DataFrame:
    """Generalization gap of short-trained models: a row a category and model.

    Returns:
        aspect, category, model, num_targets, num_documents, generalization_gap with its interval, nats.
    """
    gaps = generalization_gaps(loss_differences, short_models=short_models, reference_model=reference_model)

    def means(targets: pd.DataFrame) -> pd.DataFrame:
        return summarized(targets, ["model"], lambda group: mean_columns(group, "generalization_gap"))

    return by_category(gaps, categories, means)


def gaps_by_repeats(
    loss_differences: pd.DataFrame,
    categories: pd.DataFrame,
    *,
    short_models: Sequence[str],
    reference_model: str,
    gain_model: str,
) -> pd.DataFrame:
    """The gap in nats and as a share of the gain, where a phrase is repeated and elsewhere.

    Two kinds are those of `by_repeats`. They look at the token that came, as the gap does: where copying
    predicts it, a model that copies less looks worse, elsewhere better. The other two do not look at it.

    Args:
        loss_differences, categories: the artefact, and of `read_categories`.
        short_models: models trained at a short context.
        reference_model, gain_model: the long-trained models that the gap is measured from, and whose gain
            it is a share of.

    Returns:
        A row a kind and model: kind, model, num_targets, num_documents, then with intervals
        generalization_gap, loss_difference (nats) and gap_share (of the summed gain).
    """
    gaps = generalization_gaps(loss_differences, short_models=short_models, reference_model=reference_model)
    gains = rows_of(loss_differences, gain_model)[[*TARGET, "loss_difference"]]
    both = joined_on_common(gaps, gains, TARGET, "targets with a gap and with a gain")
    follows = categories["follows"] == A_REPEATED_BIGRAM
    kinds = by_repeats(categories) | {AFTER_REPEATS: categories[follows], AFTER_OTHERS: categories[~follows]}

    def numbers(targets: pd.DataFrame) -> dict[Hashable, Any]:
        shared = (targets[name] for name in ("document_id", "generalization_gap", "loss_difference"))
        share = interval_columns("gap_share", interval_over_documents(*shared))
        return mean_columns(targets, "generalization_gap", "loss_difference") | share

    tables = [
        summarized(of_targets(both, targets), ["model"], numbers, sort=False).assign(kind=kind)
        for kind, targets in kinds.items()
    ]
    table = pd.concat(tables, ignore_index=True)
    return table[["kind", *table.columns.drop("kind")]]


KINDS = {
    ("repetition", REPEATED_TRIGRAM): "ends of repeated trigrams",
    ("repetition", REPEATED_BIGRAM): "ends of repeated bigrams",
    ("repetition", REPEATED): "repeated tokens",
    ("repetition", SHORT_ONLY): "seen in the short context only",
    ("repetition", NEW): "new tokens",
    ("word_kind", NAME): "capitalized names",
    ("word_kind", NUMBER): "numbers",
    ("word_kind", CONTENT_WORD): "content words",
    ("word_kind", FUNCTION_WORD): "function words",
    ("word_kind", PUNCTUATION): "punctuation",
}
"""(aspect, category) -> what a row is called, from the top."""
# inches; rows left empty
_ROW_HEIGHT = 0.25
_FRAME_HEIGHT = 0.75
_BETWEEN_ASPECTS = 0.7


def kinds_of(differences: pd.DataFrame) -> pd.DataFrame:
    """The rows that the figure draws: of `KINDS`, in their order, with `words`; none of too few targets."""
    pairs = zip(differences["aspect"], differences["category"], strict=True)
    rows = differences.assign(words=[KINDS.get(pair, "") for pair in pairs])
    rows = rows[(rows["words"] != "") & (rows["num_targets"] >= drawing.FEWEST_TARGETS)]
    order = {words: place for place, words in enumerate(KINDS.values())}
    return rows.sort_values("words", key=lambda words: words.map(order), ignore_index=True)


def kinds_figure(kinds: pd.DataFrame, overall: "pd.Series[float]", label: drawing.ModelLabel) -> Figure:
    """A row a kind of token: the gain of the long context, and the share of all gain that falls to it."""
    # Of each row in the panel, from 0 downwards, with a gap between aspects.
    is_next = (kinds["aspect"] != kinds["aspect"].shift()).cumsum() - 1
    heights = [-place - _BETWEEN_ASPECTS * gap for place, gap in enumerate(is_next)]
    figure, (ax,) = drawing.panels(1, _FRAME_HEIGHT + _ROW_HEIGHT * (1 - min(heights, default=0)))
    drawing.draw_points(ax, heights, kinds, "loss_difference", [label.style.measured] * len(kinds))
    ax.axvline(0, color=drawing.BLACK, linewidth=0.6)
    drawing.name_place(ax, overall["loss_difference"], f"all tokens: {overall['loss_difference']:.2f}")
    sizes = [f"{row['words']} ({row['num_targets']:,})" for row in kinds.to_dict("records")]
    ax.set_yticks(heights, sizes)
    ax.set_ylim(min(heights, default=0) - 0.6, 0.6)
    ax.set_xlabel("gain of the long context (nats per token)")
    if overall["loss_difference_low"] > 0:
        _write_shares(kinds, heights, ax)
    n = f"{drawing.sample_size(overall.to_frame().T)} (targets of a kind in brackets)"
    finding = "The far context is not shown to gain anything"
    if overall["loss_difference_low"] > 0 and len(kinds):
        parts = kinds["num_targets"] / overall["num_targets"]
        place = (kinds["share_of_gain"] - parts).argmax()
        most = kinds.iloc[place]
        part = parts.iloc[place]
        finding = (
            f"{most['share_of_gain']:.2f} of the gain falls to {part:.2f} of the tokens: {most['words']}"
        )
    drawing.put_title(figure, finding, n, label.text, label.size, drawing.BARS)
    return figure


def _write_shares(kinds: pd.DataFrame, heights: list[float], ax: Axes) -> None:
    """At the right of each row the share of the gain of all targets; it sums to 1 over an aspect's kinds."""
    ax.annotate(
        "share of all gain",
        (1, 1),
        (2, 2),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="center",
        va="bottom",
        color=drawing.GREY,
        annotation_clip=False,
    )
    for share, height in zip(kinds["share_of_gain"], heights, strict=True):
        ax.annotate(
            f"{share:.2f}",
            (1.02, height),
            xycoords=("axes fraction", "data"),
            va="center",
            color=drawing.GREY,
            annotation_clip=False,
        )
