"""What one command of a study is: the line as it would be typed, and what a plan needs to know of it.

The commands of a study of text: data, models, measurements and what is made of them.

<run>/data, <run>/models/<model>                the study's
<run>/results[/<size>], <run>/figures[/<size>]  of its evaluation, by size, as notebooks show a whole folder
<run>/<name>/data, results, figures             of a further evaluation, likewise
<run>/signs/<kind>/data                         where signs are planted: what is trained on, and measured

The commands of a study of synthetic tasks: a training a run, a test a task, the notebooks at the end.

<run>/models/<task>[-k<K_train>]-<positions>-seed<seed>, <run>/results, <run>/figures

The commands that a study means, in the order in which they run one after another.
"""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from pipeline.cli import InputError
from pipeline.studies.file import (
    ANALYSING,
    OF_PLANTED,
    ROOT,
    Evaluation,
    Grid,
    PlantedText,
    Study,
    SyntheticStudy,
    TaskTest,
    Text,
    TextStudy,
)
from pipeline.synthetic.tasks import COUPLED_SCHEMES, task_called


@dataclass(frozen=True)
class Training:
    """A model to train, as pretrain.py is told."""

    name: str
    config: Path
    overrides: tuple[str, ...]
    folder: Path


@dataclass(frozen=True)
class TaskTraining(Training):
    """A model of a synthetic task to train, as train_synthetic.py is told."""

    task: str
    positions: str


@dataclass(frozen=True)
class Tokenizing:
    """A text to tokenize."""

    text: Text


@dataclass(frozen=True)
class Measuring:
    """A measuring stage on some checkpoints."""

    stage: str
    evaluation: Evaluation
    data: Path
    trainings: tuple[Training, ...]
    """What trained each checkpoint, one a checkpoint."""


@dataclass(frozen=True)
class TaskMeasuring:
    """A stage that tests models of a synthetic task."""

    stage: str
    task: str
    test: TaskTest
    trainings: tuple[TaskTraining, ...]


@dataclass(frozen=True)
class Command:
    """One command line, and what a plan needs to know of it."""

    name: str
    """Different from all others of the study; names its Slurm job."""
    program: str
    """The file, from the repository's root."""
    arguments: tuple[str, ...]
    needs: tuple[str, ...]
    """Names of commands that must have finished before."""
    reads: tuple[str, ...]
    """Words of the arguments whose content decides what is written: files, globs, data, models."""
    writes: tuple[Path, ...]
    """What is there once it has finished; empty for a command that always runs."""
    about: Tokenizing | Training | Measuring | TaskMeasuring | None = None
    """What it is checked by before it runs, and what its cost is estimated from."""
    num_tasks: int | None = None
    """Of its Slurm array, to which its work is dealt. None: it is one job, and takes no --num-tasks."""

    @property
    def stage(self) -> str:
        """The program's name."""
        return Path(self.program).stem

    def words(self) -> list[str]:
        """Program and arguments; the program by its whole path where one is elsewhere than in the root."""
        is_in_root = Path.cwd() == ROOT or Path(self.program).is_file()
        return [self.program if is_in_root else str(ROOT / self.program), *self.arguments]

    def __str__(self) -> str:
        """As it would be typed."""
        return shlex.join(["python", *self.words()])


def flags(settings: object, names: Sequence[str] | None = None, leave_out: Collection[str] = ()) -> list[str]:
    """`--name value …` of every field that is not None, or of those of `names`; `--name` where it is true."""
    words = []
    for name in names or [known.name for known in fields(settings)]:  # type: ignore[arg-type]
        value = getattr(settings, name)
        if value is not None and value is not False and name not in leave_out:
            values = value if isinstance(value, list) else [value] if value is not True else []
            words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return words


_TOKENIZE = "tokenize_c4"


def text_commands(study: TextStudy) -> list[Command]:
    """All commands of a study, in the order in which they run one after another."""
    run = Path(study.run)
    tokenize = _tokenize(_TOKENIZE, study.data, run / "data", study.slurm.tokenize)
    trainings = {size: _trainings(study, size) for size in study.sizes}
    commands = [tokenize]
    train_on, written_by = run / "data", tokenize
    if study.planted is not None:
        train_on, written_by = run / "signs" / "planted" / "data", _plant(study.planted, run, tokenize)
        commands.append(written_by)
    commands += [_pretrain(t, train_on, written_by) for of in trainings.values() for t in of.values()]
    places: list[_Place] = []
    for name, evaluation in study.evaluations.items():
        data, folder = tokenize, run / "data"
        if evaluation.of_planted is not None:
            data, folder = written_by, run / "signs" / evaluation.of_planted / "data"
        if evaluation.data is not None:
            folder = run / name / "data"
            data = _tokenize(_named(_TOKENIZE, name), evaluation.data, folder, 1, tokenize)
            commands.append(data)
        for size, of_size in trainings.items():
            places.append(_Place(study, size, name, evaluation, folder, data.name, of_size))
            commands += places[-1].commands()
    return [*commands, *_compare_scales(run, places), *_compare_measures(run, places)]


def _named(stage: str, *parts: str) -> str:
    return "-".join([stage, *filter(None, parts)])


def _tokenize(name: str, text: Text, folder: Path, num_tasks: int, after: Command | None = None) -> Command:
    """`after`: the study's own, whose tokenizer another text may be given."""
    return Command(
        name=name,
        program="pipeline/tokenize_c4.py",
        arguments=("--out", str(folder), *flags(text)),
        needs=() if after is None else (after.name,),
        reads=(*text.source, *(text.further_source or ()), *(text.evaluation_source or ()), text.tokenizer),
        writes=(folder / "manifest.json",),
        about=Tokenizing(text),
        num_tasks=num_tasks,
    )


def _plant(planted: PlantedText, run: Path, tokenize: Command) -> Command:
    out = run / "signs"
    return Command(
        name="plant_signs",
        program="pipeline/plant_signs.py",
        arguments=("--data", str(run / "data"), "--out", str(out), *flags(planted)),
        needs=(tokenize.name,),
        reads=(str(run / "data"),),
        writes=tuple(out / kind / "data" / "manifest.json" for kind in planted.kinds),
    )


def _trainings(study: TextStudy, size: str) -> dict[str, Training]:
    """The models of one size, by their names in the study."""
    of_size, trainings = study.sizes[size], {}
    for name in of_size.models or study.models:
        model = study.models[name]
        duration = [] if of_size.max_duration is None else [f"max_duration={of_size.max_duration}"]
        settings = {known.name: getattr(model, known.name) for known in fields(model)}
        own = [f"{field}={value}" for field, value in settings.items() if value is not None]
        full_name = f"{size}-{name}" if study.sizes_in_names else name
        trainings[name] = Training(
            name=full_name,
            config=Path(of_size.config),
            overrides=(*duration, *of_size.overrides, *own),
            folder=Path(study.run) / "models" / full_name,
        )
    return trainings


def _pretrain(training: Training, data: Path, tokenize: Command) -> Command:
    folders = "--data", str(data), "--save-folder", str(training.folder)
    return Command(
        name=training.name,
        program="pipeline/pretrain.py",
        arguments=(str(training.config), *folders, *training.overrides),
        needs=(tokenize.name,),
        reads=(str(training.config), str(data)),
        writes=(training.folder,),
        about=training,
    )


@dataclass(frozen=True)
class _Place:
    """One evaluation of one size: its folders, and its commands."""

    study: TextStudy
    size: str
    name: str
    """The evaluation's; "" for the study's first."""
    evaluation: Evaluation
    data: Path
    data_command: str
    trainings: dict[str, Training]

    def commands(self) -> list[Command]:
        """Those of the evaluation's stages, analysis last, which needs all that was measured."""
        asked = self.evaluation.stages
        measuring = [self._measure(stage) for stage in asked if stage not in ANALYSING]
        names = [command.name for command in measuring]
        analysing = []
        if "run_notebooks" in asked:
            analysing.append(
                self._analyse("run_notebooks", names, ["--data", str(self.data), *self._roles()])
            )
            names = [analysing[0].name]
        if "summary" in asked:
            analysing.append(self._analyse("summary", names, []))
        return [*measuring, *analysing]

    def tells_of_scale(self) -> bool:
        """Whether k* and the gap can be read from it, on the study's own text, measured as first."""
        needed = {"loss_differences", "influential_tokens"}
        own = self.evaluation.data is None and self.evaluation.of_planted is None
        alike = self.evaluation.intervention == self.study.evaluation.intervention
        return own and alike and needed <= set(self.evaluation.stages)

    def folder(self, kind: str) -> Path:
        """Where its data, results or figures are."""
        return Path(self.study.run) / self.name / kind / (self.size if self.study.sizes_in_names else "")

    def _command_name(self, stage: str) -> str:
        return _named(stage, self.size if self.study.sizes_in_names else "", self.name)

    def _measured_models(self, stage: str) -> list[str]:
        """Those asked for that this size has."""
        names = self.evaluation.models or list(self.trainings)
        if stage == "influential_tokens":
            names = self.evaluation.influential_models
        return [name for name in names if name in self.trainings]

    def _models_beside(self, stage: str) -> list[str]:
        """Models that a stage reads beside those that it measures, at their last checkpoint."""
        reference = self.evaluation.reference_model
        if stage == "influential_tokens":
            return self.evaluation.judge_with
        return [reference] if stage == "loss_differences" and reference else []

    def _measure(self, stage: str) -> Command:
        trainings = [self.trainings[name] for name in self._measured_models(stage)]
        beside = [self.trainings[name] for name in self._models_beside(stage)]
        steps: Sequence[int | None] = self.evaluation.steps or [None]
        measured = [(training, step) for training in trainings for step in steps]
        checkpoints = [_checkpoint(training, step) for training, step in measured]
        results = self.folder("results")
        where = "--data", self.data, "--checkpoints", *checkpoints, "--results", results
        measuring = Measuring(stage, self.evaluation, self.data, tuple(training for training, _ in measured))
        return Command(
            name=self._command_name(stage),
            program=f"pipeline/{stage}.py",
            arguments=(*map(str, where), *flags(self.evaluation, _flags_of(stage)), *_flag_of(stage, beside)),
            needs=(self.data_command, *dict.fromkeys(training.name for training in [*trainings, *beside])),
            reads=(str(self.data), *map(str, checkpoints), *(str(training.folder) for training in beside)),
            writes=tuple(results / "_stages" / stage / f"model={_name(*one)}" for one in measured),
            about=measuring,
            num_tasks=self.study.slurm.measure,
        )

    def _analyse(self, program: str, needs: Sequence[str], further: Sequence[str]) -> Command:
        folders = "--results", str(self.folder("results")), "--figures", str(self.folder("figures"))
        return Command(
            name=self._command_name(program),
            program=f"analysis/{program}.py",
            arguments=(*folders, *further),
            needs=tuple(needs),
            reads=(),
            writes=(),  # each knows by itself, and quickly, whether anything has changed
        )

    def _roles(self) -> list[str]:
        """Which models are long-trained and which short, and at what length, for run_notebooks.py."""
        models, influential = self.study.models, self.evaluation.influential_models
        measured = self._measured_models("loss_differences")
        longest = max(models[name].train_context_length for name in measured)
        long = [name for name in measured if models[name].train_context_length == longest]
        short = [name for name in measured if name not in long]
        long.sort(key=lambda name: name not in influential)  # the first gives k*
        full = {name: self.trainings[name].name for name in measured}
        lengths = [f"{full[name]}={models[name].train_context_length}" for name in measured]
        words = ["--long-models", *(full[name] for name in long)]
        words += ["--short-models", *(full[name] for name in short)] if short else []
        return [*words, "--train-context-lengths", *lengths]


def _compare_scales(run: Path, places: Sequence[_Place]) -> list[Command]:
    """The notebook model_scale over all that was measured alike, where that is several sizes or steps."""
    alike = [place for place in places if place.tells_of_scale()]
    if len(alike) < 2:
        return []
    first, *others = [str(place.folder("results")) for place in alike]
    return [
        Command(
            name="model_scale",
            program="analysis/run_notebooks.py",
            arguments=(
                "--results", first, "--also-results", *others, "--figures", str(run / "figures"),
                "--data", str(alike[0].data), "--notebooks", "model_scale",
            ),
            needs=tuple(command.name for place in alike for command in place.commands()),
            reads=(str(alike[0].data),),
            writes=(),
        )
    ]  # fmt: skip


def _compare_measures(run: Path, places: Sequence[_Place]) -> list[Command]:
    """The trial of the measures, where tokens were chosen in text, planted text and foreign contexts."""
    choosing = [place for place in places if "influential_tokens" in place.evaluation.stages]
    if not {None, *OF_PLANTED} <= {place.evaluation.of_planted for place in choosing}:
        return []
    return [
        Command(
            name="measures",
            program="analysis/measures.py",
            arguments=("--run", str(run), "--figures", str(run / "figures")),
            needs=tuple(command.name for place in choosing for command in place.commands()),
            reads=(),
            writes=(),
        )
    ]


def _checkpoint(training: Training, step: int | None) -> Path:
    return training.folder if step is None else training.folder / f"step{step}-unsharded"


def _name(training: Training, step: int | None) -> str:
    """As results are filed under."""
    return training.name if step is None else f"{training.name}-step{step}"


def _flags_of(stage: str) -> list[str]:
    short = [] if stage == "length_losses" else ["short_context_length"]
    chunks = ["long_context_length", "targets_per_chunk", "max_documents", "max_chunks_per_document"]
    chunks += ["documents_per_shard", "dtype"]
    choices = ["rules", "k", "intervention", "num_backgrounds", "num_subsets", "kept_fraction",
               "learning_chunks"]  # fmt: skip
    return [*short, *chunks, *(choices if stage == "influential_tokens" else [])]


def _flag_of(stage: str, beside: Sequence[Training]) -> list[str]:
    """The flag that names the models beside those that are measured."""
    flag = "--judge-with" if stage == "influential_tokens" else "--reference-model"
    return [flag, *(str(training.folder) for training in beside)] if beside else []


NOTEBOOKS = {"evaluate_synthetic": "synthetic_tasks", "found_dependencies": "found_dependencies"}
"""Stage that measures -> the notebook that shows what it measured."""


def synthetic_commands(study: SyntheticStudy) -> list[Command]:
    """All commands of a study, trainings first.

    Raises:
        InputError: a grid is empty or two train the same run; a task is unknown, or tested and not trained.
    """
    trainings = _trainings_of_synthetic_commands(study)
    commands = [_train(training) for of_grid in trainings.values() for training in of_grid]
    measuring = [
        _measure(study, TaskMeasuring(stage, task, test, _tested(trainings, f"{stage}.{task}", task, test)))
        for stage, of_tasks in study.synthetic.tests.items()
        for task, test in of_tasks.items()
    ]
    return [*commands, *measuring, *_notebooks(study, measuring)]


def _trainings_of_synthetic_commands(study: SyntheticStudy) -> dict[str, list[TaskTraining]]:
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


def commands_of(study: Study) -> list[Command]:
    """All commands of a study.

    Raises:
        InputError: its parts do not fit together.
    """
    if isinstance(study, SyntheticStudy):
        return synthetic_commands(study)
    assert isinstance(study, TextStudy)
    return text_commands(study)
