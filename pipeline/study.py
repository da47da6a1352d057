"""Run a whole study from a study file: text, models, measurements, figures, a closing table.

A study file (olmo_configs/studies/) says which text, model sizes, lengths, seeds and rules; this program
makes commands of it and runs them, each printed as it would be typed and each after those it needs. --jobs of
them run at once, and as many processes share the documents of a measuring stage; numbers and bytes
do not depend on it. What each reports goes to <run>/logs. Any field can be overridden as
field.subfield=value. All commands are checked before the first one runs.

The fields, and where files are looked for: studies/file.py. With `synthetic` in it, a study file is of
synthetic tasks: a grid of them is trained, tested and asked what decides.

What is finished is not run again, and what is interrupted goes on: texts, models and measurements alike.
Results of other settings or of another text are refused before anything runs, and nothing is overwritten.
Notebooks and tables are made anew each time. The first command that fails stops the rest, with its exit code;
the same again goes on. Ctrl-C, SIGTERM and SIGUSR1 (exit code 75) are passed on, and
training is saved; a second Ctrl-C ends it without.

on a laptop; what `make demo` runs, and the same, smaller and elsewhere:
  python pipeline/study.py olmo_configs/studies/demo.yaml      # in runs/demo
  python pipeline/study.py olmo_configs/studies/demo.yaml run=runs/try sizes.demo.max_duration=200 \\
      evaluation.max_documents=16

only the commands, one a line:
  python pipeline/study.py olmo_configs/studies/demo.yaml --dry-run

on a cluster, the same commands as Slurm jobs, each after those it needs; SCRATCH is a folder there:
  cp slurm/cluster.env.example slurm/cluster.env      # and edit it
  python pipeline/study.py olmo_configs/studies/scale.yaml --check
  python pipeline/study.py olmo_configs/studies/scale.yaml --slurm
"""

import argparse

from sparsity_length.cli import Stage, file_path, late, positive_int


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The program's command line."""
    add = parser.add_argument
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
        "--check",
        action="store_true",
        help="submit nothing: check that the text is there and that Slurm takes the jobs, and estimate GPU"
        " hours and disk; exit code 1 if Slurm would not run them",
    )
    add(
        "--job",
        metavar="NAME",
        help="print, a line each, the folder of the logs and the arguments of the Slurm job of this name, or"
        " of the first of this script; what slurm/job.sh asks for",
    )


STAGE = Stage(__doc__, add_flags, run=late("sparsity_length.studies.run:study"))

if __name__ == "__main__":
    STAGE.main()
