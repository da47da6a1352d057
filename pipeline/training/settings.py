"""The settings of a run: a YAML file and overrides from the command line.

Training of language models (config.py) and of synthetic tasks (pipeline/synthetic/config.py) use it.
OmegaConf's structured merge refuses unknown names and wrong types.
"""

import math
from collections.abc import Collection, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from pipeline.cli import InputError, cause_of, unknown_name


def require(is_right: bool, sentence: str) -> None:
    """An InputError of this sentence where something is not right."""
    if not is_right:
        raise InputError(sentence)


def require_name(field: str, name: str | None, names: Collection[str]) -> None:
    """An InputError where a field's value is none of its names; None is "off" or "by default"."""
    if name is not None and name not in names:
        raise unknown_name(field, name, names)


def require_numbers(config: Any, fields: str, *, most: float = math.inf, zero: bool = False) -> None:
    """An InputError where a field, or a value of a list, is not between 0 and `most`, both left out.

    With `zero` it may be 0. None is "off" or "by default"; nan lies nowhere.
    """
    for field in fields.split():
        given = attrgetter(field)(config)
        for value in given if isinstance(given, list | tuple) else (given,):
            is_right = value is None or 0 < value < most or (zero and value == 0)
            wanted = (
                f"{'at least' if zero else 'above'} 0 and {'finite' if most == math.inf else f'below {most}'}"
            )
            require(is_right, f"{field} is {value}; it must be {wanted}")


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
    try:
        for override in overrides:
            require(override.find("=") > 0, f"override '{override}' is no field=value, such as seed=1")
        return OmegaConf.from_dotlist(list(overrides))
    except (YAMLError, OmegaConfBaseException) as error:
        raise InputError(f"an override of {' '.join(overrides)} is no YAML: {cause_of(error)}") from error


def settings_of(path: Path, schema: DictConfig, *parts: DictConfig) -> Any:
    """The dataclass of `schema`, its fields as the parts say, of which later ones win."""
    try:
        return OmegaConf.to_object(OmegaConf.merge(schema, *parts))
    except (OmegaConfBaseException, TypeError) as error:  # a TypeError where a list meets fields
        field = getattr(error, "full_key", None)
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: {f'{field}: ' if field else ''}{reason}") from error


def plain_values(config: Any) -> dict[str, Any]:
    """A dataclass as it is written to YAML: nested dicts and lists, enums by name."""
    # Through YAML itself: a config in memory has tuples and enums, one that was read back has not.
    text = OmegaConf.to_yaml(OmegaConf.structured(config))
    return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(text)))
