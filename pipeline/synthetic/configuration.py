"""What one run of train_synthetic is: the task, its training distribution, the model and the optimizer."""

from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import OmegaConf

from pipeline.synthetic.tasks.example_batch import TrainingDistribution
from pipeline.synthetic.tasks.registry import task_called


@dataclass
class TaskModelConfig:
    """The trunk."""

    architecture: str = "gpt_neox"
    """`gpt_neox`, the paper's, or `olmo`."""
    width: int = 128
    num_layers: int = 2
    num_heads: int = 4
    rotary_fraction: float = 0.25
    """The share of each head that RoPE rotates; of `gpt_neox` only, `olmo` rotates all of it."""


@dataclass
class TaskConfig:
    """One run."""

    task: str
    """A name of pipeline/synthetic/tasks/registry.py."""
    positions: str
    """`contiguous`, `pose`, `randomized`, `coupled` or `predicted` (PPC)."""
    seed: int = 0
    """Of the initial weights and of all examples."""

    smallest_size: int = 2
    """Of training examples, in the task's own unit: letters, bits, digits, assignments, prompt tokens."""
    largest_size: int = 10
    size_step: int = 1
    """Training sizes are the smallest, and this much more, up to the largest."""
    largest_sparsity: int | None = None
    """K_train: in training k is uniform on 1 to this, or to what a smaller size has room for. None where the
    task has no k."""
    spread_of_coupled_ids: str = "contiguous"
    """How coupled IDs lie in training, before their random start: `contiguous`, or `pose`: parted by a random
    skip, so that a short example shows large differences of IDs too. In testing always contiguous; of
    `coupled` and `predicted` positions only."""
    num_position_ids: int = 256
    """Position IDs are below it, in training and testing: what PoSE and random starts draw from. A test
    example that needs more is refused."""

    model: TaskModelConfig = field(default_factory=TaskModelConfig)

    batch_size: int = 64
    """Examples of a step."""
    sizes_per_step: int = 2
    """A step's examples are of so many sizes, a share of the batch each."""
    num_steps: int = 2000
    learning_rate: float = 5e-5
    """At its highest: linear warm-up, then linearly down to 0 at the last step."""
    warm_up_steps: int = 300
    weight_decay: float = 0.1
    """AdamW's."""
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    """AdamW's."""
    max_grad_norm: float | None = 1.0
    """Gradients are clipped to this norm. None: they are not."""

    save_interval: int = 500
    """Steps between checkpoints."""
    eval_interval: int = 250
    """Steps between measurements of the accuracy in distribution."""
    eval_num_examples: int = 256
    """Examples of such a measurement, the same each time; at least, as every size has as many."""

    @property
    def distribution(self) -> TrainingDistribution:
        """What the model is trained on.

        Raises:
            InputError: there is no such task.
        """
        return TrainingDistribution(
            task_called(self.task),
            self.smallest_size,
            self.largest_size,
            self.size_step,
            self.largest_sparsity,
        )

    def save(self, path: Path) -> None:
        """Write the fields as YAML."""
        OmegaConf.save(OmegaConf.structured(self), path)
