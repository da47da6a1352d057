"""What every program is, and how it begins and ends: command line, progress, exit codes, one-line errors.

A program's file holds its manual, its flags and a `Stage`, and ends in `STAGE.main()`. What a program runs
is imported when it runs (`late`), and only the standard library is imported here: --help answers at once.

An error that the user can fix is one line on standard error, with exit code 2. Ctrl-C and SIGTERM end a
program at once: what it has written is whole. Training handles SIGTERM itself, and study.py handles both.
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
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from tqdm.auto import tqdm

PROGRAMS = {
    "explain one text": ("programs.explain",),
    "a whole study": ("programs.study",),
    "text and training": (
        "programs.tokenize_c4",
        "programs.plant_needles",
        "programs.pretrain",
        "programs.export_huggingface",
    ),
    "measure": (
        "programs.loss_differences",
        "programs.influential_tokens",
        "programs.evaluate_tokens",
        "programs.length_interference",
    ),
    "synthetic tasks": ("programs.train_synthetic", "programs.evaluate_synthetic"),
    "results": (
        "programs.query",
        "analysis.run_notebooks",
        "analysis.summary",
        "analysis.explorer",
    ),
    "studies of this repository": (
        "analysis.reference.choose_texts",
        "analysis.reference.length_failures",
        "analysis.reference.robustness",
    ),
}
"""Group -> modules of its programs, below sparsity_length."""
ALIASES = {"tokenize": "tokenize_c4", "losses": "loss_differences"}
"""Second name -> the program it runs. No file has it: tokenize.py would hide Python's own module."""
MODULES = {
    module.rpartition(".")[2]: f"sparsity_length.{module}" for group in PROGRAMS.values() for module in group
}
"""Program, or its second name -> its module."""
MODULES |= {alias: MODULES[program] for alias, program in ALIASES.items()}
_PROJECT = "sparsity-length-generalization"
Item = TypeVar("Item")
Number = TypeVar("Number", int, float)
logger = logging.getLogger("sparsity_length")


class InputError(Exception):
    """Bad input. A stage prints its message as one line and exits with code 2."""


def unknown_name(kind: str, name: str, valid_names: Iterable[str]) -> InputError:
    """The error for a `kind` (such as "rule") called `name`, naming the nearest of `valid_names`."""
    from difflib import get_close_matches  # late: it is slow to load, and a name is seldom wrong

    valid_names = sorted(valid_names)
    nearest = get_close_matches(str(name), valid_names, n=1, cutoff=0.4)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"valid: {', '.join(valid_names)}"
    return InputError(f"unknown {kind} '{name}'; {hint}")


def cause_of(error: Exception) -> str:
    """One line for what a library says in many."""
    return " ".join(str(error).split())[:300] or type(error).__name__


class _ManualFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the docstring's own lines, and says of each flag its default, or that it is required."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.required and action.option_strings:
            return f"{action.help} (required)"
        default = action.default
        is_list = isinstance(default, list | tuple)
        said = ", ".join(map(_in_words, default)) if is_list else _in_words(default)
        # The help of a flag without a default says itself what leaving it out means.
        return f"{action.help} (default: {said})" if said else action.help

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        kind = getattr(action.type, "__name__", "")
        metavars = {"number": "N", "folder_path": "FOLDER", "file_path": "FILE"}
        return metavars.get(kind) or super()._get_default_metavar_for_optional(action)


def _in_words(default: object) -> str:
    """A flag's default; nothing for one that says nothing."""
    if default is None or isinstance(default, bool) or default == argparse.SUPPRESS:
        return ""
    return f"{default:,}" if isinstance(default, int) else str(default)


class _Parser(argparse.ArgumentParser):
    """Refuses a command line in one sentence, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        """Raise an InputError; argparse's own method, which it calls for whatever it refuses."""
        raise InputError(f"{message}; --help explains every flag")


def late(place: str) -> Callable[..., Any]:
    """The function `module:name`, whose module is imported when the function is called."""

    def call(*values: Any, **named: Any) -> Any:
        module, _, name = place.partition(":")
        return getattr(importlib.import_module(module), name)(*values, **named)

    return call


@dataclass(frozen=True)
class Stage:
    """A program: what its command line is, what it does, and what study.py asks before it runs anything."""

    manual: str | None
    """What --help prints before the flags: the docstring of the program's file."""
    add_flags: Callable[[argparse.ArgumentParser], object]
    run: Callable[[argparse.Namespace], object]
    settings: Callable[[argparse.Namespace, Sequence[Any]], Any] = lambda arguments, needed: None
    """What a command line asks for, checked as far as that is possible before the programs that it needs have
    run, whose own settings are given; InputError."""
    left: Callable[[argparse.Namespace], Sequence[str]] = lambda arguments: ("everything",)
    """What is still to do, a line each, once the programs that it needs have finished. InputError if what is
    there was made otherwise than the command line asks."""
    check_input: Callable[[argparse.Namespace, bool], object] = lambda arguments, is_next: None
    """InputError if something that no program makes, such as a text, cannot be opened. What other programs
    make counts only if the command is next: those that it needs have finished."""

    def parser(self, name: str | None = None) -> argparse.ArgumentParser:
        """The command line, whose --help is the manual followed by the flags.

        `name` is what it calls the program (default: the file that runs).
        """
        # No abbreviations: a flag that is new tomorrow must not change what an old command means.
        parser = _Parser(name, None, self.manual, formatter_class=_ManualFormatter, allow_abbrev=False)
        self.add_flags(parser)
        return parser

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """The flags of a command line; InputError."""
        # Intermixed: words such as field=value may stand before, between and after the flags.
        return self.parser().parse_intermixed_args(words)

    def __call__(self, words: Sequence[str]) -> None:
        """Run on the words of a command line."""
        self.run(self.parse(words))

    def main(self, name: str | None = None) -> None:
        """Run on the words of this process's command line, under a name as of `parser`.

        An error that the user can fix is one line and exit code 2.
        """
        # Python's own handler would let an interrupted program end in a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if sys.stderr is None:  # closed: what is said there is for nobody
            sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (until the end)
        parser = self.parser(name)
        try:
            if sys.stdout is None:
                raise InputError("standard output is closed: send it to a file, or to /dev/null")
            # What a terminal, or a locale such as POSIX, cannot show must not end a program after its work.
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(errors="replace")
            arguments = parser.parse_intermixed_args()
            logging.basicConfig(level=logging.INFO, format=f"{Path(parser.prog).stem}: %(message)s")
            # Libraries log what only their authors need; warnings of theirs still pass.
            for noisy in ("olmo", "datasets", "accelerate", "urllib3", "httpx", "fsspec"):
                logging.getLogger(noisy).setLevel(logging.WARNING)
            from tqdm.contrib.logging import logging_redirect_tqdm  # late, for a --help at once

            with logging_redirect_tqdm():
                self.run(arguments)
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


def stage_of(program: str) -> Stage:
    """The stage of a program of this name; InputError if there is none."""
    if program not in MODULES:
        raise unknown_name("program", program, MODULES)
    stage: Stage = importlib.import_module(MODULES[program]).STAGE
    return stage


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
        miniters=0,  # so that `update(0)` shows what is new
        dynamic_ncols=True,
        smoothing=0.05,
    )


def number(kind: Callable[[Any], Number], least: float, most: float = math.inf) -> Callable[[Any], Number]:
    """An argparse type: a number of at least `least` and at most `most`."""

    def number(given: str | Number) -> Number:
        try:
            value = kind(given)
            # Of a value that is no text: 2.5 is no whole number, and True is none at all.
            if isinstance(given, bool) or not (isinstance(given, str) or value == given):
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            what = "whole number" if kind is int else "number"
            raise argparse.ArgumentTypeError(f"{given!r:.99} is not a {what}") from None
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


def path_of(given: str | Path) -> Path:
    """The path that is meant: ~ is the home folder, also behind --flag= and in Python, where no shell is."""
    return Path(os.path.expanduser(given))  # noqa: PTH111 (Path's own fails if nobody has the name behind ~)


def folder_path(text: str) -> Path:
    """An argparse type: a folder, or one that can be made."""
    path = path_of(text)
    if not text or (path.exists() and not path.is_dir()):
        raise argparse.ArgumentTypeError(f"'{text}' is not a folder")
    return path


def file_path(text: str) -> Path:
    """An argparse type: a file, or one that can be made."""
    path = path_of(text)
    if not text or path.is_dir():
        raise argparse.ArgumentTypeError(f"'{text}' is not a file")
    return path


def main() -> None:
    """The command `sparsity`: run the program that the first word names, on the words behind it."""
    name = "".join(sys.argv[1:2]).replace("-", "_")
    if name in MODULES:
        # What is left is what a program finds that is run by its file.
        sys.argv[:2] = [f"sparsity {name}"]
        stage_of(name).main(sys.argv[0])
        return
    command = argparse.ArgumentParser(
        "sparsity",
        "sparsity PROGRAM [flags …]",
        _all_programs(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--version", action="version", version=f"sparsity {version(_PROJECT)}")
    command.add_argument("PROGRAM", help=argparse.SUPPRESS)
    found = command.parse_args(sys.argv[1:2] or ["--help"]).PROGRAM
    command.error(str(unknown_name("program", found, MODULES)))


def _all_programs() -> str:
    """The programs by groups, each with the first line of its manual."""
    lines = ["`sparsity PROGRAM --help` prints the manual of a program. Hyphens may replace underscores."]
    for group, modules in PROGRAMS.items():
        lines.append(f"\n{group}:")
        for module in modules:
            # Read and not imported, as some programs import much.
            found = find_spec(f"sparsity_length.{module}")
            assert found is not None and found.origin is not None
            source = Path(found.origin).read_text(encoding="utf-8")
            does = source.partition("\n")[0].strip('".')
            name = module.rpartition(".")[2]
            names = [*(alias for alias, program in ALIASES.items() if program == name), name]
            lines.append(f"  {', '.join(names):26}{does}")
    return "\n".join(lines)
