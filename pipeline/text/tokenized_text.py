"""One text as a model's own tokenizer reads it: its tokens, and what of the text each stands for.

Places in the text come from the tokenizer's own record of what it read, not from decoding: so they are right
where it drops characters, folds cases or joins accents. Shapes: N tokens.
"""

import json
import unicodedata
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from pipeline.errors import InputError
from pipeline.text.tokenizer import read_tokenizer

_FIRST_OF_BYTES = (0x80, 0x800, 0x10000)
"""The first code points that UTF-8 writes in two, three and four bytes."""


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """A text and its tokens."""

    text: str
    token_ids_N: np.ndarray
    """int64; those that the tokenizer puts before every text, such as <s>, come first."""
    characters_N2: np.ndarray
    """int64; the characters [start, end) that each token stands for. Of a token that holds only some bytes of
    a character, that whole character. None of those put before the text: both 0."""
    added: tuple[str, ...] = ()
    """What the tokenizer puts before every text."""

    @cached_property
    def bytes_N2(self) -> np.ndarray:
        """`characters_N2` as places in the text's UTF-8: int64."""
        code_points = np.frombuffer(self.text.encode("utf-32-le"), dtype="<u4")
        num_bytes = 1 + sum((code_points >= first).astype(np.int64) for first in _FIRST_OF_BYTES)
        return np.concatenate([[0], np.cumsum(num_bytes)])[self.characters_N2]

    @cached_property
    def pieces(self) -> list[str]:
        """The text of each token: joined, behind those added, they are the text.

        What the tokenizer drops stands before the token that comes next. A character of several tokens is in
        the piece of the last of them, and the others' are "".
        """
        starts_N, ends_N = self.characters_N2.T
        next_starts_N = np.append(starts_N[1:], len(self.text))
        # A token may hold the first bytes of a character that the next one ends.
        cuts_N = np.minimum(ends_N, np.maximum(next_starts_N, starts_N))
        cuts_N[-1] = len(self.text)
        cuts = np.maximum.accumulate(cuts_N).tolist()
        own = [self.text[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]
        return [*self.added, *own[len(self.added) :]]


def tokenized_text(text: str, tokenizer_file: Path) -> TokenizedText:
    """A text as the tokenizer of a tokenizer.json reads it, with what that puts before every text.

    What it puts behind a text is left out, for the text may go on. Words such as <|endoftext|> in the text
    are text.

    Raises:
        InputError: the file is broken, the text is no Unicode, or it has no token of its own.
    """
    tokenizer = _telling_all_places(read_tokenizer(tokenizer_file))
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"the text is not Unicode: its character {error.start} is half of one; give UTF-8"
        ) from None
    try:
        encoding = tokenizer.encode(text)
    except Exception as error:  # plain, as of a word that is not in the vocabulary
        raise InputError(f"the tokenizer {tokenizer_file} cannot encode the text: {error}") from error
    is_own_N = np.array(encoding.special_tokens_mask) == 0
    if not is_own_N.any():
        raise InputError(f"the tokenizer {tokenizer_file} finds no token in the text; give another text")
    num_added, end = int(is_own_N.argmax()), len(is_own_N) - int(is_own_N[::-1].argmax())
    return TokenizedText(
        text,
        np.array(encoding.ids[:end], dtype=np.int64),
        _with_their_marks(np.array(encoding.offsets[:end], dtype=np.int64), text),
        tuple(encoding.tokens[:num_added]),
    )


def _telling_all_places(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer without what cuts or fills up a text, and without what hides the blank of a word."""
    description = json.loads(tokenizer.to_str())
    _untrim(description.get("post_processor"))
    whole = Tokenizer.from_str(json.dumps(description))
    whole.no_truncation()
    whole.no_padding()
    whole.encode_special_tokens = True
    return whole


def _untrim(part: Any) -> None:
    """Byte-level tokenizers tell places without the blanks that their tokens begin with, unless told to."""
    if isinstance(part, dict):
        if "trim_offsets" in part:
            part["trim_offsets"] = False
        for inner in part.values():
            _untrim(inner)
    elif isinstance(part, list):
        for inner in part:
            _untrim(inner)


def _with_their_marks(characters_N2: np.ndarray, text: str) -> np.ndarray:
    """Places in which an accent that the tokenizer has dropped, or joined to its letter, is the letter's."""
    with_marks_N2 = characters_N2.copy()
    next_starts = [*characters_N2[1:, 0].tolist(), len(text)]
    for token, (end, next_start) in enumerate(zip(characters_N2[:, 1].tolist(), next_starts, strict=True)):
        while 0 < end < next_start and unicodedata.category(text[end]).startswith("M"):
            end += 1
        with_marks_N2[token, 1] = end
    return with_marks_N2
