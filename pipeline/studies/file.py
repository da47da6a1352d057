"""What a study of text is: text, sizes, models, evaluations, as a file of olmo_configs/studies/ gives them.

Field names are those of the stages' flags and of pretrain.py's overrides. Lengths count tokens.

What a study of synthetic tasks is, as a file of olmo_configs/studies/ gives it under `synthetic`.

Field names are those of the stages' flags.

Values of a study that could not be meant, refused when its file is read: numbers, names, what is empty.

Reading a study file, with overrides, into a `Study`.

Paths are relative to the folder that the command is typed in. A study file that is not there is looked for in
this repository; a configuration, beside the study file and then in this repository.
"""

import logging
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from glob import glob
from pathlib import Path
from typing import Any, cast

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from pipeline.cli import InputError, omegaconf_sentence, unknown_name
from pipeline.measuring.flags import TARGETS_PER_CHUNK
from pipeline.measuring.rules import DEFAULT_KS, DEFAULT_RULES
from pipeline.synthetic.dependencies import (
    DEFAULT_FINDING_RULES,
    DEFAULT_INTERVENTIONS,
    LARGEST_K,
    NUM_EXAMPLES_OF_FINDING,
    NUM_SUBSTITUTES,
    SHORT_CONTEXT_LENGTH,
)
from pipeline.synthetic.evaluation import NUM_EXAMPLES

MEASURING = ("loss_differences", "length_losses", "influential_tokens")
ANALYSING = ("run_notebooks", "summary")
OF_PLANTED = ("planted", "foreign")
"""The kinds of documents that plant_signs.py always writes."""


@dataclass
class Text:
    """What is tokenized: flags of tokenize_c4.py. None: the flag is left out."""

    source: list[str] = MISSING
    further_source: list[str] | None = None
    """Globs of files that are read after those of `source`; one that matches none is left out."""
    evaluation_source: list[str] | None = None
    evaluation_fraction: float | None = None
    tokenizer: str = MISSING
    max_documents: int | None = None
    max_tokens: int | None = None
    max_evaluation_documents: int | None = None


@dataclass
class PlantedText:
    """Signs planted in the study's text: flags of plant_signs.py. None: the flag is left out."""

    context_length: int = MISSING
    short_context_length: int = MISSING
    num_planted: list[int] | None = None
    num_answers: int | None = None
    max_copies: int | None = None
    asked_per_piece: int | None = None
    document_lengths: list[int] | None = None
    """Of documents beside those as long as a piece; `of_planted` calls theirs planted-<length>."""
    every_number: bool | None = None
    max_documents: int | None = None

    @property
    def kinds(self) -> list[str]:
        """Of documents, as `of_planted` may name them."""
        return [*OF_PLANTED, *(f"planted-{length}" for length in self.document_lengths or ())]


@dataclass
class Size:
    """One model size, of which all models of the study are trained."""

    config: str = MISSING
    """A file such as olmo_configs/tiny.yaml."""
    max_duration: str | None = None
    """Steps (1000) or tokens (2e9T). None: as the file says."""
    overrides: list[str] = field(default_factory=list)
    """Further overrides of pretrain.py, as they would be typed."""
    models: list[str] | None = None
    """Names of the study's models that are trained in this size. None: all."""


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
    of_planted: str | None = None
    """Of `planted`, the documents to measure on: `planted`, `planted-<length>`, `foreign`. None: its text."""
    models: list[str] | None = None
    """Names of the study's models that are measured. None: all."""
    influential_models: list[str] = field(default_factory=list)
    """Those whose influential tokens are measured; this stage costs most. The first gives k*."""
    steps: list[int] | None = None
    """Checkpoints along training that are measured. None: the last one."""
    short_context_length: int = MISSING
    long_context_length: int = MISSING
    targets_per_chunk: int = TARGETS_PER_CHUNK
    max_documents: int | None = None
    max_chunks_per_document: int | None = None
    documents_per_shard: int | None = None
    """A killed measurement goes on at the shard. None: as many as the stages take."""
    dtype: str | None = None
    rules: list[str] = field(default_factory=lambda: [*DEFAULT_RULES])
    k: list[int] = field(default_factory=lambda: [*DEFAULT_KS])
    intervention: str | None = None
    """What stands where a token is left out. None: as influential_tokens.py takes it, another document's."""
    num_backgrounds: int | None = None
    """Foreign documents, under the intervention background. None: one."""
    num_subsets: int | None = None
    """Of the rules banzhaf* and surrogate*. None: as many as the stage takes."""
    kept_fraction: float | None = None
    """Of the rules surrogate*. None: as the stage has it."""
    learning_chunks: int | None = None
    """Of the rules learned_attention*. None: as many as the stage takes."""
    judge_with: list[str] = field(default_factory=list)
    """Names of the study's models that the chosen tokens are tried on too."""
    reference_model: str | None = None
    """The study's model, trained long, that expected gaps are told by. None: they are not measured."""


@dataclass
class SlurmTasks:
    """Tasks of each array under --slurm."""

    tokenize: int = 1
    """For the study's own text: at most one a file, and 1 where a BPE is trained."""
    measure: int = 1
    """For each measuring stage; its numbers and bytes do not depend on it."""


@dataclass
class Study:
    """What every study has."""

    run: str = MISSING
    """The folder for its data, models, results, figures and logs."""
    threads: int = 1
    """Of each command that study.py runs on this machine; the last bits of numbers depend on it, so it is not
    the machine's to say. More pay for models of some million parameters or more, where there are cores."""


@dataclass
class TextStudy(Study):
    """A whole study of language models."""

    text_folder: str | None = None
    """For ${text_folder} in sources, so that one override moves them all."""
    data: Text = field(default_factory=Text)
    planted: PlantedText | None = None
    """What is planted in the text that the models are trained on. None: nothing."""
    sizes: dict[str, Size] = MISSING
    sizes_in_names: bool = True
    """Whether a model is named <size>-<model>; false, where there is one size, for <model>."""
    models: dict[str, Model] = MISSING
    evaluation: Evaluation = field(default_factory=Evaluation)
    further_evaluations: dict[str, Evaluation] = field(default_factory=dict)
    """Name -> what differs from `evaluation`; reported apart, in the folder <run>/<name>. Null: not run."""
    slurm: SlurmTasks = field(default_factory=SlurmTasks)

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """All of them; the first is named ""."""
        return {"": self.evaluation, **self.further_evaluations}

    @property
    def texts(self) -> list[Text]:
        """The study's own, and those of evaluations."""
        of_evaluations = {id(one.data): one.data for one in self.evaluations.values() if one.data}
        return [self.data, *of_evaluations.values()]


@dataclass
class Grid:
    """Runs of train_synthetic.py: every task x position scheme x K_train x seed.

    Pairs that cannot be (coupled IDs of a task that has none) are left out.
    """

    tasks: list[str] = MISSING
    positions: list[str] = MISSING
    largest_sparsities: list[int] | None = None
    """K_train, of tasks with k. None: the configuration's."""
    seeds: list[int] = field(default_factory=lambda: [0])
    overrides: list[str] = field(default_factory=list)
    """Of every run, as they would be typed: num_steps=12000."""


@dataclass
class TaskTest:
    """What the models of one task are tested on: flags of evaluate_synthetic.py."""

    grids: list[str] | None = None
    """Names of the grids whose models are tested. None: all that train the task."""
    sizes: list[int] = MISSING
    sparsities: list[int] | None = None
    num_examples: int = NUM_EXAMPLES
    test_seed: int = 0


@dataclass
class DependencyTest(TaskTest):
    """The same, and how the rules select: flags of found_dependencies.py."""

    num_examples: int = NUM_EXAMPLES_OF_FINDING
    rules: list[str] = field(default_factory=lambda: [*DEFAULT_FINDING_RULES])
    interventions: list[str] = field(default_factory=lambda: [*DEFAULT_INTERVENTIONS])
    num_substitutes: int = NUM_SUBSTITUTES
    largest_k: int = LARGEST_K
    short_context_length: int = SHORT_CONTEXT_LENGTH


@dataclass
class Synthetic:
    """Models of synthetic tasks, and what is measured of them."""

    config: str = MISSING
    """A file such as olmo_configs/synthetic/small.yaml."""
    grids: dict[str, Grid] = MISSING
    """By names of the reader's choice; one that is null is left out."""
    evaluate_synthetic: dict[str, TaskTest] = field(default_factory=dict)
    """Task -> what its models are tested on; null: not tested."""
    found_dependencies: dict[str, DependencyTest] = field(default_factory=dict)
    """Task -> what its models are asked; null: not asked."""

    @property
    def tests(self) -> dict[str, Mapping[str, TaskTest]]:
        """Stage that measures -> task -> what it tests."""
        return {"evaluate_synthetic": self.evaluate_synthetic, "found_dependencies": self.found_dependencies}


@dataclass
class SyntheticStudy(Study):
    """A whole study of synthetic tasks: run folders in <run>/models, as train_synthetic.py leaves them."""

    synthetic: Synthetic = MISSING


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_SHARES = ("evaluation_fraction", "kept_fraction")
_MAY_BE_ZERO = ("seed", "seeds", "test_seed", *_SHARES)
_MAY_BE_EMPTY = ("overrides", "influential_models", "stages", "further_source", "judge_with")
_TAKEN = ("data", "models", "results", "figures", "logs")
"""Folders of a run: no evaluation may be named so."""


def refuse_bad_values(study: Study) -> None:
    """Refuse what needs no look at any file.

    Raises:
        InputError: names the field, its value and what would be right.
    """
    _refuse_values("", study, ("run", "threads"))
    if isinstance(study, SyntheticStudy):
        _refuse_values_of_tasks(study)
    elif isinstance(study, TextStudy):
        _refuse_values_of_text(study)


def _refuse_values_of_text(study: TextStudy) -> None:
    for size_name, size in study.sizes.items():
        _refuse_values(f"sizes.{size_name}.", size)
    for model_name, model in study.models.items():
        _refuse_values(f"models.{model_name}.", model)
    _refuse_values("slurm.", study.slurm)
    _refuse_values("data.", study.data)
    if study.planted is not None:
        _refuse_values("planted.", study.planted)
    for name, evaluation in study.evaluations.items():
        of = f"further_evaluations.{name}." if name else "evaluation."
        _refuse_values(of, evaluation)
        if evaluation.data is not None:
            _refuse_values(f"{of}data.", evaluation.data)
        _refuse_of_planted(of, study, evaluation)
    _refuse_names(study)
    for size_name, size in study.sizes.items():
        for model_name in size.models or ():
            if model_name not in study.models:
                raise unknown_name(f"model of sizes.{size_name}", model_name, study.models)
    for evaluation in study.evaluations.values():
        _refuse_unknown_names(study, evaluation)


def _refuse_of_planted(prefix: str, study: TextStudy, evaluation: Evaluation) -> None:
    kind = evaluation.of_planted
    if kind is None:
        return
    if study.planted is None:
        raise InputError(f"{prefix}of_planted is {kind}, but the study plants nothing; give it `planted`")
    if kind not in study.planted.kinds:
        raise unknown_name(f"kind of {prefix}of_planted", kind, study.planted.kinds)
    if evaluation.data is not None:
        raise InputError(f"{prefix}of_planted and {prefix}data are both given; leave one of them out")


def _refuse_values_of_tasks(study: SyntheticStudy) -> None:
    synthetic = study.synthetic
    _refuse_values("synthetic.", synthetic, ("config",))
    if not synthetic.grids:
        raise InputError("synthetic.grids names none; a study has at least one")
    for name, grid in synthetic.grids.items():
        _refuse_values(f"synthetic.grids.{name}.", grid)
    for stage, of_tasks in synthetic.tests.items():
        for task, test in of_tasks.items():
            _refuse_values(f"synthetic.{stage}.{task}.", test)
            for name in test.grids or ():
                if name not in synthetic.grids:
                    raise unknown_name(f"grid of synthetic.{stage}.{task}", name, synthetic.grids)


def _refuse_values(prefix: str, part: Any, names: Iterable[str] | None = None) -> None:
    """Numbers below one, and words and lists that are empty."""
    for name in names or [known.name for known in fields(part)]:
        value = getattr(part, name)
        if value in ("", []) and name not in _MAY_BE_EMPTY:
            raise InputError(f"{prefix}{name} is empty; give it a value, or leave it out")
        for one in value if isinstance(value, list) else [value]:
            if one == "" or one is None and isinstance(value, list):
                raise InputError(f"{prefix}{name} has an empty entry; leave it out")
            if isinstance(one, int | float) and not isinstance(one, bool):
                _refuse_number(f"{prefix}{name}", one, 0 if name in _MAY_BE_ZERO else 1)
        if name in _SHARES and value is not None and not value <= 1:
            raise InputError(f"{prefix}{name} is {value}; it is a share, at most 1")


def _refuse_number(name: str, number: float, least: int) -> None:
    if not least <= number < math.inf:
        raise InputError(f"{name} has {number}; it must be at least {least}")


def _refuse_names(study: TextStudy) -> None:
    """Names that could not be those of folders, or would be shared."""
    kinds: dict[str, Collection[str]] = {
        "sizes": study.sizes,
        "models": study.models,
        "further_evaluations": study.further_evaluations,
    }
    for kind, named in kinds.items():
        if not named and kind != "further_evaluations":
            raise InputError(f"{kind} names none; a study has at least one")
        for name in named:
            if not _NAME.fullmatch(str(name)):
                raise InputError(
                    f"{kind} has the name '{name}', which becomes a folder's: choose letters, digits, and"
                    " _ . - within"
                )
    for name in study.further_evaluations:
        if name in _TAKEN:
            raise InputError(f"an evaluation cannot be named {name}, as the study has a folder {name} itself")
    if not study.sizes_in_names and len(study.sizes) > 1:
        raise InputError(
            f"sizes_in_names is false, and the models of the sizes {', '.join(study.sizes)} would share their"
            " names; leave it out"
        )


def _refuse_unknown_names(study: TextStudy, evaluation: Evaluation) -> None:
    """Of programs and models."""
    for stage in evaluation.stages:
        if stage not in (*MEASURING, *ANALYSING):
            raise unknown_name("stage of an evaluation", stage, (*MEASURING, *ANALYSING))
    reference = [] if evaluation.reference_model is None else [evaluation.reference_model]
    named = (evaluation.models or (), evaluation.influential_models, evaluation.judge_with, reference)
    for name in (name for names in named for name in names):
        if name not in study.models:
            raise unknown_name("model of an evaluation", name, study.models)
    if "influential_tokens" in evaluation.stages and not evaluation.influential_models:
        raise InputError(
            "influential_tokens is to run, but influential_models names no model for it; name one of"
            f" {', '.join(study.models)}"
        )
    for size_name, size in study.sizes.items():
        _refuse_missing_models(size_name, size.models or list(study.models), evaluation)


def _refuse_missing_models(size: str, trained: Collection[str], evaluation: Evaluation) -> None:
    """What an evaluation cannot do without, in a size that trains only some of the study's models."""
    needed: dict[str, Collection[str]] = {"judge_with": evaluation.judge_with}
    if evaluation.reference_model is not None:
        needed["reference_model"] = [evaluation.reference_model]
    for named_by, names in needed.items():
        for name in names:
            if name not in trained:
                raise InputError(
                    f"{named_by} names {name}, which sizes.{size}.models leaves out; add it there, or name"
                    f" one of {', '.join(trained)}"
                )
    asked: dict[str, Collection[str]] = {"models": evaluation.models or trained}
    if "influential_tokens" in evaluation.stages:
        asked["influential_models"] = evaluation.influential_models
    for named_by, names in asked.items():
        if not set(names) & set(trained):
            raise InputError(
                f"{named_by} names {', '.join(names)}, of which sizes.{size}.models has none; add one"
                " of them there"
            )


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
    for name in ("data", "sizes", "models"):
        if name in given:
            raise InputError(
                f"{path} has both `synthetic` and `{name}`; a study is of synthetic tasks or of text: write"
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
