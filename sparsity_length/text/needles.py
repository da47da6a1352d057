"""Documents whose truth is known: a sentence tells a fact, and a question at the end asks for it.

The command line, and an example, are those of plant_needles.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from sparsity_length.cli import InputError, folder_path, fraction, logger, positive_int, random_seed
from sparsity_length.results.files import (
    describe_files,
    folder_lock,
    table_of,
    whole_or_absent,
    write_parquet,
)
from sparsity_length.results.schemas import SCHEMAS
from sparsity_length.settings import Settings, setting
from sparsity_length.text.folder import (
    EVALUATION_FILE,
    NEEDLES_FILE,
    EvaluationDocument,
    TokenizedData,
    is_complete,
    write_data_folder,
)
from sparsity_length.text.tokenizer import DocumentTokenizer

CITIES = (
    "Athens",
    "Berlin",
    "Boston",
    "Cairo",
    "Delhi",
    "Dublin",
    "Geneva",
    "Havana",
    "Lima",
    "Lisbon",
    "London",
    "Madrid",
    "Moscow",
    "Oslo",
    "Paris",
    "Prague",
    "Rome",
    "Seoul",
    "Sydney",
    "Tokyo",
    "Vienna",
    "Warsaw",
)
PEOPLE = (
    "the baker",
    "the captain",
    "the carpenter",
    "the doctor",
    "the farmer",
    "the gardener",
    "the judge",
    "the king",
    "the nurse",
    "the painter",
    "the pilot",
    "the poet",
    "the queen",
    "the sailor",
    "the singer",
    "the soldier",
    "the tailor",
    "the teacher",
    "the waiter",
    "the writer",
)
WORDS = (
    "apple",
    "basket",
    "bridge",
    "candle",
    "castle",
    "copper",
    "feather",
    "garden",
    "hammer",
    "island",
    "ladder",
    "lantern",
    "marble",
    "mirror",
    "pepper",
    "pillow",
    "ribbon",
    "river",
    "saddle",
    "shadow",
    "silver",
    "thunder",
    "velvet",
    "window",
    "winter",
)
OBJECTS = (
    "the boat",
    "the bottle",
    "the box",
    "the car",
    "the chair",
    "the coat",
    "the curtain",
    "the door",
    "the fence",
    "the flag",
    "the gate",
    "the hat",
    "the house",
    "the lamp",
    "the roof",
    "the scarf",
    "the ship",
    "the sofa",
    "the table",
    "the wall",
)
COLORS = ("black", "blue", "brown", "gray", "green", "orange", "pink", "purple", "red", "white", "yellow")


@dataclass(frozen=True)
class Template:
    """A kind of fact: `The {fact} of {key} is {answer}`."""

    fact: str
    keys: Sequence[str]
    answers: Sequence[str] = ()
    """Possible answers; empty: numbers of five digits."""

    def drawn(self, generator: np.random.Generator) -> tuple[str, str]:
        """A key and its answer."""
        key = self.keys[int(generator.integers(len(self.keys)))]
        if self.answers:
            return key, self.answers[int(generator.integers(len(self.answers)))]
        first, *others = generator.integers(0, 10, 5).tolist()
        return key, "".join(map(str, [first or 1, *others]))  # a number does not begin with 0


TEMPLATES = {
    "number": Template("magic number", CITIES),
    "word": Template("secret word", PEOPLE, WORDS),
    "color": Template("color", OBJECTS, COLORS),
}
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Fractions of the haystack before the needle."""


@dataclass(frozen=True, kw_only=True)
class Planting(Settings):
    """Which needles are planted in which texts."""

    data: Path = setting(folder_path, "folder written by tokenize_c4, which supplies the texts")
    out: Path = setting(folder_path, "folder in which to write length-<tokens>/data")
    document_lengths: tuple[int, ...] = setting(positive_int, "lengths of the documents, in tokens", many="+")
    max_documents: int = setting(positive_int, "largest number of texts to use", 400)
    templates: tuple[str, ...] = setting(
        str,
        f"kinds of facts to plant in each text, from: {', '.join(TEMPLATES)}",
        ("number",),
        many="+",
        choices=TEMPLATES,
        metavar="FACT",
    )
    depths: tuple[float, ...] = setting(
        fraction, "fractions of the haystack before the needle, from 0 to 1", DEPTHS, many="+"
    )
    seed: int = setting(random_seed, "random seed of the facts", 0)

    @property
    def as_metadata(self) -> dict[str, Any]:
        """What decides the documents of a length, beside the texts."""
        values = super().as_metadata
        # Left out at their defaults, as in folders from before there were others.
        changed = [name for name in ("templates", "depths") if self.as_given[name] != getattr(Planting, name)]
        return {name: values[name] for name in ("max_documents", "seed", *changed)}


def _folders(asked: Planting, data: TokenizedData) -> Iterator[tuple[int, Path, dict[str, Any]]]:
    """Each length, its folder, and the configuration that the folder's content follows from."""
    inputs = [
        {"file": "train", "sha256": data.train_sha256},
        {"file": EVALUATION_FILE, "sha256": data.evaluation_sha256},
    ]
    for length in asked.document_lengths:
        settings = {"needles_in": length, **asked.as_metadata}
        folder = asked.out / f"length-{length}" / "data"
        yield length, folder, {"settings": settings, "inputs": {"data": inputs}}


def left(asked: Planting) -> list[str]:
    """The folders that --out lacks, one of each length; those of other settings or text are refused."""
    folders = _folders(asked, TokenizedData.open(asked.data))
    return [str(folder) for _, folder, configuration in folders if not is_complete(folder, configuration)]


def plant(asked: Planting) -> None:
    """Plant needles, and write one folder per length."""
    data = TokenizedData.open(asked.data)
    tokenizer = data.tokenizer()
    with folder_lock(asked.out, "--out"):
        for length, folder, configuration in _folders(asked, data):
            if is_complete(folder, configuration):
                continue
            texts = [text for text in data.evaluation_documents() if len(text.token_ids) >= length]
            if not texts:
                raise InputError(
                    f"no evaluation document has {length} tokens; choose smaller --document-lengths or longer"
                    " documents"
                )
            planted = [
                document_and_row
                for text in texts[: asked.max_documents]
                for template in asked.templates
                for document_and_row in needle_documents(
                    text, tokenizer, length, asked.seed, template, asked.depths
                )
            ]
            # Depths that fall on one place give one document.
            planted = [*{document.document_id: (document, row) for document, row in planted}.values()]
            columns = {name: [row[name] for _, row in planted] for name in SCHEMAS["needles"].names}
            with whole_or_absent(folder / NEEDLES_FILE) as temporary:
                write_parquet(temporary, table_of(columns, SCHEMAS["needles"]))
            write_data_folder(
                folder,
                [document for document, _ in planted],
                describe_files(folder, [folder / NEEDLES_FILE]),
                tokenizer,
                configuration,
                {},
                "plant_needles",
            )
            logger.info(
                "%s: %d documents; measure them with --long-context-length %d --targets-per-chunk %d",
                folder,
                len(planted),
                length,
                max(columns["num_answer_tokens"]),
            )


def needle_documents(
    text: EvaluationDocument,
    tokenizer: DocumentTokenizer,
    length: int,
    seed: int,
    template: str,
    depths: Sequence[float],
) -> Iterator[tuple[EvaluationDocument, dict[str, Any]]]:
    """Documents of exactly `length` tokens, answer included: the control, then one of each depth.

    A depth is the part of the haystack before the needle, 0 to 1: the place is rounded to a token, and moved
    back to the start of a word if one is near.

    Yields:
        A document, and its row of the schema `needles`.
    """
    # By document: the choice of others, of length and of depth does not change its needle.
    generator = np.random.default_rng([seed, int(text.document_id, 16)])
    key, answer = TEMPLATES[template].drawn(generator)
    fact = f"{TEMPLATES[template].fact} of {key}"
    statement = f" The {fact} is {answer}"
    # Sentences are encoded whole: an answer's tokens depend on what stands before it.
    needle_ids, in_needle = _answer_in(f"{statement}.", answer, tokenizer)
    end_ids, in_end = _answer_in(f" What is the {fact}?{statement}", answer, tokenizer)
    num_answer_tokens = len(end_ids) - in_end[0]
    for depth in (None, *depths):
        planted_ids = needle_ids[:0] if depth is None else needle_ids
        num_hay = length - len(planted_ids) - len(end_ids)
        if num_hay < 1:
            raise InputError(
                f"a length of {length} tokens has no room for a haystack: needle, question and answer take"
                f" {length - num_hay}; choose larger --document-lengths"
            )
        hay = text.token_ids[:num_hay]
        pieces = tokenizer.pieces(hay.tolist())
        place = round((depth or 0) * num_hay)
        # Not within a word; at both ends of a haystack nothing of a word is on the other side.
        starts = [
            near
            for near in range(max(0, place - 15), place + 1)
            if near in (0, num_hay) or pieces[near][:1].isspace()
        ]
        place = max(starts, default=place)
        token_ids = np.concatenate([hay[:place], planted_ids, hay[place:], end_ids]).astype(np.int32)
        spelled = "".join(tokenizer.pieces(token_ids.tolist()))
        document_id = sha256(spelled.encode()).hexdigest()[:16]
        row = {
            "document_id": document_id,
            "source_document_id": text.document_id,
            "context_length": length,
            "depth": depth,
            "needle_position": None if depth is None else place,
            "num_needle_tokens": len(planted_ids),
            "needle_answer_positions": [] if depth is None else [place + token for token in in_needle],
            "answer_position": length - num_answer_tokens,
            "num_answer_tokens": num_answer_tokens,
            "answer": answer,
            "template": template,
        }
        yield EvaluationDocument(document_id, token_ids, text.url), row


def _answer_in(text: str, answer: str, tokenizer: DocumentTokenizer) -> tuple[np.ndarray, list[int]]:
    """The token IDs of a sentence, read whole, and which of them hold its answer and the blank before it."""
    read = tokenizer.read(text)
    # Folding cases and moving blanks is how some tokenizers read; what they cannot spell is another needle.
    spelled = "".join(tokenizer.pieces(read.token_ids_N.tolist()))
    if "".join(spelled.casefold().split()) != "".join(text.casefold().split()):
        raise InputError(
            f"{tokenizer.name} cannot spell “{text.strip()}”, which becomes “{spelled.strip()}”: choose other"
            " --templates, or data of a tokenizer that can"
        )
    start = text.rindex(f" {answer}")
    starts_N, ends_N = read.characters_N2.T
    # A token may be the blank alone, or begin before it and reach into the answer: both count.
    is_in_N = (starts_N <= start + len(answer)) & ((starts_N >= start) | (ends_N > start + 1))
    return read.token_ids_N, np.flatnonzero(is_in_N).tolist()
