"""Whether this process may read results that are not complete, and what it then has to say of them.

One switch a process, --allow-partial of the programs that join results: what is read lies many calls below.
"""

import argparse

_allowed = False
_notes: dict[str, None] = {}
ADVICE = "or say --allow-partial"


def allow_partial(is_allowed: bool = True) -> None:
    """Read, from now on, the complete shards of results that are not complete; forget what was read."""
    global _allowed
    _allowed = is_allowed
    _notes.clear()


def add_partial_flag(parser: argparse.ArgumentParser) -> None:
    """The flag of every program that reads results: --allow-partial."""
    parser.add_argument(
        "--allow-partial",
        action="store_true",
        help="read what is complete of results that are not, and say so with all that is made of it",
    )


def is_allowed() -> bool:
    """Whether results that are not complete are read."""
    return _allowed


def add_note(note: str) -> None:
    """Remember what was read in part, such as "3 of 4 shards of loss_differences of model 'a'"."""
    _notes[note] = None


def partial_note() -> str:
    """What stands with every table and figure: "partial: 3 of 4 shards …"; "" where all that was read is."""
    return f"partial: {'; '.join(_notes)}" if _notes else ""
