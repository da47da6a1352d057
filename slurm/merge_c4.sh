#!/usr/bin/env bash
# Merge what the tasks of slurm/tokenize_c4.sh wrote into one data set, or name the missing tasks:
#   sbatch slurm/merge_c4.sh --out …
#SBATCH --job-name=merge_c4
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=16G
#SBATCH --time=01:00:00
#SBATCH --open-mode=append
source slurm/job.sh || exit 2

run python pipeline/tokenize_c4.py --merge "$@"
