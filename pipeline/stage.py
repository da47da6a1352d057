"""What every stage shares: its command line, its exit codes, its progress bar and its log."""

import argparse
import errno
import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from pipeline.errors import InputError

Item = TypeVar("Item")
logger = logging.getLogger("pipeline")


class _ManualFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the docstring's own lines, and states each default."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        # "(default: None)" tells a reader nothing: such flags say themselves what leaving them out means.
        if action.default is None or action.required or isinstance(action.default, bool):
            return action.help
        return super()._get_help_string(action)


def stage_parser(manual: str | None) -> argparse.ArgumentParser:
    """A parser whose --help is the stage's docstring followed by its flags."""
    return argparse.ArgumentParser(description=manual, formatter_class=_ManualFormatter, allow_abbrev=False)


def run_stage(parser: argparse.ArgumentParser, main: Callable[[argparse.Namespace], None]) -> None:
    """Parse the command line, run `main`, and turn what the user can mend into one line and exit code 2."""
    arguments = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO, format=f"{Path(parser.prog).stem}: %(message)s", stream=sys.stderr
    )
    # Libraries log what only their authors need; warnings of theirs still pass.
    for noisy in ("olmo", "datasets", "accelerate", "urllib3", "httpx", "fsspec"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # ai2-olmo's own use of OmegaConf; nothing a user of a stage could mend.
    warnings.filterwarnings("ignore", message=r"register_new_resolver")
    try:
        with logging_redirect_tqdm():
            main(arguments)
    except InputError as error:
        _exit_with(parser, str(error))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _exit_with(
            parser,
            f"no space left on the device while writing {error.filename or 'the output'};"
            " free some and run the same command again",
        )
    except KeyboardInterrupt:
        parser.exit(130, f"{parser.prog}: interrupted; run the same command again to go on\n")


def _exit_with(parser: argparse.ArgumentParser, sentence: str) -> None:
    parser.exit(2, f"{parser.prog}: error: {' '.join(sentence.split())}\n")


def progress(items: Iterable[Item], description: str, unit: str, total: int | None = None) -> Iterator[Item]:
    """`items`, with a progress bar and an ETA on standard error (a line each ten seconds into a file)."""
    return iter(progress_bar(items, description, unit, total))


def progress_bar(
    items: Iterable[Item] | None, description: str, unit: str, total: int | None = None, initial: int = 0
) -> "tqdm[Item]":
    """The bar behind `progress`, for loops that advance it themselves or show a number beside it."""
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


def positive_int(text: str) -> int:
    """An argparse type: a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return number


def positive_float(text: str) -> float:
    """An argparse type: a finite number above 0."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def fraction(text: str) -> float:
    """An argparse type: a number from 0 to 1."""
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return number
