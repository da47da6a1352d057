"""How every program begins: its streams made fit, signals listened to, its module imported and run.

Whatever a user can mend or asked for, at any moment, imports included, is one line on standard error. Only
the standard library is imported here: this must run where nothing is installed.
"""

import importlib
import os
import sys
from pathlib import Path
from typing import NoReturn

from pipeline import interruption
from pipeline.endings import endings


def start(file: str) -> NoReturn:
    """Run the program of a file, which was typed as `python pipeline/<program>.py`."""
    path = Path(file)
    prepare(path.name)
    run_module(f"{path.parent.name}.{path.stem}", path.name)


def prepare(program: str) -> None:
    """Make the process' streams fit for every character, and end it in a sentence when asked.

    Args:
        program: the program's name, as it was typed.
    """
    _use_utf8()
    _open_closed_streams()
    interruption.listen(program)


def run_module(module_name: str, program: str) -> NoReturn:
    """Import a program's module and run its `main` on the command line in `sys.argv`.

    Args:
        module_name: of a module with `parser()` and `main(arguments)`.
        program: the program's name, as it was typed.
    """
    try:
        with endings(program):
            module = importlib.import_module(module_name)
            from pipeline.stage import run_stage

            run_stage(module.parser(), module.main)
    finally:
        interruption.finish()
    sys.exit(0)


def _use_utf8() -> None:
    """Make every character of help, names and queries writable, and every file name readable.

    Where the locale says that file names are not UTF-8, Python starts once more in its UTF-8 mode, and the
    terminal keeps its encoding. What an encoding lacks is written as a backslash and a number.
    """
    if sys.getfilesystemencoding() != "utf-8":
        os.environ["PYTHONUTF8"] = "1"  # of child processes
        if sys.stdout is not None:
            os.environ.setdefault("PYTHONIOENCODING", sys.stdout.encoding)
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _open_closed_streams() -> None:
    """Fill the descriptors 0, 1 and 2 where they were closed, so that no file that is written becomes one.

    Writing to a closed standard output stays an error; what is said to a closed standard error is lost.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)  # takes the lowest free one
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", encoding="utf-8"))
