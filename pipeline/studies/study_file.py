"""What a study is, as a file of olmo_configs/studies/ says it: text, sizes, models, evaluations.

Field names are those of the stages' flags and of pretrain.py's overrides. Lengths count tokens. Paths are
relative to the folder that the command is typed in.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from pipeline.errors import InputError, omegaconf_sentence, unknown_name

MEASURING = ("loss_differences", "length_losses", "influential_tokens")
ANALYSING = ("run_notebooks", "summary")
_UNSET_VARIABLE = re.compile(r"Environment variable '(\w+)' not found")


@dataclass
class Text:
    """What is tokenized: flags of tokenize_c4.py. None: the flag is left out."""

    source: list[str] = MISSING
    evaluation_source: list[str] | None = None
    evaluation_fraction: float | None = None
    tokenizer: str = MISSING
    max_documents: int | None = None
    max_tokens: int | None = None
    max_evaluation_documents: int | None = None


@dataclass
class Size:
    """One model size, of which all models of the study are trained."""

    config: str = MISSING
    """A file of olmo_configs/."""
    max_duration: str | None = None
    """Steps (1000) or tokens (2e9T). None: as the file says."""
    overrides: list[str] = field(default_factory=list)
    """Further overrides of pretrain.py, as they would be typed."""


@dataclass
class Model:
    """How one model of each size is trained: overrides of pretrain.py. None: the override is left out."""

    train_context_length: int = MISSING
    position_scheme: str | None = None
    pose_target_length: int | None = None
    randomized_target_length: int | None = None
    seed: int = 0


@dataclass
class Evaluation:
    """What is measured of the models, into a results folder a size."""

    stages: list[str] = field(default_factory=lambda: [*MEASURING, *ANALYSING])
    """Programs to run, of `MEASURING` and `ANALYSING`."""
    data: Text | None = None
    """Text of its own to measure on. None: the evaluation documents of the study's."""
    models: list[str] | None = None
    """Names of the study's models that are measured. None: all."""
    influential_models: list[str] = field(default_factory=list)
    """Those whose influential tokens are measured; it is the dearest stage. The first gives k*."""
    steps: list[int] | None = None
    """Checkpoints along training that are measured. None: the last one."""
    short_context_length: int = MISSING
    long_context_length: int = MISSING
    targets_per_chunk: int = 16
    max_documents: int | None = None
    max_chunks_per_document: int | None = None
    dtype: str | None = None
    rules: list[str] = field(default_factory=lambda: ["leave_one_out", "random", "nearest"])
    k: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16])


@dataclass
class SlurmTasks:
    """Tasks of each array under --slurm."""

    tokenize: int = 1
    """For the study's own text: at most one a file, and 1 where a BPE is trained."""
    measure: int = 1
    """For each measuring stage; its numbers and bytes do not depend on it."""


@dataclass
class Study:
    """A whole study."""

    run: str = MISSING
    """The folder for its data, models, results, figures and logs."""
    text_folder: str | None = None
    """For ${text_folder} in sources, so that one override moves them all."""
    data: Text = field(default_factory=Text)
    sizes: dict[str, Size] = MISSING
    sizes_in_names: bool = True
    """Whether a model is named <size>-<model>; false, where there is one size, for <model>."""
    models: dict[str, Model] = MISSING
    evaluation: Evaluation = field(default_factory=Evaluation)
    further_evaluations: dict[str, Evaluation] = field(default_factory=dict)
    """Name -> what differs from `evaluation`; reported apart, in the folder <run>/<name>."""
    slurm: SlurmTasks = field(default_factory=SlurmTasks)

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """All of them; the first is named ""."""
        return {"": self.evaluation, **self.further_evaluations}


def load_study(path: Path, overrides: Sequence[str] = ()) -> Study:
    """The study that a file and `field.subfield=value` overrides of it describe.

    Raises:
        InputError: the file is not readable, has a field that there is not, or misses one; a variable of the
            environment is not set; a name of a model or program is unknown.
    """
    for override in overrides:
        if "=" not in override:
            raise InputError(
                f"override '{override}' has no '='; write it as field=value, such as run=runs/c4"
            )
    try:
        given = OmegaConf.merge(_read(path), OmegaConf.from_dotlist(list(overrides)))
        _inherit(given)
        study = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Study), given))
    except (ConfigKeyError, ConfigAttributeError) as error:
        raise _unknown_field(path, error) from error
    except OmegaConfBaseException as error:
        raise _unreadable(path, error) from error
    assert isinstance(study, Study)
    _refuse_unknown_names(study)
    return study


def _inherit(given: Any) -> None:
    """Give every further evaluation what it does not say itself."""
    further = given.get("further_evaluations")
    if isinstance(further, DictConfig):
        for name, differing in further.items():
            further[name] = OmegaConf.merge(given.get("evaluation") or {}, differing or {})


def _read(path: Path) -> DictConfig:
    try:
        file = OmegaConf.load(path)
    except FileNotFoundError as error:
        raise InputError(f"no study file {path}; there are some in olmo_configs/studies/") from error
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise InputError(f"{path} is not a readable YAML file: {error}") from error
    if not isinstance(file, DictConfig):
        raise InputError(f"{path} does not hold the fields of a study; see olmo_configs/studies/demo.yaml")
    return file


def _unknown_field(path: Path, error: Any) -> InputError:
    """The sentence for a field that a part of the study does not have."""
    part = error.object_type
    if part not in (Study, Text, Size, Model, Evaluation, SlurmTasks):
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


def _refuse_unknown_names(study: Study) -> None:
    """Of programs, sizes and models, before anything runs."""
    if not study.sizes_in_names and len(study.sizes) > 1:
        raise InputError(
            f"sizes_in_names is false, and the models of the sizes {', '.join(study.sizes)} would share their"
            " names; leave it out"
        )
    for evaluation in study.evaluations.values():
        for stage in evaluation.stages:
            if stage not in (*MEASURING, *ANALYSING):
                raise unknown_name("stage of an evaluation", stage, (*MEASURING, *ANALYSING))
        for name in (*(evaluation.models or ()), *evaluation.influential_models):
            if name not in study.models:
                raise unknown_name("model of an evaluation", name, study.models)
        if "influential_tokens" in evaluation.stages and not evaluation.influential_models:
            raise InputError(
                "influential_tokens is to run, but influential_models names no model for it; name one of"
                f" {', '.join(study.models)}"
            )
