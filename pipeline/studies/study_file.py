"""Reading a study file, with overrides, into a `Study`.

Paths are relative to the folder that the command is typed in. A study file that is not there is looked for in
this repository; a configuration, beside the study file and then in this repository.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from glob import glob
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from pipeline.errors import InputError, omegaconf_sentence, unknown_name
from pipeline.studies.study_fields import (
    Evaluation,
    Model,
    PlantedText,
    Size,
    SlurmTasks,
    Study,
    Text,
    TextStudy,
)
from pipeline.studies.study_values import refuse_bad_values
from pipeline.studies.synthetic_fields import DependencyTest, Grid, Synthetic, SyntheticStudy, TaskTest

ROOT = Path(__file__).resolve().parents[2]
"""Of the repository."""
logger = logging.getLogger("pipeline")
_VARIABLE = re.compile(r"\$\{oc\.env:(\w+)\}")
_UNSET_VARIABLE = re.compile(r"Environment variable '(\w+)' not found")
_PARTS = (
    Study, TextStudy, Text, PlantedText, Size, Model, Evaluation, SlurmTasks,
    SyntheticStudy, Synthetic, Grid, TaskTest, DependencyTest,
)  # fmt: skip
_OPTIONAL = (
    "further_evaluations",
    "synthetic.grids",
    "synthetic.evaluate_synthetic",
    "synthetic.found_dependencies",
)
"""Named parts that are left out where they are null."""


def load_study(path: Path, overrides: Sequence[str] = ()) -> Study:
    """The study that a file and `field.subfield=value` overrides of it describe.

    Raises:
        InputError: the file is not readable, has a field that there is not, or misses one; a variable of the
            environment is not set; a name of a model or program is unknown.
    """
    path = find_study_file(path)
    if is_training_configuration(path):
        raise InputError(
            f"{path} is the configuration of one training; a study names it as sizes.<name>.config, and"
            " --dry-run says what it needs"
        )
    for override in overrides:
        if "=" not in override:
            raise InputError(
                f"override '{override}' has no '='; write it as field=value, such as run=runs/c4"
            )
    study = _read_study(path, overrides)
    refuse_bad_values(study)
    configured: Iterable[Size | Synthetic] = ()
    if isinstance(study, SyntheticStudy):
        configured = (study.synthetic,)
    elif isinstance(study, TextStudy):
        configured = study.sizes.values()
        for text in study.texts:
            text.source, text.further_source = [*text.source, *_present(text.further_source or [])], None
    for part in configured:
        part.config = str(_found(Path(part.config), [Path(), path.parent, ROOT]))
    return study


def _read_study(path: Path, overrides: Sequence[str]) -> Study:
    """The fields of a file and its overrides, as they are given."""
    try:
        given = OmegaConf.merge(_read(path), OmegaConf.from_dotlist(list(overrides)))
        _refuse_empty_variables(path, given)
        _leave_out_null(given)
        _inherit(given)
        study = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(_kind(path, given)), given))
    except (ConfigKeyError, ConfigAttributeError) as error:
        raise _unknown_field(path, error) from error
    except OmegaConfBaseException as error:
        raise _unreadable(path, error) from error
    except (YAMLError, TypeError, ValueError, AttributeError, RecursionError) as error:  # by what is merged
        raise InputError(f"{path} and the overrides given: {error}") from error
    assert isinstance(study, Study)
    return study


def _kind(path: Path, given: Any) -> type[Study]:
    """What a file's fields are those of."""
    if "synthetic" not in given:
        return TextStudy
    for field in ("data", "sizes", "models"):
        if field in given:
            raise InputError(
                f"{path} has both `synthetic` and `{field}`; a study is of synthetic tasks or of text: write"
                " two files"
            )
    return SyntheticStudy


def is_training_configuration(path: Path) -> bool:
    """Whether a file holds the fields of a training and not of a study.

    Raises:
        InputError: it cannot be read.
    """
    fields_given = _read(find_study_file(path))
    return "model" in fields_given and "sizes" not in fields_given


def find_study_file(path: Path) -> Path:
    """The file, in the folder that the command is typed in or else in this repository."""
    return _found(path, [Path(), ROOT])


def _found(path: Path, folders: Sequence[Path]) -> Path:
    """The file in the first of the folders that has it; `path` itself where none has."""
    return next((folder / path for folder in folders if (folder / path).exists()), path)


def _present(patterns: Sequence[str]) -> Iterator[str]:
    for pattern in patterns:
        if glob(pattern, recursive=True):  # noqa: PTH207  (Path.glob takes no absolute pattern)
            yield pattern
        else:
            logger.info("no file matches %s; the study goes without", pattern)


def _refuse_empty_variables(path: Path, given: Any) -> None:
    """An empty variable, as in `C4= make reference`, would turn ${C4}/train.json into /train.json."""
    for variable in _VARIABLE.findall(str(OmegaConf.to_container(given, resolve=False))):
        if os.environ.get(variable) == "":
            raise InputError(
                f"{path} takes a folder from the environment variable {variable}, which is empty"
            )


def _leave_out_null(given: Any) -> None:
    for place in _OPTIONAL:
        named = OmegaConf.select(given, place)
        for name in list(named) if isinstance(named, DictConfig) else ():
            if named[name] is None:
                del named[name]


def _inherit(given: Any) -> None:
    """Give every further evaluation what it does not say itself."""
    further = given.get("further_evaluations")
    if isinstance(further, DictConfig):
        for name, differing in list(further.items()):
            further[name] = OmegaConf.merge(given.get("evaluation") or {}, differing)


def _read(path: Path) -> DictConfig:
    try:
        file = OmegaConf.load(path)
    except FileNotFoundError as error:
        raise InputError(f"no study file {path}; there are some in olmo_configs/studies/") from error
    except OmegaConfBaseException as error:
        raise _unreadable(path, error) from error
    except (OSError, ValueError, RecursionError, YAMLError) as error:
        raise InputError(f"{path} is not a readable YAML file: {error}") from error
    if not isinstance(file, DictConfig):
        raise InputError(f"{path} does not hold the fields of a study; see olmo_configs/studies/demo.yaml")
    return file


def _unknown_field(path: Path, error: Any) -> InputError:
    """The sentence for a field that a part of the study does not have."""
    part = error.object_type
    if part not in _PARTS:
        return _unreadable(path, error)
    return unknown_name(f"field of {path}", error.full_key, _full_names(error.full_key, part))


def _full_names(full_key: str, part: type) -> list[str]:
    prefix = full_key.rpartition(".")[0]
    return [f"{prefix}.{known.name}" if prefix else known.name for known in fields(cast(Any, part))]


def _unreadable(path: Path, error: Any) -> InputError:
    unset = _UNSET_VARIABLE.search(str(error))
    if unset is None:
        return InputError(f"{path}: {omegaconf_sentence(error)}")
    return InputError(
        f"{path} takes {error.full_key} from the environment variable {unset[1]}, which is not set: set it to"
        f" a folder, or give the field itself, as in {error.full_key}=FOLDER"
    )
