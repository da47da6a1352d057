"""Text to token IDs and back: the one door for the tokens of a folder, for programs, studies and the library.

A Hugging Face folder's tokens are those of `AutoTokenizer.from_pretrained(folder)`: its tokenizer_config.json
may change what its tokenizer.json does. A tokenizer.json that stands alone, as in a data folder, is read as
it is. What a tokenizer puts before a text (<s>) belongs to the model and is kept apart; what it puts behind a
text is left out, for the text may go on.

The place of each token comes from the tokenizer's own record of what it read, not from decoding: so it is
right even if the tokenizer drops characters or folds cases. Shapes: N tokens.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os.path import commonprefix
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import ByteLevelBPETokenizer, Tokenizer, models
from tokenizers.decoders import DecodeStream

from sparsity_length.cli import InputError, cause_of, logger, path_of, unknown_name
from sparsity_length.results.files import refuse_pointers
from sparsity_length.settings import Settings, setting, switch
from sparsity_length.text.sources import files_of_olmo, first_passages

EOS_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")
"""The first that a tokenizer has ends documents, unless its configuration names another."""
BOS_CHOICES = ("auto", "none")
"""Tokens before a text: what the tokenizer puts there, or none."""
Text = str | Sequence[int] | np.ndarray | Sequence[Mapping[str, Any]]
"""A string, token IDs, or messages of a chat, which go through the tokenizer's chat template."""
Texts = Text | Iterable[Text]
"""One text, or many: a list, a pandas series, a column of a data set."""
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
"""Files of a model's folder that decide its tokens."""
_PROBE = (
    "Two  blanks, don't; THE End.\n\n\tif x[1] >= 10_000 and y != 3.14:\r\n    return 'naïve' # 2026-11-27\n"
    "Ünïcödé ﬁ½ e\u0301 Привет мир, 你好世界。 مرحبا नमस्ते 한국어 👩\u200d🚀 $100% (a+b)^2 user@example.org"
    "\u00a0…—“quoted” 1999 2000 2024 10000 1000000 1234567890"
)
"""Text that tokenizers read differently."""
_BLANKS = "▁Ġ"
"""How tokenizers write blanks."""
_OTHER_ANSWER = "0another1answer2"
"""Stands in place of a message to find where its chat template writes it."""


def _with_text(message: Any) -> dict[str, Any]:
    """A message whose content, if it has some, is a text: parts are joined; InputError for other content."""
    try:
        content = message.get("content")
        if content is None:
            return dict(message)
        parts = [content] if isinstance(content, Mapping) else content
        texts = (part if isinstance(part, str) else part["text"] for part in parts)
        return {**message, "content": "".join(texts)}
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(
            f"a chat is a list of messages, whose content is text or parts that are text, unlike {message!r}"
        ) from error


def _place_of(content: str, rendered: str, other: str) -> tuple[int, int]:
    """The characters [start, end) of a message in a chat, from the chat with `_OTHER_ANSWER` in its place.

    None of them if the template leaves the message out.
    """
    before, *behind = other.split(_OTHER_ANSWER)
    start = len(commonprefix([rendered, before]))
    for written in (content, content.strip()):
        if rendered.startswith(written, start):
            return start, start + len(written)
    # Rewritten, as thoughts are: up to what the template writes behind every message.
    return start, len(rendered) - len(_OTHER_ANSWER.join(behind))


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
        """Read like `tokenizer`, which stays as it is.

        Args:
            tokenizer: of the library tokenizers.
            eos_token_id: ends a document; None if nothing does, and no document is to end.
            bos: "auto" for what the tokenizer puts before a text, or "none".
            special_tokens: read control tokens in a text (<|im_start|>) as such; else they are text.
            name: what messages call it.
            automatic: transformers' tokenizer around it, for its chat template.
        """
        if bos not in BOS_CHOICES:
            raise unknown_name("bos", bos, BOS_CHOICES)
        if not isinstance(special_tokens, bool):
            raise InputError(f"special_tokens: {special_tokens!r} is neither True nor False")
        # A copy, through JSON: the caller's own tokenizer is not changed.
        tokenizer = Tokenizer.from_str(tokenizer.to_str())
        # Many tokenizer.json files cut or pad every text to the length their model was trained with.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if getattr(tokenizer.model, "dropout", None):  # else the same text is other tokens each time
            tokenizer.model.dropout = None
        if bos == "none" and _put_before(tokenizer):  # so that its file, too, puts nothing there
            tokenizer.post_processor = None
        added = tokenizer.get_added_tokens_decoder()
        # So that an EOS which a text spells is text, too.
        if eos_token_id is not None and not (eos_token_id in added and added[eos_token_id].special):
            tokenizer.add_special_tokens([tokenizer.id_to_token(eos_token_id)])
        # Before offsets are changed: a data folder keeps the model's own way of counting them.
        self._json = tokenizer.to_str(pretty=True)
        # Byte-level tokenizers trim off the blank before a word, which is to count to its place.
        self._tokenizer = Tokenizer.from_str(
            self._json.replace('"trim_offsets": true', '"trim_offsets": false')
        )
        self._automatic = automatic
        self.eos_token_id = eos_token_id
        self._special_tokens = special_tokens
        self.name = name
        self.bos_token_ids = _put_before(tokenizer)
        """What the tokenizer puts before every text; no document holds it."""
        self.vocabulary_size = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())
        """One more than the largest ID, which is what an embedding table needs."""
        self.token_dtype = np.dtype(np.uint16 if self.vocabulary_size <= 65_535 else np.uint32)
        """The smallest of OLMo's memory-map types that holds the vocabulary."""
        tokens = tokenizer.get_added_tokens_decoder().values()
        self.control_tokens = re.compile(
            "|".join(re.escape(token.content) for token in tokens if token.special) or "(?!)"
        )
        """Finds what spells one; without any, a pattern that is found nowhere."""
        self._has_warned = False

    @cached_property
    def unknown_token_id(self) -> int | None:
        """What stands for whatever the tokenizer cannot spell; None without such a token."""
        model = json.loads(self._json)["model"]
        return model.get("unk_id", self._tokenizer.token_to_id(model.get("unk_token") or ""))

    def num_unknown(self, token_ids: np.ndarray) -> int:
        """How many of the tokens stand for what the tokenizer cannot spell."""
        return int((token_ids == self.unknown_token_id).sum())

    def warn_of_unknown(self, num_unknown: int, num_tokens: int) -> None:
        """Tell if a hundredth or more of a text's tokens stand for what the tokenizer cannot spell."""
        if num_unknown and num_unknown >= 0.01 * num_tokens:
            logger.warning(
                "%s cannot spell all of the text: %.1f%% of the tokens stand for what is unknown to it",
                self.name,
                100 * num_unknown / num_tokens,
            )

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token IDs of each text, int32, without those that are put before or behind it."""
        self._read_control_tokens(texts, self._special_tokens)
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        all_ids = (np.array(encoding.ids, dtype=np.int32) for encoding in encodings)
        return [token_ids[self._num_bos(token_ids) :] for token_ids in all_ids]

    def read(
        self, text: Text, *, begins_answer: bool = False, special_tokens: bool = False
    ) -> "TokenizedText":
        """One text with the places of its tokens, and apart from them what stands before it.

        Token IDs and messages are taken as they are: BOS is what they themselves begin with. Messages are
        followed by the beginning of an answer if it is asked for. With `special_tokens` control tokens in a
        string are read as such, whatever the tokenizer was told.
        """
        if isinstance(text, str):
            placed = self._placed(text, self._special_tokens or special_tokens)
            return replace(placed, bos_token_ids=self.bos_token_ids)
        if not (isinstance(text, Sequence) and text and isinstance(text[0], Mapping)):
            return self._of_token_ids(text)
        messages = [_with_text(message) for message in text]
        placed = self._placed(self._rendered(messages, begins_answer), special_tokens=True)
        if "strftime_now" in str(self._automatic.chat_template):
            logger.warning("the chat template of %s writes today's date: numbers differ by day", self.name)
        if not (content := messages[-1].get("content")):
            return placed
        other = self._rendered([*messages[:-1], {**messages[-1], "content": _OTHER_ANSWER}], begins_answer)
        return replace(placed, last_message=_place_of(content, placed.text, other))

    def _rendered(self, messages: list[dict[str, Any]], begins_answer: bool) -> str:
        """Messages as the chat template writes them."""
        try:
            return self._automatic.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=begins_answer
            )
        except Exception as error:  # there is no template, or its language's, by what the messages lack
            raise InputError(
                f"{self.name} has no chat template for these messages ({cause_of(error)}); give the text"
                " itself, or its token IDs"
            ) from error

    def _read_control_tokens(self, texts: Iterable[str], special_tokens: bool) -> None:
        """Have control tokens that the next texts spell read as such, or as text: with one warning.

        A page that writes about '<|endoftext|>' has these letters as text, not as the end of it.
        """
        self._tokenizer.encode_special_tokens = not special_tokens
        if special_tokens or self._has_warned:
            return
        if spelt := next(filter(None, map(self.control_tokens.search, texts)), None):
            self._has_warned = True
            logger.warning(
                "%s: control tokens stand in the text, such as %s, and are read as text without"
                " --special-tokens (special_tokens=True in Python)",
                self.name,
                spelt[0],
            )

    def _num_bos(self, token_ids: np.ndarray) -> int:
        """How many of the first tokens are those that the tokenizer would put there."""
        num_bos = len(self.bos_token_ids)
        return num_bos if tuple(token_ids[:num_bos].tolist()) == self.bos_token_ids else 0

    def _placed(self, text: str, special_tokens: bool) -> "TokenizedText":
        self._read_control_tokens([text], special_tokens)
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        except TypeError as error:
            raise InputError("the text holds half of a surrogate pair, which no tokenizer reads") from error
        token_ids_N = np.array(encoding.ids, dtype=np.int64)
        characters_N2 = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        # Of a blank that it puts before a word, the tokenizer records the word's first character.
        is_added_N = [
            not token.strip(_BLANKS) and bool(text[start:end].strip(_BLANKS).strip())
            for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True)
        ]
        characters_N2[is_added_N, 1] = characters_N2[is_added_N, 0]
        num_bos = self._num_bos(token_ids_N)
        return TokenizedText(
            text,
            token_ids_N[num_bos:],
            characters_N2[num_bos:],
            tuple(token_ids_N[:num_bos].tolist()),
            has_special_tokens=special_tokens,
        )

    def _of_token_ids(self, text: Any) -> "TokenizedText":
        try:
            given_N = np.asarray(text)
        except ValueError:  # lists of several lengths
            given_N = np.empty((0, 0))
        # 3.7 would become another token; an empty list is one of floats.
        is_one = given_N.ndim == 1 and (given_N.dtype.kind in "iu" or not given_N.size)
        if not is_one or given_N.min(initial=0) < 0:
            raise InputError(
                "a text is a string, a list of token IDs, whole numbers from 0 on, or the messages of a chat"
            )
        num_bos = self._num_bos(given_N)
        own_N = given_N[num_bos:].astype(np.int64)
        pieces = self.pieces(own_N.tolist())
        places = np.cumsum([0, *map(len, pieces)])
        return TokenizedText(
            "".join(pieces),
            own_N,
            np.stack([places[:-1], places[1:]], axis=1),
            tuple(given_N[:num_bos].tolist()),
            has_special_tokens=True,
        )

    def _names(self, token_ids: Sequence[int]) -> list[str | None]:
        return [self._tokenizer.id_to_token(token_id) for token_id in token_ids]

    @property
    def before_a_text(self) -> str:
        """Names of `bos_token_ids`: "<s>"."""
        return " ".join(map(str, self._names(self.bos_token_ids))) or "nothing"

    def reads_as(self, other: "DocumentTokenizer", token_ids: Sequence[int] = ()) -> bool:
        """Whether texts have the same tokens and IDs as with the other; either may have more added tokens.

        `token_ids` both must have, under the same names.
        """
        own = self._tokenizer.get_vocab(with_added_tokens=False).items()
        probe = _PROBE + first_passages(len(_PROBE))[0]
        return (
            # Equal vocabularies can split or normalize text differently, which the probe shows.
            own <= other._tokenizer.get_vocab().items()
            and self._names(token_ids) == other._names(token_ids)
            and np.array_equal(self.encode([probe]), other.encode([probe]))
        )

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text of each token: joined, they are the text of all.

        A token that brings only the first bytes of a character has the piece ""; the character is in the
        piece of the token that brings its last byte. With a token for each byte, "é!" has "", "é", "!".
        """
        # It gives None, and holds bytes back, until they are a whole character.
        stream = DecodeStream(skip_special_tokens=False)
        pieces = [stream.step(self._tokenizer, token_id) for token_id in token_ids]
        num_whole = max((end for end, piece in enumerate(pieces, start=1) if piece is not None), default=0)
        if rest := list(token_ids[num_whole:]):
            pieces[-1] = self._tokenizer.decode(rest, skip_special_tokens=False)
        return [piece or "" for piece in pieces]

    def to_json(self) -> str:
        """The tokenizer as the text of a tokenizer.json."""
        return self._json


@dataclass(frozen=True, kw_only=True)
class Reading(Settings):
    """How a text is read."""

    bos: str = setting(
        str,
        "what to put before a text: auto is what the tokenizer puts there",
        "auto",
        choices=BOS_CHOICES,
    )
    special_tokens: bool = switch(
        "read control tokens in a text, such as <|im_start|>, as control tokens (default: as plain text)"
    )


def hub_folder(name: str, revision: str | None, is_enough: Callable[[Path], object], **patterns: Any) -> Path:
    """The folder of the hub's model `name`, at a branch, tag or commit; files of `patterns` are fetched.

    If they cannot be, as without a network, what the cache has must do, if it `is_enough`; or the hub's
    client raises an error of its own.
    """
    from huggingface_hub import errors, snapshot_download  # late: few need it

    try:
        return Path(snapshot_download(name, revision=revision, **patterns))
    except Exception:
        try:
            folder = snapshot_download(name, revision=revision, local_files_only=True)
        except errors.LocalEntryNotFoundError as error:  # files that nobody needs may be missing
            folder = getattr(error, "snapshot_path", "")
        if not (folder and is_enough(Path(folder))):
            raise
        return Path(folder)


def parse_tokenizer_name(name: str) -> Path | int:
    """Path that a --tokenizer name means, downloaded if on the hub, or the size of a BPE to train."""
    if name == "olmo":
        return files_of_olmo() / "tokenizers" / "allenai_gpt-neox-olmo-dolma-v1_5.json"
    if bpe := re.fullmatch(r"bpe:(\d+)", name):
        if int(bpe[1]) < 257:
            raise InputError(f"{name} is too small: every byte and EOS are 257 tokens")
        return int(bpe[1])
    place = path_of(name)
    if not place.exists():
        model, _, revision = name.partition("@")
        try:
            place = hub_folder(model, revision or None, tokenizer_at, allow_patterns=list(_FILES))
        except Exception as error:  # the hub's client raises its own, requests' or httpx' errors, by version
            raise InputError(
                f"there is no tokenizer {name}, and the hub gives none of that name ({cause_of(error)}); say"
                " olmo, bpe:4096, or name a tokenizer.json, or the folder or the hub's name of a model"
            ) from error
    if found := tokenizer_at(place):
        return found
    raise InputError(f"{name} has no tokenizer; name a tokenizer.json, or a model's folder with a tokenizer")


def tokenizer_at(path: Path) -> Path | None:
    """The tokenizer that a path means: a folder for AutoTokenizer, or a lone tokenizer.json.

    A tokenizer.json beside other files of a model means its folder. None if there is no tokenizer.
    """
    if path.is_file() and path.name != "tokenizer.json":
        return path
    folder = path.parent if path.is_file() else path
    present = [name for name in _FILES if (folder / name).is_file()]
    if not set(present) & set(_VOCABULARIES):
        return None
    return folder / "tokenizer.json" if present == ["tokenizer.json"] else folder


def tokenizer_files(tokenizer: Path) -> list[Path]:
    """The files that decide the tokens of what `tokenizer_at` gave."""
    return [path for name in _FILES if (path := tokenizer / name).is_file()] or [tokenizer]


def _refuse_broken(*paths: Path) -> None:
    """Refuse files of JSON that hold no object, such as a page of the hub or a half of one."""
    for path in paths:
        try:
            if path.suffix == ".json":
                json.loads(path.read_bytes()).keys()
        except (ValueError, AttributeError) as error:
            raise InputError(f"{path} is not a JSON object ({cause_of(error)}); fetch it again") from error


def load_tokenizer(
    given: Any,
    *,
    bos: str = "auto",
    eos_token: str | None = None,
    special_tokens: bool = False,
    trust_remote_code: bool = False,
) -> DocumentTokenizer:
    """The tokenizer at a path, by `tokenizer_at`; or one of the library tokenizers, or transformers' fast.

    What ends a document is `eos_token`, or what the configuration names, or the first of `EOS_TOKENS` that it
    has. `bos` and so on as of `DocumentTokenizer`.
    """
    name = "the tokenizer"
    if isinstance(given, Path):
        place = tokenizer_at(given) or given
        name = f"the tokenizer {place}"
        refuse_pointers(*tokenizer_files(place))
        _refuse_broken(*tokenizer_files(place))
        file = place / "tokenizer.json"
        configuration = place / "tokenizer_config.json"
        try:
            if place.is_file():
                given = Tokenizer.from_file(str(place))
            else:
                import transformers  # late: it takes seconds to load, and a lone tokenizer.json needs none

                given = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code)
                # A class may change how the file reads a text, or fail only now.
                alone = Tokenizer.from_file(str(file)) if file.is_file() else None
                readers = (alone, getattr(given, "backend_tokenizer", None))
                found = [
                    one.encode(_PROBE, add_special_tokens=False).ids for one in readers if one is not None
                ]
                if found[1:] and found[0] != found[1]:
                    logger.warning(
                        "%s: AutoTokenizer's tokens, which are taken, differ from those of tokenizer.json"
                        " alone, by tokenizer_class or another field of tokenizer_config.json",
                        name,
                    )
        except Exception as error:  # as many kinds as there are files
            remedy = (
                f"mend tokenizer_class, extra_special_tokens, or what else is meant in {configuration}"
                if file.is_file() and configuration.is_file()
                else "put its files back, name another with --tokenizer, or save its tokenizer.json with"
                " AutoTokenizer in an environment that has sentencepiece and tiktoken"
            )
            raise InputError(
                f"no tokenizer can be read from {place} ({cause_of(error)}); {remedy}"
            ) from error
    inner = getattr(given, "backend_tokenizer", given)
    if not isinstance(inner, Tokenizer):
        raise InputError(
            f"{name} is of type {type(given).__name__}; give a tokenizer.json, or a tokenizer of"
            " the library tokenizers or a fast one of transformers"
        )
    if eos_token is not None and inner.token_to_id(eos_token) is None:
        raise InputError(f"{name} has no token {eos_token} (--eos-token)")
    # In this order: what the user says, what the configuration says, what is usual.
    named = (eos_token, getattr(given, "eos_token", None), *EOS_TOKENS)
    eos_token_ids = [inner.token_to_id(token) for token in named if token is not None]
    return DocumentTokenizer(
        inner,
        eos_token_id=next((token_id for token_id in eos_token_ids if token_id is not None), None),
        bos=bos,
        special_tokens=special_tokens,
        name=name,
        automatic=given,
    )


def _put_before(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The token IDs that a tokenizer puts before every text, asked of its last step alone."""
    # The step holds the IDs that it adds, so a model of one word does.
    last_step = Tokenizer(models.WordLevel({"x": 0}, unk_token="x"))
    last_step.post_processor = tokenizer.post_processor
    encoding = last_step.encode("x")
    # What stands before the first token that is not special.
    return tuple(encoding.ids[: encoding.special_tokens_mask.index(0)])


def train_bpe(texts: Iterable[str], size: int) -> DocumentTokenizer:
    """A byte-level BPE of `size` tokens, EOS (ID 0) and the 256 bytes among them.

    A small corpus gives fewer tokens: merging stops when no pair of tokens is left to merge.
    """
    tokenizer = ByteLevelBPETokenizer()
    # EOS is the first special token, so its ID is 0.
    tokenizer.train_from_iterator(
        texts, vocab_size=size, min_frequency=0, show_progress=False, special_tokens=[EOS_TOKENS[0]]
    )
    return DocumentTokenizer(tokenizer, eos_token_id=0)


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """A text and its own tokens, int64, without those that the tokenizer puts before every text, as <s>."""

    text: str
    token_ids_N: np.ndarray
    characters_N2: np.ndarray
    """int64; the characters [start, end) that each token stands for. Of a token that holds only some bytes of
    a character, that whole character; none of a blank that the tokenizer puts before a word."""
    bos_token_ids: tuple[int, ...] = ()
    """What stands before the text: it belongs to the model, which has it before every context."""
    last_message: tuple[int, int] | None = None
    """The characters [start, end) of a chat's last message; None if that has no content."""
    has_special_tokens: bool = False
    """Whether control tokens that the text spells are tokens of it: so in chats and of token IDs."""

    @cached_property
    def bytes_N2(self) -> np.ndarray:
        """`characters_N2` as places in the text's UTF-8: int64."""
        # "é!" has bytes 2 and 1, so places 0 1 2 in it are places 0 2 3 in UTF-8.
        num_bytes = [len(character.encode()) for character in self.text]
        return np.cumsum([0, *num_bytes])[self.characters_N2]

    @cached_property
    def pieces(self) -> list[str]:
        """The text of each token: joined, they are the text.

        What the tokenizer drops stands before the token that comes next. A character of several tokens is in
        the piece of the last of them, and the others' are "".
        """
        starts_N, ends_N = self.characters_N2.T
        next_starts_N = np.append(starts_N[1:], len(self.text))
        # A token may hold the first bytes of a character that the next one ends.
        cuts_N = np.minimum(ends_N, np.maximum(next_starts_N, starts_N))
        cuts_N[-1:] = len(self.text)  # a slice, for a text of no token
        cuts = np.maximum.accumulate(cuts_N).tolist()
        return [self.text[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]

    def columns(self, places: np.ndarray) -> dict[str, Any]:
        """The columns that name these tokens."""
        byte_starts, byte_ends = self.bytes_N2[places].T
        return {
            "position": places,
            "token": np.array(self.pieces, dtype=object)[places],
            "token_id": self.token_ids_N[places],
            "byte_start": byte_starts,
            "byte_end": byte_ends,
        }


def swap_tokens(text: str | None, num_tokens: int, tokenizer: DocumentTokenizer) -> np.ndarray:
    """The tokens of the swap text, or of English passages; at least so many."""
    if text is None:
        text = "\n\n".join(first_passages(16 * num_tokens))  # no tokenizer's tokens are as long as this
    token_ids_N = tokenizer.read(text).token_ids_N
    if len(token_ids_N) < num_tokens:
        raise InputError(
            f"the swapped text has {len(token_ids_N)} tokens, and {num_tokens} are needed; give a longer one,"
            " or a smaller --long-context-length"
        )
    return token_ids_N


def is_one_text(texts: Any) -> bool:
    """Whether `texts` are one `Text`, and not many: a string, whole numbers, or messages."""
    items = list(np.asarray(texts)) if hasattr(texts, "__array__") else texts
    is_list = isinstance(items, Sequence) and len(items) > 0
    return isinstance(texts, str) or (is_list and isinstance(items[0], int | np.integer | Mapping))
