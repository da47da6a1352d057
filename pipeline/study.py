"""Run a whole study from a study file: text, models, measurements, figures, a closing table.

A study file (olmo_configs/studies/) says which text, model sizes, lengths, seeds and rules; this program
makes commands of it and runs them, each printed as it would be typed and each after those it needs. --jobs of
them run at once, and as many processes share the documents of a measuring stage; numbers and bytes
do not depend on it. Each writes to <run>/logs. Any field can be overridden as field.subfield=value. All
commands are checked before the first one runs.

The fields, and where files are looked for: studies/file.py. With `synthetic` in it, a study file is of
synthetic tasks: a grid of them is trained, tested and asked what decides.

What has finished is not run again, as each program says by itself; where one finds results of other settings
or of another text, the study is refused, and nothing is overwritten. Changed code is only said; notebooks and
tables are made anew for it. The first command that fails stops the rest, with its exit code; the same again
goes on. Ctrl-C, SIGTERM and SIGUSR1 (exit code 75) are passed on, and training is saved.

on a laptop; what `make demo` runs, and the same, smaller and elsewhere:
  python pipeline/study.py olmo_configs/studies/demo.yaml      # in runs/demo
  python pipeline/study.py olmo_configs/studies/demo.yaml run=runs/try sizes.demo.max_duration=200 \\
      evaluation.max_documents=16

only what it would run, with tokens, FLOPs and hours; and what one model size needs, here on an H100:
  python pipeline/study.py olmo_configs/studies/demo.yaml --dry-run
  python pipeline/study.py olmo_configs/60m.yaml --dry-run --gpu h100

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

from pipeline.cli import file_path, positive_float, positive_fraction, positive_int, stage_parser
from pipeline.results.files import folder_lock
from pipeline.studies.checks import check_settings, check_text, finished_of, is_stage, warn_of_other_code
from pipeline.studies.commands import Training, commands_of
from pipeline.studies.file import find_study_file, is_training_configuration, load_study
from pipeline.studies.run import PROCESS_BYTES, gpus_here, run_all, workers
from pipeline.studies.slurm import arguments_of, logs_of, sbatch, submit_chain


def parser() -> argparse.ArgumentParser:
    """The program's command line."""
    program = stage_parser(__doc__)
    add = program.add_argument
    # fmt: off
    add("study", type=file_path,
        help="a study file, such as olmo_configs/studies/demo.yaml; with --dry-run, a configuration too")
    add("overrides", nargs="*", metavar="field=value", help="fields to set otherwise than the file does")
    add("--dry-run", action="store_true", help="print every command with its estimate, and their total")
    add("--jobs", type=positive_int, metavar="N",
        help="commands that run at once, fewer where memory does not suffice; if not given, one a GPU, or as"
             " many as there are cores for the study's threads")
    add("--slurm", action="store_true", help="submit the commands as Slurm jobs, with --dry-run: print them")
    add("--job", metavar="NAME",
        help="print, a line each, the folder of the logs and the arguments of the Slurm job of this name, or"
             " of the first of this script; what slurm/job.sh asks for")
    add("--utilization", type=positive_fraction, default=0.4,
        help="of the peak, as the estimates of large models assume; small ones are timed")
    machine = program.add_mutually_exclusive_group().add_argument
    machine("--peak-flops", type=positive_float, help="a second, for the estimates; measured if not given")
    machine("--gpu", choices=("a100", "h100", "h200"), help="estimate for this GPU by its data sheet")
    add("--vocabulary-size", type=positive_int, default=50_280,
        help="tokens of the tokenizer, where a training configuration is planned; OLMo's")
    # fmt: on
    # Overrides may stand before, between and after the flags, which plain parse_args does not allow.
    program.parse_args = program.parse_intermixed_args  # type: ignore[method-assign]
    return program


def main(arguments: argparse.Namespace) -> None:
    """Run, print or submit the study; exits with the code of the first command that failed."""
    speed = arguments.utilization, arguments.peak_flops, arguments.gpu
    if arguments.dry_run and is_training_configuration(arguments.study):
        from pipeline.studies.costs import Machine, need_of_run

        path = find_study_file(arguments.study)
        need = need_of_run(path, arguments.overrides, arguments.vocabulary_size, Machine(*speed))
        sys.stdout.write(f"{need}\n")
        return
    study = load_study(arguments.study, arguments.overrides)
    commands, run = commands_of(study), Path(study.run)
    if arguments.job is not None:
        words = [str(logs_of(study)), *arguments_of(commands, arguments.job)]
        sys.stdout.writelines(f"{word}\n" for word in words)
        return
    finished = finished_of(commands, is_plan=arguments.dry_run)
    to_run = [command for command in commands if is_stage(command) and command.name not in finished]
    checked = check_settings(study, commands, to_run) if to_run or arguments.dry_run else None
    if arguments.dry_run and not arguments.slurm:
        import torch

        from pipeline.studies.costs import Machine, lines_of_plan

        assert checked is not None
        torch.set_num_threads(study.threads)  # as its commands have
        machine = Machine(*speed, num_jobs=workers(arguments.jobs, study.threads).number)
        plan = lines_of_plan(commands, finished, checked, machine)
        sys.stdout.writelines(f"{line}\n" for line in plan)
    elif arguments.dry_run:
        submit_chain(commands, study, None)
    # After the plan, so that a study can be planned where its text is not.
    check_text(study, to_run, is_on_slurm=arguments.slurm)
    if arguments.dry_run:
        return
    if arguments.slurm:
        submit_chain(commands, study, sbatch(study))
        return
    largest, gpus = 0.0, tuple[str, ...]()
    if checked is not None:
        from pipeline.studies.costs import need_of

        trainings = [command.about for command in commands if isinstance(command.about, Training)]
        largest, gpus = max(need_of(training, checked)[1] for training in trainings), gpus_here()
    with folder_lock(run, "run folder, as in run=FOLDER"):
        if finished:
            warn_of_other_code(run)
        places = workers(arguments.jobs, study.threads, PROCESS_BYTES + largest, gpus)
        sys.exit(run_all(commands, finished, places, logs_of(study)))
