#!/usr/bin/env bash
# Submit the whole study that cluster.env names, each job after those it needs. Run it on the login node; arguments go
# to pipeline/study.py:
#   slurm/submit_all.sh --check        checks text and jobs, and estimates GPU hours and disk
#   slurm/submit_all.sh --dry-run      prints the sbatch commands
#   slurm/submit_all.sh
cd "$(dirname "$0")/.." || exit 2
if [[ ! -f slurm/cluster.env ]]; then
  echo "$PWD/slurm/cluster.env is missing: cp slurm/cluster.env.example slurm/cluster.env, and edit it" >&2
  exit 2
fi
# Before `set -u`, which `module load`, conda and a node without USER do not survive.
# shellcheck source=slurm/cluster.env.example
source slurm/cluster.env
set -euo pipefail
exec python pipeline/study.py "$STUDY" --slurm "$@"
