"""The settings of a run: a YAML file and overrides from the command line.

Training of language models (config.py) and of synthetic tasks (sparsity_length/synthetic/config.py) use it.
OmegaConf's structured merge refuses unknown names and wrong types.
"""

from collections.abc import Collection, Sequence
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from sparsity_length.cli import InputError, cause_of, unknown_name


def require(is_right: bool, sentence: str) -> None:
    """An InputError of this sentence if something is not right."""
    if not is_right:
        raise InputError(sentence)


def require_name(field: str, name: str | None, names: Collection[str]) -> None:
    """An InputError if a field's value is none of its names; None is "off" or "by default"."""
    if name is not None and name not in names:
        raise unknown_name(field, name, names)


def require_positive(config: Any, fields: str) -> None:
    """An InputError if one of the fields is 0, below it, or nan; None is "off" or "by default"."""
    for field in fields.split():
        value = attrgetter(field)(config)
        require(value is None or value > 0, f"{field} is {value}; it must be above 0")


def read_yaml(path: Path, kind: str = "configuration", advice: str = "") -> Any:
    """The fields of a file, of `olmo_configs`, which is installed, if the folder here has no such file.

    InputError, with the advice, if it is missing, no YAML, or holds no fields.
    """
    found = path
    if path.parts[:1] == ("olmo_configs",) and not path.exists():
        found = Path(str(files("sparsity_length.olmo_configs").joinpath(*path.parts[1:])))
    try:
        # Into no fields: OmegaConf merges a list with nothing but a list.
        return OmegaConf.merge({}, OmegaConf.load(found))
    except (OSError, ValueError, TypeError, RecursionError, YAMLError, OmegaConfBaseException) as error:
        raise InputError(f"no {kind} file {path} can be read{advice} ({cause_of(error)})") from error


def read_overrides(overrides: Sequence[str]) -> DictConfig:
    """What the `field.subfield=value` words of a command line say; an InputError if they are no YAML."""
    try:
        return OmegaConf.from_dotlist(list(overrides))
    except (YAMLError, OmegaConfBaseException) as error:
        raise InputError(f"an override of {' '.join(overrides)} is not YAML: {cause_of(error)}") from error


def settings_of(path: Path, schema: Any, *parts: Any) -> Any:
    """The dataclass `schema`, its fields as the parts say, of which later ones win."""
    try:
        return OmegaConf.to_object(OmegaConf.merge(schema, *parts))
    except (OmegaConfBaseException, TypeError) as error:  # a TypeError where a list meets fields
        raise InputError(f"{path}: {cause_of(error)}") from error
