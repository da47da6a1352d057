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

from sparsity_length.cli import InputError, cause_of
from sparsity_length.training.settings import read_overrides, read_yaml, settings_of


@dataclass
class Size:
    """One model size; the study's models are trained in each."""

    config: str = MISSING
    """A file such as olmo_configs/tiny.yaml."""
    max_duration: str | None = None
    """Steps (1000) or tokens (2e9T). None: as the file says."""
    overrides: list[str] = field(default_factory=list)
    """Further ones, as they would be typed."""
    models: list[str] | None = None
    """Names of the study's models that are trained in this size. None: all."""


@dataclass
class SlurmTasks:
    """Tasks of each array under --slurm."""

    tokenize: int = 1
    """Tasks for the study's own text: at most one a file, and 1 if a BPE is trained."""
    measure: int = 1
    """Tasks for each measuring stage; its numbers and bytes do not depend on it."""


@dataclass
class Grid:
    """Runs of train_synthetic.py: every task x position scheme x K_train x seed."""

    tasks: list[str] = MISSING
    positions: list[str] = MISSING
    largest_sparsities: list[int] | None = None
    """K_train, of tasks with k. None: the configuration's."""
    seeds: list[int] = field(default_factory=lambda: [0])
    overrides: list[str] = field(default_factory=list)
    """Overrides of every run, as they would be typed: num_steps=12000."""


@dataclass
class Synthetic:
    """Models of synthetic tasks, and what is measured of them; what is null is left out."""

    config: str = MISSING
    """A file such as olmo_configs/synthetic/small.yaml."""
    grids: dict[str, Grid] = MISSING
    """Grids by names of the reader's choice."""
    evaluate_synthetic: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name -> flags of one run of the program. `task` is the name unless it is given; `grids` names those
    whose models are tested (default: all that train the task)."""


@dataclass
class Study:
    """A whole study: of language models, or with `synthetic` of models of synthetic tasks."""

    run: str = MISSING
    """The folder for its data, models, results, figures and logs."""
    threads: int = 1
    """Threads of each command that study.py runs on this machine; the last bits of numbers depend on them, so
    they are not the machine's to say. More pay for models of some million parameters or more."""
    data: dict[str, Any] = field(default_factory=dict)
    """The text: flags of tokenize_c4.py. `further_source`: files that are read after those of `source`; a
    pattern that matches none is left out."""
    sizes: dict[str, Size] = field(default_factory=dict)
    """None: of existing models."""
    sizes_in_names: bool = True
    """Whether a model is named <size>-<model>; false, if there is one size, for <model>."""
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    """How one model of each size is trained: overrides of pretrain.py. Without sizes `checkpoint`, an
    existing model as --checkpoints takes it: a folder, or NAME[@REVISION] on the hub."""
    evaluation: dict[str, Any] = field(default_factory=dict)
    """Measurements of the models, into a results folder a size. `stages`: programs to run, in this order, of
    `commands.STAGES`. `data`: text of its own to measure on, flags of tokenize_c4.py (default: the study's
    evaluation documents). `needles`: flags of plant_needles.py, whose documents, as long as the long context,
    are measured in place of the text. `models`: names of the study's models that are measured (default: all).
    `steps`: checkpoints along training that are measured (default: the last). All else are flags, each for
    every measuring stage that has it, and under a stage's name those of this stage alone, its `models` among
    them.
    """
    further_evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name -> what differs from `evaluation`; reported apart, in the folder <run>/<name>. Null: not run."""
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
        for place in ("further_evaluations", "synthetic.grids", "synthetic.evaluate_synthetic"):
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
            study.data["source"] += [one for one in further_source if glob(one, recursive=True)]  # noqa: PTH207
    # What is raised where a field is a list and should have fields, or the other way round.
    except (OmegaConfBaseException, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} and the overrides given: {cause_of(error)}") from error
    return study
