"""What a study of synthetic tasks is, as a file of olmo_configs/studies/ gives it under `synthetic`.

Field names are those of the stages' flags.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from omegaconf import MISSING

from pipeline.studies.study_fields import Study
from pipeline.synthetic.evaluation import NUM_EXAMPLES
from pipeline.synthetic.finding import (
    DEFAULT_FINDING_RULES,
    DEFAULT_INTERVENTIONS,
    LARGEST_K,
    NUM_EXAMPLES_OF_FINDING,
    NUM_SUBSTITUTES,
    SHORT_CONTEXT_LENGTH,
)


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
