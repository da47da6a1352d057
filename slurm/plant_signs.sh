#!/usr/bin/env bash
# Plant signs in tokenized text, for a study with `planted`; what follows goes to pipeline/plant_signs.py:
#   sbatch slurm/plant_signs.sh --data … --out … --context-length … --short-context-length …
#SBATCH --job-name=plant_signs
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=16G
#SBATCH --time=04:00:00
#SBATCH --open-mode=append
source slurm/job.sh || exit 2

run python pipeline/plant_signs.py "$@"
