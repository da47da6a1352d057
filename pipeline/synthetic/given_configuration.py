"""The configuration of a synthetic task's run, from a file, flags and overrides, and as the run wrote it.

A YAML file has the fields of `TaskConfig`, and under `tasks` the fields that a task sets otherwise, so that
one file serves all tasks. Flags and overrides win over both.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.errors import InputError, omegaconf_sentence, unknown_name
from pipeline.synthetic.configuration import TaskConfig
from pipeline.synthetic.coupled_positions import COUPLED_SCHEMES
from pipeline.synthetic.tasks.registry import TASKS, task_called
from pipeline.synthetic.value_checks import refuse_bad_values
from pipeline.training.given_settings import merge_given, read_overrides, read_yaml, refuse_unknown_fields


def load_task_config(path: Path, overrides: Sequence[str], *, task: str, positions: str) -> TaskConfig:
    """The configuration of one run, complete and checked.

    Args:
        path: a YAML file of `TaskConfig`'s fields, with `tasks`.
        overrides: field=value; they win over the file.
        task: the task's name.
        positions: the scheme's.

    Raises:
        InputError: one sentence naming the field and what would be right.
    """
    given = read_yaml(path)
    of_tasks = given.pop("tasks", None) or {}
    own = _fields_of_task(path, of_tasks, task)
    chosen = _chosen(overrides)
    flags = {"task": task, "positions": positions}
    if positions not in COUPLED_SCHEMES:  # one file serves all schemes; what does nothing is not recorded
        given.pop("spread_of_coupled_ids", None)
    return _complete(path, merge_given(path, given, own, chosen, flags))


def _fields_of_task(path: Path, of_tasks: Any, task: str) -> Mapping[str, Any]:
    """What `tasks` in a file sets otherwise for this task."""
    task_called(task)
    for name in of_tasks if isinstance(of_tasks, Mapping) else ():
        if name not in TASKS:
            raise unknown_name(f"task in {path}", name, TASKS)
    fields = of_tasks.get(task) or {} if isinstance(of_tasks, Mapping) else None
    if not isinstance(fields, Mapping):
        raise InputError(f"{path}: `tasks` does not hold the name of each task with the fields that it sets")
    return fields


def _chosen(overrides: Sequence[str]) -> DictConfig:
    for override in overrides:
        if override.startswith(("task=", "positions=")):
            raise InputError(f"'{override}': give it as --{override.replace('=', ' ')}")
    return read_overrides(overrides)


def read_task_config(path: Path) -> TaskConfig:
    """The configuration that a run has written.

    Raises:
        InputError: it is not there, or is none.
    """
    return _complete(path, read_yaml(path))


def _complete(path: Path, given: Any) -> TaskConfig:
    schema: DictConfig = OmegaConf.structured(TaskConfig)
    try:
        refuse_unknown_fields(cast(dict[str, Any], OmegaConf.to_container(given)), schema)
        config = OmegaConf.to_object(merge_given(path, schema, given))
    except OmegaConfBaseException as error:
        raise InputError(f"{path}: {omegaconf_sentence(error)}") from error
    assert isinstance(config, TaskConfig)
    refuse_bad_values(config)
    return config
