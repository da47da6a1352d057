"""Calibration of items that need one or several distant nouns: can a model answer both? LOG.md, 2026-11-29.

For documents of tokenize_c4 (`--source embedded --max-documents 4000 --evaluation-fraction 0.1`), the last 50
with --length tokens; the last 32 tokens stand 512 position IDs away from the others:
  python analysis/calibrate_needed.py --data DATA --model MODEL --designs line-1 line-6 --out line.parquet
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from sparsity_length.measuring.contexts import Rows, hidden_states
from sparsity_length.models.load import Loading, find_model, load_causal_lm
from sparsity_length.text import needles
from sparsity_length.text.folder import TokenizedData
from sparsity_length.text.needles import Item, Lines

GAP = 512
NUM_NEAR = 32
NUM_ITEMS = 50
MOST_ANSWER_TOKENS = 3
ADJECTIVES = ("tall", "old", "young", "rich", "poor", "kind", "quiet", "brave")


@dataclass(frozen=True)
class OneNoun:
    """Four lines of three nouns and an answer; others differ in the noun `num_needed` before the answer."""

    num_needed: int

    def drawn(self, generator: np.random.Generator) -> Item:
        """A line, and the others around it."""
        nouns = generator.permutation(needles.NOUNS).tolist()
        line, stand_ins, (answer, *ends) = nouns[:3], nouns[3:6], nouns[6:10]
        others = []
        for stand_in, end in zip(stand_ins, ends, strict=True):
            other = line.copy()
            other[-self.num_needed] = stand_in
            others.append(f" {' '.join([*other, end])}.")
        told = f" {' '.join([*line, answer])}."
        return Item(told, "\n" + told.removesuffix("."), answer, others, int(generator.integers(4)))


@dataclass(frozen=True)
class Attributes:
    """Four sentences, told apart by one to three of city, person and adjective; two solved ones before."""

    num_needed: int

    def drawn(self, generator: np.random.Generator) -> Item:
        """A sentence, and the others around it, behind the solved ones."""
        adjectives = generator.permutation(ADJECTIVES).tolist()
        people = [name.removeprefix("the ") for name in generator.permutation(needles.PEOPLE).tolist()]
        cities = generator.permutation(needles.CITIES).tolist()
        words = generator.permutation(needles.WORDS).tolist()
        pools = (adjectives, people, cities)

        def sentence(who: list[str], word: str) -> str:
            adjective, person, city = who
            return f" The secret word of the {adjective} {person} from {city} is {word}."

        shots = "".join(2 * sentence([pool[-index] for pool in pools], words[-index]) for index in (1, 2))
        own = [pool[0] for pool in pools]
        others = []
        for index in range(3):
            other = own.copy()
            place = 2 - index % self.num_needed
            other[place] = pools[place][index + 1]
            others.append(sentence(other, words[index + 1]))
        told = sentence(own, words[0])
        asked = "\n" + told.removesuffix(".")
        return Item(told, asked, words[0], [shots, *others], 1 + int(generator.integers(4)))


@dataclass(frozen=True)
class Digits:
    """Four lockers, told apart by the last one, two or three digits of their numbers."""

    num_needed: int

    def drawn(self, generator: np.random.Generator) -> Item:
        """A locker, and the others around it."""
        words = generator.permutation(needles.WORDS).tolist()
        shuffled = generator.permutation(10).tolist()
        own = generator.integers(0, 10, 3).tolist()
        own[0] = own[0] or 1
        free = [digit for digit in shuffled if digit not in own and digit][:3]

        def sentence(digits: list[int], word: str) -> str:
            return f" Locker {''.join(map(str, digits))} holds the {word}."

        others = []
        for index in range(3):
            other = own.copy()
            other[2 - index % self.num_needed] = free[index]
            others.append(sentence(other, words[index + 1]))
        told = sentence(own, words[0])
        return Item(told, "\n" + told.strip().removesuffix("."), words[0], others, int(generator.integers(4)))


@dataclass(frozen=True)
class Hops:
    """Who lives in which of four cities, and the cities' colors; asked for one city's."""

    num_needed: int

    def drawn(self, generator: np.random.Generator) -> Item:
        """The city's color, told among the other facts in random order."""
        people = generator.permutation(needles.PEOPLE).tolist()
        cities = generator.permutation(needles.CITIES).tolist()[:4]
        colors = generator.permutation(needles.COLORS).tolist()[:4]
        told, *facts = [
            f" The color of {city} is {color}." for city, color in zip(cities, colors, strict=True)
        ]
        facts += [
            f" {person.capitalize()} lives in {city}."
            for person, city in zip(people[:4], cities, strict=True)
        ]
        others = [facts[index] for index in generator.permutation(len(facts))]
        where = cities[0] if self.num_needed == 1 else f"the city where {people[0]} lives"
        asked = f" What is the color of {where}? The color of {where} is {colors[0]}"
        return Item(told, asked, colors[0], others, int(generator.integers(len(facts) + 1)))


for k in (1, 2, 3):
    needles.TEMPLATES |= {f"small-{k}": Lines(k, 3), f"place-{k}": OneNoun(k)}  # type: ignore[dict-item]
    needles.TEMPLATES |= {f"attributes-{k}": Attributes(k)}  # type: ignore[dict-item]
    needles.TEMPLATES |= {f"digits-{k}": Digits(k), f"hops-{k}": Hops(k)}  # type: ignore[dict-item]


def main() -> None:
    """Measure the designs, and write a row per item."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--designs", nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    data = TokenizedData.open(arguments.data)
    tokenizer = data.tokenizer()
    length = arguments.length
    texts = [text for text in data.evaluation_documents() if len(text.token_ids) >= length][-NUM_ITEMS:]
    checkpoint = find_model(arguments.model)
    model = load_causal_lm(checkpoint, Loading(dtype="float32"), length + GAP)
    position_ids_S = np.arange(length - 1)
    position_ids_S[-NUM_NEAR:] += GAP
    queries_1T = position_ids_S.size - np.arange(MOST_ANSWER_TOKENS, 0, -1)[None]
    table = []
    for design in arguments.designs:
        for text in texts:
            _, (document, row) = needles.needle_documents(text, tokenizer, length, 1, design, [0.5])
            token_ids_1S = document.token_ids[None].astype(np.int64)
            states = hidden_states(model, Rows(token_ids_1S[:, :-1], position_ids_S[None], None, queries_1T))
            log_probs_TV = model.logits(states[0]).log_softmax(-1)
            answer_1T = torch.as_tensor(token_ids_1S[:, -MOST_ANSWER_TOKENS:])
            of_answer_T = log_probs_TV.gather(-1, answer_1T.T)[-row["num_answer_tokens"] :, 0]
            is_right = bool((of_answer_T == log_probs_TV.amax(-1)[-len(of_answer_T) :]).all())
            of_item = {"model": checkpoint.name, "template": design, "document_id": text.document_id}
            table.append(of_item | {"gap": GAP, "is_right": is_right, "loss": -float(of_answer_T.sum())})
        sys.stdout.write(f"{pd.DataFrame(table).groupby('template')['is_right'].mean()}\n")
    pd.DataFrame(table).to_parquet(arguments.out, index=False)


if __name__ == "__main__":
    main()
