"""One text explained by one model: which tokens need far context, and which few far tokens they need.

  python pipeline/explain.py --model EleutherAI/pythia-160m --text-file letter.txt
  python pipeline/explain.py --model runs/demo/models/long-seed0 --text "..."
  fortune -l | python pipeline/explain.py --model runs/demo/models/long-seed0

Of each token of the text is measured
  1. its loss with everything before it (long context), with the s tokens right before it (short context), and
     with another text's tokens in the place of all farther ones: what only this text gives is the specific
     gain. The divergence KL(p(.|long) || p(.|short)) is the gain expected before the token is seen;
  2. the k far tokens that a rule ranks first, and what they alone, beside the short context, bring back;
  3. k*, the least k that brings back most of the gain.
The default rule takes each far token from the long context in turn and asks how far the prediction moves: it
never sees the answer. A rule that fits the answer or the prediction is measured on the foreign text too.

prints   the text, tokens coloured that gain from far context, and where those that gain most look; no colours
         where the output is no terminal, or NO_COLOR is set
writes   --out, the explorer's page of this text: opens from disk in any browser

In a notebook: from sparsity_length import explain; explain("...", "runs/demo/models/long-seed0")

on a laptop, after `make demo` (seconds):
  python pipeline/explain.py --model runs/demo/models/long-seed0 --text-file LICENSE --out license.html
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
import os

from pipeline.cli import InputError, file_path, logger, positive_int, random_seed, stage_parser
from pipeline.measuring.flags import add_model_arguments
from pipeline.measuring.rules import RULES
from pipeline.results.files import refuse_replacing, write_atomically
from pipeline.text.sources import decoded
from pipeline.text.tokenizer import add_reading_arguments

SHORT_CONTEXT_LENGTH = 16
DEFAULT_KS = (1, 4)
DEFAULT_RULES = ("leave_one_out_divergence",)
"""One pass a left-out token serves every target, and what it chooses, blind to the answer, needs no null."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    stage = stage_parser(__doc__)
    add = stage.add_argument
    # fmt: off
    add("--model", required=True, help="an OLMo run or checkpoint, a Hugging Face folder, or a hub name")
    source = stage.add_mutually_exclusive_group().add_argument
    source("--text", help="the text itself; without it and --text-file, what comes through a pipe")
    source("--text-file", type=file_path, help="a file that holds the text, in UTF-8")
    add("--out", type=file_path, default=Path("explained.html"),
        help="the page; one that is there is replaced")
    add("--targets", type=lambda text: None if text == "all" else positive_int(text), metavar="N",
        help="predict the last N tokens only; all, the default: every one with far context enough")
    add("--short-context-length", type=positive_int, default=SHORT_CONTEXT_LENGTH, help="s, in tokens")
    add("--long-context-length", type=positive_int,
        help="tokens of the text that are measured, its last; as many as text and model have if not given."
        " Twice as many take four times as long")
    add("--k", type=positive_int, nargs="+", default=list(DEFAULT_KS), help="numbers of far tokens studied")
    add("--rules", nargs="+", default=list(DEFAULT_RULES), help=f"selection rules, of: {', '.join(RULES)}")
    add("--foreign-text-file", type=file_path,
        help="the text that stands in for the far context, and of the null; English passages if not given")
    add("--tokenizer", help="a tokenizer.json, or a folder that holds one; the model's own if not given")
    add_reading_arguments(stage)
    add_model_arguments(stage, "auto", "float32; bfloat16 may choose other tokens that matter about as much")
    add("--seed", type=random_seed, default=0, help="of rules that draw")
    # fmt: on
    return stage


def main(arguments: argparse.Namespace) -> None:
    """Explain the text: print it, and write the page."""
    named = [Path(word) for word in (arguments.model, arguments.tokenizer) if word is not None]
    refuse_replacing([arguments.out], [arguments.text_file, arguments.foreign_text_file, *named])
    name, text = _name_and_text(arguments)
    foreign = arguments.foreign_text_file
    arguments.foreign_text = None if foreign is None else decoded(foreign.read_bytes(), str(foreign))
    # Imported late, for a --help, and a refusal, at once.
    from pipeline.measuring.explanation import explained, explorer_page, in_words

    explanation = explained(text, arguments)
    html = explorer_page(explanation, name)
    write_atomically(arguments.out, lambda temporary: temporary.write_text(html, encoding="utf-8"))
    is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    sys.stdout.write(in_words(explanation, is_coloured=is_coloured))
    logger.info("%s is the page", arguments.out)


def _name_and_text(arguments: argparse.Namespace) -> tuple[str, str]:
    """What the text is called, and the text."""
    if arguments.text is not None:
        name, text = "--text", arguments.text
    elif arguments.text_file is not None:
        name, file = arguments.text_file.name, arguments.text_file
        text = decoded(file.read_bytes(), str(file))
    elif sys.stdin.isatty():
        raise InputError("no text is given: name a file with --text-file, or give --text, or a pipe")
    else:
        name, text = "standard input", decoded(sys.stdin.buffer.read(), "standard input")
    if not text.strip():
        raise InputError(f"the text of {name} is empty; give one of at least two short contexts")
    return name, text
