"""Run a whole study from a study file: text, models, measurements, figures, a closing table.

A study file (olmo_configs/studies/) says which text, model sizes, lengths, seeds and rules; this program
makes commands of it and runs them, each printed as it would be typed and each after those it needs. --jobs of
them run at once, and as many processes share the documents of a measuring stage; numbers and bytes
do not depend on it. Each writes to <run>/logs. Any field can be overridden as field.subfield=value. All
commands are checked before the first one runs.

Paths are relative to the folder that this is typed in. A study file that is not there is looked for in this
repository; a configuration (sizes.<name>.config), beside the study file and then in this repository.

With `synthetic` in it, a study file is of synthetic tasks: a grid of tasks, position schemes, K_train and
seeds is trained (train_synthetic.py, into <run>/models/<task>[-k<K_train>]-<positions>-seed<seed>), tested
(evaluate_synthetic.py) and asked what decides (found_dependencies.py); fields: studies/file.py.

What has finished is not run again, as each program says by itself; where one finds results of other settings
or of another text, the study is refused, and nothing is overwritten. Changed code is only said, as it may not
matter; notebooks and tables are made anew for it. The first command that fails stops the rest, with its exit
code; the same again goes on. Ctrl-C, SIGTERM and SIGUSR1 (exit code 75) are passed on, and training is saved.

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
import json
import logging
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import StringIO
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

from pipeline.cli import (
    InputError,
    file_path,
    positive_float,
    positive_fraction,
    positive_int,
    stage_parser,
    unknown_name,
)
from pipeline.results.files import FolderLock
from pipeline.results.versions import git_commit
from pipeline.studies.commands import (
    Command,
    Measuring,
    TaskMeasuring,
    TaskTraining,
    Tokenizing,
    Training,
    commands_of,
)
from pipeline.studies.file import (
    ROOT,
    Study,
    TextStudy,
    find_study_file,
    is_training_configuration,
    load_study,
)
from pipeline.studies.run import PROCESS_BYTES, gpus_here, run_all, workers
from pipeline.studies.slurm import arguments_of, logs_of, sbatch, submit_chain

if TYPE_CHECKING:
    from pipeline.studies.costs import Checked, Machine

_OLMO_VOCABULARY = 50_280
logger = logging.getLogger("pipeline")


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
        from pipeline.studies.costs import need_of_run

        path, machine = find_study_file(arguments.study), _machine(arguments)
        need = need_of_run(path, arguments.overrides, arguments.vocabulary_size, machine)
        sys.stdout.write(f"{need}\n")
        return
    study = load_study(arguments.study, arguments.overrides)
    commands = commands_of(study)
    if arguments.job is not None:
        words = [str(logs_of(study)), *arguments_of(commands, arguments.job)]
        sys.stdout.writelines(f"{word}\n" for word in words)
        return
    finished = _finished(commands, is_plan=arguments.dry_run)
    to_run = [command for command in commands if _is_stage(command) and command.name not in finished]
    checked = _checked(study, commands, to_run) if to_run or arguments.dry_run else None
    if arguments.dry_run and not arguments.slurm:
        from pipeline.studies.costs import lines_of_plan

        assert checked is not None
        plan = lines_of_plan(commands, finished, checked, _machine(arguments))
        sys.stdout.writelines(f"{line}\n" for line in plan)
    elif arguments.dry_run:
        submit_chain(commands, study, _print_job)
    # After the plan, so that a study can be planned where its text is not.
    _refuse_missing_text(study, to_run, is_on_slurm=arguments.slurm)
    if arguments.dry_run:
        return
    if arguments.slurm:
        submit = sbatch(study)
        submit_chain(commands, study, lambda name, words: _print_job(submit(name, words), words, "job {}: "))
        return
    largest, gpus = 0.0, tuple[str, ...]()
    if checked is not None:
        from pipeline.studies.costs import need_of

        trainings = [command.about for command in commands if isinstance(command.about, Training)]
        largest, gpus = max(need_of(training, checked)[1] for training in trainings), gpus_here()
    with FolderLock(Path(study.run), "run folder, as in run=FOLDER"):
        if finished:
            _warn_of_other_code(Path(study.run))
        places = workers(arguments.jobs, study.threads, PROCESS_BYTES + largest, gpus)
        sys.exit(run_all(commands, finished, places, logs_of(study)))


def _print_job(job_id: str, words: Sequence[str], before: str = "") -> str:
    """In a dry run the job's name stands for the ID that it will have."""
    sys.stdout.write(f"{before.format(job_id)}sbatch {shlex.join(words)}\n")
    sys.stdout.flush()
    return job_id


def _is_stage(command: Command) -> bool:
    """Whether it is not run again; programs of analysis see by themselves what is new."""
    return command.program.startswith("pipeline/")


def _program(command: Command) -> Any:
    return import_module(f"pipeline.{command.stage}")


def _parsed(command: Command, *further: str) -> argparse.Namespace:
    """The arguments of a command, as its program reads them."""

    def refuse(message: str) -> NoReturn:
        raise InputError(message)

    parser = _program(command).parser()
    parser.error = refuse
    return parser.parse_args([*command.arguments, *further])


@contextmanager
def _prefixed(command: Command) -> Iterator[None]:
    """Put the command's name before what its program refuses."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{command.name}: {error}") from error


def _finished(commands: Sequence[Command], *, is_plan: bool) -> set[str]:
    """The names of the commands that have nothing left to do, as their programs say.

    Raises:
        InputError: there are results of other settings or other inputs; a plan only says so.
    """
    finished: set[str] = set()
    logging.disable(logging.INFO)  # what a program says where it finds its work done
    try:
        for command in commands:
            if not _is_stage(command) or not finished.issuperset(command.needs):
                continue
            try:
                with _prefixed(command):
                    finished |= {command.name} if _is_done(command) else set()
            except InputError as error:
                if not is_plan:
                    raise
                logger.warning("%s", error)
    finally:
        logging.disable(logging.NOTSET)
    return finished


def _is_done(command: Command) -> bool:
    program = _program(command)
    if not isinstance(command.about, Measuring):
        return bool(program.is_done(_parsed(command)))
    try:
        with redirect_stdout(StringIO()):
            program.main(_parsed(command, "--status"))
    except SystemExit as ended:
        return not ended.code
    raise AssertionError("--status ends a program")


def _checked(study: Study, commands: Sequence[Command], to_run: Sequence[Command]) -> "Checked":
    """What is known of a study once nothing is left that its programs would refuse, whatever the text.

    Raises:
        InputError: names the command and what would be right.
    """
    from pipeline.studies.costs import Checked, data_facts

    facts = data_facts(study.data, Path(study.run) / "data") if isinstance(study, TextStudy) else None
    configs: dict[str, Any] = {}
    for command in commands:
        about = command.about
        if command not in to_run and not isinstance(about, Training):
            continue
        with _prefixed(command):
            program, arguments = _program(command), _parsed(command)
            if isinstance(about, TaskTraining):
                configs[about.name] = program.check(arguments)
            elif isinstance(about, Training):
                configs[about.name] = program.check(arguments, facts)
            elif isinstance(about, Measuring):
                program.check(arguments)
                _refuse_unsaved_steps(about, configs)
            elif isinstance(about, TaskMeasuring):
                program.check(arguments, {one.name: configs[one.name] for one in about.trainings})
    return Checked(configs, facts)


def _refuse_unsaved_steps(measuring: Measuring, configs: Mapping[str, Any]) -> None:
    """A checkpoint along training must be saved, and kept."""
    from pipeline.training.config import counts_epochs, num_training_steps

    for training in dict.fromkeys(measuring.trainings):
        config = configs[training.name]
        interval, num_kept = config.save_interval, config.save_num_unsharded_checkpoints_to_keep
        num_steps = None
        if not counts_epochs(config.max_duration):
            num_steps = num_training_steps(config.max_duration, config.tokens_per_step, 0)
        for step in measuring.evaluation.steps or ():
            is_saved = bool(interval) and step % interval == 0 and (num_kept or 0) <= 0
            if num_steps is not None and step >= num_steps:
                is_saved = step == num_steps
            if not is_saved:
                raise InputError(
                    f"step {step} is to be measured, but {training.name} has {num_steps or 'unknown'} steps,"
                    f" is saved every {interval} (save_interval) and at its end, keeping {num_kept or 'all'}"
                    " checkpoints (save_num_unsharded_checkpoints_to_keep)"
                )


def _refuse_missing_text(study: Study, to_run: Sequence[Command], *, is_on_slurm: bool) -> None:
    """Refuse a text whose files are not there, that has no end, or a tokenizer that is not the models'.

    Raises:
        InputError: names the command and what would be right.
    """
    data = Path(study.run) / "data"
    for command in to_run:
        if not isinstance(command.about, Tokenizing):
            continue
        with _prefixed(command):
            arguments = _parsed(command)
            if not command.needs:  # the study's own text
                arguments.num_tasks = command.num_tasks if is_on_slurm else 1
            elif arguments.tokenizer.startswith("bpe:"):
                raise InputError(
                    f"tokenizer {arguments.tokenizer} would be another one than the models were trained with;"
                    f" use {data}/tokenizer.json, as in tokenizer: ${{run}}/data/tokenizer.json"
                )
            elif Path(arguments.tokenizer) in (data, data / "tokenizer.json"):
                arguments.tokenizer = "olmo"  # stands for the one that is not there yet
            _program(command).check(arguments)


def _warn_of_other_code(run: Path) -> None:
    """Say once that what is kept was made by other code than there is now, as far as commits tell."""
    from pyarrow.parquet import read_metadata

    commits = {
        json.loads(path.read_text("utf-8"))["git_commit"] for path in run.glob("**/data/manifest.json")
    }
    for folder in run.glob("**/results/**/model=*"):
        for file in islice(folder.glob("*.parquet"), 1):
            commits.add((read_metadata(file).metadata or {}).get(b"git_commit", b"unknown").decode())
    differs = ["git", "diff", "--quiet"]
    others = [
        commit
        for commit in sorted(commits - {git_commit(), "unknown"})
        if git_commit() != "unknown"
        and subprocess.run([*differs, commit, "--", "pipeline"], cwd=ROOT, capture_output=True).returncode
    ]
    if others:
        logger.warning(
            "the code has changed since %s was made (commit %s), and what is there is kept; to make it anew,"
            " choose another run folder, as in run=FOLDER", run, ", ".join(others),
        )  # fmt: skip


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
