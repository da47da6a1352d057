"""What a study is, as a file of olmo_configs/studies/ says it, and reading one with overrides.

Field names are those of the programs' flags, which --help explains, and of pretrain.py's overrides; None: the
program's own default. Lengths count tokens. Paths are relative to the folder that the command is typed in. A
study file that is not there is looked for in this repository; a configuration, beside the study file and then
in this repository. Numbers are checked by the programs' own parsers (study.py), names here.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.cli import InputError, logger, unknown_name
from pipeline.measuring.flags import TARGETS_PER_CHUNK
from pipeline.measuring.rules import DEFAULT_RULES
from pipeline.training.settings import read_overrides, read_yaml, settings_of

ROOT = Path(__file__).resolve().parents[2]
"""Of the repository."""
MEASURING = ("loss_differences", "length_losses", "influential_tokens", "evaluate_tokens")
ON_REQUEST = ("length_interference",)
"""Measures only in studies that name it among their stages."""
ANALYSING = ("run_notebooks", "summary")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_FOLDERS_OF_A_RUN = ("data", "models", "results", "figures", "logs")


@dataclass
class Text:
    """What is tokenized: flags of tokenize_c4.py."""

    source: list[str] = MISSING
    further_source: list[str] | None = None
    """Globs of files that are read after those of `source`; one that matches none is left out."""
    evaluation_source: list[str] | None = None
    evaluation_fraction: float | None = None
    tokenizer: str = MISSING
    max_documents: int | None = None


@dataclass
class Size:
    """One model size; the study's models are trained in each."""

    config: str = MISSING
    """A file such as olmo_configs/tiny.yaml."""
    max_duration: str | None = None
    """Steps (1000) or tokens (2e9T). None: as the file says."""
    overrides: list[str] = field(default_factory=list)
    """As they would be typed."""
    models: list[str] | None = None
    """Names of the study's models that are trained in this size. None: all."""


@dataclass
class Model:
    """How one model of each size is trained: overrides of pretrain.py. Or one that exists."""

    train_context_length: int = MISSING
    position_scheme: str | None = None
    pose_target_length: int | None = None
    randomized_target_length: int | None = None
    seed: int = 0
    checkpoint: str | None = None
    """An existing model, as --checkpoints takes it: a folder, or NAME[@REVISION] on the hub. Then all models
    of the study are such, and it has no `sizes`."""


@dataclass
class Evaluation:
    """What is measured of the models, into a results folder a size; fields without a word are flags."""

    stages: list[str] = field(default_factory=lambda: [*MEASURING, "run_notebooks", "summary"])
    """Programs to run, of `MEASURING`, `ON_REQUEST` and `ANALYSING`."""
    notebooks: list[str] | None = None
    """Names of those that run_notebooks executes. None: all that the results have what they need for."""
    data: Text | None = None
    """Text of its own to measure on. None: the evaluation documents of the study's."""
    models: list[str] | None = None
    """Names of the study's models that are measured. None: all."""
    influential_models: list[str] = field(default_factory=list)
    """Those whose influential tokens are measured; this stage costs most."""
    steps: list[int] | None = None
    """Checkpoints along training that are measured. None: the last one."""
    short_context_length: int = MISSING
    long_context_length: int = MISSING
    targets_per_chunk: int = TARGETS_PER_CHUNK
    target_stride: int | None = None
    max_documents: int | None = None
    loss_documents: int | None = None
    """Of loss_differences, the cheapest stage: more documents narrow its intervals. None: `max_documents`."""
    max_chunks_per_document: int | None = None
    documents_per_shard: int | None = None
    dtype: str | None = None
    rules: list[str] = field(default_factory=lambda: [*DEFAULT_RULES])
    k: list[int] | None = None
    ablation: str | None = None
    num_swaps: int | None = None
    screen: int | None = None
    null_fraction: float | None = None
    choices: str | None = None
    """The evaluation whose choices evaluate_tokens tries: its name; `evaluation` is the study's first. None:
    this one."""
    minimum_gain: float | None = None
    evaluators: list[str] = field(default_factory=list)
    """Names of the study's models that evaluate_tokens tries the chosen tokens on. Empty: it is not run."""
    reference_model: str | None = None
    """The study's model, trained long, that expected gaps compare with. None: they are not measured."""
    length_interference: dict[str, Any] = field(default_factory=dict)
    """That stage's own flags: placements, near_context_length and so on."""


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

    @property
    def logs(self) -> Path:
        """The folder of the commands' logs."""
        return Path(self.run) / "logs"


@dataclass
class TextStudy(Study):
    """A whole study of language models."""

    text_folder: str | None = None
    """For ${text_folder} in sources, so that one override moves them all."""
    data: Text = field(default_factory=Text)
    sizes: dict[str, Size] = field(default_factory=dict)
    """None: of existing models."""
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
    in_names: str = ""
    """Stands before the seed in the names of runs: -log_length, say, where another grid has these tasks."""


@dataclass
class Synthetic:
    """Models of synthetic tasks, and what is measured of them; what is null is left out."""

    config: str = MISSING
    """A file such as olmo_configs/synthetic/small.yaml."""
    grids: dict[str, Grid] = MISSING
    """By names of the reader's choice."""
    evaluate_synthetic: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name -> flags of one run of the program. `task` is the name unless it is given; `grids` names those
    whose models are tested (default: all that train the task)."""


@dataclass
class SyntheticStudy(Study):
    """A whole study of synthetic tasks: run folders in <run>/models, as train_synthetic.py leaves them."""

    synthetic: Synthetic = MISSING


def load_study(path: Path, overrides: Sequence[str] = ()) -> Study:
    """The study that a file and `field.subfield=value` overrides of it describe, or an InputError."""
    path = find_study_file(path)
    study = _read_study(path, overrides)
    if not study.run or study.threads < 1:
        raise InputError(f"{path}: run must name a folder, and threads be at least 1")
    configured: Sequence[Size | Synthetic] = ()
    if isinstance(study, SyntheticStudy):
        configured = [study.synthetic]
        if not study.synthetic.grids:
            raise InputError("synthetic.grids names none; a study has at least one")
        for name, test in study.synthetic.evaluate_synthetic.items():
            kind = f"grid of synthetic.evaluate_synthetic.{name}"
            _refuse_unknown(kind, test.get("grids"), study.synthetic.grids)
    elif isinstance(study, TextStudy):
        configured = [*study.sizes.values()]
        _refuse_names(study)
        for text in (study.data, *(one.data for one in study.evaluations.values() if one.data)):
            for pattern in text.further_source or ():
                if glob(pattern, recursive=True):  # noqa: PTH207  (Path.glob takes no absolute pattern)
                    text.source.append(pattern)
                else:
                    logger.info("no file matches %s; the study goes without", pattern)
            text.further_source = None
    for part in configured:
        part.config = str(find_study_file(Path(part.config), path.parent))
    return study


def _read_study(path: Path, overrides: Sequence[str]) -> Study:
    """The fields of a file and its overrides, as they are given; an evaluation or test of null is none."""
    try:
        given: Any = OmegaConf.merge(
            read_yaml(path, "study", "; there are some in olmo_configs/studies/"), read_overrides(overrides)
        )
        for place in ("further_evaluations", "synthetic.grids", "synthetic.evaluate_synthetic"):
            named = OmegaConf.select(given, place)
            for name in list(named) if isinstance(named, DictConfig) else ():
                if named[name] is None:
                    del named[name]
                elif place == "further_evaluations":
                    named[name] = OmegaConf.merge(given.get("evaluation") or {}, named[name])
        kind = SyntheticStudy if "synthetic" in given else TextStudy
        return settings_of(path, OmegaConf.structured(kind), given)
    except (OmegaConfBaseException, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} and the overrides given: {str(error).splitlines()[0]}") from error


def find_study_file(path: Path, *further: Path) -> Path:
    """In the folder that the command is typed in, in a further one, or in this repository; else `path`."""
    return next((folder / path for folder in (Path(), *further, ROOT) if (folder / path).exists()), path)


def _refuse_names(study: TextStudy) -> None:
    """Names that could not be those of folders, or would be shared; those of models and programs unknown."""
    for kind in ("sizes", "models", "further_evaluations"):
        for name in getattr(study, kind):
            is_taken = kind == "further_evaluations" and name in _FOLDERS_OF_A_RUN
            if is_taken or not _NAME.fullmatch(str(name)):
                raise InputError(
                    f"{kind} has the name '{name}', which becomes a folder's: choose other letters and digits"
                )
    existing = [name for name, model in study.models.items() if model.checkpoint is not None]
    if len(existing) != (0 if study.sizes else len(study.models)):
        raise InputError(
            "a study trains all its models, in the `sizes` that it names, or every model has a `checkpoint`"
            f" and there are no sizes; a checkpoint have {', '.join(existing) or 'none'}"
        )
    if not study.sizes_in_names and len(study.sizes) > 1:
        raise InputError("sizes_in_names is false, and the models of several sizes would share their names")
    for size_name, size in study.sizes.items():
        _refuse_unknown(f"model of sizes.{size_name}", size.models, study.models)
    for evaluation in study.evaluations.values():
        _refuse_unknown("stage of an evaluation", evaluation.stages, (*MEASURING, *ON_REQUEST, *ANALYSING))
        choosing = ["evaluation", *study.further_evaluations]
        _refuse_unknown("evaluation of `choices`", [evaluation.choices], choosing)
        beside = [*evaluation.evaluators, evaluation.reference_model]
        named = [*(evaluation.models or ()), *evaluation.influential_models, *beside]
        _refuse_unknown("model of an evaluation", named, study.models)
        for size_name, size in study.sizes.items():
            kind = f"model of sizes.{size_name} for evaluators or reference_model"
            _refuse_unknown(kind, beside, size.models or study.models)


def _refuse_unknown(kind: str, names: Sequence[str | None] | None, known: Collection[str]) -> None:
    for name in names or ():
        if name is not None and name not in known:
            raise unknown_name(kind, name, known)
