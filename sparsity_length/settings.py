"""Settings of a stage, said once: a dataclass gives flags, the checks of Python arguments, and metadata.

A field has a type, a help text and a default, by `setting`. A command line, the library's arguments and the
metadata of results all build the same class, so all are checked alike, and what a default is stands in one
place. A class may resolve what was asked for into what is done (`resolve`); built again from its own values
it is the same.
"""

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args

from sparsity_length.cli import InputError, unknown_name

REQUIRED: Any = dataclasses.MISSING


def setting(
    kind: Callable[[Any], Any],
    help: str,
    default: Any = REQUIRED,
    *,
    many: Literal["", "+", "*"] = "",
    choices: Iterable[str] | None = None,
    metavar: str | None = None,
) -> Any:
    """A field of `Settings`.

    Args:
        kind: reads a word of a command line, and checks a value; ValueError, TypeError or argparse's own
            error if that is none.
        many: "+" if it is a tuple of such, "*" if it may be empty; one value alone is taken for one of one.
        choices: the valid values.
    """
    metadata = {"kind": kind, "help": help, "many": many, "choices": choices, "metavar": metavar}
    return dataclasses.field(default=default, metadata=metadata)


def switch(help: str) -> Any:
    """A field that is false unless it is asked for."""
    return setting(bool, help, False)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a stage; InputError names the field that has a value of another kind."""

    def __post_init__(self) -> None:
        self._set(self.checked(**self.as_given))
        self._set(self.resolve())

    def _set(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)  # the class is frozen for everybody else

    @property
    def as_given(self) -> dict[str, Any]:
        """Field -> value."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def resolve(self) -> dict[str, Any]:
        """What follows from the other fields, by name; InputError if they do not fit together."""
        return {}

    @property
    def as_metadata(self) -> dict[str, Any]:
        """The fields as JSON values; what is None is left out."""
        values = {name: value for name, value in self.as_given.items() if value is not None}
        return {name: [*value] if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def names(cls) -> list[str]:
        """The fields."""
        return [one.name for one in fields(cls)]

    @classmethod
    def of(cls, given: Mapping[str, Any], **others: Any) -> Self:
        """From a mapping that may hold more: a command line's arguments, or the metadata of results."""
        return cls(**{name: given[name] for name in cls.names() if name in given} | others)

    @classmethod
    def given_to(cls, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the settings, as a `Stage` has it: of a command line's arguments, and all else."""
        return lambda arguments, *others: function(cls.asked(arguments), *others)

    @classmethod
    def asked(cls, arguments: argparse.Namespace, needed: object = ()) -> Self:
        """What a command line asks for, as a `Stage` has it."""
        return cls.of(vars(arguments))

    @classmethod
    def checked(cls, **values: Any) -> dict[str, Any]:
        """Values of some fields, each checked by itself; InputError as of the class."""
        known = {one.name: one for one in fields(cls)}
        return {name: _checked(known[name], value) for name, value in values.items()}

    @classmethod
    def add_flags(cls, parser: Any, *names: str) -> None:
        """Add a flag for each field, or those named, to a parser or a group of one."""
        for one in fields(cls):
            if names and one.name not in names:
                continue
            facts = one.metadata
            is_required = one.default is REQUIRED
            words: dict[str, Any] = {"help": facts["help"], "default": None if is_required else one.default}
            if facts["kind"] is bool:
                words["action"] = "store_true"
            else:
                words |= {"type": facts["kind"], "metavar": facts["metavar"], "choices": facts["choices"]}
                words |= {"nargs": facts["many"]} if facts["many"] else {}
                words |= {"required": True} if is_required else {}
            parser.add_argument(f"--{one.name.replace('_', '-')}", **words)


def _checked(field: "dataclasses.Field[Any]", value: Any) -> Any:
    """The value of a field, as its kind reads it."""
    if value is None and type(None) in get_args(field.type):
        return None
    if getattr(value, "ndim", None) == 0:  # of NumPy or torch
        value = value.item()
    kind = field.metadata["kind"]
    if kind is bool and not isinstance(value, bool):
        raise InputError(f"{field.name}: {value!r} is neither True nor False")
    choices = field.metadata["choices"]
    is_alone = isinstance(value, str | bytes) or not isinstance(value, Iterable)
    values = [value] if is_alone else list(value)
    many = field.metadata["many"]
    if not is_alone and not many:
        raise InputError(f"{field.name}: {value!r} is more than one value")
    if not values and many == "+":
        raise InputError(f"{field.name}: no value is given")
    try:
        read = [kind(one) for one in values]
    except (ValueError, TypeError, argparse.ArgumentTypeError) as error:
        raise InputError(f"{field.name}: {error}") from error
    for one in read if choices else ():
        if one not in choices:
            raise unknown_name(field.name.replace("_", " "), one, choices)
    return tuple(read) if many else read[0]
