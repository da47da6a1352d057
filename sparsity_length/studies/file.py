"""A study, as a file of olmo_configs/studies/ describes it, and reading one with overrides.

Fields that are not explained here are flags of the programs (see their --help); null stands for the program's
own default. Lengths count tokens. Paths are relative to the current folder. A study file or a configuration
below olmo_configs/ that does not exist there is taken from the installed package. The programs' own parsers
check the flags.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sparsity_length.cli import InputError, cause_of, path_of
from sparsity_length.training.settings import read_overrides, read_yaml, settings_of


@dataclass
class Size:
    """One model size; the study's models are trained in each."""

    config: str = MISSING
    """A file such as olmo_configs/tiny.yaml."""
    max_duration: str | None = None
    """In steps (1000) or tokens (2e9T). None: as the configuration says."""
    overrides: list[str] = field(default_factory=list)
    """Further overrides, as they would be typed."""
    models: list[str] | None = None
    """Names of the study's models to train in this size. None: all; []: none."""


@dataclass
class SlurmTasks:
    """Number of tasks of each array under --slurm."""

    tokenize: int = 1
    """Tasks for the study's own text: at most one per file, and 1 if a BPE is trained."""
    measure: int = 1
    """Tasks for each measuring program; numbers and bytes do not depend on it."""


@dataclass
class Grid:
    """Runs of train_synthetic.py: every task x position scheme x K_train x seed."""

    tasks: list[str] = MISSING
    positions: list[str] = MISSING
    largest_sparsities: list[int] | None = None
    """Values of K_train, for tasks with k. None: as the configuration says."""
    seeds: list[int] = field(default_factory=lambda: [0])
    overrides: list[str] = field(default_factory=list)
    """Overrides for every run, as they would be typed: num_steps=12000."""


@dataclass
class Synthetic:
    """Models of synthetic tasks, and what is measured of them; null entries are left out."""

    config: str = MISSING
    """A file such as olmo_configs/synthetic/small.yaml."""
    grids: dict[str, Grid] = MISSING
    """Name (of your choice) -> grid."""
    evaluate_synthetic: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name -> flags of one run of the program. `task` defaults to the name; `grids` names the grids whose
    models are tested (default: all that train the task)."""


@dataclass
class Study:
    """A whole study: of language models or, with `synthetic`, of models of synthetic tasks."""

    run: str = MISSING
    """The folder for its data, models, results, figures and logs."""
    threads: int = 1
    """Threads of each command on this machine. The last bits of numbers depend on them, so the study sets
    them. More than one pays off for models with some millions of parameters."""
    data: dict[str, Any] = field(default_factory=dict)
    """The text: flags of tokenize_c4. `further_source` names files to read after those of `source`; a
    pattern that matches no file is left out."""
    sizes: dict[str, Size] = field(default_factory=dict)
    """Name -> size; null: none. Empty: the study is of existing models."""
    sizes_in_names: bool = True
    """Whether models are named <size>-<model>, or (only with a single size) <model>."""
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name -> overrides of pretrain, for one model of each size; null: none. Without sizes: `checkpoint`, an
    existing model as for --checkpoints, a folder or NAME[@REVISION] on the hub."""
    evaluation: dict[str, Any] = field(default_factory=dict)
    """What is measured of the models, with one results folder per size.

    `stages`: programs to run, in this order, from `commands.STAGES`. `data`: another text to measure on, as
    flags of tokenize_c4 (default: the study's evaluation documents). `needles`: flags of plant_needles, whose
    documents, as long as the long context, are then measured instead of the text. `models`: names of the
    models to measure (default: all). `steps`: checkpoints along training to measure (default: the last one).
    All other fields are flags for every measuring program that has them; flags under a program's name, and
    `models` there, are for this program only.
    """
    further_evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name -> what differs from `evaluation`; results are kept apart, in <run>/<name>. Null: not run."""
    slurm: SlurmTasks = field(default_factory=SlurmTasks)
    synthetic: Synthetic | None = None

    @property
    def logs(self) -> Path:
        """The folder of the commands' logs."""
        return Path(self.run) / "logs"


def load_study(path: Path, overrides: Sequence[str] = ()) -> Study:
    """The study that a file and `field.subfield=value` overrides of it describe, or an InputError."""
    file = read_yaml(path, "study", "; there are some in olmo_configs/studies/")
    try:
        given: Any = OmegaConf.merge(file, read_overrides(overrides))
        # Null takes one out, as an override such as further_evaluations.novels=null does.
        synthetic = ("synthetic.grids", "synthetic.evaluate_synthetic")
        for place in ("sizes", "models", "further_evaluations", *synthetic):
            named = OmegaConf.select(given, place) or {}
            for name in [name for name in named if named[name] is None]:
                del named[name]
        further = given.get("further_evaluations") or {}
        # Merged before anything is checked, so that a further one says only what differs.
        for name in further:
            further[name] = OmegaConf.merge(given.get("evaluation") or {}, further[name])
        study: Study = settings_of(path, OmegaConf.structured(Study), given)
        # Looked for here, as tokenize_c4 refuses a pattern that matches none.
        if further_source := study.data.pop("further_source", None):
            sources, others = (
                [of_field] if isinstance(of_field, str) else list(of_field)
                for of_field in (study.data.get("source", []), further_source)
            )
            study.data["source"] = sources + [one for one in others if glob(one, recursive=True)]  # noqa: PTH207
    # What is raised where a field is a list and should have fields, or the other way round.
    except (OmegaConfBaseException, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} and the overrides given: {cause_of(error)}") from error
    study.run = str(path_of(study.run))
    return study
