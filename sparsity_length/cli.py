"""How every program begins and ends: command line, progress, exit codes, errors of one sentence.

A program's file ends in `run_stage(parser(), main)`. What the user can mend is one line on standard error and
exit code 2. Ctrl-C and SIGTERM end a program at once: what it has written is whole. Training listens to
SIGTERM itself, and study.py to both.

Only the standard library is imported at the top: --help answers at once.
"""

import argparse
import importlib
import io
import logging
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

if TYPE_CHECKING:
    from tqdm.auto import tqdm

PROGRAMS = (
    "sparsity_length.programs.study",
    "sparsity_length.programs.tokenize_c4",
    "sparsity_length.programs.pretrain",
    "sparsity_length.programs.loss_differences",
    "sparsity_length.programs.length_interference",
    "sparsity_length.programs.influential_tokens",
    "sparsity_length.programs.evaluate_tokens",
    "sparsity_length.analysis.run_notebooks",
    "sparsity_length.analysis.summary",
    "sparsity_length.analysis.explorer",
    "sparsity_length.analysis.length_failures",
    "sparsity_length.analysis.robustness",
    "sparsity_length.analysis.choose_texts",
    "sparsity_length.programs.explain",
    "sparsity_length.programs.query",
    "sparsity_length.programs.plant_needles",
    "sparsity_length.programs.export_huggingface",
    "sparsity_length.programs.train_synthetic",
    "sparsity_length.programs.evaluate_synthetic",
)
"""A whole study, its stages in the order of the work, what is done besides, synthetic tasks."""
Item = TypeVar("Item")
Number = TypeVar("Number", int, float)
logger = logging.getLogger("sparsity_length")


class Asked(NamedTuple):
    """What study.py tells a program whose `left(arguments, asked)` it asks.

    The answer: whether anything is left to do, and what the programs that need this one are told of it, such
    as a training's configuration. InputError if it would be refused, hours later.
    """

    needed: Sequence[Any] = ()
    """What those that this one needs have answered."""
    is_ready: bool = False
    """Whether they have all finished."""
    is_plan: bool = False
    """Whether nothing will run: a text need not be there."""


class InputError(Exception):
    """Bad input. A stage prints its message as one line and exits with code 2."""


def unknown_name(kind: str, name: str, valid_names: Iterable[str]) -> InputError:
    """The error for a `kind` (such as "rule") called `name`, naming the nearest of `valid_names`."""
    from difflib import get_close_matches  # late: it is slow to load, and a name is seldom wrong

    valid_names = sorted(valid_names)
    nearest = get_close_matches(name, valid_names, n=1, cutoff=0.4)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"valid: {', '.join(valid_names)}"
    return InputError(f"unknown {kind} '{name}'; {hint}")


def cause_of(error: Exception) -> str:
    """One line for what a library says in many."""
    return " ".join(str(error).split())[:300] or type(error).__name__


class _ManualFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the docstring's own lines, and states each default."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        # "(default: None)" tells a reader nothing: such flags say themselves what leaving them out means.
        if action.default is None or action.required or isinstance(action.default, bool):
            return action.help
        return super()._get_help_string(action)


class _Parser(argparse.ArgumentParser):
    """Refuses a command line in one sentence, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        """Raise an InputError; argparse's own method, which it calls for whatever it refuses."""
        raise InputError(f"{message}; --help explains every flag")


def stage_parser(manual: str | None) -> argparse.ArgumentParser:
    """A parser whose --help is the stage's docstring followed by its flags."""
    # No abbreviations: a flag that is new tomorrow must not change what an old command means.
    return _Parser(description=manual, formatter_class=_ManualFormatter, allow_abbrev=False)


def run_stage(parser: argparse.ArgumentParser, main: Callable[[argparse.Namespace], None]) -> None:
    """Parse the command line and run `main`; what the user can mend is one line and exit code 2."""
    # Python's own handler would let an interrupted program end in a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.stderr is None:  # closed: what is said there is for nobody
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (until the end)
    try:
        if sys.stdout is None:
            raise InputError("standard output is closed: send it to a file, or to /dev/null")
        # What a terminal, or a locale such as POSIX, cannot show must not end a program after its work.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        arguments = parser.parse_args()
        logging.basicConfig(level=logging.INFO, format=f"{Path(parser.prog).stem}: %(message)s")
        # Libraries log what only their authors need; warnings of theirs still pass.
        for noisy in ("olmo", "datasets", "accelerate", "urllib3", "httpx", "fsspec"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        from tqdm.contrib.logging import logging_redirect_tqdm  # late, for a --help at once

        with logging_redirect_tqdm():
            main(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # as of | head, which has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left to be flushed at exit
        sys.exit(128 + signal.SIGPIPE)
    except (InputError, OSError, ModuleNotFoundError) as error:  # all else, with its traceback, is ours
        sentence = str(error)
        if isinstance(error, ModuleNotFoundError):
            sentence = f"{error} for {sys.executable}; `make install` brings all libraries, into .venv"
        sys.stderr.write(f"{parser.prog}: error: {' '.join(sentence.split())}\n")
        sys.exit(2)


def progress(
    items: Iterable[Item] | None, description: str, unit: str, total: int | None = None, initial: int = 0
) -> "tqdm[Item]":
    """`items` with a bar and an ETA on standard error (a line each ten seconds into a file); else the bar."""
    from tqdm.auto import tqdm  # late, for a --help at once

    return tqdm(
        items,
        desc=description,
        unit=f" {unit}",
        total=total,
        initial=initial,
        mininterval=0.5 if sys.stderr.isatty() else 10,
        dynamic_ncols=True,
        smoothing=0.05,
    )


def number(kind: Callable[[Any], Number], least: float, most: float = math.inf) -> Callable[[Any], Number]:
    """An argparse type: a number of at least `least` and at most `most`."""

    def number(given: str | Number) -> Number:  # argparse says this name of what it cannot read
        value = kind(given)
        # Of a value that is no text: 2.5 is no whole number, and True is none at all.
        if isinstance(given, bool) or not (isinstance(given, str) or value == given):
            raise argparse.ArgumentTypeError(f"{given} is no number of this kind")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{given} is not from {least} to {most}")
        return value

    return number


whole_number = partial(number, int)
positive_int = whole_number(1)
random_seed = whole_number(0)
finite_float = number(float, -1e9, 1e9)
positive_fraction = number(float, sys.float_info.min, 1)
fraction = number(float, 0, 1)


def words(given: str) -> str:
    """An argparse type: a text, whose characters are UTF-8 also in a locale that does not know it."""
    return str(given).encode(errors="surrogateescape").decode(errors="replace")


def folder_path(text: str) -> Path:
    """An argparse type: a folder, or one that can be made."""
    if not text or (Path(text).exists() and not Path(text).is_dir()):
        raise argparse.ArgumentTypeError(f"'{text}' is not a folder")
    return Path(text)


def file_path(text: str) -> Path:
    """An argparse type: a file, or one that can be made."""
    if not text or Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"'{text}' is not a file")
    return Path(text)


def main() -> None:
    """The command `sparsity`: run the program that the first word names, on the words behind it."""
    modules = {module.rpartition(".")[2]: module for module in PROGRAMS}
    command = argparse.ArgumentParser(
        prog="sparsity", description="sparsity PROGRAM --help is a program's manual"
    )
    command.add_argument("program", choices=modules, metavar="PROGRAM", help=", ".join(modules))
    name = command.parse_args(sys.argv[1:2]).program
    module = importlib.import_module(modules[name])
    # What argparse calls the program in its usage and errors.
    sys.argv = [f"sparsity {name}", *sys.argv[2:]]
    run_stage(module.parser(), module.main)
