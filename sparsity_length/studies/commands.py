"""The commands that a study means, in an order in which they can run one after another.

Of text:
    <run>/data, <run>/models/<model>                the study's
    <run>/results[/<size>], <run>/figures[/<size>]  of its evaluation, by size: notebooks show a whole folder
    <run>/<name>/data, results, figures             of a further evaluation, likewise
    <run>[/<name>]/needles/length-<tokens>/data     documents with needles, if an evaluation plants any
Of synthetic tasks, one training per run, one test per task, the notebooks at the end:
    <run>/models/<task>[-k<K_train>]-<positions>-seed<seed>, <run>/results, <run>/figures
"""

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from sparsity_length.cli import PROGRAMS, InputError, stage_of, unknown_name
from sparsity_length.studies.file import Study, Synthetic

MEASURING = tuple(module.rpartition(".")[2] for module in PROGRAMS["measure"])
"""Programs whose documents are shared by as many processes as run."""
ANALYSING = ("run_notebooks", "summary")
"""Programs that are always run again: they see by themselves what is new."""
MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "length_losses": ("loss_differences", {"short_context_length": None, "context_lengths": True})
}
"""Stages that are modes of a program: its name, and the flags that make it so."""
STAGES = (*MEASURING, *MODES, *ANALYSING)
_NO_FLAGS = ("stages", "data", "needles", "models", "steps")
"""Fields of an evaluation that are no flags."""


@dataclass(frozen=True)
class Command:
    """One command line, and what a plan needs to know of it."""

    name: str
    """Different from all others of the study; names its Slurm job."""
    program: str
    """The file, from the repository's root."""
    arguments: Sequence[str]
    needs: tuple[str, ...] = ()
    """Names of commands that must have finished before."""
    num_tasks: int | None = None
    """Tasks of its Slurm array, which share its work. None: it is one job, and takes no --num-tasks."""
    steps: Sequence[int] = ()
    """Checkpoints along training that it measures."""
    part: str = ""
    """Which part of it one process does, if several share it: "-1-of-2"."""

    @property
    def stage(self) -> str:
        """The program's name."""
        return Path(self.program).stem

    def log_in(self, folder: Path) -> Path:
        """The log file of a process that does it, or its part of it."""
        return folder / f"{self.name}{self.part}.log"

    def words(self) -> list[str]:
        """What Python is given; folders are relative to the folder that this is."""
        return ["-m", "sparsity_length", self.stage, *self.arguments]

    def __str__(self) -> str:
        """The line as it would be typed."""
        return shlex.join(["sparsity", self.stage, *self.arguments])


def flags(settings: Mapping[str, Any]) -> list[str]:
    """`--name value …` of every setting that is not null; `--name` if it is true."""
    words = []
    for name, value in settings.items():
        # A flag that is false is left out: argparse knows no --flag false.
        if value is not None and value is not False:
            words.append(f"--{name.replace('_', '-')}")
            if isinstance(value, list):
                words += map(str, value)
            elif value is not True:
                words.append(str(value))
    return words


def commands_of(study: Study) -> list[Command]:
    """All commands of a study; an InputError if its parts do not fit together."""
    made = _synthetic_commands(study, study.synthetic) if study.synthetic else _text_commands(study)
    # Stable: all else stays in order. Each summary lists the figures of the evaluations beside it.
    commands = sorted(made, key=lambda command: command.stage == "summary")
    names = [command.name for command in commands]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(
            f"two commands are named {twice[0]}: sizes need sizes_in_names=true, and no two grids may train"
            " the same task, positions, k and seed"
        )
    for command in commands:
        _known(command.needs, names, f"stage that {command.name} needs:")
    others = tuple(command.name for command in commands if command.stage != "summary")
    return [replace(one, needs=others) if one.stage == "summary" else one for one in commands]


def _text_commands(study: Study) -> Iterator[Command]:
    """Commands of a study of language models: its text, its models, its evaluations."""
    run = Path(study.run)
    yield Command(
        "tokenize_c4",
        "pipeline/tokenize_c4.py",
        flags({"out": run / "data", **study.data}),
        num_tasks=study.slurm.tokenize,
    )
    folders: dict[str, dict[str, str]] = {}
    """Size, as names have it -> model -> what --checkpoints is given."""
    if not study.sizes:
        if lacking := [name for name, model in study.models.items() if "checkpoint" not in model]:
            raise InputError(f"models.{lacking[0]} has no checkpoint, and the study no sizes to train it in")
        folders[""] = {name: model["checkpoint"] for name, model in study.models.items()}
    for size_name, size in study.sizes.items():
        in_names = size_name if study.sizes_in_names else ""
        of_size = folders.setdefault(in_names, {})
        for model in _known(study.models if size.models is None else size.models, study.models, "model"):
            name = _joined(in_names, model)
            folder = str(run / "models" / name)
            of_size[model] = folder
            arguments = [
                size.config,
                *flags({"data": run / "data", "save_folder": folder}),
                *_overrides({"max_duration": size.max_duration}),
                *size.overrides,
                *_overrides(study.models[model]),  # later ones win: what the model says holds for every size
            ]
            yield Command(name, "pipeline/pretrain.py", arguments, ("tokenize_c4",))
    for name, evaluation in {"": study.evaluation, **study.further_evaluations}.items():
        if text := evaluation.get("data"):
            yield Command(
                f"tokenize_c4-{name or 'evaluation'}",
                "pipeline/tokenize_c4.py",
                flags({"out": run / (name or "evaluation") / "data", **text}),
                ("tokenize_c4",),  # whose tokenizer this one may be given
                num_tasks=1,
            )
        if needles := evaluation.get("needles"):
            of_text = (name or "evaluation") if text else ""
            asked = {"document_lengths": evaluation.get("long_context_length"), **needles}
            yield Command(
                _joined("plant_needles", name),
                "pipeline/plant_needles.py",
                flags({"data": run / of_text / "data", "out": run / name / "needles", **asked}),
                (_joined("tokenize_c4", of_text),),
            )
        for in_names, of_size in folders.items():
            if of_size:
                yield from _evaluation_commands(study, name, evaluation, in_names, of_size)


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
    return {action.dest for action in stage_of(program).parser()._actions}


def _evaluation_commands(
    study: Study, name: str, evaluation: Mapping[str, Any], size: str, folders: Mapping[str, str]
) -> Iterator[Command]:
    """The stages of one evaluation for the models of one size, model -> what --checkpoints is given."""
    run = Path(study.run)
    results = run / name / "results" / size
    whose_data = (name or "evaluation") if evaluation.get("data") else ""
    data = run / whose_data / "data"
    needs_data = _joined("tokenize_c4", whose_data)
    if evaluation.get("needles"):
        length = f"length-{evaluation.get('long_context_length')}"
        data = run / name / "needles" / length / "data"
        needs_data = _joined("plant_needles", name)
    steps = evaluation.get("steps") or ()
    general = {flag: value for flag, value in evaluation.items() if flag not in (*_NO_FLAGS, *STAGES)}
    # A further evaluation inherits flags that its own stages may not have, but some stage must.
    _known(general, set().union(*map(_flags_of, MEASURING)), "field of an evaluation")
    stages = _known(evaluation.get("stages") or (), STAGES, "stage of an evaluation")
    measured = tuple(_joined(stage, size, name) for stage in stages if stage not in ANALYSING)
    for stage in stages:
        command_name = _joined(stage, size, name)
        own = evaluation.get(stage) or {}
        if stage in ANALYSING:
            settings = {
                "results": results,
                "figures": run / name / "figures" / size,
                "data": None if stage == "summary" else data,  # a closing table shows no text
                **own,
            }
            yield Command(command_name, f"analysis/{stage}.py", flags(settings), measured)
            continue
        program, mode = MODES.get(stage, (stage, {}))
        settings = {**general, **mode, **own}
        asked = settings.pop("models", evaluation.get("models")) or folders
        # A size may train fewer models than the study names.
        models = [model for model in _known(asked, study.models, "model") if model in folders]
        if not models:
            raise InputError(f"{command_name}: the study's size trains none of the models {', '.join(asked)}")
        checkpoints = [folders[model] for model in models]
        trained = [Path(folders[model]).name for model in models if study.sizes]
        needs = [needs_data, *trained]
        if stage == "evaluate_tokens":
            named = settings.get("choices", name)
            # The first evaluation has no name, and its results lie in <run>/results.
            choices = "" if named == "evaluation" else named
            needs.append(_joined("influential_tokens", size, choices))
            settings["choices"] = run / choices / "results" / size
        along = [f"{one}/step{step}-unsharded" for one in checkpoints for step in steps]
        # What the stage is given alone reaches its program even if misspelt, which then refuses it.
        taken = {flag: settings[flag] for flag in settings if flag in _flags_of(program) | own.keys()}
        yield Command(
            command_name,
            f"pipeline/{program}.py",
            flags({"data": data, "checkpoints": along or checkpoints, "results": results, **taken}),
            tuple(needs),
            num_tasks=study.slurm.measure,
            steps=steps,
        )


def _synthetic_commands(study: Study, synthetic: Synthetic) -> Iterator[Command]:
    """Commands of a study of synthetic tasks: trainings, tests, then the notebooks."""
    run = Path(study.run)
    trained: list[tuple[str, str, str]] = []
    """Grid, task and name of each training."""
    for grid_name, grid in synthetic.grids.items():
        sparsities: Sequence[int | None] = grid.largest_sparsities or [None]
        for task, positions, k, seed in product(grid.tasks, grid.positions, sparsities, grid.seeds):
            name = _joined(task, "" if k is None else f"k{k}", positions, f"seed{seed}")
            arguments = [
                synthetic.config,
                *flags({"task": task, "positions": positions, "save_folder": run / "models" / name}),
                *grid.overrides,
                *_overrides({"largest_sparsity": k, "seed": seed}),
            ]
            yield Command(name, "pipeline/train_synthetic.py", arguments)
            trained.append((grid_name, task, name))
    for name, test in synthetic.evaluate_synthetic.items():
        task = test.get("task", name)
        grids = _known(test.get("grids", synthetic.grids), synthetic.grids, f"grid of {name}")
        models = tuple(model for grid, of_task, model in trained if of_task == task and grid in grids)
        settings = {
            "task": task,
            "checkpoints": [str(run / "models" / model) for model in models],
            "results": run / "results",
            **test,
            "grids": None,
        }
        yield Command(f"evaluate_synthetic-{name}", "pipeline/evaluate_synthetic.py", flags(settings), models)
    if synthetic.evaluate_synthetic:
        settings = {"results": run / "results", "figures": run / "figures", "notebooks": "synthetic_tasks"}
        tests = tuple(f"evaluate_synthetic-{name}" for name in synthetic.evaluate_synthetic)
        yield Command("run_notebooks", "analysis/run_notebooks.py", flags(settings), tests)
