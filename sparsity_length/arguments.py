"""The library's arguments, refused if the command line would refuse them: its own parsers read numbers."""

import argparse
from collections.abc import Callable, Iterable
from numbers import Integral
from pathlib import Path
from typing import Any

from pipeline.cli import InputError, positive_int, random_seed, unknown_name, whole_number
from pipeline.explain import UNITS, duration
from pipeline.explain import targets as number_of_targets
from pipeline.measuring.flags import DTYPES

_NUMBERS = {
    "short_context_length": positive_int, "long_context_length": positive_int, "num_targets": positive_int,
    "num_swaps": positive_int, "screen": positive_int, "seed": random_seed, "k": positive_int,
    "targets": number_of_targets, "sources": positive_int, "position": whole_number(0),
    "generate": positive_int, "budget": duration,
}  # fmt: skip
_MAY_BE_NONE = {
    "long_context_length",
    "num_targets",
    "screen",
    "swap_text",
    "device",
    "at",
    "position",
    "instead",
    "generate",
    "budget",
}
_LISTS = {"k": "whole numbers", "evaluators": "models"}
_CHOICES = {"unit": UNITS, "dtype": DTYPES, "bos": ("auto", "none")}


def checked(**arguments: Any) -> dict[str, Any]:
    """The arguments by name, whole numbers as Python's own; InputError that names the first bad one."""
    return {name: _checked(name, value) for name, value in arguments.items()}


def _checked(name: str, value: Any) -> Any:
    if value is None and name in _MAY_BE_NONE:
        return None
    if name in _LISTS:
        return _list(name, value)
    if name in _NUMBERS:
        return _number(name, value)
    if name == "special_tokens":
        if not isinstance(value, bool):
            raise InputError(f"{name} is {value!r}; give True or False")
        return value
    if name == "device":
        return str(value)
    if not isinstance(value, str):
        raise InputError(f"{name} is of type {type(value).__name__}; give a string")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise unknown_name(name, value, _CHOICES[name])
    return value


def _list(name: str, value: Any) -> list[Any]:
    if isinstance(value, str | Path) or not isinstance(value, Iterable):
        raise InputError(f"{name} is {value!r:.80}; give a list of {_LISTS[name]}, such as [{value!r:.80}]")
    members = list(value)
    if not members and name != "evaluators":
        raise InputError(f"{name} is empty; give at least one")
    if name == "k":
        return [_number(name, member) for member in members]
    return members


def _number(name: str, value: Any) -> Any:
    """A whole number of any library; what is none, as True or 8.0, the parser sees as Python writes it.

    Words, as of "2m" and "all", are what the command line takes.
    """
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    is_word = isinstance(value, str) and name in ("targets", "budget")
    parse: Callable[[str], Any] = _NUMBERS[name]
    try:
        return parse(str(int(value)) if is_whole else value if is_word else repr(value))
    except argparse.ArgumentTypeError as error:
        raise InputError(f"{name}: {error}") from None
