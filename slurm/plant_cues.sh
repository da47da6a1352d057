#!/usr/bin/env bash
# Plant cues in tokenized text; what follows goes to pipeline/plant_cues.py:
#   sbatch slurm/plant_cues.sh --data … --out … --context-length … --short-context-length …
#SBATCH --job-name=plant_cues
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --mem=16G
#SBATCH --time=04:00:00
#SBATCH --open-mode=append
source slurm/job.sh || exit 2

run python pipeline/plant_cues.py "$@"
