#!/usr/bin/env bash
# Submit the whole study that cluster.env names, each job after those it needs. Type it on the login node; what
# follows goes to pipeline/study.py (--dry-run prints the sbatch commands):
#   slurm/submit_all.sh
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ! -f slurm/cluster.env ]]; then
  echo "$PWD/slurm/cluster.env is missing: cp slurm/cluster.env.example slurm/cluster.env, and edit it" >&2
  exit 2
fi
# shellcheck source=slurm/cluster.env.example
source slurm/cluster.env
exec python pipeline/study.py "$STUDY" --slurm "$@"
