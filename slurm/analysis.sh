#!/usr/bin/env bash
# Run a program of analysis/, or another short one, with its arguments:
#   sbatch slurm/analysis.sh analysis/run_notebooks.py --results … --figures …
#SBATCH --job-name=analysis
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --mem=16G
#SBATCH --time=02:00:00
#SBATCH --open-mode=append
source slurm/job.sh || exit 2

run python "$@"
