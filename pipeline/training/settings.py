"""The settings of a run: a YAML file, overrides from the command line, and the values that they may have.

Training of language models (config.py) and of synthetic tasks (pipeline/synthetic/config.py) use it.
OmegaConf's structured merge refuses unknown names and wrong types. A number is compared with its range
before any data is read: None means "off" or "by default" and is not looked at, and nan lies in no range.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from pipeline.cli import InputError, unknown_name


@dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`."""

    least: float
    most: float = math.inf
    leaves_least_out: bool = False
    leaves_most_out: bool = False

    def __contains__(self, value: float) -> bool:
        is_above = value > self.least if self.leaves_least_out else value >= self.least
        is_below = value < self.most if self.leaves_most_out else value <= self.most
        return is_above and is_below

    def __str__(self) -> str:
        lower = f"{'above' if self.leaves_least_out else 'at least'} {self.least}"
        if self.most == math.inf:
            return f"{lower} and finite" if self.leaves_most_out else lower
        return f"{lower} and {'below' if self.leaves_most_out else 'at most'} {self.most}"


SEED = Range(0, 2**63 - 1)  # what a result's column of seeds holds
SHARE_BELOW_ONE = Range(0, 1, leaves_most_out=True)
POSITIVE = Range(0, leaves_least_out=True)
FINITE_FROM_ZERO = Range(0, leaves_most_out=True)
LEARNING_RATE = Range(0, 1000, leaves_least_out=True)  # beyond, a step overflows

Allowed = Mapping[str, "Range | tuple[str, ...]"]
"""Field of a configuration -> where its number lies, or its names; of a list, those of each of its values."""
Relation = tuple[Callable[[Any], bool], str]
"""What must hold between the fields of a configuration, and the sentence where it does not."""


def refuse_bad_fields(config: Any, allowed: Allowed, relations: Sequence[Relation]) -> None:
    """An InputError where a value, or one of a list, is not allowed, or fields do not go together."""
    for field, values in allowed.items():
        given = attrgetter(field)(config)
        for value in given if isinstance(given, list | tuple) else (given,):
            if value is None or value in values:
                continue
            if isinstance(values, Range):
                raise InputError(f"{field} is {value}; it must be {values}")
            raise unknown_name(field, value, values)
    for holds, sentence in relations:
        if not holds(config):
            raise InputError(sentence.format(config))


def read_yaml(path: Path, kind: str = "configuration", advice: str = "") -> DictConfig:
    """What a file says; an InputError, with the advice, where there is none, or it does not hold fields."""
    try:
        file = OmegaConf.load(path)
    except FileNotFoundError as error:
        raise InputError(f"no {kind} file {path}{advice}") from error
    except (OSError, ValueError, RecursionError, YAMLError, OmegaConfBaseException) as error:
        raise InputError(f"{path} is not a readable YAML file: {error}") from error
    if not isinstance(file, DictConfig):
        raise InputError(f"{path} does not hold the fields of a {kind}{advice}")
    return file


def read_overrides(overrides: Sequence[str]) -> DictConfig:
    """What `field.subfield=value` words of a command line say; an InputError names one that is not."""
    for override in overrides:
        if not override.partition("=")[0] or "=" not in override:
            raise InputError(f"override '{override}' is no field=value, such as seed=1")
        try:
            OmegaConf.from_dotlist([override])
        except (YAMLError, OmegaConfBaseException) as error:
            raise InputError(
                f"override '{override}' is not readable: behind '=' stands a value as YAML has it, such as"
                " seed=1 or betas=[0.9,0.95]"
            ) from error
    return OmegaConf.from_dotlist(list(overrides))


def settings_of(path: Path, schema: DictConfig, *parts: DictConfig) -> Any:
    """The dataclass of `schema`, its fields as the parts say, of which later ones win."""
    try:
        return OmegaConf.to_object(OmegaConf.merge(schema, *parts))
    except (OmegaConfBaseException, TypeError) as error:  # a TypeError where a list meets fields
        field, reason = getattr(error, "full_key", None), str(error).splitlines()[0]
        raise InputError(f"{path}: {f'{field}: ' if field else ''}{reason}") from error


def plain_values(config: Any) -> dict[str, Any]:
    """A dataclass as it is written to YAML: nested dicts and lists, enums by name."""
    # Through YAML itself: a config in memory has tuples and enums, one that was read back has not.
    text = OmegaConf.to_yaml(OmegaConf.structured(config))
    return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(text)))
