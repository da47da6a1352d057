"""The commands that a study means, in an order in which they can run one after another.

Of text:
    <run>/data, <run>/models/<model>                the study's
    <run>/results[/<size>], <run>/figures[/<size>]  of its evaluation, by size: notebooks show a whole folder
    <run>/<name>/data, results, figures             of a further evaluation, likewise
Of synthetic tasks, a training a run, a test a task, the notebooks at the end:
    <run>/models/<task>[-k<K_train>]-<positions>-seed<seed>, <run>/results, <run>/figures
"""

import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

from pipeline.cli import InputError, unknown_name
from pipeline.studies.file import ROOT, Evaluation, Study, Synthetic

MEASURING = ("loss_differences", "influential_tokens", "length_interference", "evaluate_tokens")
"""Programs whose documents are shared by as many processes as run."""
ANALYSING = ("run_notebooks", "summary")
LENGTH_LOSSES = "length_losses"
"""The mode of loss_differences that takes context lengths."""
STAGES = (*MEASURING, LENGTH_LOSSES, *ANALYSING)


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
    """Tasks of its Slurm array, which share its work. None: it is one job, and takes no --num-tasks."""
    steps: Sequence[int] = ()
    """Checkpoints along training that it measures."""

    @property
    def stage(self) -> str:
        """The program's name."""
        return Path(self.program).stem

    @property
    def is_stage(self) -> bool:
        """Whether it is not run again; programs of analysis see by themselves what is new."""
        return self.stage not in ANALYSING

    @property
    def is_measuring(self) -> bool:
        """Whether its documents are shared by as many processes as run."""
        return self.stage in MEASURING

    def words(self) -> list[str]:
        """Program and arguments, as typed in the folder that this is."""
        return [os.path.relpath(ROOT / self.program), *self.arguments]

    def __str__(self) -> str:
        """The line as it would be typed."""
        return shlex.join(["python", *self.words()])


def flags(settings: Mapping[str, Any]) -> list[str]:
    """`--name value …` of every setting that is not null; `--name` if it is true."""
    words = []
    for name, value in settings.items():
        if value is not None and value is not False:
            values = value if isinstance(value, list) else [value] if value is not True else []
            words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return words


def commands_of(study: Study) -> list[Command]:
    """All commands of a study; an InputError where its parts do not fit together."""
    if study.synthetic is None:
        commands = _text_commands(study)
    else:
        commands = list(_synthetic_commands(Path(study.run), study.synthetic))
    names = [command.name for command in commands]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"two commands of the study are named {twice[0]}; rename or take out one")
    for command in commands:
        _known(command.needs, names, f"stage that {command.name} needs:")
    return commands


def _text_commands(study: Study) -> list[Command]:
    """Commands of a study of language models: its text, its models, its evaluations, summaries last."""
    data = Path(study.run) / "data"
    commands = [_tokenize("tokenize_c4", study.data, data, study.slurm.tokenize)]
    folders: dict[str, dict[str, str]] = {}
    """Size -> model -> what --checkpoints is given."""
    if not study.sizes:
        if lacking := [name for name, model in study.models.items() if "checkpoint" not in model]:
            raise InputError(f"models.{lacking[0]} has no checkpoint, and the study no sizes to train it in")
        folders[""] = {name: model["checkpoint"] for name, model in study.models.items()}
    for size_name, size in study.sizes.items():
        folders[size_name] = {}
        for name in _known(size.models or study.models, study.models, "model"):
            full_name = f"{size_name}-{name}" if study.sizes_in_names else name
            folder = str(Path(study.run) / "models" / full_name)
            folders[size_name][name] = folder
            duration = _overrides({"max_duration": size.max_duration})
            overrides = [*duration, *size.overrides, *_overrides(study.models[name])]
            arguments = (size.config, "--data", str(data), "--save-folder", folder, *overrides)
            commands.append(Command(full_name, "pipeline/pretrain.py", arguments, ("tokenize_c4",)))
    for name, evaluation in study.evaluations.items():
        if evaluation.data is not None:
            # After the study's own text, whose tokenizer this one may be given.
            own = Path(study.run) / name / "data"
            commands.append(_tokenize(f"tokenize_c4-{name}", evaluation.data, own, 1, "tokenize_c4"))
        for size_name, of_size in folders.items():
            size_in_names = size_name if study.sizes_in_names else ""
            commands += _evaluation_commands(study, name, evaluation, size_in_names, of_size)
    # Each summary lists the figures of the evaluations beside it.
    others = [command for command in commands if command.stage != "summary"]
    needs = tuple(command.name for command in others)
    return others + [replace(command, needs=needs) for command in commands if command.stage == "summary"]


def _tokenize(name: str, text: Mapping[str, Any], out: Path, num_tasks: int, *needs: str) -> Command:
    arguments = ("--out", str(out), *flags(text))
    return Command(name, "pipeline/tokenize_c4.py", arguments, needs, num_tasks)


def _overrides(settings: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items() if value is not None]


def _joined(*parts: str) -> str:
    return "-".join(filter(None, parts))


def _known(names: Iterable[str], known: Collection[str], kind: str) -> list[str]:
    """The names; an InputError of one that is not known."""
    if unknown := [name for name in names if name not in known]:
        raise unknown_name(kind, unknown[0], known)
    return list(names)


@cache
def _flags_of(program: str) -> set[str]:
    """The names of a program's flags, as fields have them."""
    parser = import_module(f"pipeline.{program}").parser()
    return {action.dest for action in parser._actions}


def _evaluation_commands(
    study: Study, name: str, evaluation: Evaluation, size: str, folders: Mapping[str, str]
) -> Iterator[Command]:
    """The stages of one evaluation for the models of one size, model -> what --checkpoints is given."""
    run = Path(study.run)
    results = run / name / "results" / size
    whose_data = "" if evaluation.data is None else name
    data = run / whose_data / "data"
    general = {flag: value for flag, value in evaluation.flags.items() if flag not in STAGES}
    # A further evaluation inherits flags that its own stages may not have, but some stage must.
    _known(general, set().union(*map(_flags_of, MEASURING)), "field of an evaluation")
    measured: list[str] = []
    for stage in _known(evaluation.stages, STAGES, "stage of an evaluation"):
        command_name = _joined(stage, size, name)
        own = evaluation.flags.get(stage) or {}
        if stage in ANALYSING:
            folder = str(run / name / "figures" / size)
            shown = [] if stage == "summary" else ["--data", str(data)]
            arguments = ("--results", str(results), "--figures", folder, *shown, *flags(own))
            yield Command(command_name, f"analysis/{stage}.py", arguments, tuple(measured))
            continue
        program = stage
        settings = {**general, **own}
        if stage == LENGTH_LOSSES:
            program = "loss_differences"
            settings = {**general, "short_context_length": None, "context_lengths": True, **own}
        asked = _known(settings.pop("models", evaluation.models) or folders, study.models, "model")
        models = [model for model in asked if model in folders]
        checkpoints = [folders[model] for model in models]
        needs = [_joined("tokenize_c4", whose_data)]
        if study.sizes:  # else nothing is trained
            needs += dict.fromkeys(Path(folders[model]).name for model in models)
        if stage == "evaluate_tokens":
            choices = settings.get("choices", name)
            if choices == "evaluation":
                choices = ""
            needs.append(_joined("influential_tokens", size, choices))
            settings["choices"] = str(run / choices / "results" / size)
        if evaluation.steps:
            checkpoints = [f"{one}/step{step}-unsharded" for one in checkpoints for step in evaluation.steps]
        # What the stage is given alone reaches its program even if misspelt, which then refuses it.
        takes = _flags_of(program) | own.keys()
        words = flags({flag: value for flag, value in settings.items() if flag in takes})
        yield Command(
            command_name,
            f"pipeline/{program}.py",
            ("--data", str(data), "--checkpoints", *checkpoints, "--results", str(results), *words),
            tuple(needs),
            study.slurm.measure,
            evaluation.steps or (),
        )
        measured.append(command_name)


def _synthetic_commands(run: Path, synthetic: Synthetic) -> Iterator[Command]:
    """Commands of a study of synthetic tasks, trainings first."""
    trained: list[tuple[str, str, str]] = []
    """Grid, task and name of each training."""
    for grid_name, grid in synthetic.grids.items():
        sparsities: Sequence[int | None] = grid.largest_sparsities or [None]
        for task, positions, k, seed in product(grid.tasks, grid.positions, sparsities, grid.seeds):
            name = _joined(task, "" if k is None else f"k{k}", positions, f"seed{seed}")
            where = "--task", task, "--positions", positions, "--save-folder", str(run / "models" / name)
            overrides = [*grid.overrides, *_overrides({"largest_sparsity": k, "seed": seed})]
            yield Command(name, "pipeline/train_synthetic.py", (synthetic.config, *where, *overrides))
            trained.append((grid_name, task, name))
    folders = "--results", str(run / "results"), "--figures", str(run / "figures")
    tests: list[str] = []
    for name, test in synthetic.evaluate_synthetic.items():
        task = test.get("task", name)
        grids = _known(test.get("grids", synthetic.grids), synthetic.grids, f"grid of {name}")
        models = tuple(model for grid, of_task, model in trained if of_task == task and grid in grids)
        checkpoints = [str(run / "models" / model) for model in models]
        where = "--task", task, "--checkpoints", *checkpoints, *folders[:2]
        tests.append(f"evaluate_synthetic-{name}")
        arguments = (*where, *flags({**test, "task": None, "grids": None}))
        yield Command(tests[-1], "pipeline/evaluate_synthetic.py", arguments, models)
    if tests:
        arguments = (*folders, "--notebooks", "synthetic_tasks")
        yield Command("run_notebooks", "analysis/run_notebooks.py", arguments, tuple(tests))
