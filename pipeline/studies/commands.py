"""The commands that a study means, in an order in which they can run one after another.

Of text:
    <run>/data, <run>/models/<model>                the study's
    <run>/results[/<size>], <run>/figures[/<size>]  of its evaluation, by size: notebooks show a whole folder
    <run>/<name>/data, results, figures             of a further evaluation, likewise
Of synthetic tasks, a training a run, a test a task, the notebooks at the end:
    <run>/models/<task>[-k<K_train>]-<positions>-seed<seed>, <run>/results, <run>/figures
"""

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.cli import InputError
from pipeline.measuring.flags import default_documents_per_shard
from pipeline.studies.file import (
    ANALYSING,
    ROOT,
    Evaluation,
    Grid,
    Study,
    SyntheticStudy,
    Text,
    TextStudy,
)
from pipeline.synthetic.tasks import COUPLED_SCHEMES, task_called

_OF_CHUNKS = (
    "long_context_length",
    "targets_per_chunk",
    "target_stride",
    "max_documents",
    "max_chunks_per_document",
    "documents_per_shard",
    "dtype",
)
_OF_CHOICES = (
    "rules",
    "k",
    "ablation",
    "num_swaps",
    "screen",
    "null_fraction",
    "minimum_gain",
)
_FLAGS = {
    "length_losses": _OF_CHUNKS,
    "loss_differences": ("short_context_length", *_OF_CHUNKS),
    "influential_tokens": ("short_context_length", *_OF_CHUNKS, *_OF_CHOICES),
    "length_interference": _OF_CHUNKS,
    "evaluate_tokens": ("documents_per_shard", "dtype", "ablation", "num_swaps"),
}
"""Measuring stage -> fields of an evaluation that it takes as flags."""


@dataclass(frozen=True)
class Training:
    """A model of the study: what its results are filed under, and what --checkpoints is given."""

    name: str
    folder: Path


@dataclass(frozen=True)
class Command:
    """One command line, and what a plan needs to know of it."""

    name: str
    """Different from all others of the study; names its Slurm job."""
    program: str
    """The file, from the repository's root."""
    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ()
    """Names of commands that must have finished before."""
    num_tasks: int | None = None
    """Of its Slurm array, which shares its work. None: it is one job, and takes no --num-tasks."""
    num_shards: int | None = None
    """At most, which so many processes can share; None: no limit is known."""
    steps: Sequence[int] = ()
    """Checkpoints along training that it measures."""

    @property
    def stage(self) -> str:
        """The program's name."""
        return Path(self.program).stem

    @property
    def is_stage(self) -> bool:
        """Whether it is not run again; programs of analysis see by themselves what is new."""
        return self.program.startswith("pipeline/")

    @property
    def is_measuring(self) -> bool:
        """Whether its documents are shared by as many processes as run."""
        return self.stage in _FLAGS

    def words(self) -> list[str]:
        """Program and arguments; the program by its whole path where one is elsewhere than in the root."""
        is_in_root = Path.cwd() == ROOT or Path(self.program).is_file()
        return [self.program if is_in_root else str(ROOT / self.program), *self.arguments]

    def __str__(self) -> str:
        """As it would be typed."""
        return shlex.join(["python", *self.words()])


def flags(settings: Any, names: Sequence[str] | None = None) -> list[str]:
    """`--name value …` of every field that is not None, or of those of `names`; `--name` where it is true."""
    words = []
    values_of = settings if isinstance(settings, dict) else vars(settings)
    for name in names or values_of:
        value = values_of[name]
        if value is not None and value is not False:
            values = value if isinstance(value, list) else [value] if value is not True else []
            words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return words


def commands_of(study: Study) -> list[Command]:
    """All commands of a study; an InputError where its parts do not fit together."""
    run = Path(study.run)
    if isinstance(study, SyntheticStudy):
        return _synthetic_commands(study)
    assert isinstance(study, TextStudy)
    tokenize = _tokenize("tokenize_c4", study.data, run / "data", study.slurm.tokenize)
    commands = [tokenize]
    trainings: dict[str, dict[str, Training]] = {}
    if not study.sizes:
        from pipeline.models.load import name_of  # late, for a --help at once

        words = {name: str(model.checkpoint) for name, model in study.models.items()}
        trainings[""] = {name: Training(name_of(word), Path(word)) for name, word in words.items()}
        names = [training.name for training in trainings[""].values()]
        if len(set(names)) < len(names):
            raise InputError(f"two models have the same last name, by which results tell them: {names}")
    for size_name, size in study.sizes.items():
        trainings[size_name] = of_size = {}
        for name in size.models or study.models:
            full_name = f"{size_name}-{name}" if study.sizes_in_names else name
            of_size[name] = training = Training(full_name, run / "models" / full_name)
            arguments = [size.config, "--data", str(run / "data"), "--save-folder", str(training.folder)]
            arguments += [] if size.max_duration is None else [f"max_duration={size.max_duration}"]
            how = vars(study.models[name]).items()
            arguments += [*size.overrides, *(f"{key}={value}" for key, value in how if value is not None)]
            commands.append(Command(full_name, "pipeline/pretrain.py", tuple(arguments), (tokenize.name,)))
    for name, evaluation in study.evaluations.items():
        data = run / "data"
        data_command = tokenize.name
        if evaluation.data is not None:
            data = run / name / "data"
            data_command = "-".join(filter(None, ["tokenize_c4", name]))
            # After the study's own text, whose tokenizer this one may be given.
            commands.append(_tokenize(data_command, evaluation.data, data, 1, (tokenize.name,)))
        for size_name, of_size in trainings.items():
            plan = _EvaluationPlan(study, size_name, name, evaluation, data, data_command, of_size)
            commands += plan.commands()
    # Summaries come last: each lists the figures of the evaluations beside it.
    drawn = tuple(command.name for command in commands if command.stage == "run_notebooks")
    summaries = [
        replace(one, needs=tuple(dict.fromkeys([*one.needs, *drawn])))
        for one in commands
        if one.stage == "summary"
    ]
    return [*(one for one in commands if one.stage != "summary"), *summaries]


def _tokenize(name: str, text: Text, out: Path, num_tasks: int, needs: tuple[str, ...] = ()) -> Command:
    arguments = ("--out", str(out), *flags(text))
    return Command(name, "pipeline/tokenize_c4.py", arguments, needs, num_tasks=num_tasks)


@dataclass(frozen=True)
class _EvaluationPlan:
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
        stages = self.evaluation.stages
        commands = [self._measure(one) for one in stages if one not in (*ANALYSING, "evaluate_tokens")]
        commands += self._evaluate_tokens() if "evaluate_tokens" in stages else []
        needs = tuple(command.name for command in commands)
        folders = "--results", str(self.folder("results")), "--figures", str(self.folder("figures"))
        if "run_notebooks" in stages:
            shown = flags(self.evaluation, ("notebooks",))
            arguments = (*folders, "--data", str(self.data), *self._long_and_short(), *shown)
            name = self._command_name("run_notebooks")
            commands.append(Command(name, "analysis/run_notebooks.py", arguments, needs))
            needs = (name,)
        if "summary" in stages:
            commands.append(Command(self._command_name("summary"), "analysis/summary.py", folders, needs))
        return commands

    def folder(self, kind: str) -> Path:
        """Where its results or figures are."""
        return Path(self.study.run) / self.name / kind / (self.size if self.study.sizes_in_names else "")

    def _command_name(self, stage: str) -> str:
        size = self.size if self.study.sizes_in_names else ""
        return "-".join(filter(None, [stage, size, self.name]))

    def _of(self, name: str) -> "_EvaluationPlan":
        """Another evaluation of this size."""
        name = "" if name == "evaluation" else name
        return replace(self, name=name, evaluation=self.study.evaluations[name])

    def _measured_models(self, stage: str) -> list[str]:
        """Those asked for that this size has."""
        asked = self.evaluation.models or list(self.trainings)
        field = "models"
        if stage == "influential_tokens":
            asked = self.evaluation.influential_models
            field = "influential_models"
        if names := [name for name in asked if name in self.trainings]:
            return names
        some = ", ".join(self.trainings)
        raise InputError(
            f"{self._command_name(stage)} has no model to measure: name one of {some} in {field}"
        )

    def _measure(self, stage: str) -> Command:
        evaluation = self.evaluation
        if stage == "loss_differences" and evaluation.loss_documents is not None:
            evaluation = replace(evaluation, max_documents=evaluation.loss_documents)
        needed = [self.trainings[name] for name in self._measured_models(stage)]
        checkpoints = [training.folder for training in needed]
        if evaluation.steps:
            checkpoints = [
                folder / f"step{step}-unsharded" for folder in checkpoints for step in evaluation.steps
            ]
        further = ["--context-lengths"] if stage == "length_losses" else []
        if stage == "loss_differences" and evaluation.reference_model:
            reference = self.trainings[evaluation.reference_model]
            needed.append(reference)
            further = ["--reference-model", str(reference.folder)]
        if stage == "length_interference":
            further = flags(evaluation.length_interference)
        return self._measuring(stage, self._command_name(stage), (), checkpoints, further, needed, evaluation)

    def _measuring(
        self,
        stage: str,
        name: str,
        before: Sequence[str],
        checkpoints: Sequence[Path],
        further: Sequence[str],
        models: Sequence[Training],
        evaluation: Evaluation,
        needs: Sequence[str] = (),
    ) -> Command:
        """A measuring stage; it needs the trainings of `models`."""
        where = "--data", self.data, "--checkpoints", *checkpoints, "--results", self.folder("results")
        trained = [model.name for model in models] if self.study.sizes else []
        num_documents = evaluation.max_documents
        num_shards = None
        if num_documents is not None:
            per_shard = evaluation.documents_per_shard or default_documents_per_shard(num_documents)
            num_shards = math.ceil(num_documents / per_shard)
        return Command(
            name,
            f"pipeline/{'loss_differences' if stage == 'length_losses' else stage}.py",
            (*before, *map(str, where), *flags(evaluation, _FLAGS[stage]), *further),
            (self.data_command, *dict.fromkeys(trained), *needs),
            self.study.slurm.measure,
            num_shards,
            evaluation.steps or (),
        )

    def _evaluate_tokens(self) -> list[Command]:
        """The choices of each model that chose, tried on the models of evaluators but itself."""
        evaluation = self.evaluation
        chosen = self if evaluation.choices is None else self._of(evaluation.choices)
        selectors = chosen._measured_models("influential_tokens") if evaluation.evaluators else []
        commands = []
        for selector in selectors:
            names = [name for name in evaluation.evaluators if chosen is not self or name != selector]
            models = [self.trainings[name] for name in names]
            if models:
                of = "--choices", str(chosen.folder("results")), "--choices-of", self.trainings[selector].name
                name = self._command_name("evaluate_tokens") + (f"-of-{selector}" if selectors[1:] else "")
                folders = [model.folder for model in models]
                needs = [chosen._command_name("influential_tokens")]
                commands.append(
                    self._measuring("evaluate_tokens", name, of, folders, (), models, evaluation, needs)
                )
        return commands

    def _long_and_short(self) -> list[str]:
        """Which models are long-context and which short, and at what length, for run_notebooks.py."""
        models = self.study.models
        influential = self.evaluation.influential_models
        measured = self._measured_models("loss_differences")
        longest = max(models[name].train_context_length for name in measured)
        long = [name for name in measured if models[name].train_context_length == longest]
        short = [name for name in measured if name not in long]
        long.sort(key=lambda name: name not in influential)  # the first chose tokens
        full = {name: self.trainings[name].name for name in measured}
        lengths = [f"{full[name]}={models[name].train_context_length}" for name in measured]
        words = ["--long-models", *(full[name] for name in long)]
        words += ["--short-models", *(full[name] for name in short)] if short else []
        return [*words, "--train-context-lengths", *lengths]


def _synthetic_commands(study: SyntheticStudy) -> list[Command]:
    """Those of a study of synthetic tasks, trainings first."""
    run = Path(study.run)
    grids = study.synthetic.grids
    trains = {name: list(_train(study, grid)) for name, grid in grids.items()}
    if empty := [name for name, of_grid in trains.items() if not of_grid]:
        raise InputError(
            f"synthetic.grids.{empty[0]} is empty: coupled and predicted positions need a task with coupled"
            " IDs"
        )
    commands = [command for of_grid in trains.values() for command in of_grid]
    names = [command.name for command in commands]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InputError(f"two of synthetic.grids train {min(twice)}; take it out of one")
    measuring: list[Command] = []
    for name, test in study.synthetic.evaluate_synthetic.items():
        task = task_called(test.get("task", name)).name
        needs = tuple(
            command.name
            for grid in test.get("grids") or trains
            for command in trains[grid]
            if command.arguments[2] == task
        )
        if not needs:
            raise InputError(
                f"synthetic.evaluate_synthetic.{name} tests models that no grid trains: add {task} to a grid"
            )
        checkpoints = [str(run / "models" / model) for model in needs]
        where = "--task", task, "--checkpoints", *checkpoints, "--results", str(run / "results")
        words = flags({name: value for name, value in test.items() if name not in ("grids", "task")})
        command = f"evaluate_synthetic-{name}"
        measuring.append(Command(command, "pipeline/evaluate_synthetic.py", (*where, *words), needs))
    if not measuring:
        return commands
    folders = "--results", str(run / "results"), "--figures", str(run / "figures")
    needs = tuple(command.name for command in measuring)
    arguments = (*folders, "--notebooks", "synthetic_tasks")
    show = Command("run_notebooks", "analysis/run_notebooks.py", arguments, needs)
    return [*commands, *measuring, show]


def _train(study: SyntheticStudy, grid: Grid) -> Iterator[Command]:
    """The trainings of a grid, those of one task together."""
    for task_name in dict.fromkeys(grid.tasks):
        task = task_called(task_name)
        sparsities: Sequence[int | None] = (grid.largest_sparsities if task.has_sparsity else None) or [None]
        for positions in dict.fromkeys(grid.positions):
            if positions in COUPLED_SCHEMES and task.has_sparsity:
                continue
            for k in dict.fromkeys(sparsities):
                for seed in dict.fromkeys(grid.seeds):
                    of_tasks = f"{task_name}{'' if k is None else f'-k{k}'}-{positions}"
                    name = f"{of_tasks}{grid.in_names}-seed{seed}"
                    folder = Path(study.run) / "models" / name
                    what = "--task", task_name, "--positions", positions, "--save-folder", str(folder)
                    of_k = [] if k is None else [f"largest_sparsity={k}"]
                    arguments = (study.synthetic.config, *what, *grid.overrides, *of_k, f"seed={seed}")
                    yield Command(name, "pipeline/train_synthetic.py", arguments)
