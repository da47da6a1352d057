"""The metrics of a run: JSON lines on disk, one a step, a progress bar, and TensorBoard or Weights & Biases.

Trackers run through accelerate; neither needs a network.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Self

from accelerate import Accelerator

from pipeline.cli import InputError, progress_bar
from pipeline.results.files import write_atomically
from pipeline.training.config import PretrainConfig

TRACKERS_FOLDER = "trackers"  # below the run folder


class MetricsLog:
    """Appends to `metrics.jsonl`, one object a step; pretrain.py's docstring names its keys.

    `tokens` are counted since the start, `loss_nats` and `answer_loss_nats` are means over the step's
    targets, `gradient_norm` is that before clipping, `tokens_per_second` of the step alone and over all
    devices.
    """

    def __init__(
        self, path: Path, step: int, num_steps: int, flush_interval: int, track: Callable[..., object]
    ) -> None:
        """Open the file after `step` finished steps; lines of later steps, which will run again, are dropped.

        Lines reach it every `flush_interval` steps; `track` is called with each line's metrics and `step`.
        An InputError where finished steps are not there.
        """
        try:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
            # One torn by a kill has no line end and can only be the last.
            steps = [json.loads(line)["step"] for line in lines if line.endswith("\n")]
        except (ValueError, TypeError, KeyError):
            steps = None
        if steps is None or steps[:step] != list(range(1, step + 1)):
            raise InputError(
                f"{path} is damaged: it does not hold the {step} steps before the newest checkpoint; put back"
                " what was there, or choose another --save-folder"
            )
        kept = "".join(lines[:step])
        write_atomically(path, lambda temporary: temporary.write_text(kept, encoding="utf-8"))
        self._file = path.open("a", encoding="utf-8")
        self._flush_interval, self._track = flush_interval, track
        self._bar = progress_bar(None, "pretrain", "steps", total=num_steps, initial=step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()
        self._file.close()

    def write(self, metrics: dict[str, float]) -> None:
        """Add the line of one step and advance the bar."""
        self._file.write(json.dumps(metrics) + "\n")
        if metrics["step"] % self._flush_interval == 0:
            self._file.flush()
        self._bar.set_postfix_str(
            f"loss {metrics['loss_nats']:.3f} nats, {metrics['tokens_per_second']:,.0f} tokens/s",
            refresh=False,
        )
        self._bar.update()
        self._track(metrics, step=metrics["step"])

    def sync(self) -> None:
        """Hand all lines to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())


def start_trackers(accelerator: Accelerator, config: PretrainConfig) -> None:
    """Open the run's trackers under `<run folder>/trackers`; every rank may call it."""
    if not config.trackers:
        return
    # `wandb sync` sends an offline run later; compute nodes often have no network.
    os.environ.setdefault("WANDB_MODE", "offline")
    folder = Path(config.save_folder)
    accelerator.init_trackers(
        config.run_name or folder.resolve().name,
        init_kwargs={"wandb": {"dir": str(folder / TRACKERS_FOLDER)}},
    )
