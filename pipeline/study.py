"""Run a whole study from a study file: text, models, measurements, figures, a closing table.

A study file (olmo_configs/studies/) says which text, model sizes, lengths, seeds and rules; this program
makes commands of it and runs them, each printed as it would be typed and each after those it needs. --jobs of
them run at once, and as many processes share the documents of a measuring stage; numbers and bytes
do not depend on it. What each reports goes to <run>/logs. Any field can be overridden as
field.subfield=value. All commands are checked before the first one runs.

The fields, and where files are looked for: studies/file.py. With `synthetic` in it, a study file is of
synthetic tasks: a grid of them is trained, tested and asked what decides.

Texts and models that are finished are not made again. Whatever else runs again, and does what is missing:
where a program finds results of other settings or of another text, it refuses them, and nothing is
overwritten. Notebooks and tables are made anew for changed code. The first command that fails stops the rest,
with its exit code; the same again goes on. Ctrl-C, SIGTERM and SIGUSR1 (exit code 75) are passed on, and
training is saved; a second Ctrl-C ends it without.

on a laptop; what `make demo` runs, and the same, smaller and elsewhere:
  python pipeline/study.py olmo_configs/studies/demo.yaml      # in runs/demo
  python pipeline/study.py olmo_configs/studies/demo.yaml run=runs/try sizes.demo.max_duration=200 \\
      evaluation.max_documents=16

only the commands, one a line:
  python pipeline/study.py olmo_configs/studies/demo.yaml --dry-run

on a cluster, the same commands as Slurm jobs, each after those it needs; SCRATCH is a folder there:
  cp slurm/cluster.env.example slurm/cluster.env      # and edit it
  python pipeline/study.py olmo_configs/studies/scale.yaml --slurm
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import product
from typing import Any

from sparsity_length.cli import Asked, InputError, file_path, positive_int, run_stage, stage_parser
from sparsity_length.studies.commands import ANALYSING, Command, commands_of
from sparsity_length.studies.file import load_study
from sparsity_length.studies.run import arguments_of, places, run_all, submit_chain


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add("study", type=file_path, help="a study file, such as olmo_configs/studies/demo.yaml")
    add("overrides", nargs="*", metavar="field=value", help="fields to set otherwise than the file does")
    add("--dry-run", action="store_true", help="print the commands that would run, and run none")
    add(
        "--jobs",
        type=positive_int,
        metavar="N",
        help="commands that run at once (default: one a GPU, or as many as there are cores for the study's"
        " threads)",
    )
    add("--slurm", action="store_true", help="submit the commands as Slurm jobs, with --dry-run: print them")
    add(
        "--job",
        metavar="NAME",
        help="print, a line each, the folder of the logs and the arguments of the Slurm job of this name, or"
        " of the first of this script; what slurm/job.sh asks for",
    )
    # Overrides may stand before, between and after the flags, which plain parse_args does not allow.
    program.parse_args = program.parse_intermixed_args  # type: ignore[method-assign]
    return program


def main(arguments: argparse.Namespace) -> None:
    """Run, print or submit the study; exits with the code of the first command that failed."""
    study = load_study(arguments.study, arguments.overrides)
    commands = commands_of(study)
    if arguments.job is not None:
        # A line each: slurm/job.sh reads them into an array.
        sys.stdout.writelines(f"{word}\n" for word in [study.logs, *arguments_of(commands, arguments.job)])
        return
    left = checked(commands, is_plan=arguments.dry_run)
    if arguments.slurm:
        submit_chain(commands, study, is_plan=arguments.dry_run)
    elif arguments.dry_run:
        sys.stdout.writelines(f"{command}\n" for command in left)
    else:
        sys.exit(run_all(left, places(arguments.jobs, study.threads), study.logs))


def checked(commands: Sequence[Command], *, is_plan: bool) -> list[Command]:
    """The commands that are left: all but those whose text or model is finished, as its program says.

    Refuses what a program would refuse hours later, a model trained with other settings among it; of a plan,
    whatever the text.
    """
    finished: set[str] = set()
    told: dict[str, Any] = {}
    """Name of a command -> what its program tells those that need it."""
    for command in commands:
        if command.stage in ANALYSING:
            continue
        needed = [told[name] for name in command.needs if name in told]
        # Only behind finished ones: what it starts from may still change.
        asked = Asked(needed, finished.issuperset(command.needs), is_plan)
        try:
            program = import_module(f"sparsity_length.programs.{command.stage}")
            is_left, told[command.name] = program.left(program.parser().parse_args(command.arguments), asked)
            if not is_left:
                finished.add(command.name)
            # The checkpoint would be missing once the model is trained, and to have it, it is trained anew.
            intervals = {name: getattr(told.get(name), "save_interval", 1) for name in command.needs}
            for step, (name, interval) in product(command.steps, intervals.items()):
                if not interval or step % interval:
                    raise InputError(
                        f"step {step} is to be measured, but {name} is saved every {interval} steps"
                        " (save_interval)"
                    )
        except InputError as error:
            raise InputError(f"{command.name}: {error}") from error
    return [command for command in commands if command.name not in finished]


if __name__ == "__main__":
    run_stage(parser(), main)
