"""The ends of every program: what is no mistake of ours is one sentence on standard error and an exit code.

Only the standard library is imported here: this must run where nothing is installed.
"""

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline import interruption
from pipeline.errors import InputError, is_out_of_memory, os_error_sentence

EXIT_BAD_INPUT = 2
EXIT_NO_READER = 141
"""What a shell reports of a program that SIGPIPE ended; here it ends by itself, in silence."""
_OURS = ("pipeline", "analysis")


@contextmanager
def endings(program: str) -> Iterator[None]:
    """Turn what ends the block, where it is no mistake of ours, into one sentence and an exit code.

    Raises:
        SystemExit: with that exit code; 2 for what the user can mend.
    """
    try:
        try:
            yield
        finally:
            _flush_output()
    except KeyboardInterrupt as interrupt:
        exit_code, said = interruption.ending_of(interrupt)
        sys.stderr.write(f"{program}: {said}\n")
        sys.exit(exit_code)
    except BrokenPipeError:
        if not _reader_has_gone():
            raise
        sys.exit(EXIT_NO_READER)
    except (InputError, MemoryError, OSError, ModuleNotFoundError, RuntimeError) as error:
        sentence = _sentence_of(error)
        if sentence is None:
            raise
        sys.stderr.write(f"{program}: error: {' '.join(sentence.split())}\n")
        sys.exit(EXIT_BAD_INPUT)


def _sentence_of(error: Exception) -> str | None:
    """What was wrong, where, and what would be right; None for a mistake of ours."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        library = (error.name or "").partition(".")[0]
        return None if library in _OURS else _missing_library(library)
    if is_out_of_memory(error):
        return (
            "the memory does not suffice; end other programs, ask for less at once, or take a larger machine"
        )
    return os_error_sentence(error) if isinstance(error, OSError) else None


def _missing_library(library: str) -> str:
    root = Path(__file__).resolve().parent.parent
    environment = root / ".venv"
    if sys.prefix != sys.base_prefix:  # an environment is active, and lacks it
        remedy = f"`{sys.executable} -m pip install --editable '{root}[analysis]'` installs it"
    elif (environment / "bin/python").exists():
        remedy = f"type `. {environment}/bin/activate` first, or `{environment}/bin/python` for `python`"
    else:
        remedy = (
            f"type `make -C {root} install`, which makes {environment}, then `. {environment}/bin/activate`"
        )
    return f"the library {library} is not installed for {sys.executable}; {remedy}"


def _flush_output() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        # Else the interpreter tries once more at its end, and complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise


def _reader_has_gone() -> bool:
    """Whether nobody reads standard output or standard error any more, as after `| head`."""
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)  # errors are told unasked
    return any(event & select.POLLERR for _, event in poll.poll(0))
