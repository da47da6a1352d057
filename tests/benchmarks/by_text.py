"""Parts that benchmarks of texts share: --out has one line per text; texts in it are not measured again.

Two processes may share the texts: one does --texts 10, the other --first 10 --texts 20.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
from real_model import model_folder

from sparsity_length.models.given import GivenModel
from sparsity_length.text.sources import open_sources, read_documents
from sparsity_length.text.tokenizer import TokenizedText


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Which texts are measured with which model."""
    add = parser.add_argument
    add("--model", help="a folder or a hub name (default: SmolLM2-135M-Instruct, of tests/real_model.py)")
    add("--source", default="embedded", help="where texts are read from, as of tokenize_c4")
    add("--texts", type=int, default=4, help="texts 0 to this, exclusive")
    add("--first", type=int, default=0, help="begin with this text")
    add("--length", type=int, default=512, help="tokens of each text")
    add("--out", type=Path, default=Path(parser.prog).with_suffix(".jsonl"), help="a line per text")


def measured_texts(
    arguments: argparse.Namespace, measured: Callable[[str, TokenizedText], dict[str, Any]], **key: Any
) -> list[dict[str, Any]]:
    """The numbers of all texts, by a function of the model's folder or name, and a text.

    `key` tells lines of one text apart.
    """
    model = arguments.model or str(model_folder("smollm2"))
    tokenizer = GivenModel(model).tokenizer()
    lines = [json.loads(line) for line in arguments.out.open()] if arguments.out.exists() else []
    rows = [line for line in lines if line.items() >= key.items()]
    known = {row["text"] for row in rows}
    documents = read_documents(open_sources([arguments.source], c4_split="validation"))
    read = (tokenizer.read(document.text[: 12 * arguments.length]) for document in documents)
    long_enough = (text for text in read if len(text.token_ids_N) >= arguments.length)
    for number, text in zip(range(arguments.texts), long_enough, strict=False):
        if number >= arguments.first and number not in known:
            rows.append({"text": number, **key, **measured(model, text)})
            with arguments.out.open("a") as out:
                out.write(json.dumps(rows[-1]) + "\n")
            which = [f"text {number + 1} of {arguments.texts}", *(f"{name} {key[name]}" for name in key)]
            sys.stderr.write(f"{', '.join(which)}\n")
    return rows
