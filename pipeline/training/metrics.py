"""The metrics of a run: JSON lines on disk, one a step, and a progress bar."""

import json
from pathlib import Path
from types import TracebackType
from typing import Self

from pipeline.results.files import write_atomically
from pipeline.stage import progress_bar


class MetricsLog:
    """Appends to `metrics.jsonl`, one object a step.

    Its keys: step; tokens (seen since the start); loss_nats (mean over the step's targets); learning_rate;
    gradient_norm (before clipping); tokens_per_second (of the step alone, over all devices);
    model_flops_utilization (training.throughput); where it was measured after the step,
    held_out_loss_nats_at_<context length> (training.held_out_loss).
    """

    def __init__(self, path: Path, *, step: int, num_steps: int, flush_interval: int) -> None:
        """Open the file after `step` finished steps; lines of later steps, which will run again, are dropped.

        Args:
            path: the file; made where it is missing.
            step: finished steps.
            num_steps: steps of the whole run.
            flush_interval: steps after which lines reach the disk.
        """
        _keep_lines_until(path, step)
        self._file = path.open("a", encoding="utf-8")
        self._flush_interval = flush_interval
        self._bar = progress_bar(None, "pretrain", "steps", total=num_steps, initial=step)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.close()
        self._file.close()

    def write(self, metrics: dict[str, float]) -> None:
        """Add the line of one step and advance the bar."""
        self._file.write(json.dumps(metrics) + "\n")
        if metrics["step"] % self._flush_interval == 0:
            self.flush()
        self._bar.set_postfix_str(
            f"loss {metrics['loss_nats']:.3f} nats, {metrics['tokens_per_second']:,.0f} tokens/s",
            refresh=False,
        )
        self._bar.update()

    def flush(self) -> None:
        """Hand all lines to the file."""
        self._file.flush()


def _keep_lines_until(path: Path, step: int) -> None:
    if not path.exists():
        return
    # A line torn by a kill has no line end. It can only be the last.
    whole = [
        line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")
    ]
    kept = "".join(line for line in whole if json.loads(line)["step"] <= step)

    def write(temporary: Path) -> None:
        temporary.write_text(kept, encoding="utf-8")

    write_atomically(path, write)
