"""Run a whole study from a study file: text, models, measurements, figures, a closing table.

A study file (olmo_configs/studies/) says which text, model sizes, lengths, seeds and rules; this program
makes commands of it and runs them one after another, each printed as it would be typed. What has finished is
not run again; where a command fails it stops with that command's exit code, and the same again goes on.
SIGTERM and SIGUSR1 are passed on: training is saved, and the exit code is 75. Any field can be overridden as
field.subfield=value. Paths are relative to the folder that this is typed in; the files of
olmo_configs/studies/ are meant for the repository's root.

on a laptop, 11 minutes on two cores; what `make demo` runs:
  python pipeline/study.py olmo_configs/studies/demo.yaml      # in runs/demo

the same, smaller and elsewhere; and only what it would run, with tokens, FLOPs and hours:
  python pipeline/study.py olmo_configs/studies/demo.yaml run=runs/try sizes.tiny.max_duration=200 \\
      evaluation.max_documents=16
  python pipeline/study.py olmo_configs/studies/demo.yaml --dry-run

on a cluster, the same commands as Slurm jobs, each after those it needs; SCRATCH is a folder there:
  cp slurm/cluster.env.example slurm/cluster.env      # and edit it
  python pipeline/study.py olmo_configs/studies/scale.yaml --slurm
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # typed as a file: run as a module of the repository, from whatever folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from pipeline.start import start

    start(__file__)

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.errors import InputError
from pipeline.stage import fraction, positive_float, stage_parser
from pipeline.studies.commands import Command, Training, commands_of
from pipeline.studies.running import Finished, run_all
from pipeline.studies.slurm_chain import Submit, arguments_of, logs_of, sbatch, submit_chain
from pipeline.studies.study_file import Evaluation, Study, load_study

if TYPE_CHECKING:
    from pipeline.training.configuration import PretrainConfig


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    add("study", type=Path, help="a study file, such as olmo_configs/studies/demo.yaml")
    add("overrides", nargs="*", metavar="field=value", help="fields to set otherwise than the file does")
    add(
        "--dry-run",
        action="store_true",
        help="print every command with its estimate, and their total",
    )
    add("--slurm", action="store_true", help="submit the commands as Slurm jobs, with --dry-run: print them")
    add(
        "--job",
        metavar="NAME",
        help="print, a line each, the folder of the logs and the arguments of the Slurm job of this name, or"
        " of the first of this script; what slurm/job.sh asks for",
    )
    add("--utilization", type=fraction, default=0.4, help="of the peak, as the estimates assume")
    add("--peak-flops", type=positive_float, help="a second, for the estimates; measured if not given")
    # Overrides may stand before, between and after the flags, which plain parse_args does not allow.
    program.parse_args = program.parse_intermixed_args  # type: ignore[method-assign]
    return program


def main(arguments: argparse.Namespace) -> None:
    """Run, print or submit the study.

    Raises:
        InputError: the study cannot run as it says.
        SystemExit: a command failed; with its exit code.
    """
    study = load_study(arguments.study, arguments.overrides)
    commands, finished = commands_of(study), Finished(Path(study.run))
    if arguments.job is not None:
        words = [str(logs_of(study)), *arguments_of(commands, study, arguments.job)]
        sys.stdout.writelines(f"{word}\n" for word in words)
        return
    if any(command.writes and command not in finished for command in commands):
        _refuse_what_cannot_run(study, commands)
    if arguments.slurm:
        submit_chain(commands, study, _print_job if arguments.dry_run else _reported(sbatch(study)))
    elif arguments.dry_run:
        _print_plan(study, commands, finished, arguments)
    else:
        sys.exit(run_all(commands, finished))


def _refuse_what_cannot_run(study: Study, commands: Sequence[Command]) -> None:
    """Check, before hours of work, what the stages would refuse when their turn comes."""
    # Imported late, for a --help at once, and nothing at all once a study has finished.
    from pipeline.studies.costs import data_facts
    from pipeline.training.given_settings import load_config

    facts = data_facts(study.data, Path(study.run) / "data")
    trainings = [command.about for command in commands if isinstance(command.about, Training)]
    configs = {of.name: load_config(of.config, of.overrides, facts) for of in trainings}
    for evaluation in study.evaluations.values():
        _refuse_lengths(evaluation)
        for step in evaluation.steps or ():
            for name, config in configs.items():
                _refuse_step(step, name, config)


def _refuse_step(step: int, name: str, config: "PretrainConfig") -> None:
    """A checkpoint along training must be saved, and kept."""
    interval, num_kept = config.save_interval, config.save_num_unsharded_checkpoints_to_keep
    if not interval or step % interval:
        raise InputError(
            f"step {step} is to be measured, but {name} is saved every {interval} steps; choose multiples of"
            " that, or another save_interval"
        )
    if num_kept is not None and num_kept > 0:
        raise InputError(
            f"step {step} is to be measured, but {name} keeps its last {num_kept} checkpoints only; set"
            " save_num_unsharded_checkpoints_to_keep=null"
        )


def _refuse_lengths(evaluation: Evaluation) -> None:
    from pipeline.influence.context_loss import ContextLengths
    from pipeline.influence.rules import find_rule

    lengths = ContextLengths(
        evaluation.short_context_length, evaluation.long_context_length, evaluation.targets_per_chunk
    )
    fewest = int(lengths.num_far_tokens_T[0])
    if max(evaluation.k) > fewest:
        raise InputError(f"k {max(evaluation.k)} is more than the {fewest} far tokens of the first target")
    for rule in evaluation.rules:
        find_rule(rule)


def _print_plan(
    study: Study, commands: Sequence[Command], finished: Finished, arguments: argparse.Namespace
) -> None:
    from pipeline.studies.costs import Cost, Machine, cost_of, data_facts, in_words

    machine = Machine(arguments.utilization, arguments.peak_flops)
    facts, total = data_facts(study.data, Path(study.run) / "data"), Cost()
    for command in commands:
        cost = cost_of(command, facts, machine)
        total += Cost() if command in finished else cost
        state = ", finished before" if command in finished else ""
        sys.stdout.write(f"# {command.name}: {in_words(cost)}{state}\n{command}\n")
    sys.stdout.write(f"# in all, of what has not finished: {in_words(total)}; at {machine}\n")


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
