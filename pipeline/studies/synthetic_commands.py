"""The commands of a study of synthetic tasks: a training a run, a test a task, the notebooks at the end.

<run>/models/<task>[-k<K_train>]-<positions>-seed<seed>, <run>/results, <run>/figures
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.errors import InputError
from pipeline.studies.command import Command, TaskMeasuring, TaskTraining, flags
from pipeline.studies.synthetic_fields import Grid, SyntheticStudy, TaskTest
from pipeline.synthetic.coupled_positions import COUPLED_SCHEMES
from pipeline.synthetic.tasks.registry import task_called

NOTEBOOKS = {"evaluate_synthetic": "synthetic_tasks", "found_dependencies": "found_dependencies"}
"""Stage that measures -> the notebook that shows what it measured."""


def synthetic_commands(study: SyntheticStudy) -> list[Command]:
    """All commands of a study, trainings first.

    Raises:
        InputError: a grid is empty or two train the same run; a task is unknown, or tested and not trained.
    """
    trainings = _trainings(study)
    commands = [_train(training) for of_grid in trainings.values() for training in of_grid]
    measuring = [
        _measure(study, TaskMeasuring(stage, task, test, _tested(trainings, f"{stage}.{task}", task, test)))
        for stage, of_tasks in study.synthetic.tests.items()
        for task, test in of_tasks.items()
    ]
    return [*commands, *measuring, *_notebooks(study, measuring)]


def _trainings(study: SyntheticStudy) -> dict[str, list[TaskTraining]]:
    """The runs of each grid, those of one task together."""
    trainings: dict[str, list[TaskTraining]] = {}
    grid_of: dict[str, str] = {}
    for grid_name, grid in study.synthetic.grids.items():
        trainings[grid_name] = list(_runs(study, grid))
        if not trainings[grid_name]:
            raise InputError(
                f"synthetic.grids.{grid_name} is empty: coupled and predicted positions need a task with"
                " coupled IDs"
            )
        for training in trainings[grid_name]:
            other = grid_of.setdefault(training.name, grid_name)
            if other != grid_name:
                raise InputError(
                    f"synthetic.grids: {other} and {grid_name} both train {training.name}; take it out of one"
                )
    return trainings


def _runs(study: SyntheticStudy, grid: Grid) -> Iterator[TaskTraining]:
    for name in dict.fromkeys(grid.tasks):
        task = task_called(name)
        sparsities: Sequence[int | None] = (grid.largest_sparsities if task.has_sparsity else None) or [None]
        for positions in dict.fromkeys(grid.positions):
            if positions in COUPLED_SCHEMES and not task.has_coupled_ids:
                continue
            for sparsity in dict.fromkeys(sparsities):
                for seed in dict.fromkeys(grid.seeds):
                    yield _training(study, grid, name, positions, sparsity, seed)


def _training(
    study: SyntheticStudy, grid: Grid, task: str, positions: str, sparsity: int | None, seed: int
) -> TaskTraining:
    of_k = [] if sparsity is None else [f"largest_sparsity={sparsity}"]
    k_in_name = "" if sparsity is None else f"-k{sparsity}"
    name = f"{task}{k_in_name}-{positions}-seed{seed}"
    return TaskTraining(
        name=name,
        config=Path(study.synthetic.config),
        overrides=(*grid.overrides, *of_k, f"seed={seed}"),
        folder=Path(study.run) / "models" / name,
        task=task,
        positions=positions,
    )


def _train(training: TaskTraining) -> Command:
    what = "--task", training.task, "--positions", training.positions
    return Command(
        name=training.name,
        program="pipeline/train_synthetic.py",
        arguments=(
            str(training.config), *what, "--save-folder", str(training.folder), *training.overrides,
        ),
        needs=(),
        reads=(str(training.config),),
        writes=(training.folder,),
        about=training,
    )  # fmt: skip


def _tested(
    trainings: Mapping[str, list[TaskTraining]], where: str, task: str, test: TaskTest
) -> tuple[TaskTraining, ...]:
    """The runs whose models a test is about."""
    task_called(task)
    grids = trainings if test.grids is None else test.grids
    tested = tuple(training for grid in grids for training in trainings[grid] if training.task == task)
    if not tested:
        raise InputError(f"synthetic.{where} tests models that no grid trains: add {task} to a grid")
    return tested


def _measure(study: SyntheticStudy, measuring: TaskMeasuring) -> Command:
    checkpoints = [str(training.folder) for training in measuring.trainings]
    results = Path(study.run) / "results"
    where = "--checkpoints", *checkpoints, "--results", str(results)
    return Command(
        name=f"{measuring.stage}-{measuring.task}",
        program=f"pipeline/{measuring.stage}.py",
        arguments=("--task", measuring.task, *where, *flags(measuring.test, leave_out=("grids",))),
        needs=tuple(training.name for training in measuring.trainings),
        reads=tuple(checkpoints),
        writes=tuple(
            results / "_stages" / measuring.stage / f"model={training.name}"
            for training in measuring.trainings
        ),
        about=measuring,
    )


def _notebooks(study: SyntheticStudy, measuring: list[Command]) -> list[Command]:
    """One command, which shows all that was measured; none where nothing was."""
    if not measuring:
        return []
    names = dict.fromkeys(NOTEBOOKS[command.stage] for command in measuring)
    folders = "--results", str(Path(study.run) / "results"), "--figures", str(Path(study.run) / "figures")
    return [
        Command(
            name="run_notebooks",
            program="analysis/run_notebooks.py",
            arguments=(*folders, "--notebooks", *names),
            needs=tuple(command.name for command in measuring),
            reads=(),
            writes=(),
        )
    ]
