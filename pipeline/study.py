"""Run a whole study from one file: text, models, measurements, figures, a closing table.

A study file (see olmo_configs/studies/) names the text, model sizes, context lengths, seeds and rules. This
program turns it into commands and runs each one after the commands it needs, printing it as you would type
it. It checks all commands before the first one runs. --jobs commands run at once, and as many processes share
the documents of a measuring program; numbers and bytes do not depend on --jobs. Each command logs to
<run>/logs. Any field can be overridden as field.subfield=value.

sparsity_length/studies/file.py documents the fields and where files are looked for. A study file with the
field `synthetic` is about synthetic tasks: it trains and tests a grid of models.

Finished commands are not run again, and interrupted ones resume. Results made with other settings or from
another text are refused before anything runs; nothing is overwritten. Notebooks and tables are always made
anew. If a command fails, the study stops with that command's exit code; run it again to resume. Ctrl-C,
SIGTERM and SIGUSR1 are passed on to the commands, trainings save what they have, and the exit code is 75. A
second Ctrl-C, or one after a command has failed, ends everything without saving.

On a laptop (the study of `make demo`, then a smaller one elsewhere):
  sparsity study olmo_configs/studies/demo.yaml
  sparsity study olmo_configs/studies/demo.yaml run=runs/try sizes.demo.max_duration=200 \\
      evaluation.max_documents=16

To see the commands only, one per line:
  sparsity study olmo_configs/studies/demo.yaml --dry-run

On a cluster, in a checkout, the same commands as Slurm jobs that wait for each other:
  cp slurm/cluster.env.example slurm/cluster.env      # edit it first
  source slurm/cluster.env
  sparsity study olmo_configs/studies/demo.yaml --check
  sparsity study olmo_configs/studies/demo.yaml --slurm
"""

import argparse

from sparsity_length.cli import Stage, file_path, late, positive_int


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The program's command line."""
    add = parser.add_argument
    add("study", type=file_path, help="study file, such as olmo_configs/studies/demo.yaml")
    add("overrides", nargs="*", metavar="field=value", help="values that override fields of the file")
    add("--dry-run", action="store_true", help="print the commands that would run, without running them")
    add(
        "--jobs",
        type=positive_int,
        metavar="N",
        help="number of commands to run at once (default: one per GPU; without GPUs, the number of cores"
        " divided"
        " by the study's threads)",
    )
    add(
        "--slurm",
        action="store_true",
        help="submit the commands as Slurm jobs; with --dry-run, print the jobs",
    )
    add(
        "--check",
        action="store_true",
        help="submit nothing: estimate GPU hours and disk, and check that the text is there and that Slurm"
        " takes the jobs; exit code 1 if something is missing",
    )
    add(
        "--job",
        metavar="NAME",
        help="print the log folder and then the arguments of the Slurm job NAME, one per line (or of the"
        " first"
        " job that runs slurm/NAME.sh); slurm/job.sh calls this",
    )


STAGE = Stage(__doc__, add_flags, run=late("sparsity_length.studies.run:study"))

if __name__ == "__main__":
    STAGE.main()
