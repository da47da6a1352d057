"""Categories of predicted tokens, computed from the text alone: a row a target, in four aspects.

word_part       word start, continuation (of a word that an earlier token begins), no word
word_kind       number, function word, capitalized name, content word (`analysis.tokens.words` has the rules),
                punctuation (any other sign), white space. The token's first character that is no white space
                decides, and the whole word counts, also what of it comes after the token
repetition      the first that fits, comparing vocabulary IDs within the chunk:
                  repeated trigram      x_{t-2} x_{t-1} x_t stands in the far context
                  repeated bigram       x_{t-1} x_t does: induction can predict the target
                  repeated token        x_t does, after another token
                  short context only    x_t stands in the short context, and not in the far one
                  new                   x_t does not stand in the chunk before t
part_of_speech  only where the extra `parts-of-speech` is installed (`analysis.tokens.parts_of_speech`)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.derived_tables import write_derived_table
from analysis.measured_text import MeasuredText
from analysis.tokens import parts_of_speech
from analysis.tokens.words import CONTENT_WORD, FUNCTION_WORD, NAME, NUMBER, Word, first_characters, words_of
from pipeline.results.parquet import read_parquet
from pipeline.results.schemas import SCHEMAS

WORD_START, CONTINUATION, NO_WORD = "word start", "continuation", "no word"
PUNCTUATION, WHITE_SPACE = "punctuation", "white space"
NEW, SHORT_ONLY, REPEATED = "new", "short context only", "repeated token"
REPEATED_BIGRAM, REPEATED_TRIGRAM = "repeated bigram", "repeated trigram"
ASPECTS: dict[str, list[str]] = {
    "word_part": [WORD_START, CONTINUATION, NO_WORD],
    "word_kind": [CONTENT_WORD, FUNCTION_WORD, NAME, NUMBER, PUNCTUATION, WHITE_SPACE],
    "repetition": [NEW, SHORT_ONLY, REPEATED, REPEATED_BIGRAM, REPEATED_TRIGRAM],
    "part_of_speech": list(parts_of_speech.CLASSES),
}
"""Aspect -> its categories, in the order of tables and figures."""
ENDS_OF_REPEATS, OTHERS = "ends of repeats", "all other tokens"
CATEGORIES_FILE = "token_categories.parquet"
_TOKENS_BEYOND = 32  # read after a chunk, so that its last word is whole


def word_categories(pieces: Sequence[str]) -> list[tuple[str, str]]:
    """(word_part, word_kind) of each token.

    Args:
        pieces: the text of each token of a document, from its start.
    """
    text = "".join(pieces)
    word_at: dict[int, Word] = {
        place: word for word in words_of(text) for place in range(word.start, word.end)
    }
    categories, before = [], None
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
    """Whether a chunk's target, alone or with the tokens before it, stands in its far context.

    Args:
        token_ids_L: the chunk.
        target: the target's place in it.
        short_context_length: s; the far context is the places before target - s.
    """
    num_far = max(0, target - short_context_length)
    repeated = None
    for num_tokens, category in ((1, REPEATED), (2, REPEATED_BIGRAM), (3, REPEATED_TRIGRAM)):
        if target + 1 < num_tokens or num_far < num_tokens:
            break
        ends_here = token_ids_L[target + 1 - num_tokens : target + 1]
        windows = np.lib.stride_tricks.sliding_window_view(token_ids_L[:num_far], num_tokens)
        if not (windows == ends_here).all(axis=1).any():
            break
        repeated = category
    if repeated:
        return repeated
    return SHORT_ONLY if token_ids_L[target] in token_ids_L[num_far:target] else NEW


def categories_of_targets(text: MeasuredText) -> pd.DataFrame:
    """The columns of the schema `token_categories`, a row a target of the measured chunks.

    `part_of_speech` is null everywhere where no tagger is installed.
    """
    tokenizer, tagger = text.tokenizer, parts_of_speech.load_tagger()
    rows: list[dict[str, Any]] = []
    for document, chunk in text.chunks():
        targets = text.targets_of(chunk)
        pieces = tokenizer.pieces(document.token_ids[: targets[-1] + 1 + _TOKENS_BEYOND].tolist())
        words = word_categories(pieces)
        tags = parts_of_speech.of_tokens(pieces, targets, tagger) if tagger else [None] * len(targets)
        for position, tag in zip(targets, tags, strict=True):
            place = position - chunk.start
            rows.append(
                {
                    "document_id": chunk.document_id, "chunk_index": chunk.chunk_index,
                    "target_position": position,
                    "word_part": words[position][0], "word_kind": words[position][1],
                    "repetition": repetition(chunk.token_ids_L, place, text.short_context_length),
                    "part_of_speech": tag,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def by_repeats(categories: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The targets that end a repeated bigram or trigram, so that copying can foretell them, and all others.

    Args:
        categories: `categories_of_targets`.

    Returns:
        `ENDS_OF_REPEATS` and `OTHERS` -> the rows of these targets.
    """
    is_repeat = categories["repetition"].isin((REPEATED_BIGRAM, REPEATED_TRIGRAM))
    return {ENDS_OF_REPEATS: categories[is_repeat], OTHERS: categories[~is_repeat]}


def read_categories(results: Path, data: Path | None = None) -> pd.DataFrame:
    """The categories of the targets that `loss_differences` measured.

    Where the text is not kept, the table that stands in its place is read: `token_categories.parquet` in the
    folder of the data, as `write_categories` wrote it.

    Args:
        results: the results folder.
        data: the folder of the tokenized data; `data` beside the results where None.

    Raises:
        InputError: there is neither, or the data is not that which was measured.
    """
    kept = (data or results.parent / "data") / CATEGORIES_FILE
    if kept.is_file():
        return read_parquet(kept, SCHEMAS["token_categories"].names).to_pandas()
    return categories_of_targets(MeasuredText.open(results, "loss_differences", data))


def write_categories(categories: pd.DataFrame, folder: Path) -> Path:
    """Write `categories_of_targets` as `<folder>/token_categories.parquet`, in its schema."""
    return write_derived_table(categories, "token_categories", folder)
