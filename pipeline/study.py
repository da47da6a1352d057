"""Run a whole study from a study file: text, models, measurements, figures, a closing table.

A study file (olmo_configs/studies/) says which text, model sizes, lengths, seeds and rules; this program
makes commands of it and runs them, each printed as it would be typed and each after those it needs. --jobs of
them run at once, and the documents of the measuring stages are dealt to as many processes; numbers and bytes
do not depend on it. Each writes to <run>/logs. Any field can be overridden as field.subfield=value. All
commands are checked before the first one runs.

Paths are relative to the folder that this is typed in. A study file that is not there is looked for in this
repository; a configuration (sizes.<name>.config), beside the study file and then in this repository.

With `synthetic` in it, a study file is of synthetic tasks: a grid of tasks, position schemes, K_train and
seeds is trained (train_synthetic.py, into <run>/models/<task>[-k<K_train>]-<positions>-seed<seed>), tested
(evaluate_synthetic.py) and asked what decides (found_dependencies.py); fields: studies/file.py.

What has finished is not run again. Where something that it read has another content now (a configuration,
text, tokens, weights), the study is refused, and nothing is overwritten. Changed code is only said, as it may
not matter; notebooks and tables are made anew for it. The first command that fails stops the rest, with its
exit code; the same again goes on. Ctrl-C, SIGTERM and SIGUSR1 (exit code 75) are passed on, and training is
saved. What the study file says at the start is what runs, however it is edited meanwhile.

on a laptop; what `make demo` runs:
  python pipeline/study.py olmo_configs/studies/demo.yaml      # in runs/demo

the same, smaller and elsewhere; and only what it would run, with tokens, FLOPs and hours:
  python pipeline/study.py olmo_configs/studies/demo.yaml run=runs/try sizes.demo.max_duration=200 \\
      evaluation.max_documents=16
  python pipeline/study.py olmo_configs/studies/demo.yaml --dry-run

synthetic tasks, two runs of minutes; and the grids of analysis/reference/synthetic, without one of them:
  python pipeline/study.py olmo_configs/studies/synthetic_demo.yaml      # in runs/demo/synthetic
  python pipeline/study.py olmo_configs/studies/synthetic.yaml synthetic.grids.copy_pose=null

what one model size needs (parameters, optimal tokens, memory, hours), here on an H100; 6 N + 12 L D S FLOPs a
token, of the peak 40 % used, memory by pipeline/training/speed.py:
  python pipeline/study.py olmo_configs/60m.yaml --dry-run --peak-flops 9.89e14

60m and 150m on one GPU, in 40 minutes on an H100 by its own estimate; TEXT is a folder of text:
  TEXT=/data/text python pipeline/study.py olmo_configs/studies/gpu.yaml --dry-run --gpu h100

on a cluster, the same commands as Slurm jobs, each after those it needs; SCRATCH is a folder there:
  cp slurm/cluster.env.example slurm/cluster.env      # and edit it
  python pipeline/study.py olmo_configs/studies/scale.yaml --slurm
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.cli import start

    start(__file__)

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.cli import (
    InputError,
    file_path,
    positive_float,
    positive_fraction,
    positive_int,
    stage_parser,
    unknown_name,
)
from pipeline.studies.commands import Command, commands_of
from pipeline.studies.file import (
    Study,
    SyntheticStudy,
    TextStudy,
    find_study_file,
    is_training_configuration,
    load_study,
)
from pipeline.studies.run import Finished, run_here
from pipeline.studies.slurm import Submit, arguments_of, logs_of, sbatch, submit_chain

if TYPE_CHECKING:
    from pipeline.studies.costs import Forecast, Machine

_OLMO_VOCABULARY = 50_280


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add(
        "study",
        type=file_path,
        help="a study file, such as olmo_configs/studies/demo.yaml; with --dry-run, a configuration too",
    )
    add("overrides", nargs="*", metavar="field=value", help="fields to set otherwise than the file does")
    add(
        "--dry-run",
        action="store_true",
        help="print every command with its estimate, and their total",
    )
    add(
        "--jobs",
        type=positive_int,
        metavar="N",
        help="commands that run at once, fewer where memory does not suffice; if not given, one a GPU, or as"
        " many as there are cores for the study's threads",
    )
    add("--slurm", action="store_true", help="submit the commands as Slurm jobs, with --dry-run: print them")
    add(
        "--job",
        metavar="NAME",
        help="print, a line each, the folder of the logs and the arguments of the Slurm job of this name, or"
        " of the first of this script; what slurm/job.sh asks for",
    )
    add("--utilization", type=positive_fraction, default=0.4, help="of the peak, as the estimates assume")
    add("--peak-flops", type=positive_float, help="a second, for the estimates; measured if not given")
    add("--gpu", metavar="NAME", help="estimate for this GPU by its data sheet: a100, h100 or h200")
    add(
        "--vocabulary-size",
        type=positive_int,
        default=_OLMO_VOCABULARY,
        help="tokens of the tokenizer, where a training configuration is planned; OLMo's",
    )
    # Overrides may stand before, between and after the flags, which plain parse_args does not allow.
    program.parse_args = program.parse_intermixed_args  # type: ignore[method-assign]
    return program


def main(arguments: argparse.Namespace) -> None:
    """Run, print or submit the study.

    Raises:
        InputError: the study cannot run as it says.
        SystemExit: a command failed; with its exit code.
    """
    if arguments.dry_run and is_training_configuration(arguments.study):
        _print_need(arguments)
        return
    study = load_study(arguments.study, arguments.overrides)
    commands, finished = commands_of(study), Finished(Path(study.run))
    if arguments.job is not None:
        words = [str(logs_of(study)), *arguments_of(commands, arguments.job)]
        sys.stdout.writelines(f"{word}\n" for word in words)
        return
    to_run = [command for command in commands if command.writes and command not in finished]
    if arguments.dry_run:
        _print_plan(study, commands, to_run, arguments)
        return
    forecast = None
    if to_run:
        forecast = _checked(study, commands, to_run)
        _refuse_missing_text(study, to_run, arguments)
    if arguments.slurm:
        submit_chain(commands, study, _reported(sbatch(study)))
    else:
        sys.exit(run_here(study, find_study_file(arguments.study), commands, forecast, arguments.jobs))


def _checked(study: Study, commands: Sequence[Command], to_run: Sequence[Command]) -> "Forecast":
    """Check, before hours of work, what stages would refuse; returns what a plan is made from."""
    # Imported late, for a --help at once, and nothing at all once a study has finished.
    if isinstance(study, SyntheticStudy):
        from pipeline.studies.checks import checked_synthetic

        return checked_synthetic(study, commands, to_run)
    from pipeline.studies.checks import checked_text

    assert isinstance(study, TextStudy)
    return checked_text(study, commands, to_run)


def _refuse_missing_text(study: Study, to_run: Sequence[Command], arguments: argparse.Namespace) -> None:
    if not isinstance(study, TextStudy):
        return
    from pipeline.studies.checks import refuse_missing_text

    refuse_missing_text(study, to_run, study.slurm.tokenize if arguments.slurm else 1)


def _print_plan(
    study: Study, commands: Sequence[Command], to_run: Sequence[Command], arguments: argparse.Namespace
) -> None:
    """Print the commands with what they take, or the jobs, and only then look for the text.

    So a study can be planned where its text is not; the last line says what is missing.
    """
    from pipeline.studies.costs import lines_of_plan

    forecast = _checked(study, commands, to_run)
    if arguments.slurm:
        submit_chain(commands, study, _print_job)
    else:
        machine = _machine(arguments)
        for line in lines_of_plan(commands, to_run, forecast, machine):
            sys.stdout.write(f"{line}\n")
    _refuse_missing_text(study, to_run, arguments)


def _print_need(arguments: argparse.Namespace) -> None:
    from pipeline.studies.costs import need_of_run

    machine = _machine(arguments)
    path = find_study_file(arguments.study)
    sys.stdout.write(
        f"{need_of_run(path, arguments.overrides, arguments.vocabulary_size, machine)}; at {machine}\n"
    )


def _machine(arguments: argparse.Namespace) -> "Machine":
    """What is estimated for.

    Raises:
        InputError: there is no data sheet of such a GPU, or a peak is given too.
    """
    from pipeline.studies.costs import Machine
    from pipeline.training.speed import GPUS

    if arguments.gpu is not None and arguments.gpu not in GPUS:
        raise unknown_name("GPU", arguments.gpu, GPUS)
    if arguments.gpu is not None and arguments.peak_flops is not None:
        raise InputError("--gpu and --peak-flops both say how fast the machine is; give one")
    return Machine(arguments.utilization, arguments.peak_flops, arguments.gpu)


def _print_job(name: str, words: Sequence[str]) -> str:
    sys.stdout.write(f"sbatch {shlex.join(words)}\n")
    return name  # stands for the ID that the job will have


def _reported(submit: Submit) -> Submit:
    """Submits, and prints the job's ID."""

    def submit_and_report(name: str, words: Sequence[str]) -> str:
        job_id = submit(name, words)
        sys.stdout.write(f"job {job_id}: sbatch {shlex.join(words)}\n")
        sys.stdout.flush()
        return job_id

    return submit_and_report
