"""The metrics of a task's training: a Parquet file with a row a step, and a progress bar."""

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pipeline.errors import InputError
from pipeline.results.parquet import make_table, read_parquet, write_parquet
from pipeline.results.schemas import SCHEMAS
from pipeline.stage import progress_bar

METRICS_FILE = "synthetic_training.parquet"
_HINT = "put back what the run wrote, or train again in another --save-folder"


class TaskMetrics:
    """Columns of `synthetic_training` (pipeline/RESULTS.md), written whole before every checkpoint."""

    def __init__(self, run_folder: Path, *, step: int, num_steps: int) -> None:
        """Of a run at `step` finished steps.

        Raises:
            InputError: the file is missing or damaged, or lacks some of these steps.
        """
        self._path = run_folder / METRICS_FILE
        self._columns: dict[str, list[Any]] = {name: [] for name in SCHEMAS["synthetic_training"].names}
        if step:
            self._columns = read_metrics(run_folder, step)
        self._step, self._num_steps = step, num_steps

    def __enter__(self) -> Self:
        self._bar = progress_bar(None, "train_synthetic", "steps", self._num_steps, self._step)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.close()

    def write(self, metrics: dict[str, Any]) -> None:
        """Add the row of one step and advance the bar."""
        for name, values in self._columns.items():
            values.append(metrics.get(name))
        exact_match = f", exact match {self.exact_match:.3f}" if self.exact_match is not None else ""
        self._bar.set_postfix_str(f"loss {metrics['loss']:.3f} nats{exact_match}", refresh=False)
        self._bar.update()

    def sync(self) -> None:
        """Write the file."""
        write_parquet(self._path, make_table(self._columns, SCHEMAS["synthetic_training"]))

    @property
    def exact_match(self) -> float | None:
        """The last that was measured."""
        return next((value for value in reversed(self._columns["exact_match"]) if value is not None), None)


def read_metrics(run_folder: Path, num_steps: int) -> dict[str, list[Any]]:
    """The metrics of a run's first steps: column -> a value a step.

    Raises:
        InputError: the file is missing or damaged, or lacks some of these steps.
    """
    path, schema = run_folder / METRICS_FILE, SCHEMAS["synthetic_training"]
    try:
        rows = read_parquet(path, schema.names)
    except (InputError, OSError) as error:
        raise InputError(f"{path} is missing or damaged; {_HINT}") from error
    steps = rows["step"].to_pylist()[:num_steps]
    if rows.schema.types != schema.types or steps != list(range(1, num_steps + 1)):
        raise InputError(f"{path} does not hold the metrics of steps 1 to {num_steps}; {_HINT}")
    return rows.slice(0, num_steps).to_pydict()
