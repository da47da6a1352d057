"""What every stage shares: its command line, its exit codes, its progress bar and its log."""

import argparse
import logging
import math
import stat
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from pipeline.endings import endings
from pipeline.errors import os_error_sentence

if TYPE_CHECKING:
    from tqdm.auto import tqdm

Item = TypeVar("Item")
LARGEST_INT = (1 << 63) - 1
"""What a column of results, and every generator of random numbers, can hold."""
_LONGEST_SHOWN = 40
logger = logging.getLogger("pipeline")


class _ManualFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the docstring's own lines, and states each default."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        # "(default: None)" tells a reader nothing: such flags say themselves what leaving them out means.
        if action.default is None or action.required or isinstance(action.default, bool):
            return action.help
        return super()._get_help_string(action)


_RENAMED_FLAGS = {"--shard-index": "--task-index", "--num-shards": "--num-tasks"}


class _Parser(argparse.ArgumentParser):
    """Refuses a command line in one sentence, without the usage before it."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse flags of earlier versions by their new names, then parse as argparse does."""
        for word in sys.argv[1:] if args is None else args:
            flag = word.partition("=")[0]
            if flag in _RENAMED_FLAGS and _RENAMED_FLAGS[flag] in self._option_string_actions:
                self.error(f"{flag} is called {_RENAMED_FLAGS[flag]} now")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Exit with code 2; argparse's own method, which it calls for whatever it refuses."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}; --help explains every flag\n")


def stage_parser(manual: str | None) -> argparse.ArgumentParser:
    """A parser whose --help is the stage's docstring followed by its flags."""
    return _Parser(description=manual, formatter_class=_ManualFormatter, allow_abbrev=False)


def run_stage(parser: argparse.ArgumentParser, main: Callable[[argparse.Namespace], None]) -> None:
    """Parse the command line and run `main`; what the user can mend is one line and exit code 2."""
    with endings(parser.prog):
        arguments = parser.parse_args()
        logging.basicConfig(
            level=logging.INFO, format=f"{Path(parser.prog).stem}: %(message)s", stream=sys.stderr
        )
        # Libraries log what only their authors need; warnings of theirs still pass.
        for noisy in ("olmo", "datasets", "accelerate", "urllib3", "httpx", "fsspec"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        # ai2-olmo's own use of OmegaConf; nothing a user of a stage could mend.
        warnings.filterwarnings("ignore", message=r"register_new_resolver")
        from tqdm.contrib.logging import logging_redirect_tqdm  # late, for a --help at once

        with logging_redirect_tqdm():
            main(arguments)


def progress(items: Iterable[Item], description: str, unit: str, total: int | None = None) -> Iterator[Item]:
    """`items`, with a progress bar and an ETA on standard error (a line each ten seconds into a file)."""
    return iter(progress_bar(items, description, unit, total))


def progress_bar(
    items: Iterable[Item] | None, description: str, unit: str, total: int | None = None, initial: int = 0
) -> "tqdm[Item]":
    """The bar behind `progress`, for loops that advance it themselves or show a number beside it."""
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


def whole_number(least: int, most: int = LARGEST_INT) -> Callable[[str], int]:
    """An argparse type: a whole number from `least` to `most`; to what 64 bits hold by default."""
    wanted = f"of at least {least}, within 64 bits" if most == LARGEST_INT else f"from {least} to {most}"

    def parsed(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{_shown(text)} is not a whole number {wanted}")
        return number

    return parsed


positive_int = whole_number(1)
"""An argparse type: a whole number of at least 1."""
random_seed = whole_number(0)
"""An argparse type: what every generator of random numbers takes, and a column of results holds."""


def finite_float(text: str) -> float:
    """An argparse type: a number, neither infinite nor nan."""
    return _refused_unless(math.isfinite, text, "a finite number")


def positive_float(text: str) -> float:
    """An argparse type: a finite number above 0."""
    return _refused_unless(lambda number: 0 < number < math.inf, text, "a finite number above 0")


def positive_fraction(text: str) -> float:
    """An argparse type: a number above 0, and at most 1."""
    return _refused_unless(lambda number: 0 < number <= 1, text, "a number above 0 and at most 1")


def fraction(text: str) -> float:
    """An argparse type: a number from 0 to 1."""
    return _refused_unless(lambda number: 0 <= number <= 1, text, "between 0 and 1")


def _refused_unless(is_right: Callable[[float], bool], text: str, wanted: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan  # which no range holds
    if not is_right(number):
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not {wanted}")
    return number


def folder_path(text: str) -> Path:
    """An argparse type: a folder that exists or can be made; no file, not below one, no loop of links."""
    mode = _mode_of(text)
    if mode is not None and not stat.S_ISDIR(mode):
        raise argparse.ArgumentTypeError(f"{text} is a file, and a folder is wanted")
    return Path(text)


def file_path(text: str) -> Path:
    """An argparse type: a file that exists or can be made; no folder, not below a file, no loop of links."""
    mode = _mode_of(text)
    if mode is not None and stat.S_ISDIR(mode):
        raise argparse.ArgumentTypeError(f"{text} is a folder, and a file is wanted")
    return Path(text)


def _mode_of(path: str) -> int | None:
    """The kind of what is there; None where nothing is."""
    if not path or "\0" in path:
        raise argparse.ArgumentTypeError("a path is wanted, and none is given")
    try:
        return Path(path).stat().st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise argparse.ArgumentTypeError(os_error_sentence(error) or str(error)) from error


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
