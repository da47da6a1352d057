"""The commands that a study means, in an order in which they can run one after another.

Of text:
    <run>/data, <run>/models/<model>                the study's
    <run>/results[/<size>], <run>/figures[/<size>]  of its evaluation, by size: notebooks show a whole folder
    <run>/<name>/data, results, figures             of a further evaluation, likewise
Of synthetic tasks, a training a run, a test a task, the notebooks at the end:
    <run>/models/<task>[-k<K_train>]-<positions>-seed<seed>, <run>/results, <run>/figures
"""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
        return self.program.startswith("pipeline/")

    @property
    def is_measuring(self) -> bool:
        """Whether its documents are shared by as many processes as run."""
        return self.stage in MEASURING

    def words(self) -> list[str]:
        """Program and arguments; the program by its whole path where one is elsewhere than in the root."""
        is_in_root = Path.cwd() == ROOT or Path(self.program).is_file()
        return [self.program if is_in_root else str(ROOT / self.program), *self.arguments]

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
        commands = _synthetic_commands(study, study.synthetic)
    names = [command.name for command in commands]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"two commands of the study are named {twice[0]}; rename or take out one")
    for command in commands:
        for needed in command.needs:
            if needed not in names:
                raise InputError(f"{command.name} needs {needed}, which is no stage of the study")
    return commands


def _text_commands(study: Study) -> list[Command]:
    """Commands of a study of language models: its text, its models, its evaluations, summaries last."""
    data = Path(study.run) / "data"
    commands = [_tokenize("tokenize_c4", study.data, data, study.slurm.tokenize)]
    folders: dict[str, dict[str, str]] = {}
    if not study.sizes:
        if lacking := [name for name, model in study.models.items() if "checkpoint" not in model]:
            raise InputError(f"models.{lacking[0]} has no checkpoint, and the study no sizes to train it in")
        folders[""] = {name: model["checkpoint"] for name, model in study.models.items()}
    for size_name, size in study.sizes.items():
        folders[size_name] = {}
        for name in _known(size.models or study.models, study.models):
            full_name = f"{size_name}-{name}" if study.sizes_in_names else name
            folder = str(Path(study.run) / "models" / full_name)
            folders[size_name][name] = folder
            how = {"max_duration": size.max_duration} if size.max_duration else {}
            overrides = [*_overrides(how), *size.overrides, *_overrides(study.models[name])]
            arguments = (size.config, "--data", str(data), "--save-folder", folder, *overrides)
            commands.append(Command(full_name, "pipeline/pretrain.py", arguments, ("tokenize_c4",)))
    for name, evaluation in study.evaluations.items():
        if evaluation.data is not None:
            # After the study's own text, whose tokenizer this one may be given.
            own = Path(study.run) / name / "data"
            commands.append(_tokenize(_joined("tokenize_c4", name), evaluation.data, own, 1, "tokenize_c4"))
        for size_name, of_size in folders.items():
            size_in_names = size_name if study.sizes_in_names else ""
            commands += _evaluation_commands(study, name, evaluation, size_in_names, of_size)
    # Each summary lists the figures of the evaluations beside it.
    summaries = [command for command in commands if command.stage == "summary"]
    others = [command for command in commands if command.stage != "summary"]
    needs = tuple(command.name for command in others)
    return [*others, *(Command(one.name, one.program, one.arguments, needs) for one in summaries)]


def _tokenize(name: str, text: Mapping[str, Any], out: Path, num_tasks: int, *needs: str) -> Command:
    arguments = ("--out", str(out), *flags(text))
    return Command(name, "pipeline/tokenize_c4.py", arguments, needs, num_tasks)


def _overrides(settings: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items() if value is not None]


def _joined(*parts: str) -> str:
    return "-".join(filter(None, parts))


def _known(names: Collection[str], known: Collection[str], kind: str = "model") -> list[str]:
    """The names; an InputError of one that is not known."""
    for name in names:
        if name not in known:
            raise unknown_name(kind, name, known)
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
    data = run / (name if evaluation.data is not None else "") / "data"
    tokenize = _joined("tokenize_c4", name if evaluation.data is not None else "")
    of_stages = {stage: evaluation.flags.get(stage) or {} for stage in STAGES}
    general = {flag: value for flag, value in evaluation.flags.items() if flag not in STAGES}
    # A further evaluation inherits flags that its own stages may not have, but some stage must.
    _known(general, set().union(*map(_flags_of, MEASURING)), "field of an evaluation")
    measured: list[str] = []
    for stage in _known(evaluation.stages, STAGES, "stage of an evaluation"):
        command_name = _joined(stage, size, name)
        if stage in ANALYSING:
            folder = str(run / name / "figures" / size)
            shown = [] if stage == "summary" else ["--data", str(data)]
            arguments = ("--results", str(results), "--figures", folder, *shown, *flags(of_stages[stage]))
            yield Command(command_name, f"analysis/{stage}.py", arguments, tuple(measured))
            continue
        program = stage
        settings = {**general, **of_stages[stage]}
        if stage == LENGTH_LOSSES:
            program = "loss_differences"
            settings = {**general, "short_context_length": None, "context_lengths": True, **of_stages[stage]}
        asked = _known(settings.pop("models", evaluation.models) or folders, study.models)
        models = [model for model in asked if model in folders]
        if not models:
            raise InputError(f"{command_name} has no model to measure; there are {', '.join(folders)}")
        needs = [tokenize]
        checkpoints = [folders[model] for model in models]
        if reference := settings.get("reference_model"):
            models += _known([reference], folders, "reference_model")
            settings["reference_model"] = folders[reference]
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
        where = "--data", str(data), "--checkpoints", *checkpoints, "--results", str(results)
        # What the stage is given alone reaches its program even if misspelt, which then refuses it.
        takes = _flags_of(program) | of_stages[stage].keys()
        words = flags({flag: value for flag, value in settings.items() if flag in takes})
        yield Command(
            command_name,
            f"pipeline/{program}.py",
            (*where, *words),
            tuple(needs),
            study.slurm.measure,
            evaluation.steps or (),
        )
        measured.append(command_name)


def _synthetic_commands(study: Study, synthetic: Synthetic) -> list[Command]:
    """Commands of a study of synthetic tasks, trainings first."""
    run = Path(study.run)
    commands: list[Command] = []
    trained: dict[tuple[str, str], list[str]] = {}
    """Grid and task -> names of the trainings."""
    for grid_name, grid in synthetic.grids.items():
        sparsities: Sequence[int | None] = grid.largest_sparsities or [None]
        for task, positions, k, seed in product(grid.tasks, grid.positions, sparsities, grid.seeds):
            of_k = [] if k is None else [f"largest_sparsity={k}"]
            name = _joined(task, "" if k is None else f"k{k}", f"{positions}{grid.in_names}", f"seed{seed}")
            where = "--task", task, "--positions", positions, "--save-folder", str(run / "models" / name)
            arguments = (synthetic.config, *where, *grid.overrides, *of_k, f"seed={seed}")
            commands.append(Command(name, "pipeline/train_synthetic.py", arguments))
            trained.setdefault((grid_name, task), []).append(name)
    tests: list[str] = []
    for name, test in synthetic.evaluate_synthetic.items():
        task = test.get("task", name)
        grids = _known(test.get("grids", synthetic.grids), synthetic.grids, f"grid of {name}")
        needs = tuple(model for grid in grids for model in trained.get((grid, task), ()))
        if not needs:
            raise InputError(f"synthetic.evaluate_synthetic.{name} tests models that no grid trains: {task}")
        checkpoints = [str(run / "models" / model) for model in needs]
        where = "--task", task, "--checkpoints", *checkpoints, "--results", str(run / "results")
        tests.append(f"evaluate_synthetic-{name}")
        arguments = (*where, *flags({**test, "task": None, "grids": None}))
        commands.append(Command(tests[-1], "pipeline/evaluate_synthetic.py", arguments, needs))
    if tests:
        folders = "--results", str(run / "results"), "--figures", str(run / "figures")
        arguments = (*folders, "--notebooks", "synthetic_tasks")
        commands.append(Command("run_notebooks", "analysis/run_notebooks.py", arguments, tuple(tests)))
    return commands
