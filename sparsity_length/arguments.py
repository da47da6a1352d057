"""The library's arguments, refused if the command line would refuse them: its own parsers read numbers."""

import argparse
from collections.abc import Callable, Iterable
from numbers import Integral
from pathlib import Path
from typing import Any

from pipeline.cli import InputError, positive_int, random_seed, unknown_name
from pipeline.measuring.flags import DTYPES

_NUMBERS = {
    "short_context_length": positive_int, "long_context_length": positive_int, "num_targets": positive_int,
    "num_backgrounds": positive_int, "screen": positive_int, "seed": random_seed, "k": positive_int,
}  # fmt: skip
_MAY_BE_NONE = {"long_context_length", "num_targets", "screen", "foreign_text", "device"}
_LISTS = {"k": "whole numbers", "judges": "models", "rules": "names of rules"}
_CHOICES = {"dtype": DTYPES, "bos": ("auto", "none")}


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
    if not members and name != "judges":
        raise InputError(f"{name} is empty; give at least one")
    if name == "k":
        return [_number(name, member) for member in members]
    return [_checked("rule", member) for member in members] if name == "rules" else members


def _number(name: str, value: Any) -> int:
    """A whole number of any library; what is none, as True or 8.0, the parser sees as Python writes it."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    parse: Callable[[str], int] = _NUMBERS[name]
    try:
        return parse(str(int(value)) if is_whole else repr(value))
    except argparse.ArgumentTypeError as error:
        raise InputError(f"{name}: {error}") from None
